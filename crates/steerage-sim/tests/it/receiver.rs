use std::time::Duration;

use steerage::{
    Balance, Builder, CpuId, Handle, Hash, Timestamp,
    flow::{FlowHasher, HashKey},
    policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy},
    threads::{Phase, Softnet, Stepped},
};
use steerage_core::limits::OFFER_WAIT;
use steerage_fixtures::manual_clock::ManualClock;
use steerage_sim::{Costs, Mood, TrafficOptions, Witness, WitnessHandler, World};

type Cpus = Vec<Softnet<WitnessHandler, ManualClock>>;

const FRAMES: u64 = 20_000;

const ROUNDS_MAX: usize = 100_000;

fn two_cpus(can_wait: bool) -> (Cpus, Handle, ManualClock) {
    let witness = Witness::new(Mood::default());
    let (flows, zipf, chained_once_in, gap) = (500, 0.0, 0, Duration::ZERO);
    let traffic = TrafficOptions { queues: 1, flows, zipf, frames: FRAMES, can_wait, chained_once_in, gap, seed: 1 };
    let instance = Builder::new()
        .virtual_cpus(2)
        .policy(Hash)
        .check_order(true)
        .input_on(traffic.input(), &[CpuId(0)], None)
        .build(move |cpu| -> WitnessHandler { witness.handler(cpu, 1) })
        .unwrap();
    let (parts, handle) = instance.split();
    let clock = ManualClock::default();
    (parts.into_iter().map(|part| part.enter(clock.clone())).collect(), handle, clock)
}

fn step(cpus: &mut Cpus, clock: &ManualClock) -> bool {
    clock.advance(Duration::from_micros(1));
    cpus.iter_mut().map(|cpu| cpu.step()).filter(|stepped| *stepped == Stepped::Finished).count() == cpus.len()
}

fn step_until(cpus: &mut Cpus, clock: &ManualClock, done: impl Fn() -> bool) {
    (0..ROUNDS_MAX).find(|_| done() || step(cpus, clock) && done()).expect("it does not happen");
}

fn step_to_the_end(cpus: &mut Cpus, clock: &ManualClock) {
    (0..ROUNDS_MAX).find(|_| step(cpus, clock)).expect("it does not end");
}

fn receiver(handle: &Handle) -> CpuId {
    handle.snapshot().queues[0].cpu
}

#[test]
fn the_other_cpu_polls_and_nothing_is_lost() {
    for can_wait in [false, true] {
        let (mut cpus, handle, clock) = two_cpus(can_wait);
        step(&mut cpus, &clock);
        assert!(handle.is_settled());
        handle.set_rx_cpu(0, CpuId(1)).unwrap();
        assert!(!handle.is_settled(), "nobody had a chance to do it");
        for _ in 0..4 {
            step(&mut cpus, &clock);
        }
        assert!(handle.is_settled());
        assert_eq!(receiver(&handle), CpuId(1));
        let polled = handle.snapshot().cpus[0].polled;
        step_to_the_end(&mut cpus, &clock);
        let end = handle.snapshot();
        assert_eq!((end.cpus[0].polled, end.received(), end.reordered()), (polled, FRAMES, Some(0)));
        assert!(end.cpus.iter().all(|cpu| cpu.processed > FRAMES / 3), "buckets stay where they are");
        assert_eq!(end.received(), end.delivered() + end.dropped().total());
        assert!(!can_wait || end.dropped().total() == 0);
    }
}

/// A CPU can release its queue only after its handler has returned.
#[test]
fn a_stuck_owner_keeps_its_queue() {
    let (mut cpus, handle, clock) = two_cpus(false);
    while !matches!(cpus[0].phase(), Phase::Finish(_)) {
        cpus[0].advance();
    }
    handle.set_rx_cpu(0, CpuId(1)).unwrap();
    for _ in 0..100 {
        cpus[1].step();
        clock.advance(OFFER_WAIT);
    }
    assert!(!handle.is_settled());
    assert_eq!(receiver(&handle), CpuId(0));
    step_until(&mut cpus, &clock, || handle.is_settled());
    assert_eq!(receiver(&handle), CpuId(1));
}

/// A CPU in its handler takes over no queue, so the queue's old owner polls it again.
#[test]
fn a_queue_that_nobody_takes_stays() {
    let (mut cpus, handle, clock) = two_cpus(false);
    cpus[0].step();
    while !matches!(cpus[1].phase(), Phase::Finish(_)) {
        cpus[1].advance();
    }
    handle.set_rx_cpu(0, CpuId(1)).unwrap();
    cpus[0].step();
    let polled = handle.snapshot().cpus[0].polled;
    cpus[0].step();
    assert_eq!(handle.snapshot().cpus[0].polled, polled, "it has let go of the queue");
    clock.advance(OFFER_WAIT);
    cpus[0].step();
    assert!(handle.is_settled());
    assert_eq!(receiver(&handle), CpuId(0));
    assert!(handle.snapshot().cpus[0].polled > polled);
    step_to_the_end(&mut cpus, &clock);
    let end = handle.snapshot();
    assert_eq!((end.cpus[1].polled, end.received(), end.reordered()), (0, FRAMES, Some(0)));
}

#[test]
fn the_last_wish_counts() {
    let (mut cpus, handle, clock) = two_cpus(false);
    let steps = |cpus: &mut Cpus| {
        for _ in 0..8 {
            step(cpus, &clock);
        }
    };
    handle.set_rx_cpu(0, CpuId(1)).unwrap();
    handle.set_rx_cpu(0, CpuId(0)).unwrap();
    steps(&mut cpus);
    assert_eq!((receiver(&handle), handle.is_settled()), (CpuId(0), true));
    handle.set_rx_cpu(0, CpuId(1)).unwrap();
    cpus[0].step(); // It lets go of the queue.
    handle.set_rx_cpu(0, CpuId(0)).unwrap();
    steps(&mut cpus);
    assert_eq!((receiver(&handle), handle.is_settled()), (CpuId(0), true));
    assert!(handle.set_rx_cpu(0, CpuId(7)).is_err() && handle.set_rx_cpu(1, CpuId(0)).is_err());
}

const COST: Duration = Duration::from_micros(4);

/// Runs two CPUs with unlimited packets. Other programs take the share `others` of CPU 0. At first,
/// the CPU `receiver` polls. Returns the final packets per second, and the CPU that polls at the
/// end.
fn play(receiver: u16, others: f64, policy: Box<dyn Policy>, seed: u64) -> (f64, CpuId) {
    let (flows, zipf, frames, chained_once_in, gap) = (5_000, 0.8, 100_000_000, 0, Duration::ZERO);
    let traffic = TrafficOptions { queues: 1, flows, zipf, frames, can_wait: true, chained_once_in, gap, seed };
    let witness = Witness::new(Mood::default());
    let instance = Builder::new()
        .virtual_cpus(2)
        .policy(policy)
        .check_order(true)
        .hash(FlowHasher::keyed(&HashKey::MICROSOFT))
        .input(traffic.input())
        .build(move |cpu| -> WitnessHandler { witness.handler(cpu, seed) })
        .unwrap();
    let mut world = World::new(instance, Costs { receive: COST, packet: COST, ..Costs::default() }, seed);
    world.take_time(0, others);
    world.handle().poll_on(0, receiver);
    let mut delivered_at = |seconds: f64| {
        while world.now().since(Timestamp::ZERO).as_secs_f64() < seconds {
            assert!(world.step());
        }
        world.handle().snapshot().delivered()
    };
    let rate = (delivered_at(4.0), delivered_at(6.0));
    let cpu = receiver_of(&world);
    world.handle().stop();
    world.run(u64::MAX, |_, _, _| {});
    let ledger = world.handle().snapshot();
    assert_eq!((ledger.reordered(), ledger.in_flight(), ledger.dropped().total()), (Some(0), 0, 0));
    ((rate.1 - rate.0) as f64 / 2.0, cpu)
}

fn receiver_of(world: &World<WitnessHandler>) -> CpuId {
    world.handle().snapshot().queues[0].cpu
}

#[derive(Clone, Debug, Default)]
struct Fixed(Balance);

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(Self::default())
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        self.0.plan(group)
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        self.0.refine(load)
    }
}

#[test]
fn polling_moves_away_from_others() {
    let mean = |receiver: u16, others: f64, policy: fn() -> Box<dyn Policy>| {
        (1..=2).map(|seed| play(receiver, others, policy(), seed).0).sum::<f64>() / 2.0
    };
    let fixed: fn() -> Box<dyn Policy> = || Box::new(Fixed::default());
    for others in [0.3, 0.7] {
        let best = mean(0, others, fixed).max(mean(1, others, fixed));
        for receiver in [0, 1] {
            let rate = mean(receiver, others, || Box::new(Balance::new()));
            assert!(rate >= 0.97 * best, "{others} from CPU {receiver}: {rate} of {best}");
        }
    }
    assert_eq!(play(0, 0.0, Box::new(Balance::new()), 3).1, CpuId(0));
}
