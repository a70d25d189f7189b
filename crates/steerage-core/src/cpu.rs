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

    /// Returns the time at which this batch began, on the clock of the instance's CPUs. This is not
    /// the time of the packets, which a capture file may have recorded hours apart. For state that
    /// expires by the packets' own timestamps, use a [`PacketClock`](steerage_flow::PacketClock).
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns a number that changes with every move of buckets (0 at first), or `None` while
    /// buckets move. The packets of moving buckets wait, and later packets of other buckets
    /// overtake the waiting packets. While buckets move, a handler must not end flows by the
    /// timestamps of packets, because older packets may follow.
    pub fn last_move(&self) -> Option<u64> {
        self.shared.steering.slice.number()
    }

    /// Sends a copy of a packet that the packet function has created, with a first header of type
    /// `link`, after the handler has returned and after the transmitted packets of this batch. A
    /// packet that the output cannot send or has no room for is dropped and counted
    /// ([`CpuSnapshot::originated_dropped`](steerage_ledger::CpuSnapshot::originated_dropped)).
    ///
    /// # Errors
    /// [`NoRoom`] if `Builder::originated_max` packets wait, or if the frame is longer than a page.
    pub fn send(&mut self, to: TxId, link: LinkType, frame: &[u8]) -> Result<(), NoRoom> {
        self.origin.stage(to, link, frame)
    }

    /// Sends a packet that the handler has [kept](crate::packet::Packet::keep), like
    /// [`send`](Self::send). The packet must fit into one page. After the send, the packet's pages
    /// return to the pool. Until the handler returns, the packet counts against
    /// `Builder::originated_max`.
    ///
    /// # Errors
    /// Returns the packet if `Builder::originated_max` packets wait, or if it does not fit.
    pub fn send_kept(&mut self, to: TxId, packet: Kept) -> Result<(), Kept> {
        self.origin.stage_kept(to, packet)
    }

    /// Returns how many more packets [`send`](Self::send) accepts before the handler returns.
    pub fn sends_left(&self) -> usize {
        self.origin.room()
    }

    /// Stops the run, as [`Handle::stop`](crate::control::Handle::stop) does. Packets in flight are
    /// still handled. To tell the caller why the run was stopped, return the reason in the
    /// [report](crate::handler::Handler::Report).
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Requests a call of [`Handler::tick`](crate::handler::Handler::tick) at `time`, unless an
    /// earlier tick is due. Use `tick_by` if a batch creates work for a later time.
    pub fn tick_by(&mut self, time: Timestamp) {
        self.tick_by = Some(self.tick_by.map_or(time, |by| by.min(time)));
    }

    pub(crate) fn waits_for_kept(&self) -> bool {
        !self.origin.senders.is_empty() && self.shared.ledgers.queues.iter().any(|queue| queue.kept_pages.kept() > 0)
    }
}
