//! The functions that a packet function can call on the CPU that runs it: [`Cpu`].

use std::fmt;
use std::sync::Arc;

use steerage_flow::{LinkType, Timestamp};
use steerage_topology::CpuId;

use crate::ids::TxId;
use crate::kept::Kept;
use crate::origin::Origin;
use crate::packet::NoRoom;
use crate::shared::Shared;

/// The CPU on which a handler runs.
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
    /// The CPU calls the handler's next `tick` not later than at this time.
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

    /// Returns the time at which this batch began, on the clock of the instance's CPUs. `now` is
    /// not the time at which packets were recorded: steerage reads a capture file within seconds,
    /// although its packets may be hours apart. Use a [`PacketClock`](steerage_flow::PacketClock)
    /// if state should expire by the packets' own timestamps.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns `None` while buckets move between CPUs. While no bucket moves, returns a number that
    /// changes with every move of buckets (0 before the first move). While a bucket moves, its
    /// packets wait, and later packets of other buckets are handled before them. After the move,
    /// the packets that waited are among the next packets of their CPU. A handler that ends flows
    /// by the timestamps of packets must not end flows whose packets wait.
    pub fn last_move(&self) -> Option<u64> {
        self.shared.steering.slice.number()
    }

    /// Sends a packet that the packet function has created. `send` copies the bytes in `frame`,
    /// which begin with a header of type `link`. The CPU sends the packet after the handler has
    /// returned. If the handler transmits packets of this batch, these packets are sent first. If
    /// the output cannot send the packet or has no room for it, the packet is dropped and counted
    /// ([`CpuSnapshot::originated_dropped`](steerage_ledger::CpuSnapshot::originated_dropped)).
    ///
    /// # Errors
    /// [`NoRoom`] if `Builder::originated_max` packets already wait, or if the frame is longer than
    /// a page.
    pub fn send(&mut self, to: TxId, link: LinkType, frame: &[u8]) -> Result<(), NoRoom> {
        self.origin.stage(to, link, frame)
    }

    /// Sends a packet that the handler has [kept](crate::packet::Packet::keep), like
    /// [`send`](Self::send). The packet's pages return to the pool after the packet was sent. If
    /// the kept packet lies in several pages, its parts are first joined in one page. Each kept
    /// packet that the handler sends counts against the limit `Builder::originated_max` until the
    /// handler returns.
    ///
    /// # Errors
    /// Returns the packet as an error if `Builder::originated_max` packets already wait, or if the
    /// packet does not fit in one page.
    pub fn send_kept(&mut self, to: TxId, packet: Kept) -> Result<(), Kept> {
        self.origin.stage_kept(to, packet)
    }

    /// Returns how many more packets [`send`](Self::send) accepts before the handler returns.
    pub fn sends_left(&self) -> usize {
        self.origin.room()
    }

    /// Stops the run, as [`Handle::stop`](crate::control::Handle::stop) does: no more packets are
    /// received, and packets in flight are still handled. A handler calls `stop` when it has its
    /// result or cannot continue. A handler that stops the run returns the reason in its
    /// [report](crate::handler::Handler::Report).
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Requests a call of [`Handler::tick`](crate::handler::Handler::tick) at `time`. `tick_by` has
    /// no effect if an earlier tick was already requested. A handler calls this function if a batch
    /// creates work that is due before the next tick.
    pub fn tick_by(&mut self, time: Timestamp) {
        self.tick_by = Some(self.tick_by.map_or(time, |by| by.min(time)));
    }

    /// Returns true if handlers hold kept packets that a [`Sender`](crate::sender::Sender) may
    /// still send.
    pub(crate) fn waits_for_kept(&self) -> bool {
        !self.origin.senders.is_empty() && self.shared.ledgers.queues.iter().any(|queue| queue.kept_pages.kept() > 0)
    }
}
