use std::time::Duration;

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    flow::{Affinity, FlowHash},
    policy::Hash,
    stats::{DropReason, Snapshot},
    threads::Softnet,
};

use steerage_fixtures::assert_at_rest;
use steerage_fixtures::manual_clock::ManualClock;

/// If `waits` is true, the queue is polled only while the backlogs have room for its frames.
struct Endless {
    next: u32,
    waits: bool,
}

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        let pages = Capabilities::pages(64).hashes(Affinity::BothDirections);
        if self.waits { pages.can_wait() } else { pages }
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let filled = out.fill(budget, |_| {
            self.next = self.next.wrapping_add(0x9e37_79b9);
            Some(Filled::whole(60).with_hash(Some(FlowHash(self.next))))
        });
        assert_eq!(filled, budget, "a queue found no page");
        Ok(Polled::More)
    }
}

struct Nothing;

impl Handler for Nothing {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn finish(self, _: &mut Cpu) {}
}

struct World {
    cpus: Vec<Softnet<Nothing, ManualClock>>,
    handle: Handle,
    clock: ManualClock,
}

fn world(builder: Builder, queues: usize, waits: bool, cpus: u16) -> World {
    let queue = |nth: usize| Box::new(Endless { next: nth as u32, waits }) as Box<dyn RxQueue>;
    let input = Input::new("endless", "test", (0..queues).map(queue).collect());
    let workers: CpuMask = (1..cpus).map(CpuId).collect();
    let builder = builder.virtual_cpus(usize::from(cpus)).rps_cpus(workers).policy(Hash).device_hash(true);
    let built = builder.input_on(input, &[CpuId(0)], None).build(|_| Nothing).unwrap();
    let (parts, handle) = built.split();
    let clock = ManualClock::default();
    World { cpus: parts.into_iter().map(|part| part.enter(clock.clone())).collect(), handle, clock }
}

impl World {
    fn step(&mut self, rounds: usize, first: usize) -> Snapshot {
        for _ in 0..rounds {
            self.cpus[0].step();
            self.cpus[first..].iter_mut().for_each(|cpu| {
                cpu.step();
                cpu.step();
            });
            self.clock.advance(Duration::from_micros(10));
        }
        let now = self.handle.snapshot();
        assert_eq!(now.received(), now.delivered() + now.dropped().total() + now.in_flight());
        assert_eq!(now.dropped().total(), now.dropped().get(DropReason::BacklogFull), "{:?}", now.dropped());
        now
    }

    fn end(mut self) {
        self.handle.stop();
        while !self.handle.is_finished() {
            self.cpus.iter_mut().for_each(|cpu| _ = cpu.step());
        }
        assert_at_rest(&self.handle.snapshot());
    }
}

#[test]
fn queues_share_the_backlog() {
    for queues in [1, 2, 7] {
        let mut world = world(Builder::new().backlog(200), queues, false, 3);
        let now = world.step(100, 3);
        assert_eq!(now.in_flight(), 2 * 200, "{queues} queues");
        let backlogs: Vec<u64> = now.cpus.iter().map(|cpu| cpu.backlog).collect();
        assert_eq!(backlogs, [0, 200, 200]);
        world.end();
    }
    let mut world = world(Builder::new().backlog(200), 2, true, 3);
    let now = world.step(100, 3);
    assert_eq!(now.dropped().total(), 0);
    assert!(now.in_flight() > 2 * 200 && now.in_flight() <= 2 * 2 * 200, "{}", now.in_flight());
    world.end();
}

#[test]
fn a_stalled_cpu_costs_its_own_packets_only_when_memory_is_short() {
    const CAP: usize = 12 << 20;
    for (queues, waits) in [(4, false), (1, false)] {
        let mut world = world(Builder::new().memory_max(CAP).kept_max(64), queues, waits, 9);
        let share = world.handle.limits().backlog as u64;
        let now = world.step(300, 2);
        assert!((64..1000).contains(&share) && now.memory_bytes <= CAP as u64, "{share}");
        assert_eq!((now.memory.backlog, now.memory.backlog_asked, now.memory.backlog_max), (share, 1000, share));
        assert_eq!((now.cpus[1].backlog, now.cpus[1].backlog_max), (share, 0));
        assert!(now.cpus[1].dropped.get(DropReason::BacklogFull) > 0);
        assert!(now.cpus[2..].iter().all(|cpu| cpu.dropped.total() == 0 && cpu.processed > 0));
        assert!(now.queues.iter().all(|queue| queue.pool.alloc_empty == 0));
        world.end();
    }
}

#[test]
fn too_little_memory_for_one_poll_per_cpu_is_refused() {
    let input = Input::new("endless", "test", vec![Box::new(Endless { next: 0, waits: false }) as Box<dyn RxQueue>]);
    let error = Builder::new().virtual_cpus(4).memory_max(1 << 20).input(input).build(|_| Nothing).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("memory_max is 1048576") && text.contains("raise memory_max"), "{text}");
}

#[test]
fn the_backlog_grows_and_shrinks_under_load() {
    for queues in [1, 3] {
        let mut world = world(Builder::new().backlog(100), queues, false, 2);
        assert_eq!(world.step(50, 2).in_flight(), 100);
        let pages = world.handle.snapshot().pages;
        for (backlog, in_flight) in [(1500, 1500), (500, 1500), (1600, 1600)] {
            let now = world.handle.set_limits(|limits| limits.backlog = backlog);
            assert_eq!(now.backlog, backlog);
            let now = world.step(100, 2);
            assert_eq!((now.in_flight(), now.memory.backlog), (in_flight, backlog as u64), "{queues} queues");
        }
        assert!(world.handle.snapshot().pages >= pages + 1500);
        assert_eq!(
            world.handle.set_limits(|limits| limits.backlog = 1 << 20).backlog,
            1600,
            "16 times as long at most"
        );
        let now = world.step(400, 1);
        assert!(now.delivered() > 10_000 && now.queues.iter().all(|queue| queue.pool.alloc_empty == 0));
        world.end();
    }
}

/// Other queues can use the pages of a queue's finished frames. An idle queue reclaims its finished
/// pages.
#[test]
fn a_server_of_many_cpus_and_queues_starts_with_the_default_memory() {
    for (queues, cpus) in [(32, 32), (16, 128)] {
        let mut world = world(Builder::new(), queues, false, cpus);
        let now = world.step(20, 1);
        assert_eq!((now.memory.backlog, now.memory.backlog_asked), (1000, 1000), "{queues} queues, {cpus} CPUs");
        assert!(now.memory_bytes <= 1 << 30 && now.memory_bytes == now.memory.bytes());
        assert!(now.delivered() > 0);
        world.end();
    }
}
