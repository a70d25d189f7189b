//! State that moves with its bucket: each CPU has a flow table, and the mask changes under load.
//!
//! Each packet contains its sequence number within its flow. A gap would mean that the state of a
//! flow was lost or left on another CPU, or that two packets of a flow were reordered.
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::collections::HashMap;
use std::error::Error;
use std::thread;
use std::time::Duration;

use steerage::flow::{Part, Table};
use steerage::{Batch, BucketId, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Snapshot};
use steerage_device::synthetic::parse_payload;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) packets: u64,
    next: u64,
    pub(crate) gaps: u64,
    pub(crate) moves: u64,
}

pub(crate) type Flows = HashMap<u32, Flow>;

/// The maximum number of flows per CPU, and the idle time after which a full table removes a flow.
const FLOWS_MAX: usize = 1_000_000;
const IDLE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct FlowTable(Table<u32, Flow>);

impl Handler for FlowTable {
    type Moved = Part<u32, Flow>;
    type Report = Flows;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let Some((id, number)) = parse_payload(packet.data()) else { continue };
            let Some(flow) = self.0.entry(packet.bucket(), id, cpu.now()) else { continue };
            flow.packets += 1;
            flow.gaps += u64::from(number != flow.next);
            flow.next = number + 1;
        }
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        self.0.leave(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, mut flows: Self::Moved) {
        flows.values_mut().for_each(|flow| flow.moves += 1);
        self.0.arrive(bucket, flows);
    }

    fn finish(self, _cpu: &mut Cpu) -> Flows {
        self.0.into_entries().collect()
    }
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) flows: Flows,
    pub(crate) snapshot: Snapshot,
}

pub(crate) fn run(device: &str, cpus: u16) -> Result<Outcome, Box<dyn Error>> {
    let input = steerage_device::open(device)?;
    let running = Builder::new()
        .virtual_cpus(cpus.into())
        .policy(Hash)
        .input(input)
        .build(|_cpu| FlowTable(Table::new(FLOWS_MAX, IDLE)))?
        .start()?;
    let handle = running.handle();
    for count in (1..=cpus).cycle() {
        if handle.is_finished() {
            break;
        }
        handle.set_rps_cpus(&(0..count).map(CpuId).collect::<CpuMask>())?;
        thread::sleep(Duration::from_millis(2));
    }
    let outcome = running.join();
    let flows = outcome.reports.into_iter().flat_map(|(_cpu, flows)| flows).collect();
    Ok(Outcome { flows, snapshot: outcome.snapshot })
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=3000000,flows=10000".into());
    let Outcome { flows, snapshot } = run(&device, 4)?;
    let sum = |what: fn(&Flow) -> u64| flows.values().map(what).sum::<u64>();
    println!("{} flows, {} packets, {} gaps", flows.len(), sum(|flow| flow.packets), sum(|flow| flow.gaps));
    println!("{} buckets moved, and with them flows {} times", snapshot.moves.buckets, sum(|flow| flow.moves));
    Ok(())
}
