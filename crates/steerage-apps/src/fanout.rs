//! Spreads flows over several outputs. Each output receives all packets of its flows in order, in
//! both directions and with all fragments.

use steerage::{Batch, Cpu, Handler, TxId, limits::OUTPUTS_MAX};

/// The handler that spreads flows over several outputs, such as interfaces. The instance needs
/// [hashes at arrival](steerage::Builder::always_hash), which keep fragments together.
///
/// ```
/// use steerage::{Builder, Input, testing};
/// use steerage_apps::Fanout;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let queue = steerage_device::synthetic::SyntheticOptions::new().packets(1000).flows(100);
/// # let input: Input = queue.open()?;
/// let ((left, at_left), (right, at_right)) = (testing::output(), testing::output());
/// let builder = Builder::new().virtual_cpus(2).input(input).always_hash(true).output(left).output(right);
/// builder.build(|_| Fanout::over(2))?.start()?.join();
/// assert_eq!(at_left.packets().len() + at_right.packets().len(), 1000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fanout {
    outputs: usize,
}

impl Fanout {
    /// Spreads flows over the first `outputs` outputs of the instance (at least 1).
    pub fn over(outputs: usize) -> Self {
        Self { outputs: outputs.clamp(1, OUTPUTS_MAX) }
    }
}

impl Handler for Fanout {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            // The output depends only on the flow hash: a flow that moves to another CPU keeps its
            // output.
            let output = (u64::from(packet.flow_hash().0) * self.outputs as u64) >> 32;
            packet.transmit(TxId(output as u8));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}
