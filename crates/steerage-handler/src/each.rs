//! Turns a closure into a packet function: [`each`].

use steerage_core::handler::{Cpu, Handler};
use steerage_core::packet::{Batch, Packet};
use steerage_topology::CpuId;

/// The handler that [`each`] returns.
#[derive(Clone, Debug)]
pub struct Each<F>(F);

impl<F: FnMut(Packet<'_>) + 'static> Handler for Each<F> {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        batch.iter_mut().for_each(&mut self.0);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// Turns a closure into a packet function, with a clone of the closure for each CPU. For results or
/// flow state, implement [`Handler`] instead.
///
/// ```
/// # mod steerage { pub use steerage_testing as testing; pub mod packet { pub use {steerage_core::ids::Verdict, steerage_handler::each::each}; } }
/// use steerage::packet::{Verdict, each};
///
/// // With `Builder`: .build(each(|packet| ..))
/// let no_broadcasts = each(|packet| if packet.data().starts_with(&[0xff; 6]) { packet.discard() });
/// let tested = steerage::testing::run(no_broadcasts, [[0xff; 60], [2; 60]]);
/// assert_eq!(tested.verdicts, [Verdict::Discarded, Verdict::Consumed]);
/// ```
pub fn each<F: FnMut(Packet<'_>) + Clone + Send + Sync + 'static>(
    function: F,
) -> impl Fn(CpuId) -> Each<F> + Send + Sync + 'static {
    move |_cpu| Each(function.clone())
}
