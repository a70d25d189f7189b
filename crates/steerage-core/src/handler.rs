//! The packet function: [`Handler`].

mod runner;

use steerage_flow::{Affinity, Timestamp};

use crate::ids::BucketId;
use crate::packet::Batch;

pub use crate::cpu::Cpu;
pub use runner::MakeHandler;
pub(crate) use runner::Runner;

/// A packet function. Each CPU creates a handler of its own, which needs neither `Send` nor locks.
///
/// A handler gets all packets of a flow, in order. When a bucket moves, its earlier packets are
/// finished first, and [`bucket_leaves`](Self::bucket_leaves) then hands over the state of its
/// flows.
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
    /// Which packets steerage must keep on the same CPU.
    const AFFINITY: Affinity = Affinity::BothDirections;

    /// The state of a bucket, which moves between handlers with the bucket.
    type Moved: Send + 'static;

    /// The result that each CPU's handler returns at the end of the run. The caller merges the
    /// results of all CPUs.
    type Report: Send + 'static;

    /// Handles a batch of up to [`HANDLE_BUDGET`](crate::limits::HANDLE_BUDGET) packets of one
    /// queue. A packet without a verdict counts as consumed.
    ///
    /// If the handler panics, verdicts that it gave before are kept, packets without a verdict
    /// count as `handler_panicked`, and a new handler is created.
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu);

    /// Called before the CPU's first round, and then at each returned time. If `tick` returns
    /// `None`, the next call of `tick` needs a request by [`Cpu::tick_by`].
    fn tick(&mut self, _cpu: &mut Cpu) -> Option<Timestamp> {
        None
    }

    /// Called between two rounds after a call of [`Handle::wake`](crate::control::Handle::wake) for
    /// this CPU. Several calls of `wake` may lead to only one call of `woken`.
    fn woken(&mut self, _cpu: &mut Cpu) {}

    /// Removes and returns the state of a bucket that moves away, and whose packets are finished.
    fn bucket_leaves(&mut self, _bucket: BucketId) -> Option<Self::Moved> {
        None
    }

    /// Takes over the state of a bucket, before its first packet arrives. If two groups of queues
    /// were joined, the handler may already have state of the bucket, and must merge the two
    /// states.
    fn bucket_arrives(&mut self, _bucket: BucketId, _state: Self::Moved) {}

    /// Called when all packets have been handled. The handler may still send packets.
    fn finish(self, cpu: &mut Cpu) -> Self::Report;
}
