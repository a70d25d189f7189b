//! The packet function: [`Handler`]. A packet function calls the functions of [`Cpu`], for example
//! to send packets.

mod runner;

use steerage_flow::{Affinity, Timestamp};

use crate::ids::BucketId;
use crate::packet::Batch;

pub use crate::cpu::Cpu;
pub use runner::MakeHandler;
pub(crate) use runner::Runner;

/// A packet function. Each CPU has its own handler, which is created on that CPU. Therefore a
/// handler need not be `Send`, and its state needs no lock.
///
/// The same handler gets all packets of a flow, in order. When the flow's bucket moves to another
/// CPU, all earlier packets of the flow are finished first. After the earlier packets are
/// finished, [`bucket_leaves`](Self::bucket_leaves) hands over the flow's state.
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

    /// The state of a bucket, which one handler hands to another when the bucket moves to another
    /// CPU.
    type Moved: Send + 'static;

    /// The result that each CPU's handler returns at the end of the run. After the run, the caller
    /// merges the results of all CPUs.
    type Report: Send + 'static;

    /// Handles a batch of up to [`HANDLE_BUDGET`](crate::limits::HANDLE_BUDGET) packets of one
    /// queue. A packet to which the handler gives no verdict counts as consumed.
    ///
    /// If the handler panics, the verdicts that it gave before the panic are kept. If the handler
    /// panics, the batch's packets without a verdict count as `handler_panicked`, and a new handler
    /// is created.
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu);

    /// The CPU calls `tick` before its first round (pass of its loop), and then each time that the
    /// returned time is reached. If `tick` returns `None`, the CPU calls it again only after a
    /// request by [`Cpu::tick_by`].
    fn tick(&mut self, _cpu: &mut Cpu) -> Option<Timestamp> {
        None
    }

    /// After a call of [`Handle::wake`](crate::control::Handle::wake) for this CPU, the CPU calls
    /// `woken` between two rounds (passes of its loop). Several calls of `wake` may lead to only
    /// one call of `woken`.
    fn woken(&mut self, _cpu: &mut Cpu) {}

    /// Called when a bucket moves from this CPU to another CPU. `bucket_leaves` removes the state
    /// of the bucket's flows from this handler, and returns the state. When `bucket_leaves` is
    /// called, this CPU has finished all packets of the bucket that it had received.
    fn bucket_leaves(&mut self, _bucket: BucketId) -> Option<Self::Moved> {
        None
    }

    /// Called when a bucket has moved from another CPU to this CPU. The CPU calls `bucket_arrives`
    /// before the first packet of the bucket arrives on this CPU. If two groups of queues have
    /// become one group, this handler may already have state of the bucket. If the handler already
    /// has state of the arriving bucket, it merges the two states.
    fn bucket_arrives(&mut self, _bucket: BucketId, _state: Self::Moved) {}

    /// Called at the end of the run, when all packets have been handled. steerage still sends the
    /// packets that the handler sends in this call.
    fn finish(self, cpu: &mut Cpu) -> Self::Report;
}
