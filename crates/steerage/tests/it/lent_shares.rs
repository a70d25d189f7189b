//! Tests a CPU that stalls while a device lends super-frames for this CPU and for another CPU.

use std::sync::{Arc, Mutex};

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Input, Snapshot,
    device::{Blocks, Capabilities, Claim, Completions, FrameHeader, Opened, Polled, Region, RxQueue},
    flow::{Affinity, FlowHash},
    policy::Hash,
    stats::DropReason,
    threads::Softnet,
};
use steerage_fixtures::assert_at_rest;
use steerage_fixtures::manual_clock::ManualClock;

const BLOCKS: usize = 24;
const BLOCK_BYTES: usize = 64 << 10;
const LONG: usize = 20_000;
const SHORT: usize = 100;
const FLOWS: [FlowHash; 2] = [FlowHash(0), FlowHash(u32::MAX)];

/// A device that lends a long and a short frame of each flow in each poll. If no block is free, the
/// frame is lost.
struct Lends {
    shared: bool,
    claim: Option<Claim>,
    block: usize,
    next: u64,
    stopped: bool,
}

impl Lends {
    fn lend(&mut self, out: &mut Completions<'_>, flow: usize, len: usize) {
        let claim = self.claim.as_ref().unwrap();
        self.next += 1;
        let room = |block: usize, out: &mut Completions<'_>| {
            out.lending(claim, block, BLOCK_BYTES).unwrap().bytes().len() >= FrameHeader::BYTES + len
        };
        if !room(self.block, out) {
            let blocks = out.blocks(claim).unwrap();
            let Some(free) = (0..BLOCKS).find(|block| blocks.out(*block) == 0) else { return out.lost(1) };
            self.block = free;
        }
        let mut lending = out.lending(claim, self.block, BLOCK_BYTES).unwrap();
        let header = FrameHeader { nanos: 0, wire_len: len as u32, link: 1, interface: 0 };
        lending.bytes()[FrameHeader::BYTES..][..16]
            .copy_from_slice(&[self.next, flow as u64].map(u64::to_be_bytes).concat());
        assert!(lending.push_hashed(FrameHeader::BYTES, len, header, Some(FLOWS[flow])));
    }
}

impl RxQueue for Lends {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(SHORT).hashes(Affinity::BothDirections)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = Blocks::map(BLOCKS, BLOCK_BYTES).unwrap();
        self.claim = Some(claim);
        Ok(Opened::lending(if self.shared { blocks.shared(BLOCKS as u32) } else { blocks }))
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        if self.stopped {
            return Ok(Polled::Ended);
        }
        for (flow, len) in [(0, LONG), (1, LONG), (0, SHORT), (1, SHORT)] {
            self.lend(out, flow, len);
        }
        Ok(Polled::Drained)
    }

    fn stop(&mut self) -> bool {
        self.stopped = true;
        true
    }
}

/// The flow, the number and the length of each frame that a CPU handled, by CPU.
type Seen = Arc<Mutex<Vec<Vec<(u64, u64, usize)>>>>;

struct Notes(Seen, usize);

impl Handler for Notes {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let [number, flow] = [0, 8].map(|at| u64::from_be_bytes(packet.data()[at..at + 8].try_into().unwrap()));
            self.0.lock().unwrap()[self.1].push((flow, number, packet.data().len()));
        }
    }

    fn finish(self, _: &mut Cpu) {}
}

struct World {
    cpus: Vec<Softnet<Notes, ManualClock>>,
    handle: Handle,
    seen: Seen,
    polls: u64,
}

impl World {
    fn new(shared: bool) -> Self {
        let queue = Lends { shared, claim: None, block: 0, next: 0, stopped: false };
        let input = Input::new("lends", "test", vec![Box::new(queue)]);
        let seen: Seen = Arc::new(Mutex::new(vec![Vec::new(); 3]));
        let notes = Arc::clone(&seen);
        let workers: CpuMask = (1..3).map(CpuId).collect();
        let builder = Builder::new().virtual_cpus(3).rps_cpus(workers).policy(Hash).device_hash(true).check_order(true);
        let builder = builder.input_on(input, &[CpuId(0)], None);
        let (parts, handle) = builder.build(move |cpu| Notes(Arc::clone(&notes), usize::from(cpu.0))).unwrap().split();
        let clock = ManualClock::default();
        let cpus = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
        Self { cpus, handle, seen, polls: 0 }
    }

    fn step(&mut self, rounds: u64, cpus: &[usize]) -> Snapshot {
        for _ in 0..rounds {
            self.cpus[0].step();
            for cpu in cpus {
                let _ = self.cpus[*cpu].step();
            }
        }
        self.polls += rounds;
        self.handle.snapshot()
    }

    fn seen(&self, cpu: usize) -> Vec<(u64, u64, usize)> {
        self.seen.lock().unwrap()[cpu].clone()
    }

    fn end(mut self) {
        self.handle.stop();
        while !self.cpus.iter().all(Softnet::is_finished) {
            for cpu in &mut self.cpus {
                let _ = cpu.step();
            }
        }
        assert_at_rest(&self.handle.snapshot());
    }
}

#[test]
fn a_stopped_cpu_loses_its_own_super_frames_and_no_others() {
    let mut world = World::new(true);
    let ledger = world.step(100, &[1, 2]);
    assert_eq!((ledger.delivered(), ledger.dropped().total()), (400, 0));
    let ledger = world.step(1000, &[2]);
    assert_eq!(
        (ledger.received(), ledger.queues[0].dropped.get(DropReason::Device)),
        (4400, 0),
        "no frame was without a block"
    );
    let seen = world.seen(2);
    assert_eq!(seen.len(), 2200);
    assert!(seen.is_sorted_by_key(|(_, number, _)| *number) && seen.iter().all(|(flow, ..)| *flow == seen[0].0));
    let refused = ledger.dropped().get(DropReason::BacklogFull);
    assert_eq!((ledger.cpus[1].dropped.get(DropReason::BacklogFull), ledger.dropped().total()), (refused, refused));
    assert_eq!(ledger.in_flight(), 2000 - refused, "the rest waits");
    assert!(ledger.in_flight() > 20, "{}", ledger.in_flight());
    world.step(20, &[1, 2]);
    let ledger = world.step(1000, &[1, 2]);
    assert!(ledger.dropped().total() - refused < 40 && ledger.in_flight() == 0);
    assert_eq!(world.step(1000, &[1, 2]).dropped().total(), ledger.dropped().total());
    let seen = world.seen(1);
    assert!(seen.is_sorted_by_key(|(_, number, _)| *number));
    let last = |is_long: bool| {
        let waited = seen[200..].iter().take_while(|(_, number, _)| *number <= 4400);
        waited.filter(|(.., len)| (*len == LONG) == is_long).map(|(_, number, _)| *number).last().unwrap()
    };
    assert!(last(true) < last(false), "the last long one was {}, the last short one {}", last(true), last(false));
    world.end();
}

#[test]
fn without_a_limit_the_others_would_lose_theirs() {
    let mut world = World::new(false);
    let ledger = world.step(1000, &[2]);
    assert!(ledger.queues[0].dropped.get(DropReason::Device) > 1000);
    world.end();
}

/// Frames that wait while their bucket moves away from a stalled CPU do not occupy all blocks.
#[test]
fn frames_that_are_parked_leave_room_for_others() {
    let mut world = World::new(true);
    world.step(100, &[1, 2]);
    world.step(100, &[2]);
    let all: CpuMask = [CpuId(2)].into_iter().collect();
    world.handle.set_rps_cpus(&all).unwrap();
    let ledger = world.step(500, &[2]);
    assert_eq!((world.seen(2).len(), ledger.queues[0].dropped.get(DropReason::Device)), (1400, 0));
    assert!(ledger.dropped().get(DropReason::Moving) > 0, "{:?}", ledger.dropped());
    let parked = ledger.received() - ledger.delivered() - ledger.dropped().total();
    assert_eq!((ledger.in_flight(), world.handle.held()), (parked, parked));
    world.step(200, &[1, 2]);
    let mut seen: Vec<_> = world.seen(1);
    let (flow, last) = (seen[0].0, seen.len());
    seen.extend(world.seen(2).into_iter().filter(|frame| frame.0 == flow));
    assert!(seen.len() > last && seen.is_sorted_by_key(|(_, number, _)| *number));
    world.end();
}
