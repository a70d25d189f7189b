//! Simulated outputs that detect reordered packets, even if different CPUs send a flow.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use steerage::{
    DeviceError, Output,
    device::{Completion, Outgoing, Page, Region, Sent, TxCapabilities, TxQueue, TxResources},
};

use crate::chance::Chance;
use crate::traffic;

/// `HELD_MAX` is the maximum number of packets that an output queue has taken but not completed.
const PAGES: usize = 16;
const HELD_MAX: usize = 4;

/// Counters for the packets of all outputs together.
#[derive(Debug, Default)]
pub struct Wire {
    /// The number of packets sent.
    pub sent: AtomicU64,
    /// The number of packets that were sent after a later packet of their flow.
    pub late: AtomicU64,
}

impl Wire {
    /// Creates `count` outputs. Once in `full_once_in` packets, an output is full and accepts no
    /// more packets of the batch. If `full_once_in` is 0, the outputs are never full.
    pub fn outputs(self: &Arc<Self>, count: usize, full_once_in: u64, seed: u64) -> Vec<Output> {
        let output = |nth: usize| {
            let (wire, last) = (Arc::clone(self), Arc::default());
            let open = move |cpu: steerage::CpuId| -> Result<Box<dyn TxQueue>, DeviceError> {
                let chance = Chance::new(seed ^ u64::from(cpu.0) << 48);
                let (wire, last) = (Arc::clone(&wire), Arc::clone(&last));
                let (region, free, held) = Default::default();
                Ok(Box::new(WireQueue { wire, last, full_once_in, chance, region, free, held }))
            };
            Output::new(format!("wire{nth}"), "simulated", open)
        };
        (0..count).map(output).collect()
    }
}

#[derive(Debug)]
struct WireQueue {
    wire: Arc<Wire>,
    /// For each flow, the number of the last packet that any CPU sent.
    last: Arc<Mutex<HashMap<u32, u64>>>,
    full_once_in: u64,
    chance: Chance,
    region: Option<Arc<Region>>,
    free: Vec<Page>,
    /// The packets that are not completed yet. For half of all packets, the output queue keeps the
    /// packet's pages until completion.
    held: VecDeque<Completion>,
}

impl WireQueue {
    fn let_go(&mut self, but: usize) {
        let Some(region) = &self.region else { return };
        let sent = self.held.len().saturating_sub(but);
        self.held.drain(..sent).for_each(|frame| region.take_apart(frame, |page, _, _| self.free.push(page)));
    }
}

impl TxQueue for WireQueue {
    fn capabilities(&self) -> TxCapabilities {
        TxCapabilities::default().pages(PAGES)
    }

    fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
        (self.region, self.free) = (Some(resources.region), resources.pages);
        Ok(())
    }

    fn close(&mut self, pages: &mut Vec<Page>) {
        self.let_go(0);
        pages.append(&mut self.free);
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sent = Sent::default();
        while let Some(mut packet) = packets.next_packet() {
            if self.chance.once_in(self.full_once_in) {
                break;
            }
            let received = packet.received();
            let (len, read) = (received.total_len, traffic::read(received.data));
            let Some((flow, number)) = read else {
                sent.refused += 1;
                continue;
            };
            let before = last.insert(flow, number).unwrap_or(0);
            self.wire.late.fetch_add(u64::from(number <= before), Ordering::Relaxed);
            sent.packets += 1;
            sent.bytes += len as u64;
            if self.chance.once_in(2) {
                self.held.extend(packet.swap(&mut self.free));
            }
        }
        drop(last);
        self.let_go(HELD_MAX);
        self.wire.sent.fetch_add(sent.packets, Ordering::Relaxed);
        Ok(sent)
    }
}
