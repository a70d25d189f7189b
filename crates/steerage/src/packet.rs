//! Packets: metadata built on the CPU that uses it, when it uses it.

mod shape;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use steerage_mem::hash::FlowHash;
use steerage_mem::ring::{Consumer, Frame, Frames};
use steerage_mem::{FrameHeader, Home, Kept, Page};

use crate::handler::BucketId;
use crate::hashing::Hashing;
use crate::limits::{HANDLE_BUDGET, HEADROOM, OUTPUTS_MAX, POOL_BULK};
use crate::platform::{Timestamp, WallTime};
use crate::pool::SharedPool;
use crate::rps_map::bucket_of;
use crate::rx::LinkType;
use crate::tx::{Outgoing, TxId, TxSource};

/// What was done with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet: consumed, once the handler returns.
    #[default]
    Open,
    Discarded,
    Kept,
    Transmitted(TxId),
}

/// There is no page to spare, too many packets are kept already, or a packet's page does not reach so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room in the packet's page, or no page to spare: raise kept_max or release some that are kept")
    }
}

impl std::error::Error for NoRoom {}

/// What a batch's packets share.
pub(crate) struct BatchContext<'a> {
    pub(crate) lent: bool,
    pub(crate) group: u16,
    pub(crate) queue: usize,
    /// What the queue's frames begin with, where a frame does not say so itself.
    pub(crate) home: &'a Arc<Home>,
    pub(crate) spare: &'a Spare,
    pub(crate) hashing: &'a Hashing,
}

/// What is done with a batch's packets, slot by slot: kept outside of the handler's reach, so that it outlives a panic.
#[derive(Debug)]
pub(crate) struct Actions {
    verdicts: [Verdict; HANDLE_BUDGET],
    /// Writable copies of lent frames.
    copies: Vec<Option<Kept>>,
    /// Whether anything was done at all: most functions just read.
    acted: Cell<bool>,
}

impl Actions {
    pub(crate) fn new() -> Self {
        Self {
            verdicts: [Verdict::Open; HANDLE_BUDGET],
            copies: (0..HANDLE_BUDGET).map(|_| None).collect(),
            acted: Cell::new(false),
        }
    }

    /// Makes ready for the next batch; copies go home.
    pub(crate) fn clear(&mut self) {
        if self.acted.take() {
            self.verdicts = [Verdict::Open; HANDLE_BUDGET];
            self.copies.fill_with(|| None);
        }
    }

    /// Whether anything was done with a packet of the batch.
    pub(crate) fn any(&self) -> bool {
        self.acted.get()
    }

    /// What was done with the first `count` packets.
    pub(crate) fn tally(&self, count: usize) -> Tally {
        let mut tally = Tally { discarded: 0, kept: 0, transmitted: [0; OUTPUTS_MAX] };
        for verdict in &self.verdicts[..count] {
            match verdict {
                Verdict::Open => {}
                Verdict::Discarded => tally.discarded += 1,
                Verdict::Kept => tally.kept += 1,
                Verdict::Transmitted(to) => tally.transmitted[usize::from(to.0)] += 1,
            }
        }
        tally
    }

    /// The packets of `frames` that go to an output.
    pub(crate) fn outgoing<'a>(&'a self, frames: Frames<'a>, to: TxId, when: (Timestamp, TxSource)) -> Outgoing<'a> {
        let (now, source) = when;
        Outgoing { frames, verdicts: self.verdicts.iter(), copies: self.copies.iter(), to, now, source }
    }
}

/// What was done with the packets of a batch: how many of each.
pub(crate) struct Tally {
    pub(crate) discarded: u64,
    pub(crate) kept: u64,
    /// By output, of those too that there aren't. A batch fits a byte.
    pub(crate) transmitted: [u8; OUTPUTS_MAX],
}

const _: () = assert!(HANDLE_BUDGET <= u8::MAX as usize && OUTPUTS_MAX > u8::MAX as usize);

/// Pages for copies of lent frames: one CPU's, from the shared pool in bulk.
#[derive(Debug)]
pub(crate) struct Spare {
    pages: RefCell<Vec<Page>>,
    shared: Arc<SharedPool>,
}

impl Spare {
    pub(crate) fn new(shared: Arc<SharedPool>) -> Self {
        Self { pages: RefCell::new(Vec::new()), shared }
    }

    /// A page: of those that are here, of the shared pool, or of those that came home to `home` and that the queue's owner,
    /// asleep perhaps, has not collected.
    fn take(&self, home: &Home) -> Option<Page> {
        let mut pages = self.pages.borrow_mut();
        if pages.is_empty() {
            self.shared.take_or_collect(&mut pages, POOL_BULK, home);
        }
        pages.pop()
    }

    fn put(&self, page: Page) {
        self.pages.borrow_mut().push(page);
    }

    pub(crate) fn close(&self) {
        self.shared.give_back(&mut self.pages.borrow_mut());
    }
}

/// Up to [`HANDLE_BUDGET`](crate::HANDLE_BUDGET) packets of one queue, in the order in which they arrived.
pub struct Batch<'a> {
    frames: &'a mut Consumer,
    actions: &'a mut Actions,
    context: BatchContext<'a>,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch of {} packets of queue {}", self.len(), self.queue())
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(frames: &'a mut Consumer, actions: &'a mut Actions, context: BatchContext<'a>) -> Self {
        Self { frames, actions, context }
    }

    /// How many packets.
    pub fn len(&self) -> usize {
        self.frames.in_hand()
    }

    /// Whether there are none: never, when a handler is called.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The receive queue that they came by, numbered over all inputs from 0.
    pub fn queue(&self) -> usize {
        self.context.queue
    }

    /// Gives `read` those packets that are as most are: Ethernet frames in one part, with what the device noted of them. It gets
    /// each with its number in the batch, and says whether it is done with it. Returns a bit for each of the others, for which to go
    /// [one by one](Self::iter_mut).
    ///
    /// For functions that read all of a batch before they do anything: about half of what it costs to go through all one by one.
    #[inline(always)]
    pub fn read_common(&mut self, read: impl FnMut(usize, &[u8], FrameHeader) -> bool) -> u64 {
        const _: () = assert!(HANDLE_BUDGET <= u64::BITS as usize, "each packet of a batch has a bit");
        // What was written lies elsewhere.
        if self.actions.acted.get() {
            return ((1_u128 << self.len().min(HANDLE_BUDGET)) - 1) as u64;
        }
        self.frames.read_common(LinkType::ETHERNET.code(), read)
    }

    /// The packets. Called again, it starts over; what was done with a packet stays done, and one that was kept is empty.
    pub fn iter_mut(&mut self) -> Packets<'_> {
        let Actions { verdicts, copies, acted } = &mut *self.actions;
        Packets {
            frames: self.frames.frames(),
            verdicts: verdicts.iter_mut(),
            copies: self.context.lent.then(|| copies.iter_mut()),
            acted,
            context: &self.context,
        }
    }
}

/// Walks the packets of a batch.
pub struct Packets<'a> {
    frames: Frames<'a>,
    verdicts: std::slice::IterMut<'a, Verdict>,
    /// Only where frames are lent: others are written where they are.
    copies: Option<std::slice::IterMut<'a, Option<Kept>>>,
    acted: &'a Cell<bool>,
    context: &'a BatchContext<'a>,
}

impl fmt::Debug for Packets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets", self.frames.len())
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        let frame = self.frames.next()?;
        let verdict = self.verdicts.next()?;
        let copy = self.copies.as_mut().and_then(Iterator::next);
        Some(Packet { frame, verdict, copy, acted: self.acted, context: self.context })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.frames.size_hint()
    }
}

impl ExactSizeIterator for Packets<'_> {}

/// Of a frame, which may have been written elsewhere.
#[inline(always)]
pub(crate) fn received<'p>(frame: &'p Frame<'_>, written: Option<&'p Kept>) -> Received<'p> {
    let (header, data) = match written {
        Some(copy) => (copy.header(), &**copy),
        None => frame.with_header(),
    };
    let link = match LinkType::of_code(frame.link()) {
        LinkType::UNKNOWN => header.map_or(LinkType::UNKNOWN, |header| LinkType(header.link)),
        read => read,
    };
    let total_len = if frame.is_chained() { frame.total_len() } else { data.len() };
    let (time, wire_len) = header.map_or((None, total_len), |header| (time_of(&header), header.wire_len as usize));
    Received { data, total_len, link, time, wire_len }
}

#[inline(always)]
fn time_of(header: &FrameHeader) -> Option<WallTime> {
    (header.nanos != FrameHeader::NO_TIME).then_some(WallTime::from_nanos(header.nanos))
}

/// One packet, for as long as its batch. It has no `Drop`: letting go of it means that it was consumed.
pub struct Packet<'a> {
    frame: Frame<'a>,
    verdict: &'a mut Verdict,
    copy: Option<&'a mut Option<Kept>>,
    acted: &'a Cell<bool>,
    context: &'a BatchContext<'a>,
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet of {} bytes", self.total_len())
    }
}

/// What there is to read of a packet: see [`Packet::received`].
#[derive(Clone, Copy, Debug)]
pub struct Received<'p> {
    /// The frame, as [`Packet::data`].
    pub data: &'p [u8],
    /// As [`Packet::total_len`].
    pub total_len: usize,
    /// As [`Packet::link`].
    pub link: LinkType,
    /// As [`Packet::time`].
    pub time: Option<WallTime>,
    /// As [`Packet::wire_len`].
    pub wire_len: usize,
}

impl Packet<'_> {
    /// The frame, from its link header on: of one in several [parts](Self::segments) the first, which the headers are in.
    #[inline]
    pub fn data(&self) -> &[u8] {
        match self.written() {
            Some(copy) => copy,
            None => self.frame.bytes(),
        }
    }

    /// The copy of a lent frame that was written.
    #[inline(always)]
    fn written(&self) -> Option<&Kept> {
        // Most functions just read: then no copy is looked for.
        if !self.acted.get() {
            return None;
        }
        self.copy.as_deref().and_then(Option::as_ref)
    }

    /// The frame and what the device noted of it, all at once: for functions that want most of it of every packet, at half
    /// of what it costs to ask for one after the other.
    #[inline(always)]
    pub fn received(&self) -> Received<'_> {
        received(&self.frame, self.written())
    }

    /// What [`data`](Self::data) gives, to be written. A frame in lent memory is copied to a page first.
    ///
    /// # Errors
    /// [`NoRoom`] if there is no page for the copy, or the frame is longer than one.
    pub fn data_mut(&mut self) -> Result<&mut [u8], NoRoom> {
        if !self.frame.is_lent() {
            return self.frame.bytes_mut().ok_or(NoRoom);
        }
        self.copy_mut().map(|copy| &mut **copy)
    }

    /// The writable copy of a lent frame.
    fn copy_mut(&mut self) -> Result<&mut Kept, NoRoom> {
        if !matches!(self.copy, Some(Some(_))) {
            let copied = self.copied()?;
            self.acted.set(true);
            **self.copy.as_mut().ok_or(NoRoom)? = Some(copied);
        }
        self.copy.as_mut().and_then(|copy| copy.as_mut()).ok_or(NoRoom)
    }

    /// When the frame was received, if the device noted it.
    #[inline]
    pub fn time(&self) -> Option<WallTime> {
        time_of(&self.header()?)
    }

    /// The frame's length on the wire in bytes, of which a capture may hold fewer. Where the device did not note it, the
    /// length as received.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header().map_or_else(|| self.total_len(), |header| header.wire_len as usize)
    }

    /// All that the device noted of the frame, if it did: what [`Kept::header`] still has once the packet is kept.
    #[inline]
    pub fn header(&self) -> Option<FrameHeader> {
        self.written().map_or_else(|| self.frame.header(), Kept::header)
    }

    /// The hash that the flow is steered by: as it came, or computed now where steering needed none, so to be asked for
    /// before the headers are written.
    #[inline]
    pub fn flow_hash(&self) -> FlowHash {
        self.frame.hash().unwrap_or_else(|| self.context.hashing.hash_one(self.frame.bytes(), self.link()))
    }

    /// What the frame begins with, for [`flow::dissect`](crate::flow::dissect).
    #[inline]
    pub fn link(&self) -> LinkType {
        match LinkType::of_code(self.frame.link()) {
            LinkType::UNKNOWN => self.header().map_or(LinkType::UNKNOWN, |header| LinkType(header.link)),
            read => read,
        }
    }

    /// Says what the packet begins with from now on: one whose link header was taken off or put in front is of another type,
    /// and outputs go by that. Of the types that [`LinkType`] names; another one is not noted. Ask for
    /// [`flow_hash`](Self::flow_hash) before.
    #[inline]
    pub fn set_link(&mut self, link: LinkType) {
        self.frame.set_link(link.code());
    }

    /// The bucket that the flow moves with.
    pub fn bucket(&self) -> BucketId {
        BucketId { group: self.context.group, bucket: bucket_of(self.flow_hash()) }
    }

    /// Drops the packet by the function's own will: a verdict, not a loss.
    pub fn discard(self) {
        if *self.verdict == Verdict::Open {
            self.acted.set(true);
            *self.verdict = Verdict::Discarded;
        }
    }

    /// Sends the packet by an output, once this batch's handler has returned. What there is no room for, or the output
    /// cannot send, drops, counted (`tx_full`, `tx_refused`); so does what goes to an output that there isn't.
    pub fn transmit(self, to: TxId) {
        if *self.verdict == Verdict::Open {
            self.acted.set(true);
            *self.verdict = Verdict::Transmitted(to);
        }
    }

    /// Takes the packet out of its batch: owned, `Send`, and its pages go home when it is dropped, from whichever
    /// thread. A frame in lent memory is copied.
    ///
    /// # Errors
    /// The packet itself, if the queue's limit of kept packets is reached, there is no page for the copy, or it was
    /// discarded or kept before.
    pub fn keep(mut self) -> Result<Kept, Self> {
        if *self.verdict != Verdict::Open {
            return Err(self);
        }
        let kept = match self.copy.as_mut().and_then(|copy| copy.take()) {
            Some(copy) => copy,
            None if self.frame.is_lent() => match self.copied() {
                Ok(copy) => copy,
                Err(NoRoom) => return Err(self),
            },
            None => match self.context.home.keep(self.frame) {
                Ok(kept) => kept,
                Err(frame) => return Err(Self { frame, ..self }),
            },
        };
        self.acted.set(true);
        *self.verdict = Verdict::Kept;
        Ok(kept)
    }

    fn copied(&self) -> Result<Kept, NoRoom> {
        let page = self.context.spare.take(self.context.home).ok_or(NoRoom)?;
        self.context.home.keep_copy(page, HEADROOM as u32, self.frame.header(), self.frame.bytes()).map_err(|page| {
            self.context.spare.put(page);
            NoRoom
        })
    }
}
