//! The packet function: [`Handler`]. [`Cpu`] is what a packet function can request from its CPU.

mod runner;

use steerage_flow::{Affinity, Timestamp};

use crate::ids::BucketId;
use crate::packet::Batch;

pub use crate::cpu::Cpu;
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

    /// Called between two rounds after [`Handle::wake`](crate::control::Handle::wake) was called
    /// for this CPU. Several calls of `wake` may lead to one call of this function.
    fn woken(&mut self, _cpu: &mut Cpu) {}

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
