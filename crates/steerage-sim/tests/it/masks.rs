use std::time::Duration;

use steerage::{
    Builder, CpuId, CpuMask, Hash, Snapshot,
    flow::{FlowHasher, HashKey},
};
use steerage_sim::{Chance, Control, Costs, Mood, TrafficOptions, Witness, WitnessHandler, World};

use crate::seeds::seeds;

/// The maximum number of phases until a request is fulfilled, about 20 times the usual number.
const STEPS_MAX: u64 = 2_000_000;

fn traffic(queues: usize, frames: u64, seed: u64) -> TrafficOptions {
    TrafficOptions {
        queues,
        flows: 200,
        zipf: 1.0,
        frames,
        can_wait: true,
        chained_once_in: 4,
        gap: Duration::ZERO,
        seed,
    }
}

fn builder(cpus: usize) -> Builder {
    Builder::new()
        .virtual_cpus(cpus)
        .backlog(100)
        .check_order(true)
        .policy(Hash)
        .hash(FlowHasher::keyed(&HashKey::MICROSOFT))
}

fn mask(cpus: &[u16]) -> CpuMask {
    cpus.iter().copied().map(CpuId).collect()
}

fn at_random(cpus: u16, chance: &mut Chance) -> CpuMask {
    let mut mask: CpuMask = (0..cpus).filter(|_| chance.below(2) == 0).map(CpuId).collect();
    mask.insert(CpuId(chance.below(u64::from(cpus)) as u16));
    mask
}

fn settle(world: &mut World<WitnessHandler>, seed: u64) {
    let until = world.steps() + STEPS_MAX;
    while !world.handle().is_settled() {
        assert!(world.step() && world.steps() < until, "seed {seed}: the masks do not come into force");
    }
}

fn processed(ledger: &Snapshot) -> Vec<u64> {
    ledger.cpus.iter().map(|cpu| cpu.processed).collect()
}

/// A bucket of one device is independent of the bucket with the same number of the other device.
#[test]
fn devices_with_masks_of_their_own_are_apart_from_the_start() {
    for seed in 1..=10 {
        let witness = Witness::new(Mood::default());
        let for_handlers = std::sync::Arc::clone(&witness);
        let instance = builder(4)
            .input_on(traffic(1, 2_000, seed).input(), &[CpuId(0)], Some(mask(&[0, 1])))
            .input_on(traffic(1, 2_000, seed + 100).input(), &[CpuId(2)], Some(mask(&[2, 3])))
            .build(move |cpu| for_handlers.handler(cpu, seed))
            .unwrap();
        let mut world = World::new(instance, Costs::default(), seed);
        world.run(STEPS_MAX, |_, _, _| {});
        let ledger = world.handle().snapshot();
        witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!((ledger.received(), ledger.delivered(), ledger.reordered()), (4_000, 4_000, Some(0)), "seed {seed}");
        assert!(processed(&ledger).iter().all(|count| *count > 0), "seed {seed}: {:?}", processed(&ledger));
    }
}

#[test]
fn the_mask_set_last_comes_into_force() {
    for seed in seeds(15) {
        let mut chance = Chance::new(seed);
        let witness = Witness::new(Mood::default());
        let for_handlers = std::sync::Arc::clone(&witness);
        let instance = builder(4)
            .rps_cpus(mask(&[3]))
            .input_on(traffic(2, 1_000_000, seed).input(), &[CpuId(0), CpuId(1)], None)
            .build(move |cpu| for_handlers.handler(cpu, seed))
            .unwrap();
        // If a CPU drops a request because the control lock is held, nothing repeats the request.
        let control = [Control::OnTime, Control::Racing { once_in: 50, phases: 200 }][seed as usize % 2];
        let mut world = World::new(instance, Costs { control, ..Costs::default() }, seed);
        let mut last = mask(&[3]);
        for _ in 0..1 + chance.below(4) {
            last = if chance.below(2) == 0 { mask(&[3]) } else { at_random(4, &mut chance) };
            world.handle().set_queue_rps_cpus(0, &last).unwrap();
            for _ in 0..chance.below(400) {
                world.step();
            }
        }
        settle(&mut world, seed);
        assert_eq!(world.handle().snapshot().queues[0].rps_cpus, last.iter().collect::<Vec<_>>(), "seed {seed}");

        for _ in 0..20_000 {
            world.step();
        }
        let before = processed(&world.handle().snapshot());
        for _ in 0..20_000 {
            world.step();
        }
        let after = processed(&world.handle().snapshot());
        for cpu in 0..4 {
            let more = after[usize::from(cpu)] - before[usize::from(cpu)];
            let in_a_mask = cpu == 3 || last.contains(CpuId(cpu));
            assert_eq!(more > 0, in_a_mask, "seed {seed}: CPU {cpu} handled {more} packets under {last:?}");
        }
        witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn queues_end_however_fast_masks_change() {
    for seed in 1..=5 {
        let witness = Witness::new(Mood::default());
        let for_handlers = std::sync::Arc::clone(&witness);
        let instance = builder(8)
            .input(traffic(2, 1_000, seed).input())
            .build(move |cpu| for_handlers.handler(cpu, seed))
            .unwrap();
        let mut world = World::new(instance, Costs::default(), seed);
        world.run(STEPS_MAX, |handle, _, chance| handle.set_rps_cpus(&at_random(8, chance)).unwrap());
        let ledger = world.handle().snapshot();
        assert_eq!((ledger.received(), ledger.delivered(), ledger.reordered()), (2_000, 2_000, Some(0)), "seed {seed}");
        witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// One CPU handles all packets, and each batch takes longer than the time limit of a round.
#[test]
fn every_queue_has_its_turn_though_rounds_end_early() {
    let witness = Witness::new(Mood::default());
    let for_handlers = std::sync::Arc::clone(&witness);
    let owners = [CpuId(0), CpuId(1), CpuId(2), CpuId(3)];
    let instance = builder(4)
        .rps_cpus(mask(&[0]))
        .input_on(traffic(4, 1_000_000, 1).input(), &owners, None)
        .build(move |cpu| for_handlers.handler(cpu, 1))
        .unwrap();
    let costs = Costs { packet: Duration::from_micros(100), ..Costs::default() };
    let mut world = World::new(instance, costs, 1);
    while world.handle().snapshot().delivered() < 20_000 {
        world.step();
    }
    let ledger = world.handle().snapshot();
    assert!(ledger.cpus[0].time_squeeze > 100, "rounds were not too long: this tests nothing");
    for queue in &ledger.queues {
        assert!(queue.verdicts.total() > 20_000 / 16, "queue {}: {} of 20,000", queue.queue, queue.verdicts.total());
    }
}
