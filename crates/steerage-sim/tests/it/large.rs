use std::sync::{Arc, Mutex};
use std::time::Duration;

use steerage::flow::wire::FrameBuilder;
use steerage::policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy};
use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Hash, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    threads::{Platform, Softnet},
};
use steerage_fixtures::assert_at_rest;
use steerage_fixtures::manual_clock::ManualClock;

const CPUS: u16 = 1024;
const QUEUES: usize = 256;
const FRAMES: u32 = 600;

struct Flows {
    next: u32,
    left: u32,
}

impl RxQueue for Flows {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, steerage::DeviceError> {
        let count = out.fill(budget.min(self.left as usize), |page| {
            let [a, b, c, d] = self.next.wrapping_mul(0x9e37_79b9).to_be_bytes();
            let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            page[..60].copy_from_slice(&FrameBuilder::udp((self.next.to_be_bytes(), from), ([0; 4], to)).frame_of(60));
            self.next += 1;
            Some(Filled::whole(60))
        });
        self.left -= count as u32;
        Ok(if self.left == 0 { Polled::Ended } else { Polled::More })
    }
}

struct Counts;

impl Handler for Counts {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn finish(self, _: &mut Cpu) {}
}

/// A new mask takes effect although the machine has 262,144 hand-over rings (few of them used) and
/// only 2 GiB of memory.
#[test]
fn a_server_of_1024_cpus_and_256_queues() {
    let queue = |nth: usize| Box::new(Flows { next: (nth as u32) << 20, left: FRAMES }) as Box<dyn RxQueue>;
    let input = Input::new("flows", "test", (0..QUEUES).map(queue).collect());
    let builder = Builder::new().virtual_cpus(CPUS.into()).policy(Hash).check_order(true).memory_max(2 << 30);
    let built = builder.input(input).build(|_| Counts);
    let (parts, handle) = built.unwrap().split();
    let clock = ManualClock::default();
    let mut cpus: Vec<Softnet<Counts, ManualClock>> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
    let memory = handle.snapshot().memory;
    assert!(memory.bytes() <= memory.cap && memory.cap == 2 << 30);
    assert!((64..1000).contains(&memory.backlog) && memory.backlog_asked == 1000, "{memory:?}");

    let mut rounds = 0;
    while !handle.is_finished() {
        cpus.iter_mut().for_each(|cpu| _ = cpu.step());
        clock.advance(Duration::from_micros(5));
        rounds += 1;
        if rounds == 3 {
            let half: CpuMask = (0..CPUS / 2).map(CpuId).collect();
            handle.set_rps_cpus(&half).unwrap();
        }
        assert!(rounds < 10_000, "it does not end: {:?}", handle.snapshot().groups);
    }
    let end = handle.snapshot();
    assert_eq!((end.received(), end.reordered()), (u64::from(FRAMES) * QUEUES as u64, Some(0)));
    assert_eq!(end.received(), end.delivered() + end.dropped().total());
    assert!(end.cpus.iter().all(|cpu| cpu.processed > 0), "a CPU had nothing");
    assert!(end.moves.buckets > 0);
    assert_at_rest(&end);
}

#[derive(Clone, Debug, Default)]
struct Records(Arc<Mutex<Vec<f64>>>);

impl Policy for Records {
    fn name(&self) -> &'static str {
        "records"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn plan(&mut self, _: &GroupStart<'_>) -> Plan {
        Plan::all()
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        self.0.lock().unwrap().push(load.cpus.iter().map(|cpu| cpu.busy).fold(0.0, f64::max));
        None
    }
}

fn plant(handle: &Handle) {
    for ring in handle.ledgers().queues.iter().flat_map(|queue| &queue.rings) {
        ring.by_producer.backlog_full.add(1_000_000);
        ring.by_consumer.consumed.add(1_000_000);
    }
}

/// Reading the counters of all 262,144 hand-over rings takes 50 ms, so rings that cannot have
/// counted a packet are not read.
#[test]
fn snapshots_and_load_checks_leave_out_rings_that_cannot_count() {
    let queue = |nth: usize| Box::new(Flows { next: (nth as u32) << 20, left: 200_000 }) as Box<dyn RxQueue>;
    let input = Input::new("flows", "test", (0..2).map(queue).collect());
    let records = Records::default();
    let builder = Builder::new().virtual_cpus(16).policy(records.clone()).input(input);
    let (parts, handle) = builder.build(|_| Counts).unwrap().split();
    plant(&handle);
    let unused = handle.snapshot();
    assert!(unused.delivered() == 0 && unused.cpus.iter().all(|cpu| cpu.dropped.total() == 0), "{unused:?}");
    let clock = ManualClock::default();
    let mut cpus: Vec<Softnet<Counts, ManualClock>> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
    for _ in 0..40 {
        for _ in 0..10 {
            cpus.iter_mut().for_each(|cpu| _ = cpu.step());
            clock.advance(Duration::from_micros(100));
        }
        if records.0.lock().unwrap().len() == 2 {
            plant(&handle);
        }
        handle.control(clock.now());
    }
    let busiest = records.0.lock().unwrap().clone();
    assert!(busiest.len() > 2 && busiest.iter().any(|busy| *busy > 0.0), "{busiest:?}");
    assert!(busiest.iter().all(|busy| *busy <= 2.0), "a ring of a queue without losses was read: {busiest:?}");
    handle.stop();
    while !handle.is_finished() {
        cpus.iter_mut().for_each(|cpu| _ = cpu.step());
        clock.advance(Duration::from_millis(1));
    }
}
