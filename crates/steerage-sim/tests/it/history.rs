//! Many CPUs in virtual time: no packet is reordered or lost, and a seed repeats its history.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use steerage::{
    Balance, Builder, CpuId, CpuMask, Handle, Hash, Instance,
    flow::{FlowHasher, HashKey},
    limits::BUCKETS,
    policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy},
    stats::{DropReason, Findings, MoveCause, Snapshot},
};
use steerage_fixtures::quiet_panics;
use steerage_sim::{Chance, Control, Costs, Mood, TrafficOptions, Wire, Witness, WitnessHandler, World};

use crate::seeds::{all_run, seeds};

/// The maximum number of phases, about 20 times the usual number.
const STEPS_MAX: u64 = 20_000_000;

#[derive(Debug)]
enum Any {
    Hash(Hash),
    Load(Box<Balance>),
    Restless(Chance),
    /// One CPU has all buckets, then a few CPUs share them, and then one CPU has all buckets again.
    Breathing(Chance),
}

/// The number of load checks of [`Any::Breathing`] at which one CPU had all buckets, and the number
/// at which several CPUs had buckets.
static ONE_WORKED: AtomicU64 = AtomicU64::new(0);
static SEVERAL_WORKED: AtomicU64 = AtomicU64::new(0);

static JOINED_BY_LOAD: AtomicU64 = AtomicU64::new(0);

impl Any {
    fn of(kind: u64, seed: u64) -> Self {
        match kind % 4 {
            0 => Self::Hash(Hash),
            1 => Self::Load(Box::default()),
            2 => Self::Restless(Chance::new(seed)),
            _ => Self::Breathing(Chance::new(seed)),
        }
    }
}

/// In a third of the calls of `breathe`, one CPU gets all buckets, so that no packet is hashed.
fn breathe(chance: &mut Chance, order: &[u16]) -> Box<[u16; BUCKETS]> {
    let most = if chance.once_in(3) { 1 } else { order.len() as u64 };
    let (count, first) = (1 + chance.below(most) as usize, chance.below(order.len() as u64) as usize);
    let mut map = Box::new([0; BUCKETS]);
    for (bucket, cpu) in map.iter_mut().enumerate() {
        *cpu = order[(first + bucket * count / BUCKETS) % order.len()];
    }
    map
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
            Self::Breathing(chance) => Self::Breathing(chance.clone()),
        })
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        match self {
            Self::Hash(policy) => policy.plan(group),
            Self::Load(policy) => policy.plan(group),
            Self::Restless(_) => Plan::all(),
            Self::Breathing(_) => Plan { order: group.order.to_vec(), active: 1 },
        }
    }

    fn cpus_changed(&mut self) {
        if let Self::Load(policy) = self {
            policy.cpus_changed();
        }
    }

    fn refine_every(&self) -> Option<Duration> {
        match self {
            Self::Hash(policy) => policy.refine_every(),
            _ => Some(Duration::from_micros(50)),
        }
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        let map = match self {
            Self::Hash(policy) => return policy.refine(load),
            Self::Load(policy) => return policy.refine(load),
            Self::Restless(chance) => {
                let mut map = Box::new(*load.map);
                for _ in 0..chance.below(400) {
                    map[chance.below(BUCKETS as u64) as usize] =
                        load.order[chance.below(load.order.len() as u64) as usize];
                }
                map
            }
            Self::Breathing(chance) => {
                let one = load.map.iter().all(|cpu| *cpu == load.map[0]);
                if load.cpus.iter().any(|cpu| cpu.packets > 0) {
                    if one { &ONE_WORKED } else { &SEVERAL_WORKED }.fetch_add(1, SeqCst);
                }
                if !chance.once_in(4) {
                    return None;
                }
                breathe(chance, load.order)
            }
        };
        Some(MapRequest::new(map, MoveCause::Balance))
    }

    fn findings(&self) -> Findings {
        match self {
            Self::Load(policy) => policy.findings(),
            _ => Findings::default(),
        }
    }
}

struct Run {
    seed: u64,
    cpus: usize,
    traffic: TrafficOptions,
    mood: Mood,
    costs: Costs,
    masks_once_in: u64,
    single_queues: bool,
    policy: u64,
    /// True if the receive path checks arrival numbers. If false, only the witnesses (test
    /// handlers) detect packets that are out of order.
    check_order: bool,
    always_hash: bool,
    coalesce: bool,
}

impl Run {
    fn reordered(&self) -> Option<u64> {
        self.check_order.then_some(0)
    }
}

fn instance(run: &Run, witness: &Arc<Witness>) -> (Instance<WitnessHandler>, Arc<Wire>) {
    let (witness, wire, seed) = (Arc::clone(witness), Arc::new(Wire::default()), run.seed);
    let outputs = wire.outputs(run.traffic.queues, 40, seed);
    let builder = outputs.into_iter().fold(Builder::new(), Builder::output);
    let instance = builder
        .virtual_cpus(run.cpus)
        .backlog(100)
        .kept_max(200)
        .check_order(run.check_order)
        .coalesce(run.coalesce)
        .always_hash(run.always_hash)
        .policy(Any::of(run.policy, run.seed))
        .hash(FlowHasher::keyed(&HashKey::MICROSOFT))
        .input(run.traffic.input())
        .build(move |cpu| witness.handler(cpu, seed));
    (instance.unwrap(), wire)
}

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

fn change_a_receiver(handle: &Handle, run: &Run, chance: &mut Chance) {
    let (queue, cpu) = (chance.below(run.traffic.queues as u64), chance.below(run.cpus as u64));
    handle.set_rx_cpu(queue as usize, CpuId(cpu as u16)).unwrap();
}

static HANDED_OVER: AtomicU64 = AtomicU64::new(0);
static MERGED: AtomicU64 = AtomicU64::new(0);

fn count_receivers(ledger: &Snapshot, run: &Run) {
    let began_on = |queue: usize| CpuId((queue % run.cpus) as u16);
    let elsewhere = ledger.queues.iter().enumerate().filter(|(at, queue)| queue.cpu != began_on(*at));
    HANDED_OVER.fetch_add(elsewhere.count() as u64, SeqCst);
}

fn change_limits(handle: &Handle, queues: usize, chance: &mut Chance) {
    let mut below = |most: u64| 1 + chance.below(most) as usize;
    // The hand-over rings between CPUs begin with 128 slots. A larger backlog lets the rings grow.
    let (backlog, dev_weight, budget) = (below(128) * below(8), below(64), below(300));
    granted(backlog, |backlog| {
        let now = handle.set_limits(|limits| {
            (limits.backlog, limits.dev_weight, limits.budget) = (backlog, dev_weight, budget);
        });
        assert_eq!((now.dev_weight, now.budget), (dev_weight, budget));
        now.backlog
    });
    let limited: CpuMask = [CpuId(0)].into_iter().filter(|_| chance.once_in(2)).collect();
    handle.set_flow_limit_cpus(&limited).unwrap();
    assert_eq!(handle.flow_limit_cpus(), limited);
    let (queue, pages) = (chance.below(queues as u64) as usize, 1024 * chance.below(3) as usize);
    granted(pages, |pages| handle.set_queue_limits(queue, |limits| limits.lpc_pages = pages).unwrap().lpc_pages);
}

/// Checks that a limit is lower than requested only if memory is short. With 64 CPUs, the
/// instance's memory reaches its maximum. Memory in huge pages does not grow.
fn granted(wanted: usize, set: impl Fn(usize) -> usize) {
    let now = set(wanted);
    if now != wanted {
        assert!(now < wanted && set(usize::MAX) == now, "{now} of {wanted}");
    }
}

fn play(run: &Run, deaths: bool) -> u64 {
    let witness = Witness::new(run.mood);
    let (instance, wire) = instance(run, &witness);
    let mut world = World::new(instance, run.costs, run.seed);
    world.racer().into_iter().for_each(|racer| witness.race(racer));
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
        if chance.once_in(run.masks_once_in) {
            change_a_receiver(handle, run, chance);
        }
    });
    let (history, handle) = (world.history(), world.handle().clone());
    world.finish();
    let ledger = handle.snapshot();
    let seed = run.seed;
    count_receivers(&ledger, run);
    let merged = witness.merged.load(SeqCst);
    assert!(run.coalesce || merged == 0, "seed {seed}: {merged} packets were merged");
    MERGED.fetch_add(merged, SeqCst);
    JOINED_BY_LOAD.fetch_add(ledger.groups.iter().map(|group| group.findings.joined).sum(), SeqCst);
    assert_eq!(ledger.in_flight(), 0, "seed {seed}: {ledger:#?}");
    assert_eq!(handle.held(), 0, "seed {seed}: rings hold what the ledger does not know");
    assert_eq!(ledger.received(), run.traffic.frames * queues as u64, "seed {seed}");
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
    assert_eq!(ledger.reordered(), run.reordered(), "seed {seed}");
    assert_eq!(witness.torn.load(SeqCst), 0, "seed {seed}: packets were not as they were sent");
    assert!(witness.chained.load(SeqCst) > 0, "seed {seed}: no packet in several pages was seen: {ledger:#?}");
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

fn control(seed: u64) -> Control {
    match seed / 4 % 4 {
        0 => Control::OnTime,
        1 => Control::Late(Duration::from_secs(4)),
        2 => Control::Stopped,
        _ => Control::Racing { once_in: 100, phases: 200 },
    }
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
            // With a Zipf exponent of 3.0, a flow limit drops packets of the largest flow.
            zipf: [1.0, 3.0][chance.below(2) as usize],
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
        costs: Costs { packet: Duration::from_nanos(chance.below(400)), control: control(seed), ..Costs::default() },
        masks_once_in: 2_000,
        single_queues: chance.below(2) == 0,
        policy: seed,
        check_order: chance.below(2) == 0,
        always_hash: chance.once_in(4),
        coalesce: chance.once_in(2),
    }
}

/// What a handler does on a CPU that was declared dead has no effect, so handlers cannot check the
/// order of packets. If the receive path does not check the order, only outputs can detect
/// reordering.
fn with_deaths(seed: u64) -> Run {
    let mut run = small(seed);
    if !run.check_order {
        run.mood.transmits_once_in = 2;
    }
    run
}

#[test]
fn many_small_histories() {
    quiet_panics();
    for seed in seeds(100) {
        let mut run = small(seed);
        run.mood.panics_once_in = 0;
        play(&run, false);
    }
    let handed_over = HANDED_OVER.load(SeqCst);
    assert!(handed_over > 25 || !all_run(100), "queues hardly changed their CPU: {handed_over}");
    let merged = MERGED.load(SeqCst);
    assert!(merged > 500 || !all_run(100), "hardly any packets were merged: {merged}");
}

/// In alternate runs, CPUs join and leave at random, or according to the load.
#[test]
fn cpus_join_and_leave_under_load() {
    quiet_panics();
    for seed in seeds(50) {
        let mut run = small(seed);
        let mut chance = Chance::new(seed ^ 0x0010_1D00);
        run.cpus = [2, 3, 4, 8][chance.below(4) as usize];
        run.policy = [1, 3][seed as usize % 2];
        // Without control calls, no CPU joins.
        if seed / 2 % 2 == 0 {
            run.costs.control = Control::OnTime;
        }
        run.always_hash = false;
        // The load keeps between half a CPU and four CPUs busy. A CPU joins only after several load
        // checks and a trial, so each run lasts tens or hundreds of milliseconds.
        let slower = if run.policy == 1 { 10 } else { 1 };
        run.traffic.frames = 20_000;
        run.traffic.gap = Duration::from_nanos(slower * (1_000 + chance.below(5_000)));
        run.costs.packet = Duration::from_micros(slower * 4);
        run.mood.panics_once_in = 0;
        run.masks_once_in = slower * 20_000;
        play(&run, false);
    }
    if all_run(50) {
        let worked = (ONE_WORKED.load(SeqCst), SEVERAL_WORKED.load(SeqCst));
        assert!(worked.0 > 150 && worked.1 > 150, "CPUs hardly joined or left at random: {worked:?}");
        let joined = JOINED_BY_LOAD.load(SeqCst);
        assert!(joined > 5, "CPUs hardly joined because of the load: {joined}");
    }
}

#[test]
fn handlers_that_panic() {
    quiet_panics();
    for seed in seeds(30) {
        let mut run = with_deaths(seed);
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
        policy: seed,
        check_order: seed % 2 == 0,
        always_hash: false,
        coalesce: seed % 2 == 1,
    };
    let first = play(&run(7), false);
    assert_eq!(first, play(&run(7), false), "the same seed gave another history");
    assert_ne!(first, play(&run(8), false), "another seed gave the same history: the seed does nothing");
}

#[test]
fn stalls_are_waited_for_and_revoked() {
    let mut dropped = 0;
    for seed in seeds(25) {
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
        world.racer().into_iter().for_each(|racer| witness.race(racer));
        world.run(STEPS_MAX, |handle, _, chance| {
            if chance.once_in(500) {
                change_a_mask(handle, &run, chance);
                change_a_receiver(handle, &run, chance);
            }
        });
        let ledger = world.handle().snapshot();
        world.finish();
        assert_eq!(ledger.reordered(), run.reordered(), "seed {seed}");
        assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
        witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert_eq!(wire.late.load(SeqCst), 0, "seed {seed}: packets left out of order");
        let of = |reason| ledger.dropped().get(reason);
        dropped += of(DropReason::Moving) + of(DropReason::Revoked);
    }
    assert!(dropped > 0 || !all_run(25), "no move ever took too long: this tests nothing");
}

/// The actions of a CPU that was declared dead have no effect.
#[test]
fn the_dead_are_left_and_come_back() {
    let mut deaths = 0;
    for seed in seeds(12) {
        let mut run = with_deaths(seed);
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
        world.racer().into_iter().for_each(|racer| witness.race(racer));
        world.run(STEPS_MAX, |handle, _, chance| {
            if chance.once_in(run.masks_once_in) {
                change_a_mask(handle, &run, chance);
                change_a_receiver(handle, &run, chance);
            }
        });
        let handle = world.handle().clone();
        world.finish();
        let ledger = handle.snapshot();
        assert_eq!(ledger.reordered(), run.reordered(), "seed {seed}");
        assert_eq!(witness.torn.load(SeqCst), 0, "seed {seed}: packets were not as they were sent");
        assert_eq!((ledger.in_flight(), handle.held()), (0, 0), "seed {seed}");
        assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
        assert_eq!(ledger.pages_free, ledger.pages, "seed {seed}: pages are not home");
        assert_eq!(wire.late.load(SeqCst), 0, "seed {seed}: packets left out of order");
        assert_eq!(wire.sent.load(SeqCst), ledger.verdicts().transmitted, "seed {seed}");
        deaths += ledger.cpus.iter().map(|cpu| cpu.deaths).sum::<u64>();
    }
    assert!(deaths > 0 || !all_run(12), "nobody ever died: this tests nothing");
}
