//! A receiving CPU is declared dead while it has staged packets. The staged packets must not be
//! delivered after the CPU has been declared dead.

use std::time::Duration;

use steerage::{
    Builder, CpuId, CpuMask, Handler, Hash,
    stats::DropReason,
    threads::{Phase, Softnet, Stepped},
};
use steerage_core::limits::PUBLISH_AT;
use steerage_fixtures::manual_clock::ManualClock;
use steerage_sim::{Mood, TrafficOptions, Witness, WitnessHandler};

const ROUNDS_MAX: usize = 10_000;

fn step_until<H: Handler>(cpus: &mut [Softnet<H, ManualClock>], clock: &ManualClock, mut done: impl FnMut() -> bool) {
    for _ in 0..ROUNDS_MAX {
        if done() {
            return;
        }
        for cpu in &mut *cpus {
            cpu.step();
        }
        clock.advance(Duration::from_millis(5));
    }
    panic!("it does not happen in {ROUNDS_MAX} rounds");
}

#[test]
fn what_a_dead_receiver_had_staged_is_dropped() {
    let witness = Witness::new(Mood::default());
    let traffic = TrafficOptions {
        queues: 2,
        flows: 500,
        zipf: 0.0,
        frames: 20_000,
        can_wait: false,
        chained_once_in: 0,
        gap: Duration::ZERO,
        seed: 1,
    };
    let instance = Builder::new()
        .virtual_cpus(8)
        .policy(Hash)
        .input_on(traffic.input(), &[CpuId(0), CpuId(1)], None)
        .build(move |cpu| -> WitnessHandler { witness.handler(cpu, 1) })
        .unwrap();
    let (parts, handle) = instance.split();
    let clock = ManualClock::default();
    let mut cpus: Vec<_> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();

    // After one poll of 64 frames for eight CPUs, most CPUs have too few frames to publish.
    while !matches!(cpus[0].phase(), Phase::Finish(_)) {
        cpus[0].advance();
    }
    let staged = handle.snapshot().in_flight() - handle.held();
    assert!(staged > 0, "nothing is staged, with {PUBLISH_AT} to a list: this tests nothing");

    // CPU 1 also receives, and gets the buckets of CPU 0.
    let (receiver, others) = cpus.split_at_mut(1);
    handle.set_rps_cpus(&CpuMask::from_iter([CpuId(1)])).unwrap();
    step_until(others, &clock, || handle.is_settled());
    let settled = handle.snapshot();

    assert_eq!(receiver[0].advance(), None, "the batch ends, in the midst of a round");
    step_until(&mut cpus, &clock, || handle.snapshot().in_flight() == 0 && handle.snapshot().received() == 40_000);
    let end = handle.snapshot();
    assert_eq!(end.cpus[0].deaths, 1);
    for cpu in 2..8 {
        assert_eq!(end.cpus[cpu].processed, settled.cpus[cpu].processed, "CPU {cpu} was sent packets by the old map");
    }
    assert!(end.dropped().get(DropReason::Revoked) >= staged);
    assert_eq!(end.received(), end.delivered() + end.dropped().total());
    assert!(cpus.iter_mut().all(|cpu| (0..ROUNDS_MAX).any(|_| cpu.step() == Stepped::Finished)));
}
