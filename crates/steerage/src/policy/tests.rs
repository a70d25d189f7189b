//! The policy on made-up machines and traffic, in virtual time: what it sees is a sample, what is checked is the truth.

use std::time::Duration;

use super::spread::Loads;
use super::*;
use crate::limits::{BEGUN_JOINED_FOR, LOOK_EVERY, LOST_MAX, TRIAL_AGAIN, WINDOW_WEIGHT};

/// splitmix64: the same history whenever the seed is.
struct Chance(u64);

impl Chance {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    fn share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Looks between two windows, and samples in one.
const WINDOW_LOOKS: u32 = 10;
const SAMPLES: usize = 60_000;

/// A group whose queue is polled by CPU 0.
struct Model {
    policy: Balance,
    cpus: usize,
    map: Box<[u16; BUCKETS]>,
    /// Which bucket each flow is in, and what it takes of a CPU.
    flows: Vec<(u16, f64)>,
    /// What receiving takes of CPU 0.
    receive: f64,
    /// What the function takes for a packet, in microseconds of some CPU.
    cost: f64,
    /// What a packet that is handed over costs besides, as a share of what the function takes.
    hand_over: f64,
    /// What others take of each CPU. A CPU on which more is done than they leave slows them, and they are who asks: so less comes.
    others: Vec<f64>,
    /// What the policy may know of buckets.
    sampled: Vec<f64>,
    /// From how many samples, as far as they are not forgotten.
    samples: f64,
    chance: Chance,
    looks: u32,
    now: Timestamp,
    /// Buckets moved, and flows in them, by cause.
    wishes: Vec<(MoveCause, usize, usize)>,
}

impl Model {
    /// `cpus` CPUs, of which so many have buckets at first, in equal shares.
    fn new(cpus: usize, active: usize, seed: u64) -> Self {
        let mut map = Box::new([0; BUCKETS]);
        map.iter_mut().enumerate().for_each(|(bucket, cpu)| *cpu = (bucket * active / BUCKETS) as u16);
        Self {
            policy: Balance::new(),
            cpus,
            map,
            flows: Vec::new(),
            receive: 0.0,
            cost: 1.0,
            hand_over: 0.0,
            others: vec![0.0; cpus],
            sampled: vec![0.0; BUCKETS],
            samples: 0.0,
            chance: Chance(seed),
            looks: 0,
            now: Timestamp::ZERO,
            wishes: Vec::new(),
        }
    }

    /// Zipf's law with exponent 1, `load` CPUs' worth in all.
    fn zipf(mut self, flows: usize, load: f64) -> Self {
        let sum: f64 = (1..=flows).map(|rank| 1.0 / rank as f64).sum();
        let chance = &mut self.chance;
        self.flows = (1..=flows).map(|rank| (chance.below(BUCKETS) as u16, load / rank as f64 / sum)).collect();
        self
    }

    fn buckets(&self) -> Vec<f64> {
        let mut buckets = vec![0.0; BUCKETS];
        self.flows.iter().for_each(|(bucket, load)| buckets[usize::from(*bucket)] += load);
        buckets
    }

    fn base(&self) -> Vec<f64> {
        let mut base = vec![0.0; self.cpus];
        base[0] = self.receive;
        base
    }

    /// What each CPU really has to do.
    fn loads(&self, buckets: &[f64]) -> Vec<f64> {
        let mut loads = self.base();
        for (cpu, load) in self.map.iter().zip(buckets) {
            let handed = if *cpu == 0 { 0.0 } else { self.hand_over * load };
            loads[usize::from(*cpu)] += load + handed;
            loads[0] += handed;
        }
        loads
    }

    /// How far the busiest CPU really is above the best that is possible with those that have buckets.
    fn uneven(&self) -> f64 {
        let (buckets, base) = (self.buckets(), self.base());
        let active: Vec<u16> = self.active();
        let loads = Loads { map: &self.map, buckets: &buckets, base: &base, active: &active };
        loads.busiest() / loads.best()
    }

    fn active(&self) -> Vec<u16> {
        (0..self.cpus as u16).filter(|cpu| self.map.contains(cpu)).collect()
    }

    /// As a window samples: packets by chance, and the windows before not forgotten.
    fn sample(&mut self) {
        let mut ends = Vec::with_capacity(self.flows.len());
        let mut total = 0.0;
        for (_, load) in &self.flows {
            total += load;
            ends.push(total);
        }
        let mut seen = vec![0.0; BUCKETS];
        for _ in 0..SAMPLES {
            let at = self.chance.share() * total;
            let flow = ends.partition_point(|end| *end <= at).min(self.flows.len() - 1);
            seen[usize::from(self.flows[flow].0)] += total / SAMPLES as f64;
        }
        self.samples = self.samples * (1.0 - WINDOW_WEIGHT) + SAMPLES as f64;
        let weight = if self.sampled.iter().all(|load| *load == 0.0) { 1.0 } else { WINDOW_WEIGHT };
        self.sampled.iter_mut().zip(seen).for_each(|(known, seen)| *known += weight * (seen - *known));
    }

    /// One look. Returns why buckets moved, if they did.
    fn look(&mut self) -> Option<MoveCause> {
        self.looks += 1;
        self.now = self.now + LOOK_EVERY;
        let buckets = self.buckets();
        let loads = self.loads(&buckets);
        // Who receives can do no more than all, and does not know what it was not given; the others get less then.
        let asks =
            self.others.iter().zip(&loads).map(|(others, load)| 1.0 - (others + load.min(1.0) - 1.0).clamp(0.0, 0.9));
        let slowed = 1.0 / loads[0].max(1.0) * asks.fold(1.0, f64::min);
        let busy = |cpu: usize| loads[cpu] * slowed;
        let mut work = vec![0.0; self.cpus];
        self.map.iter().zip(&buckets).for_each(|(cpu, load)| work[usize::from(*cpu)] += load);
        let cpus: Vec<CpuLoad> = (0..self.cpus)
            .map(|cpu| CpuLoad {
                busy: busy(cpu),
                full: if busy(cpu) > 0.9 { 1.0 } else { 0.0 },
                receive: if cpu == 0 { (self.receive * slowed).min(1.0) } else { 0.0 },
                others: self.others[cpu],
                packets: (work[cpu] * slowed / busy(cpu).max(1.0) * 1e6 / self.cost) as u64,
            })
            .collect();
        let shares = (self.looks % WINDOW_LOOKS == 0).then(|| {
            self.sample();
            let mut of_cpu = vec![0.0; self.cpus];
            self.map.iter().zip(&self.sampled).for_each(|(cpu, load)| of_cpu[usize::from(*cpu)] += load);
            let share = |(cpu, load): (&u16, &f64)| {
                let cpu = usize::from(*cpu);
                if of_cpu[cpu] > 0.0 { load * (cpus[cpu].busy - cpus[cpu].receive) / of_cpu[cpu] } else { 0.0 }
            };
            self.map.iter().zip(&self.sampled).map(share).collect::<Vec<f64>>()
        });
        let order: Vec<u16> = (0..self.cpus as u16).collect();
        let window = shares.as_ref().map(|buckets| Window { cpus: &cpus, buckets, samples: self.samples as u64 });
        let load = GroupLoad {
            now: self.now,
            elapsed: LOOK_EVERY,
            order: &order,
            owners: 1,
            map: &self.map,
            cpus: &cpus,
            window,
        };
        let wish = self.policy.look(&load)?;
        let moved = |bucket: u16| self.map[usize::from(bucket)] != wish.map[usize::from(bucket)];
        let buckets = (0..BUCKETS as u16).filter(|bucket| moved(*bucket)).count();
        let flows = self.flows.iter().filter(|(bucket, _)| moved(*bucket)).count();
        self.wishes.push((wish.cause, buckets, flows));
        self.map = wish.map;
        Some(wish.cause)
    }

    fn run(&mut self, time: Duration) {
        for _ in 0..time.as_nanos() / LOOK_EVERY.as_nanos() {
            self.look();
        }
    }

    fn moves(&self, cause: MoveCause) -> usize {
        self.wishes.iter().filter(|(why, ..)| *why == cause).count()
    }

    /// The largest that [`uneven`](Self::uneven) is at any look of `time`.
    fn worst(&mut self, time: Duration) -> f64 {
        let looks = time.as_nanos() / LOOK_EVERY.as_nanos();
        (0..looks)
            .map(|_| {
                self.look();
                self.uneven()
            })
            .fold(0.0, f64::max)
    }

    fn flows_moved(&self) -> usize {
        self.wishes.iter().map(|(_, _, flows)| flows).sum()
    }
}

/// How near to the best that is possible the busiest CPU is to be.
const NEAR: f64 = 1.08;

const SETTLE: Duration = Duration::from_secs(2);
const STEADY: Duration = Duration::from_secs(10);

#[test]
fn zipf_is_evened_out_by_few_moves_and_then_stays() {
    for cpus in [8, 16, 64] {
        for seed in [0, 4] {
            let mut model = Model::new(cpus, cpus, seed).zipf(100_000, 0.6 * cpus as f64);
            let before = model.uneven();
            assert!(before > NEAR, "nothing to do");
            model.run(SETTLE);
            assert!(model.uneven() <= NEAR, "{cpus} CPUs, seed {seed}: {before} to {}", model.uneven());
            let flows = model.flows_moved();
            assert!(flows < 5_000, "{cpus} CPUs, seed {seed}: {flows} of 100,000 flows moved");
            assert!(model.wishes.iter().all(|(cause, ..)| *cause == MoveCause::Balance), "{:?}", model.wishes);
            let moved = model.wishes.len();
            model.run(STEADY);
            assert_eq!(model.wishes.len(), moved, "{cpus} CPUs, seed {seed}");
        }
    }
}

/// Every 100 ms a thousandth of the flows change places: in 10 s one in ten of the heavy ones has become another.
#[test]
fn flows_that_drift_are_followed() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 1).zipf(100_000, 0.8 * cpus as f64);
        model.run(SETTLE);
        let (mut over, windows) = (0, 100);
        for _ in 0..windows {
            for _ in 0..100 {
                let (a, b) = (model.chance.below(100_000), model.chance.below(100_000));
                let (one, other) = (model.flows[a].1, model.flows[b].1);
                (model.flows[a].1, model.flows[b].1) = (other, one);
            }
            over += usize::from(model.worst(Duration::from_millis(100)) > NEAR);
        }
        assert!(over <= windows / 20, "{cpus} CPUs: {over} of {windows} windows");
    }
}

/// One flow in a hundred sends ten times as much for a second, then others do.
#[test]
fn bursts_are_not_run_after() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 2).zipf(100_000, 0.7 * cpus as f64);
        model.run(SETTLE);
        let before = model.flows_moved();
        let (mut over, seconds) = (0, 10);
        for _ in 0..seconds {
            let bursting: Vec<usize> = (0..1000).map(|_| 1000 + model.chance.below(99_000)).collect();
            bursting.iter().for_each(|flow| model.flows[*flow].1 *= 10.0);
            model.run(Duration::from_millis(500));
            over += usize::from(model.worst(Duration::from_millis(500)) > NEAR);
            bursting.iter().for_each(|flow| model.flows[*flow].1 /= 10.0);
        }
        assert!(over <= 1, "{cpus} CPUs: {over} of {seconds}");
        assert!(model.flows_moved() - before < 5_000, "{cpus} CPUs: {}", model.flows_moved() - before);
    }
}

/// Half as much again, of flows of one packet each: it comes for all buckets alike.
#[test]
fn a_syn_flood_is_spread_as_well() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 3).zipf(100_000, 0.5 * cpus as f64);
        model.run(SETTLE);
        let moved = model.flows_moved();
        let flood = 0.25 * cpus as f64 / BUCKETS as f64;
        model.flows.extend((0..BUCKETS as u16).map(|bucket| (bucket, flood)));
        model.run(SETTLE);
        assert!(model.worst(STEADY) <= NEAR, "{cpus} CPUs");
        assert!(model.flows_moved() - moved < 5_000, "{cpus} CPUs: {}", model.flows_moved() - moved);
    }
}

/// A flow of three CPUs: it has one to itself, and is told.
#[test]
fn an_elephant_gets_a_cpu_of_its_own() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 4).zipf(100_000, 0.4 * cpus as f64);
        model.run(SETTLE);
        let (bucket, _) = model.flows[77];
        model.flows[77].1 = 3.0;
        model.run(SETTLE);
        assert!(model.uneven() <= NEAR, "{cpus} CPUs: {}", model.uneven());
        let others: f64 = model.flows.iter().map(|(_, load)| load).sum::<f64>() - 3.0;
        let on_its_cpu = model.loads(&model.buckets())[usize::from(model.map[usize::from(bucket)])] - 3.0;
        assert!(on_its_cpu < others / cpus as f64 / 2.0, "{cpus} CPUs: {on_its_cpu} of {others} beside it");
        let told = model.policy.findings().elephants;
        assert_eq!(told[0].0, bucket, "{told:?}");
        assert!(told[0].1 > 0.9, "{told:?}");
    }
}

/// From one CPU to as many as it takes, and back.
#[test]
fn cpus_join_as_load_grows_and_leave_as_it_falls() {
    let mut model = Model::new(8, 1, 5).zipf(100_000, 0.3);
    model.receive = 0.2;
    model.hand_over = 0.1;
    model.run(STEADY);
    assert_eq!(model.active(), [0], "quiet");
    for tenths in 1..=50 {
        model.flows = Model::new(8, 1, 5).zipf(100_000, 0.1 * f64::from(tenths)).flows;
        model.run(Duration::from_millis(500));
    }
    let full = model.active();
    assert!((6..=8).contains(&full.len()), "{full:?}");
    assert_eq!(full, (0..full.len() as u16).collect::<Vec<_>>(), "in their order");
    let loads = model.loads(&model.buckets());
    assert!(loads.iter().all(|load| *load < 1.0), "{loads:?}");
    model.flows = Model::new(8, 1, 5).zipf(100_000, 0.05).flows;
    model.run(STEADY);
    assert_eq!(model.active(), [0], "quiet again");
    assert_eq!(model.moves(MoveCause::Joined) as u64, model.policy.findings().joined);
}

/// Load that comes and goes every two seconds: the CPUs leave later each time, and soon not any more.
#[test]
fn a_square_wave_does_not_make_it_flap() {
    let mut model = Model::new(8, 1, 6).zipf(10_000, 0.1);
    for _ in 0..60 {
        model.flows.iter_mut().for_each(|(_, load)| *load *= 30.0);
        model.run(Duration::from_secs(2));
        model.flows.iter_mut().for_each(|(_, load)| *load /= 30.0);
        model.run(Duration::from_secs(2));
    }
    let (joined, left) = (model.moves(MoveCause::Joined), model.moves(MoveCause::Left));
    assert!(left <= 4 && joined <= 20, "{joined} joined, {left} left, in 60 rounds");
}

/// A function that takes less than handing over does: it is tried, given up, and not tried again for long.
#[test]
fn what_does_not_pay_is_not_kept_up() {
    let mut model = Model::new(2, 1, 7).zipf(10_000, 0.6);
    model.receive = 0.6;
    model.hand_over = 3.0;
    // A trial without hope is over as soon as buckets would have found their places.
    let joined = (0..500).filter(|_| {
        model.look();
        model.active() == [0, 1]
    });
    assert!((10..=15).contains(&joined.count()), "{:?}", model.wishes);
    assert_eq!(model.active(), [0]);
    assert_eq!((model.moves(MoveCause::Joined), model.moves(MoveCause::Left)), (1, 1));
    assert!(model.policy.findings().fails_at.is_some());
    model.run(Duration::from_secs(115));
    assert!(model.moves(MoveCause::Joined) <= 4, "{}", model.moves(MoveCause::Joined));
    // The function has more to do from now on.
    (model.cost, model.hand_over) = (4.0, 0.1);
    model.flows.iter_mut().for_each(|(_, load)| *load *= 4.0);
    model.run(SETTLE);
    assert_eq!(model.active(), [0, 1], "{:?} {:?}", model.wishes, model.policy);
    assert!(model.policy.findings().pays_at.is_some());
}

/// A CPU that whoever asks needs for itself: it is tried, and seldom again; one that nobody needs joins before it.
#[test]
fn a_cpu_that_others_need_is_left_to_them() {
    let mut model = Model::new(2, 1, 11).zipf(10_000, 1.0);
    (model.receive, model.others) = (0.5, vec![0.0, 0.9]);
    model.run(Duration::from_secs(60));
    assert_eq!(model.active(), [0], "{:?}", model.policy);
    assert!((1..=4).contains(&model.moves(MoveCause::Joined)), "{:?}", model.wishes);
    assert!(model.policy.findings().fails_at.is_none(), "nothing is known of the function");
    let mut model = Model::new(3, 1, 12).zipf(10_000, 1.0);
    (model.receive, model.others) = (0.3, vec![0.0, 0.9, 0.0]);
    model.run(SETTLE);
    assert_eq!(model.active(), [0, 2], "{:?}", model.policy);
}

/// Handing over becomes dear while CPUs are there, as on a virtual machine whose CPUs are moved apart: they leave at once, not when
/// there is less to do, and are tried again.
#[test]
fn what_pays_no_more_is_given_up() {
    let mut model = Model::new(2, 1, 9).zipf(10_000, 1.0);
    (model.receive, model.hand_over) = (0.5, 0.1);
    model.run(SETTLE);
    assert_eq!(model.active(), [0, 1], "{:?}", model.policy);
    for _ in 0..3 {
        model.hand_over = 3.0;
        let inline = (0..200).filter(|_| {
            model.look();
            model.active() == [0]
        });
        assert!(inline.count() > 100, "{:?}", model.policy);
        model.hand_over = 0.1;
        model.run(TRIAL_AGAIN + SETTLE);
        assert_eq!(model.active(), [0, 1], "{:?}", model.policy);
    }
    // Only where that is so: nobody leaves for a look back that would find them worth it, nor for a moment.
    let left = model.moves(MoveCause::Left);
    for _ in 0..10 {
        model.run(Duration::from_secs(6));
        model.hand_over = 3.0;
        model.run(LOST_MAX);
        model.hand_over = 0.1;
    }
    assert_eq!(model.moves(MoveCause::Left), left);
}

/// Who begins joined has the other CPU's work there at once, sees once what is done without it, and goes by that.
#[test]
fn what_begins_joined_is_tried_all_the_same() {
    for (hand_over, ends) in [(0.1, &[0, 1][..]), (3.0, &[0])] {
        let mut model = Model::new(2, 1, 13).zipf(10_000, 2.0);
        (model.receive, model.hand_over, model.policy) = (1.0, hand_over, Balance::begin_joined());
        assert_eq!(model.policy.active(&[0, 1], 1, &[]), Some(vec![1]));
        model.map.fill(1);
        let before = BEGUN_JOINED_FOR - Duration::from_millis(50);
        model.run(before);
        assert!(model.active().contains(&1), "{:?}", model.wishes);
        model.run(SETTLE);
        assert_eq!(model.active(), ends, "{:?} {:?}", model.wishes, model.policy);
        assert_eq!(model.moves(MoveCause::Joined), 1, "{:?}", model.wishes);
    }
    // Nobody to begin with.
    assert_eq!(Balance::begin_joined().active(&[0], 1, &[]), Some(vec![0]));
}

/// With more to do than two CPUs can, both are used to the full, whatever receiving and handing over take.
#[test]
fn of_what_two_cpus_can_do_little_is_lost() {
    for (receive, hand_over) in [(0.1, 0.02), (0.3, 0.1), (0.6, 0.1), (0.8, 0.02), (0.9, 0.1)] {
        let mut model = Model::new(2, 1, 10).zipf(10_000, 4.0 * (1.0 - receive));
        (model.receive, model.hand_over) = (4.0 * receive, hand_over);
        model.run(SETTLE);
        // As much is done as the busier of them allows.
        let looks = 500;
        let done = (0..looks).map(|_| {
            model.look();
            let loads = model.loads(&model.buckets());
            1.0 / loads[0].max(loads[1])
        });
        let done = done.sum::<f64>() / f64::from(looks);
        let work: f64 = model.buckets().iter().sum();
        let busier = |handed: f64| {
            let (here, there) = (work - handed + handed * hand_over, handed * (1.0 + hand_over));
            (model.receive + here).max(there)
        };
        let best = (0..=1000).map(|part| 1.0 / busier(work * f64::from(part) / 1000.0)).fold(0.0, f64::max);
        assert!(done >= 0.97 * best, "{done} of {best} at {receive}, {hand_over}: {:?}", model.wishes);
    }
}

/// Bursts that end while a CPU is on trial say nothing of the function, and do not keep CPUs away when they are needed.
#[test]
fn bursts_shorter_than_a_trial_lock_nobody_out() {
    let mut model = Model::new(2, 1, 8).zipf(10_000, 0.1);
    for _ in 0..20 {
        model.flows.iter_mut().for_each(|(_, load)| *load *= 15.0);
        model.run(Duration::from_millis(150));
        model.flows.iter_mut().for_each(|(_, load)| *load /= 15.0);
        model.run(Duration::from_millis(2000));
    }
    assert!(model.moves(MoveCause::Joined) > 0 && model.policy.findings().fails_at.is_none(), "{:?}", model.policy);
    model.flows.iter_mut().for_each(|(_, load)| *load *= 15.0);
    model.run(Duration::from_secs(11));
    assert_eq!(model.active(), [0, 1], "{:?}", model.policy);
    assert!(model.policy.findings().pays_at.is_some());
}

#[test]
fn a_dry_run_moves_nothing_and_says_what_it_would() {
    let mut model = Model::new(8, 8, 0).zipf(100_000, 6.4);
    model.policy = Balance::dry_run();
    model.run(SETTLE);
    assert!(model.wishes.is_empty());
    assert!(model.policy.findings().would_move.is_some_and(|buckets| buckets > 10), "{:?}", model.policy.findings());
}
