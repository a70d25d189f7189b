//! Sending: where packets go that a function transmits.
//!
//! Each CPU has a queue of its own to each output, so nobody waits for a lock. What a batch transmits is sent once its
//! handler has returned, in the order in which it arrived, and before the batch counts as finished: a flow that moves to
//! another CPU is not sent from there before all that was sent here has left.

mod account;

use std::fmt;
use std::sync::Arc;

use steerage_mem::ring::{Frame, Frames};
use steerage_mem::{Completion, Kept, Page, Region, Segments};

use crate::cpu::CpuId;
use crate::device_name::DeviceName;
use crate::ledger::{DropReason, TxLedger};
use crate::packet::{Received, Verdict, received};
use crate::platform::Timestamp;
use crate::pool::SharedPool;
use crate::rx::DeviceError;
use crate::shared::OutputInfo;

pub(crate) use account::{Deferred, Settled};
pub use account::{TxAccount, TxSource};

/// An output, by its number in the order in which the [`Builder`](crate::Builder) was given them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u8);

/// One CPU's way into an output: what a device that sends implements.
pub trait TxQueue: Send {
    /// How many of the pool's pages it wants for itself, to send from: so many more are there. Asked once, before the first
    /// packet.
    fn pages_max(&self) -> usize {
        0
    }

    /// Its pages, and the region that they and all others of the pool are of: told once, before the first packet, to each
    /// queue that wants pages.
    ///
    /// # Errors
    /// Where the device cannot work with them.
    fn mapped(&mut self, region: &Arc<Region>, pages: Vec<Page>) -> Result<(), DeviceError> {
        let _ = (region, pages);
        Ok(())
    }

    /// Whether it takes packets that it finishes later ([`Sent::deferred`]); if so it keeps the account, in which it then says
    /// what became of each of them. Asked once, before the first packet.
    fn defers(&mut self, account: TxAccount) -> bool {
        let _ = account;
        false
    }

    /// Whether a batch that comes now would find room. Asked only if the queue [defers](Self::defers), and before a batch is
    /// handled whose source can wait: such a batch waits until all of the CPU's outputs have room. An output that takes nothing
    /// any more must not say no for ever.
    fn has_room(&self) -> bool {
        true
    }

    /// Sends packets, in their order, and has done with them when it returns: it copies those that it cannot send at once, or
    /// takes their pages for some of its own ([`OutgoingPacket::swap`]).
    /// Must not block, nor allocate once warm. Called once for each batch that has packets for it.
    ///
    /// # Errors
    /// An error ends this CPU's queue: what is transmitted to it from then on is refused. So is all of this batch.
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError>;

    /// Lets go of what was held back for company: called when this CPU has nothing else to do, and at its end, if packets were
    /// sent since. What another CPU sends later, of the same flow, must not leave before what is held back here.
    ///
    /// # Errors
    /// As [`send`](Self::send); what was held back has been counted as sent.
    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// It is over, or it failed: the pages that it has go to `pages`. One that is missing is out of use until the region ends.
    fn close(&mut self, pages: &mut Vec<Page>) {
        let _ = pages;
    }
}

/// What became of the packets that were to be sent. Those in none of the counts found no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Given to the device.
    pub packets: u64,
    /// Their bytes, of link header and all.
    pub bytes: u64,
    /// Not such as the device can send: too long, of another link type.
    pub refused: u64,
    /// Taken, to be finished later: they are in flight until the device's [`TxAccount`] says what became of them.
    pub deferred: u64,
}

/// Makes an output's queue for a CPU.
pub type OpenTx = Box<dyn FnMut(CpuId) -> Result<Box<dyn TxQueue>, DeviceError> + Send>;

/// A device to send by, as given to the builder.
pub struct Output {
    /// Its name: what the user called it, or what it is called now.
    pub name: DeviceName,
    /// What it is: `pcap`.
    pub kind: &'static str,
    /// Makes its queues, one for each CPU, when the instance is built.
    pub open: OpenTx,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.kind)
    }
}

/// The packets of a batch that go to one output.
pub struct Outgoing<'a> {
    pub(crate) frames: Frames<'a>,
    pub(crate) verdicts: std::slice::Iter<'a, Verdict>,
    pub(crate) copies: std::slice::Iter<'a, Option<Kept>>,
    pub(crate) to: TxId,
    pub(crate) now: Timestamp,
    pub(crate) source: TxSource,
}

impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing packets to output {}", self.to.0)
    }
}

impl<'a> Outgoing<'a> {
    /// The time at which the batch was begun.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Where the packets came from: what a device that finishes them later tells its [`TxAccount`].
    pub fn source(&self) -> TxSource {
        self.source
    }

    /// The next packet. Not an `Iterator`, since a packet is read where it lies and only until the next.
    pub fn next_packet(&mut self) -> Option<OutgoingPacket<'a>> {
        loop {
            let frame = self.frames.next()?;
            let copy = self.copies.next().and_then(Option::as_ref);
            if *self.verdicts.next()? == Verdict::Transmitted(self.to) {
                return Some(OutgoingPacket { frame, copy });
            }
        }
    }
}

/// A packet on its way out.
#[derive(Debug)]
pub struct OutgoingPacket<'a> {
    frame: Frame<'a>,
    /// Where a lent frame was written.
    copy: Option<&'a Kept>,
}

impl OutgoingPacket<'_> {
    /// What there is to send, and what its own device noted of it.
    #[inline]
    pub fn received(&self) -> Received<'_> {
        received(&self.frame, self.copy)
    }

    /// The bytes to send, part by part: [`received`](Self::received) has the first.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        self.copy.map_or_else(|| self.frame.segments(), Kept::segments)
    }

    /// Takes the packet with the pages that it lies in, in exchange for as many of `pages`, from their end: to send from there
    /// without a copy. The packet is then empty. `None`, and nothing is taken, where there are not as many, or it lies in none, or
    /// in some of other memory.
    #[inline]
    pub fn swap(&mut self, pages: &mut Vec<Page>) -> Option<Completion> {
        if self.copy.is_some() { None } else { self.frame.swap(pages) }
    }
}

/// One CPU's queue to an output, and what is counted of it.
pub(crate) struct OwnedTx {
    name: DeviceName,
    /// Gone once it failed.
    queue: Option<Box<dyn TxQueue>>,
    ledger: Arc<TxLedger>,
    pool: Option<Arc<SharedPool>>,
    /// Packets were sent since it was last flushed.
    unflushed: bool,
    /// It takes packets that it finishes later.
    defers: bool,
}

/// What became of a batch's packets for one output.
pub(crate) struct Fate {
    pub(crate) sent: u64,
    /// Taken by the output, which settles them itself.
    pub(crate) deferred: u64,
    pub(crate) dropped: [(DropReason, u64); 2],
}

impl OwnedTx {
    /// Sends the batch's `count` packets that are for it.
    pub(crate) fn send(&mut self, count: u64, packets: &mut Outgoing<'_>) -> Fate {
        let source = packets.source;
        let sent = self.queue.as_mut().map(|queue| queue.send(packets));
        let sent = sent.and_then(|sent| self.unless_failed(sent)).unwrap_or(Sent { refused: count, ..Sent::default() });
        self.unflushed = true;
        self.ledger.packets.add(sent.packets);
        self.ledger.bytes.add(sent.bytes);
        // A device that counts more than it was given is wrong; the ledger balances all the same.
        let left = count.saturating_sub(sent.packets);
        let deferred = if self.defers { sent.deferred.min(left) } else { 0 };
        if let Some(account) = self.ledger.deferred.as_ref().filter(|_| deferred > 0) {
            account.take(source, deferred);
        }
        let left = left - deferred;
        let refused = sent.refused.min(left);
        let dropped = [(DropReason::TxRefused, refused), (DropReason::TxFull, left - refused)];
        for (reason, packets) in dropped.into_iter().filter(|(_, packets)| *packets > 0) {
            self.ledger.dropped.add(reason, packets);
        }
        Fate { sent: count - deferred - left, deferred, dropped }
    }

    /// Whether a source that can wait should wait for it.
    pub(crate) fn is_full(&self) -> bool {
        self.defers && self.queue.as_ref().is_some_and(|queue| !queue.has_room())
    }

    /// How many pages its queue wants.
    pub(crate) fn pages_max(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.pages_max())
    }

    /// Gives its queue as many.
    pub(crate) fn map(&mut self, region: &Arc<Region>, pool: &Arc<SharedPool>) -> Result<(), DeviceError> {
        let (mut pages, wanted) = (Vec::new(), self.pages_max());
        pool.take_out(&mut pages, wanted);
        self.pool = Some(Arc::clone(pool));
        match &mut self.queue {
            Some(queue) if wanted > 0 => queue.mapped(region, pages),
            _ => Ok(()),
        }
    }

    /// Ends it; its pages go home.
    pub(crate) fn close(&mut self) {
        if let (Some(mut queue), Some(pool)) = (self.queue.take(), &self.pool) {
            let mut pages = Vec::new();
            queue.close(&mut pages);
            pool.give_back(&mut pages);
        }
    }

    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            let flushed = self.queue.as_mut().map(|queue| queue.flush());
            flushed.and_then(|flushed| self.unless_failed(flushed));
        }
    }

    /// A failure ends it.
    fn unless_failed<T>(&mut self, result: Result<T, DeviceError>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        tracing::error!(device = %self.name, "{error}");
        self.ledger.failed(&error);
        self.close();
        None
    }
}

/// Makes each CPU's queue to each output. Returns by output what is known of it, and by CPU its queues.
pub(crate) fn open_outputs(
    outputs: Vec<Output>,
    cpus: &[CpuId],
    queues: usize,
) -> Result<(Vec<OutputInfo>, Vec<Vec<OwnedTx>>), DeviceError> {
    let mut sends: Vec<Vec<OwnedTx>> = cpus.iter().map(|_| Vec::new()).collect();
    let mut infos = Vec::with_capacity(outputs.len());
    for Output { name, kind, mut open } in outputs {
        let mut ledgers = Vec::with_capacity(cpus.len());
        for (cpu, sends) in cpus.iter().zip(&mut sends) {
            let mut queue = open(*cpu)?;
            // What CPUs make themselves is a source as well.
            let deferring = Arc::new(TxLedger::deferring(queues + 1));
            let defers = queue.defers(TxAccount::new(&deferring));
            let ledger = if defers { deferring } else { Arc::default() };
            ledgers.push(Arc::clone(&ledger));
            let (queue, name) = (Some(queue), name.clone());
            sends.push(OwnedTx { name, queue, ledger, pool: None, unflushed: false, defers });
        }
        infos.push(OutputInfo { name, kind, ledgers });
    }
    Ok((infos, sends))
}
