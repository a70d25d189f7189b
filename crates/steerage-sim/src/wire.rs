//! Outputs that notice what leaves out of order, whichever CPU sends it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use steerage::{DeviceError, Outgoing, Output, Sent, TxQueue};

use crate::chance::Chance;
use crate::traffic;

/// What all outputs have seen together.
#[derive(Debug, Default)]
pub struct Wire {
    /// Packets sent.
    pub sent: AtomicU64,
    /// Packets whose number was not above the last that was sent of their flow.
    pub late: AtomicU64,
}

impl Wire {
    /// So many outputs. Each finds no room for the rest of a batch once in `full_once_in` packets, never for 0.
    pub fn outputs(self: &Arc<Self>, count: usize, full_once_in: u64, seed: u64) -> Vec<Output> {
        let output = |nth: usize| {
            let (wire, last) = (Arc::clone(self), Arc::default());
            let open = move |cpu: steerage::CpuId| -> Result<Box<dyn TxQueue>, DeviceError> {
                let chance = Chance::new(seed ^ u64::from(cpu.0) << 48);
                Ok(Box::new(WireQueue { wire: Arc::clone(&wire), last: Arc::clone(&last), full_once_in, chance }))
            };
            Output { name: format!("wire{nth}"), kind: "simulated", open: Box::new(open) }
        };
        (0..count).map(output).collect()
    }
}

/// One CPU's end.
#[derive(Debug)]
struct WireQueue {
    wire: Arc<Wire>,
    /// By flow, the number sent last: of all CPUs.
    last: Arc<Mutex<HashMap<u32, u64>>>,
    full_once_in: u64,
    chance: Chance,
}

impl TxQueue for WireQueue {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            if self.chance.once_in(self.full_once_in) {
                break;
            }
            let data = packet.received().data;
            let Some((flow, number)) = traffic::read(data) else {
                sent.refused += 1;
                continue;
            };
            let before = last.insert(flow, number).unwrap_or(0);
            self.wire.late.fetch_add(u64::from(number <= before), Ordering::Relaxed);
            sent.packets += 1;
            sent.bytes += data.len() as u64;
        }
        self.wire.sent.fetch_add(sent.packets, Ordering::Relaxed);
        Ok(sent)
    }
}
