use std::sync::Arc;
use std::time::Duration;

use steerage::{
    Balance, Builder, CpuId, Snapshot,
    flow::{FlowHasher, HashKey},
};
use steerage_sim::{Costs, Mood, TrafficOptions, Witness, World};

const STEPS_MAX: u64 = 50_000_000;

const WORK: Duration = Duration::from_micros(50);

/// Runs traffic that keeps `load` CPUs busy. Returns the ledger at half-time and at the end.
fn play(cpus: usize, load: f64, zipf: f64, seconds: f64, seed: u64) -> (Snapshot, Snapshot) {
    let gap = Duration::from_nanos((WORK.as_nanos() as f64 / load) as u64);
    let frames = (seconds / gap.as_secs_f64()) as u64;
    let traffic =
        TrafficOptions { queues: 1, flows: 20_000, zipf, frames, can_wait: false, chained_once_in: 0, gap, seed };
    let witness = Witness::new(Mood::default());
    let make = Arc::clone(&witness);
    let instance = Builder::new()
        .virtual_cpus(cpus)
        .check_order(true)
        .policy(Balance::new())
        .hash(FlowHasher::keyed(&HashKey::MICROSOFT))
        .input_on(traffic.input(), &[CpuId(0)], None)
        .build(move |cpu| make.handler(cpu, seed))
        .unwrap();
    let costs = Costs { packet: WORK, held_up_once_in: 5_000, ..Costs::default() };
    let mut world = World::new(instance, costs, seed);
    let mut half = None;
    world.run(STEPS_MAX, |handle, step, _| {
        // Taking a snapshot of the counters takes much longer than a phase.
        if half.is_none() && step % 1000 == 0 {
            let now = handle.snapshot();
            half = (now.received() > frames / 2).then_some(now);
        }
    });
    let end = world.handle().snapshot();
    assert_eq!(witness.verdict(), Ok(()), "seed {seed}");
    assert_eq!(end.reordered(), Some(0), "seed {seed}");
    assert_eq!(end.received(), end.delivered() + end.dropped().total(), "seed {seed}");
    assert_eq!(end.received(), frames, "seed {seed}");
    (half.unwrap(), end)
}

fn handled(half: &Snapshot, end: &Snapshot) -> Vec<u64> {
    end.cpus.iter().zip(&half.cpus).map(|(end, half)| end.processed - half.processed).collect()
}

#[test]
fn while_one_cpu_keeps_up_the_others_are_not_needed() {
    let (_, end) = play(8, 0.5, 0.8, 1.0, 1);
    assert_eq!(end.moves.buckets, 0);
    assert_eq!(end.groups[0].active, [CpuId(0)]);
    assert!(end.cpus[1..].iter().all(|cpu| cpu.processed == 0 && cpu.wakes_received <= 1));
    assert_eq!(end.dropped().total(), 0);
}

#[test]
fn as_many_join_as_it_takes_and_share_evenly() {
    for seed in [1, 2] {
        let (half, end) = play(8, 4.5, 0.8, 4.0, seed);
        let group = &end.groups[0];
        assert!(group.active.len() >= 6, "seed {seed}: {:?}", group.active);
        assert_eq!(end.dropped().total(), half.dropped().total(), "seed {seed}: {:?}", end.dropped());
        let worked: Vec<u64> = handled(&half, &end).into_iter().filter(|packets| *packets > 0).collect();
        let mean = worked.iter().sum::<u64>() as f64 / worked.len() as f64;
        let busiest = worked.iter().copied().max().unwrap_or(0) as f64 / mean;
        assert!(busiest <= 1.1, "seed {seed}: {busiest} of the mean, {worked:?}");
    }
}

/// The first flow has a third of all traffic (Zipf's exponent 1.4), and needs two thirds of a CPU.
#[test]
fn an_elephant_is_told_by_its_name() {
    let (_, end) = play(4, 2.0, 1.4, 3.0, 3);
    let elephants = &end.groups[0].elephants;
    assert!((0.5..0.9).contains(&elephants[0].load), "{elephants:?}");
    let flow = elephants[0].flow.map(|flow| flow.to_string());
    assert_eq!(flow.as_deref(), Some("udp 10.0.0.0:1024 > 192.168.0.1:9"), "{elephants:?}");
}
