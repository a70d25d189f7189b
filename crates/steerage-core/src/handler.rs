//! The packet function: [`Handler`]. [`Cpu`] contains what a packet function can request from its
//! CPU.

mod runner;

use steerage_flow::{Affinity, Timestamp};

use crate::ids::BucketId;
use crate::packet::Batch;

pub use crate::cpu::Cpu;
pub use runner::MakeHandler;
pub(crate) use runner::Runner;

/// A packet function. Each CPU has its own handler, which is created on that CPU. So a handler need
/// not be `Send`, and its state needs no lock.
///
/// All packets of a flow come to the same handler, in order. When the flow's bucket moves to
/// another CPU, all earlier packets of the flow are finished first. Then
/// [`bucket_leaves`](Self::bucket_leaves) hands over the flow's state.
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
    /// The packets that must go to the same CPU.
    const AFFINITY: Affinity = Affinity::BothDirections;

    /// The state of a bucket. The state of a bucket is handed over when the bucket moves to another
    /// CPU.
    type Moved: Send + 'static;

    /// The result of this CPU's handler. The caller merges the results of all CPUs after the run.
    type Report: Send + 'static;

    /// Handles a batch of up to [`HANDLE_BUDGET`](crate::limits::HANDLE_BUDGET) packets of one
    /// queue. A packet to which the handler gives no verdict counts as consumed.
    ///
    /// If the handler panics, the verdicts that it gave before the panic are kept. The other
    /// packets of the batch count as `handler_panicked`, and a new handler is created.
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu);

    /// `tick` is called before the first round, and then each time when the returned time has come.
    /// After `tick` returns `None`, it is called again only if [`Cpu::tick_by`] requests it.
    fn tick(&mut self, _cpu: &mut Cpu) -> Option<Timestamp> {
        None
    }

    /// `woken` is called between two rounds after [`Handle::wake`](crate::control::Handle::wake)
    /// was called for this CPU. Several calls of `wake` may lead to only one call of `woken`.
    fn woken(&mut self, _cpu: &mut Cpu) {}

    /// The bucket moves to another CPU. This function removes the state of the bucket's flows from
    /// the handler and returns it. All packets of the bucket that came to this CPU are finished
    /// before this call.
    fn bucket_leaves(&mut self, _bucket: BucketId) -> Option<Self::Moved> {
        None
    }

    /// The bucket arrives from another CPU. This call comes before the bucket's first packet. If
    /// two groups of queues became one, this handler may already have state of the bucket. If the
    /// handler already has state of the bucket, it merges the two states.
    fn bucket_arrives(&mut self, _bucket: BucketId, _state: Self::Moved) {}

    /// The run has ended: all packets have been handled. Packets that the handler sends in this
    /// call are still sent.
    fn finish(self, cpu: &mut Cpu) -> Self::Report;
}
