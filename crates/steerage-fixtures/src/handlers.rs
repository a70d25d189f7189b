//! Handlers that do little work per packet.

use steerage::{Batch, Cpu, Handler, Running, Snapshot, TxId};

use crate::assert_at_rest;

/// A handler that does nothing with its packets.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Handler for Nothing {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn finish(self, _cpu: &mut Cpu) {}
}

/// A handler that transmits all packets to the first output.
#[derive(Clone, Copy, Debug)]
pub struct SendAll;

impl Handler for SendAll {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        batch.iter_mut().for_each(|packet| packet.transmit(TxId(0)));
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// Joins two interfaces. The field is a number `n`: packets from the first `n` receive queues are
/// sent to the second output, and all other packets to the first output.
#[derive(Clone, Copy, Debug)]
pub struct Wire(pub usize);

impl Handler for Wire {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let to = TxId(u8::from(batch.queue() < self.0));
        batch.iter_mut().for_each(|packet| packet.transmit(to));
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// Stops a run, and returns its packet counts after checking them with [`assert_at_rest`].
pub fn end<R: Send + 'static>(running: Running<R>) -> Snapshot {
    running.handle().stop();
    let snapshot = running.join().snapshot;
    assert_at_rest(&snapshot);
    snapshot
}
