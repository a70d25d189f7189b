//! Deals flows out: each flow, both directions and all fragments, to one of several outputs, in order.

use steerage::{Batch, Cpu, Handler, TxId, limits::OUTPUTS_MAX};

/// The packet function. It wants [hashes at arrival](steerage::Builder::always_hash), which keep fragments together.
#[derive(Clone, Copy, Debug)]
pub struct Fanout {
    outputs: usize,
}

impl Fanout {
    /// Over the first `outputs` outputs of the instance, one at least.
    pub fn over(outputs: usize) -> Self {
        Self { outputs: outputs.clamp(1, OUTPUTS_MAX) }
    }
}

impl Handler for Fanout {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            // The same for whichever CPU has the flow: it may move, its output stays.
            let output = (u64::from(packet.flow_hash().0) * self.outputs as u64) >> 32;
            packet.transmit(TxId(output as u8));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}
