//! Lets threads outside of the receive path send packets that a CPU has kept, through that CPU.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::ids::TxId;
use crate::kept::Kept;
use crate::limits::BUCKETS;
use crate::queue::hash::QueueHasher;
use crate::rps_map::bucket_of;
use crate::shared::Shared;
use steerage_flow::LinkType;
use steerage_mem::outlet::Outlet;

/// Sends packets from any thread. All clones of a sender share one queue of waiting packets.
///
/// The sent packets count as `originated` or `originated_dropped` of the CPU that sends them. An
/// instance with a sender does not end as long as handlers keep packets, but ends at the latest
/// [`DRAIN_MAX`](crate::limits::DRAIN_MAX) after a stop.
///
/// ```
/// # mod steerage { pub mod packet { pub use steerage_core::{packet::*, sender::Sender}; } }
/// use std::sync::mpsc::Receiver;
/// use steerage::packet::{Kept, Sender};
///
/// /// Answers echo requests: swaps the two Ethernet addresses. Returns how many had no room.
/// fn answer(requests: &Receiver<Kept>, sender: &Sender) -> usize {
///     let answers = requests.iter().map(|mut packet| {
///         packet[..12].rotate_left(6);
///         sender.try_send(packet)
///     });
///     answers.filter(Result::is_err).count()
/// }
/// ```
#[derive(Clone)]
pub struct Sender(pub(crate) Arc<SendQueue>);

pub(crate) struct SendQueue {
    pub(crate) to: TxId,
    pub(crate) waiting: Outlet<Item>,
    path: OnceLock<(Arc<Shared>, QueueHasher)>,
    /// Empty buffers for copies of packets, kept so that no CPU of the receive path frees memory.
    pub(crate) buffers: Mutex<Vec<Vec<u8>>>,
}

pub(crate) enum Item {
    Kept(Kept),
    Copy(LinkType, Vec<u8>),
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender to output {}", self.0.to.0)
    }
}

impl Sender {
    /// Creates a sender to the output `to` with room for `places` packets. The sender works after
    /// an instance was built from a [`Spec`](crate::build::Spec) with the sender.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn new(to: TxId, places: usize) -> io::Result<Self> {
        let buffers = Mutex::new(Vec::with_capacity(places));
        Ok(Self(Arc::new(SendQueue { to, waiting: Outlet::new(places)?, path: OnceLock::new(), buffers })))
    }

    /// Asks the CPU that kept the packet to send it. The packets of a flow are sent in the order of
    /// the calls.
    ///
    /// # Errors
    /// Returns the packet if the sender has no room (see [`ready_fd`](Self::ready_fd)), if its
    /// instance has not been built or has ended, or if another instance kept the packet.
    pub fn try_send(&self, packet: Kept) -> Result<(), Kept> {
        let is_its = |(shared, _): &&(Arc<Shared>, QueueHasher)| packet.frame.is_in(shared.supply.region());
        let (Some((shared, _)), Some((cpu, bucket))) = (self.0.path.get().filter(is_its), packet.home) else {
            return Err(packet);
        };
        match self.0.waiting.push(bucket, Some(cpu), Item::Kept(packet)) {
            Ok(cpu) => shared.request(cpu),
            Err(Item::Kept(packet)) => return Err(packet),
            Err(Item::Copy(..)) => {}
        }
        Ok(())
    }

    /// Sends a copy of `frame`, which begins with a header of type `link`, in order with other
    /// packets of the same flow. Returns false if the sender had no room.
    pub fn try_send_copy(&self, link: LinkType, frame: &[u8]) -> bool {
        let Some((shared, hasher)) = self.0.path.get() else { return false };
        let mut buffer = self.0.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        let bucket = bucket_of(hasher.hash_one(frame, link));
        self.0.waiting.push(bucket, None, Item::Copy(link, buffer)).map(|cpu| shared.request(cpu)).is_ok()
    }

    /// Returns how many more packets the sender has room for.
    pub fn room(&self) -> usize {
        self.0.waiting.room()
    }

    /// Returns a file descriptor that is readable while the sender has room. Do not read from the
    /// file descriptor.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn ready_fd(&self) -> io::Result<OwnedFd> {
        self.0.waiting.ready_fd()
    }
}

impl SendQueue {
    pub(crate) fn open(&self, shared: &Arc<Shared>, hasher: &QueueHasher) {
        self.waiting.open(shared.cpus.len(), BUCKETS);
        let _ = self.path.set((Arc::clone(shared), hasher.clone()));
    }
}
