//! A packet function and what it may ask of the CPU it runs on.

use steerage_mem::hash::FlowKey;

use crate::cpu::CpuId;
use crate::origin::Origin;
use crate::packet::{Batch, NoRoom};
use crate::platform::Timestamp;
use crate::rx::LinkType;
use crate::tx::TxId;

/// What must stay together on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// Both directions of a flow: for whoever keeps state of a conversation.
    BothDirections,
    /// Each direction by itself: for routers, whose two directions come by different interfaces. Hashing costs less, and a
    /// device's own hash can be used more often.
    OneDirection,
}

impl Affinity {
    /// Whether a hash that keeps `self` together also keeps `wanted` together.
    pub fn satisfies(self, wanted: Self) -> bool {
        self == wanted || self == Self::BothDirections
    }

    /// The key that is hashed for a flow, to keep together what this affinity keeps together.
    #[must_use]
    #[inline(always)]
    pub const fn key(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::BothDirections => flow.both_directions(),
            Self::OneDirection => flow,
        }
    }
}

/// One of the pieces that flows are moved in: all flows of a steering group whose hash starts with the same 12 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId {
    /// The steering group: queues with the same mask.
    pub group: u16,
    /// The bucket, 0 to 4095.
    pub bucket: u16,
}

/// A packet function. Each CPU has one of its own, built there: it need not be `Send`, and nothing in it needs a lock.
///
/// All packets of a flow come to the same handler, in order; when the flow's bucket moves to another CPU, all that came
/// before is finished first and [`bucket_leaves`](Self::bucket_leaves) hands its state over.
///
/// ```
/// use steerage::{Batch, Cpu, Handler};
///
/// #[derive(Default)]
/// struct Bytes(u64);
///
/// impl Handler for Bytes {
///     type Moved = ();
///     type Report = u64;
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         self.0 += batch.iter_mut().map(|packet| packet.data().len() as u64).sum::<u64>();
///     }
///
///     fn finish(self) -> u64 {
///         self.0
///     }
/// }
/// ```
pub trait Handler: Sized + 'static {
    /// What must stay together.
    const AFFINITY: Affinity = Affinity::BothDirections;

    /// A bucket's state, when the bucket moves.
    type Moved: Send + 'static;

    /// What comes back at the end, to be merged.
    type Report: Send + 'static;

    /// Handles up to [`HANDLE_BUDGET`](crate::HANDLE_BUDGET) packets of one queue. A packet on which nothing is done is
    /// consumed.
    ///
    /// If it panics, packets on which something was done keep that, the others count as `handler_panicked`, and the
    /// handler is built anew.
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu);

    /// Called before the first round and then whenever the time that it returned has come. `None`: never again.
    fn tick(&mut self, _cpu: &mut Cpu) -> Option<Timestamp> {
        None
    }

    /// The bucket goes to another CPU: gives up what is known of its flows. All packets that came here are finished.
    fn bucket_leaves(&mut self, _bucket: BucketId) -> Option<Self::Moved> {
        None
    }

    /// The bucket comes from another CPU, before its first packet here. Where two groups became one, there may already
    /// be state of that bucket: merge it.
    fn bucket_arrives(&mut self, _bucket: BucketId, _state: Self::Moved) {}

    /// The end: all packets are handled.
    fn finish(self) -> Self::Report;
}

/// The CPU that a handler runs on.
#[derive(Debug)]
pub struct Cpu {
    pub(crate) id: CpuId,
    pub(crate) now: Timestamp,
    pub(crate) origin: Origin,
    /// When the handler wants its tick at the latest.
    pub(crate) tick_by: Option<Timestamp>,
}

impl Cpu {
    /// Its number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The time at which this batch was begun.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Sends a packet of the function's own making, by a copy of `frame`, which begins with a `link` header: once the handler
    /// has returned, behind what this batch transmits. What the output has no room for, or cannot send, is gone, counted
    /// ([`CpuSnapshot::originated_dropped`](crate::CpuSnapshot::originated_dropped)).
    ///
    /// # Errors
    /// [`NoRoom`] if as many as [`Builder::originated_max`](crate::Builder::originated_max) says wait already, or the frame is
    /// longer than a page.
    pub fn send(&mut self, to: TxId, link: LinkType, frame: &[u8]) -> Result<(), NoRoom> {
        self.origin.stage(to, link, frame)
    }

    /// How many packets [`send`](Self::send) has room for until the handler returns.
    pub fn sends_left(&self) -> usize {
        self.origin.room()
    }

    /// Has [`Handler::tick`] called at `time`, or earlier if it has asked for that itself. For a handler that learns in its
    /// batch of something that will be due before its next tick.
    pub fn tick_by(&mut self, time: Timestamp) {
        self.tick_by = Some(self.tick_by.map_or(time, |by| by.min(time)));
    }
}
