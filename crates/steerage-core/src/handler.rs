//! The packet function ([`Handler`]), and what it can request from the CPU that runs it ([`Cpu`]).

mod runner;

use std::fmt;
use std::sync::Arc;

use steerage_flow::{Affinity, LinkType, Timestamp};
use steerage_topology::CpuId;

use crate::ids::{BucketId, TxId};
use crate::origin::Origin;
use crate::packet::{Batch, NoRoom};
use crate::shared::Shared;

pub use runner::MakeHandler;
pub(crate) use runner::Runner;

/// A packet function. Each CPU has its own handler, which is built on that CPU. So a handler need
/// not be `Send`, and its state needs no lock.
///
/// All packets of a flow come to the same handler, in order. When the flow's bucket moves to
/// another CPU, all of its earlier packets are finished first, and
/// [`bucket_leaves`](Self::bucket_leaves) hands over its state.
///
/// ```
/// # mod steerage { pub use steerage_core::{handler::*, packet::*}; }
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
///     fn finish(self, _cpu: &mut Cpu) -> u64 {
///         self.0
///     }
/// }
/// ```
pub trait Handler: Sized + 'static {
    /// Which packets must go to the same CPU.
    const AFFINITY: Affinity = Affinity::BothDirections;

    /// The state of a bucket, handed over when the bucket moves.
    type Moved: Send + 'static;

    /// The result of this CPU's handler, which the caller merges after the run.
    type Report: Send + 'static;

    /// Handles up to [`HANDLE_BUDGET`](crate::limits::HANDLE_BUDGET) packets of one queue. A packet
    /// without a verdict counts as consumed.
    ///
    /// If the handler panics, the verdicts that it gave before the panic remain, the other packets
    /// of the batch count as `handler_panicked`, and the handler is rebuilt.
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu);

    /// Called before the first round, and then whenever the returned time has come. After `None`,
    /// this function is not called again unless [`Cpu::tick_by`] requests it.
    fn tick(&mut self, _cpu: &mut Cpu) -> Option<Timestamp> {
        None
    }

    /// The bucket moves to another CPU: returns the state of the bucket's flows, and removes it
    /// from the handler. All packets of the bucket that came to this CPU are finished.
    fn bucket_leaves(&mut self, _bucket: BucketId) -> Option<Self::Moved> {
        None
    }

    /// The bucket arrives from another CPU, before its first packet. If two groups became one, this
    /// handler may already have state of the bucket. The handler then merges the two states.
    fn bucket_arrives(&mut self, _bucket: BucketId, _state: Self::Moved) {}

    /// The end of the run: all packets have been handled. Packets that the handler sends now still
    /// leave.
    fn finish(self, cpu: &mut Cpu) -> Self::Report;
}

/// The CPU that runs a handler.
///
/// ```
/// # mod steerage { pub use {steerage_core::{handler::*, packet::*}, steerage_flow::Timestamp}; }
/// use std::time::Duration;
/// use steerage::{Batch, Cpu, Handler, Timestamp};
///
/// /// Stops the run if no packet came for a minute. Times are those of the CPUs' clock.
/// struct Watchdog {
///     last: Timestamp,
/// }
///
/// impl Handler for Watchdog {
///     type Moved = ();
///     type Report = ();
///
///     fn handle(&mut self, _batch: &mut Batch<'_>, cpu: &mut Cpu) {
///         self.last = cpu.now();
///     }
///
///     fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
///         if cpu.now().since(self.last) >= Duration::from_secs(60) {
///             cpu.stop();
///         }
///         Some(cpu.now() + Duration::from_secs(1))
///     }
///
///     fn finish(self, _cpu: &mut Cpu) {}
/// }
/// ```
pub struct Cpu {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: CpuId,
    pub(crate) now: Timestamp,
    pub(crate) origin: Origin,
    /// The latest time at which the handler wants its next tick.
    pub(crate) tick_by: Option<Timestamp>,
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("id", &self.id).field("now", &self.now).finish_non_exhaustive()
    }
}

impl Cpu {
    /// The CPU's number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The time at which this batch began, on the clock of the CPUs. `now` is not the time at which
    /// packets were received: a capture file is read within seconds, although its packets are hours
    /// apart. To let state expire by the time of packets, use a
    /// [`PacketClock`](steerage_flow::PacketClock).
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Sends a packet that the function originates. The function copies `frame`, which begins with
    /// a header of type `link`. The packet is sent after the handler has returned, after the
    /// packets that this batch transmits. If the output has no room for the packet or cannot send
    /// it, the packet is dropped and counted
    /// ([`CpuSnapshot::originated_dropped`](steerage_ledger::CpuSnapshot::originated_dropped)).
    ///
    /// # Errors
    /// [`NoRoom`] if `Builder::originated_max` packets are already waiting, or if the frame is
    /// longer than a page.
    pub fn send(&mut self, to: TxId, link: LinkType, frame: &[u8]) -> Result<(), NoRoom> {
        self.origin.stage(to, link, frame)
    }

    /// How many more packets [`send`](Self::send) accepts until the handler returns.
    pub fn sends_left(&self) -> usize {
        self.origin.room()
    }

    /// Stops the run, as [`Handle::stop`](crate::control::Handle::stop) does: no more packets are
    /// received, and packets in flight are handled. A handler calls this when it has its result or
    /// cannot continue. The handler returns the reason in its [report](Handler::Report).
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Requests a call of [`Handler::tick`] at `time`, unless the handler has already requested an
    /// earlier tick. A handler calls this when a batch creates work that is due before the next
    /// tick.
    pub fn tick_by(&mut self, time: Timestamp) {
        self.tick_by = Some(self.tick_by.map_or(time, |by| by.min(time)));
    }
}
