//! Many CPUs in virtual time: nothing reordered, nothing lost, one seed one history.
//!
//! `STEERAGE_SEED=n cargo test -p steerage-sim --test history` runs that seed alone, `STEERAGE_SEEDS=n` the first n.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use steerage::{
    BUCKETS, Balance, Builder, CpuId, CpuMask, DropReason, FlowHasher, GroupLoad, Handle, Hash, HashKey, Instance,
    MoveCause, Policy, Wish,
};
use steerage_sim::{Chance, Costs, Mood, TrafficOptions, Wire, Witness, WitnessHandler, World};

/// Phases a run may take: some 20 times what they do take.
const STEPS_MAX: u64 = 20_000_000;

/// Three ways to spread buckets: by hash, by load, and without any reason.
#[derive(Debug)]
enum Any {
    Hash(Hash),
    Load(Box<Balance>),
    Restless(Chance),
}

impl Any {
    fn of(seed: u64) -> Self {
        match seed % 3 {
            0 => Self::Hash(Hash),
            1 => Self::Load(Box::default()),
            _ => Self::Restless(Chance::new(seed)),
        }
    }

    fn inner(&mut self) -> &mut dyn Policy {
        match self {
            Self::Hash(policy) => policy,
            Self::Load(policy) => &mut **policy,
            Self::Restless(_) => unreachable!("it has no reason"),
        }
    }
}

impl Policy for Any {
    fn name(&self) -> &'static str {
        "any"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(match self {
            Self::Hash(policy) => Self::Hash(*policy),
            Self::Load(_) => Self::Load(Box::default()),
            Self::Restless(chance) => Self::Restless(chance.clone()),
        })
    }

    fn active(&mut self, order: &[u16], owners: usize, active: &[u16]) -> Option<Vec<u16>> {
        match self {
            Self::Restless(_) => Some(order.to_vec()),
            other => other.inner().active(order, owners, active),
        }
    }

    /// A run takes milliseconds.
    fn look_every(&self) -> Option<Duration> {
        match self {
            Self::Hash(policy) => policy.look_every(),
            _ => Some(Duration::from_micros(50)),
        }
    }

    fn look(&mut self, load: &GroupLoad<'_>) -> Option<Wish> {
        let Self::Restless(chance) = self else { return self.inner().look(load) };
        let mut map = Box::new(*load.map);
        for _ in 0..chance.below(400) {
            map[chance.below(BUCKETS as u64) as usize] = load.order[chance.below(load.order.len() as u64) as usize];
        }
        Some(Wish { map, cause: MoveCause::Balance })
    }
}

struct Run {
    seed: u64,
    cpus: usize,
    traffic: TrafficOptions,
    mood: Mood,
    costs: Costs,
    /// A mask changes once in so many phases.
    masks_once_in: u64,
    /// Whether the mask of one queue alone may change.
    single_queues: bool,
}

fn instance(run: &Run, witness: &Arc<Witness>) -> (Instance<WitnessHandler>, Arc<Wire>) {
    let (witness, wire, seed) = (Arc::clone(witness), Arc::new(Wire::default()), run.seed);
    let outputs = wire.outputs(run.traffic.queues, 40, seed);
    let builder = outputs.into_iter().fold(Builder::new(), Builder::output);
    let instance = builder
        .virtual_cpus(run.cpus)
        .backlog(100)
        .kept_max(200)
        .check_order(true)
        .policy(Any::of(run.seed))
        .hash(FlowHasher::keyed(&HashKey::MICROSOFT))
        .input(run.traffic.input())
        .build(move |cpu| witness.handler(cpu, seed));
    (instance.unwrap(), wire)
}

/// Any CPUs, seldom none; once in eight, of one queue alone.
fn change_a_mask(handle: &Handle, run: &Run, chance: &mut Chance) {
    let mut mask: CpuMask = (0..run.cpus as u16).filter(|_| chance.below(2) == 0).map(CpuId).collect();
    if !chance.once_in(16) || !run.single_queues {
        mask.insert(CpuId(chance.below(run.cpus as u64) as u16));
    }
    if run.single_queues && chance.once_in(8) {
        handle.set_queue_rps_cpus(chance.below(run.traffic.queues as u64) as usize, &mask).unwrap();
    } else {
        handle.set_rps_cpus(&mask).unwrap();
    }
}

fn change_limits(handle: &Handle, queues: usize, chance: &mut Chance) {
    let mut below = |most: u64| 1 + chance.below(most) as usize;
    let (backlog, dev_weight, budget) = (below(128), below(64), below(300));
    let now = handle.set_limits(|limits| {
        (limits.backlog, limits.dev_weight, limits.budget) = (backlog, dev_weight, budget);
    });
    assert_eq!((now.backlog, now.dev_weight, now.budget), (backlog, dev_weight, budget));
    let limited: CpuMask = [CpuId(0)].into_iter().filter(|_| chance.once_in(2)).collect();
    handle.set_flow_limit_cpus(&limited).unwrap();
    assert_eq!(handle.flow_limit_cpus(), limited);
    let (queue, units) = (chance.below(queues as u64) as usize, chance.below(3) as usize);
    assert_eq!(handle.set_queue_limits(queue, |limits| limits.lpc_size = units).unwrap().lpc_size, units);
}

/// Runs it to the end; returns its history. `deaths`: whether CPUs may be declared dead, whose buckets others then have.
fn play(run: &Run, deaths: bool) -> u64 {
    let witness = Witness::new(run.mood);
    let (instance, wire) = instance(run, &witness);
    let mut world = World::new(instance, run.costs, run.seed);
    let queues = run.traffic.queues;
    world.run(STEPS_MAX, |handle, _, chance| {
        if chance.once_in(run.masks_once_in) {
            change_a_mask(handle, run, chance);
        }
        if chance.once_in(2 * run.masks_once_in) {
            let there = (0..run.cpus as u16).filter(|_| !chance.once_in(4)).map(CpuId).collect();
            handle.set_present_cpus(&there);
        }
        if chance.once_in(4 * run.masks_once_in) {
            change_limits(handle, queues, chance);
        }
    });
    let (history, handle) = (world.history(), world.handle().clone());
    world.finish();
    let ledger = handle.snapshot();
    let seed = run.seed;
    assert_eq!(ledger.in_flight(), 0, "seed {seed}: {ledger:#?}");
    assert_eq!(handle.held(), 0, "seed {seed}: rings hold what the ledger does not know");
    assert_eq!(ledger.received(), run.traffic.frames * queues as u64, "seed {seed}");
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
    assert_eq!(ledger.reordered(), Some(0), "seed {seed}");
    assert_eq!(witness.torn.load(SeqCst), 0, "seed {seed}: packets were not as they were sent");
    assert!(witness.chained.load(SeqCst) > 0, "seed {seed}: no packet in several pages was seen");
    assert_eq!(wire.late.load(SeqCst), 0, "seed {seed}: packets left out of order");
    assert_eq!(wire.sent.load(SeqCst), ledger.verdicts().transmitted, "seed {seed}");
    assert_eq!(ledger.outputs.iter().map(|output| output.packets).sum::<u64>(), wire.sent.load(SeqCst), "seed {seed}");
    assert_eq!(ledger.pages_free, ledger.pages, "seed {seed}: pages are not home");
    if run.traffic.can_wait && run.mood.panics_once_in == 0 {
        assert_eq!(
            ledger.dropped().total(),
            ledger.dropped().get(DropReason::TxFull),
            "seed {seed}: a source that can wait lost something"
        );
    }
    if run.traffic.can_wait && run.mood.panics_once_in == 0 && !run.single_queues {
        let gaps = witness.gaps.load(SeqCst);
        assert_eq!(gaps, 0, "seed {seed}: flows whose state did not come along");
    }
    if !deaths {
        witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(ledger.cpus.iter().all(|cpu| cpu.deaths == 0), "seed {seed}: nobody may die in this test");
    }
    history
}

/// The seeds to run: the one that was asked for, or `count`.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STEERAGE_SEED") {
        Ok(seed) => vec![seed.parse().expect("STEERAGE_SEED is a number")],
        Err(_) => {
            let asked = std::env::var("STEERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
            (1..=asked.unwrap_or(count)).collect()
        }
    }
}

/// Planted panics would fill the log; any other is shown.
fn quiet_panics() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("planted") {
            loud(info);
        }
    }));
}

fn small(seed: u64) -> Run {
    let mut chance = Chance::new(seed);
    let cpus = [1, 2, 3, 4, 8, 16, 64][chance.below(7) as usize];
    Run {
        seed,
        cpus,
        traffic: TrafficOptions {
            queues: [1, 4][chance.below(2) as usize],
            flows: 200,
            zipf: 1.0,
            frames: 3_000,
            can_wait: chance.below(2) == 0,
            chained_once_in: 4,
            gap: Duration::from_nanos(chance.below(200)),
            seed,
        },
        mood: Mood {
            panics_once_in: [0, 50][chance.below(2) as usize],
            panics_in_moves_once_in: 0,
            keeps_once_in: [0, 20][chance.below(2) as usize],
            changes_once_in: 6,
            discards_once_in: 10,
            transmits_once_in: [0, 2][chance.below(2) as usize],
            ..Mood::default()
        },
        costs: Costs { packet: Duration::from_nanos(chance.below(400)), ..Costs::default() },
        masks_once_in: 2_000,
        single_queues: chance.below(2) == 0,
    }
}

#[test]
fn many_small_histories() {
    quiet_panics();
    for seed in seeds(300) {
        let mut run = small(seed);
        // A rebuilt handler has lost its state: what it was told of flows is then no witness.
        run.mood.panics_once_in = 0;
        play(&run, false);
    }
}

#[test]
fn handlers_that_panic() {
    quiet_panics();
    for seed in seeds(100) {
        let mut run = small(seed);
        run.mood.panics_once_in = 20;
        run.mood.panics_in_moves_once_in = 30;
        play(&run, true);
    }
}

#[test]
fn sixty_four_cpus_one_seed_one_history() {
    let run = |seed| Run {
        seed,
        cpus: 64,
        traffic: TrafficOptions {
            queues: 4,
            flows: 2_000,
            zipf: 1.0,
            frames: 20_000,
            can_wait: false,
            chained_once_in: 4,
            gap: Duration::from_nanos(30),
            seed,
        },
        mood: Mood { keeps_once_in: 30, ..Mood::default() },
        costs: Costs::default(),
        masks_once_in: 5_000,
        single_queues: true,
    };
    let first = play(&run(7), false);
    assert_eq!(first, play(&run(7), false), "the same seed gave another history");
    assert_ne!(first, play(&run(8), false), "another seed gave the same history: the seed does nothing");
}

/// Handlers that stall for tens of milliseconds: moves run into their time, packets are dropped as moving and revoked,
/// and order stands.
#[test]
fn stalls_are_waited_for_and_revoked() {
    let mut dropped = 0;
    for seed in seeds(40) {
        let mut run = small(seed);
        run.cpus = run.cpus.max(2);
        run.traffic.can_wait = false;
        run.traffic.gap = Duration::from_micros(5);
        run.traffic.frames = 20_000;
        run.mood.panics_once_in = 0;
        run.costs.stalls_once_in = 400;
        run.costs.stall = Duration::from_millis(60);
        let witness = Witness::new(run.mood);
        let (instance, wire) = instance(&run, &witness);
        let mut world = World::new(instance, run.costs, seed);
        world.run(STEPS_MAX, |handle, _, chance| {
            if chance.once_in(500) {
                change_a_mask(handle, &run, chance);
            }
        });
        let ledger = world.handle().snapshot();
        world.finish();
        assert_eq!(ledger.reordered(), Some(0), "seed {seed}");
        assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
        witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!(wire.late.load(SeqCst), 0, "seed {seed}: packets left out of order");
        let of = |reason| ledger.dropped().get(reason);
        dropped += of(DropReason::Moving) + of(DropReason::Revoked);
    }
    assert!(dropped > 0 || std::env::var("STEERAGE_SEED").is_ok(), "no move ever took too long: this tests nothing");
}

/// Handlers that do not return for seconds: their CPUs are declared dead, come back, and what they did meanwhile does not
/// count.
#[test]
fn the_dead_are_left_and_come_back() {
    let mut deaths = 0;
    for seed in seeds(40) {
        let mut run = small(seed);
        run.cpus = run.cpus.max(3);
        run.traffic.can_wait = false;
        run.traffic.gap = Duration::from_micros(200);
        run.traffic.frames = 30_000;
        run.mood.panics_once_in = 0;
        run.costs.stalls_once_in = 2_000;
        run.costs.stall = Duration::from_secs(6);
        run.masks_once_in = 3_000;
        let witness = Witness::new(run.mood);
        let (instance, wire) = instance(&run, &witness);
        let mut world = World::new(instance, run.costs, seed);
        world.run(STEPS_MAX, |handle, _, chance| {
            if chance.once_in(run.masks_once_in) {
                change_a_mask(handle, &run, chance);
            }
        });
        let handle = world.handle().clone();
        world.finish();
        let ledger = handle.snapshot();
        assert_eq!(ledger.reordered(), Some(0), "seed {seed}");
        assert_eq!(witness.torn.load(SeqCst), 0, "seed {seed}: packets were not as they were sent");
        assert_eq!((ledger.in_flight(), handle.held()), (0, 0), "seed {seed}");
        assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
        assert_eq!(ledger.pages_free, ledger.pages, "seed {seed}: pages are not home");
        assert_eq!(wire.late.load(SeqCst), 0, "seed {seed}: packets left out of order");
        assert_eq!(wire.sent.load(SeqCst), ledger.verdicts().transmitted, "seed {seed}");
        deaths += ledger.cpus.iter().map(|cpu| cpu.deaths).sum::<u64>();
    }
    assert!(deaths > 0 || std::env::var("STEERAGE_SEED").is_ok(), "nobody ever died: this tests nothing");
}
