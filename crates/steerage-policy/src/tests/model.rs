use std::time::Duration;

use crate::balance::Balance;
use crate::limits::{REFINE_EVERY, Tuning};
use crate::packing::Loads;
use crate::policy::{CpuLoad, GroupLoad, Policy, Window};
use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_flow::Timestamp;
use steerage_testing::SplitMix64;

pub(super) struct Chance(SplitMix64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Draws an approximately normal random number, with a mean of 0 and a standard deviation of 1.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.0.draw() % n as u64) as usize
    }

    pub(super) fn share(&mut self) -> f64 {
        (self.0.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const SAMPLES: usize = 60_000;

pub(super) struct Model {
    pub(super) policy: Balance,
    pub(super) cpus: usize,
    pub(super) map: Box<[u16; BUCKETS]>,
    pub(super) flows: Vec<(u16, f64)>,
    pub(super) receive: f64,
    pub(super) cost: f64,
    /// The additional cost of handing over a packet, as a fraction of the packet function's time.
    pub(super) hand_over: f64,
    /// The factor by which a hand-over costs more beyond a distance of 100 ns.
    pub(super) far: f64,
    /// The additional cost of each packet if several CPUs have buckets, as a fraction of the packet
    /// function's time.
    pub(super) tell_apart: f64,
    /// The share of each CPU's time that other programs want. These programs send the packets, so
    /// fewer packets arrive if steerage leaves the programs too little time.
    pub(super) others: Vec<f64>,
    pub(super) apart: Vec<Option<Duration>>,
    pub(super) sampled: Vec<f64>,
    /// The number of samples, without the samples that were discarded.
    pub(super) samples: f64,
    pub(super) chance: Chance,
    /// The maximum delay of a load check. Half of the load checks are late.
    pub(super) late: Duration,
    window: Duration,
    pub(super) now: Timestamp,
    /// The handled and the offered load of the last load check, in CPUs.
    pub(super) handled: (f64, f64),
    /// For each change of the bucket map: its reason, the moved buckets, and the flows in them.
    pub(super) requests: Vec<(MoveCause, usize, usize)>,
}

impl Model {
    pub(super) fn new(cpus: usize, active: usize, seed: u64) -> Self {
        let mut map = Box::new([0; BUCKETS]);
        map.iter_mut().enumerate().for_each(|(bucket, cpu)| *cpu = (bucket * active / BUCKETS) as u16);
        Self {
            policy: Balance::new(),
            cpus,
            map,
            flows: Vec::new(),
            receive: 0.0,
            cost: 2.0,
            hand_over: 0.0,
            far: 1.0,
            tell_apart: 0.0,
            others: vec![0.0; cpus],
            apart: vec![None; cpus],
            sampled: vec![0.0; BUCKETS],
            samples: 0.0,
            chance: Chance::new(seed),
            late: Duration::ZERO,
            window: Duration::ZERO,
            now: Timestamp::ZERO,
            handled: (0.0, 0.0),
            requests: Vec::new(),
        }
    }

    pub(super) fn zipf(mut self, flows: usize, load: f64) -> Self {
        let sum: f64 = (1..=flows).map(|rank| 1.0 / rank as f64).sum();
        let chance = &mut self.chance;
        self.flows = (1..=flows).map(|rank| (chance.below(BUCKETS) as u16, load / rank as f64 / sum)).collect();
        self
    }

    pub(super) fn buckets(&self) -> Vec<f64> {
        let mut buckets = vec![0.0; BUCKETS];
        self.flows.iter().for_each(|(bucket, load)| buckets[usize::from(*bucket)] += load);
        buckets
    }

    pub(super) fn base(&self) -> Vec<f64> {
        let mut base = vec![0.0; self.cpus];
        base[0] = self.receive;
        base
    }

    fn received(&self, buckets: &[f64]) -> f64 {
        let several = self.active().len() > 1;
        let apart: f64 = if several { self.tell_apart * buckets.iter().sum::<f64>() } else { 0.0 };
        let handed =
            |(cpu, load): (&u16, &f64)| if *cpu == 0 { 0.0 } else { self.hand_over * self.farness(*cpu) * load };
        self.receive + apart + self.map.iter().zip(buckets).map(handed).sum::<f64>()
    }

    pub(super) fn loads(&self, buckets: &[f64]) -> Vec<f64> {
        let mut loads = vec![0.0; self.cpus];
        loads[0] = self.received(buckets);
        for (cpu, load) in self.map.iter().zip(buckets) {
            let handed = if *cpu == 0 { 0.0 } else { self.hand_over * self.farness(*cpu) * load };
            loads[usize::from(*cpu)] += load + handed;
        }
        loads
    }

    fn farness(&self, cpu: u16) -> f64 {
        let apart = self.apart[usize::from(cpu)];
        if apart.is_some_and(|apart| apart > Duration::from_nanos(100)) { self.far } else { 1.0 }
    }

    pub(super) fn uneven(&self) -> f64 {
        let (buckets, base) = (self.buckets(), self.base());
        let active: Vec<u16> = self.active();
        let loads = Loads { map: &self.map, buckets: &buckets, base: &base, active: &active };
        loads.busiest() / loads.best()
    }

    pub(super) fn active(&self) -> Vec<u16> {
        (0..self.cpus as u16).filter(|cpu| self.map.contains(cpu)).collect()
    }

    pub(super) fn sample(&mut self) {
        let mut ends = Vec::with_capacity(self.flows.len());
        let mut total = 0.0;
        for (_, load) in &self.flows {
            total += load;
            ends.push(total);
        }
        // Searching all flows for each sample would take most of the time of these tests. For a
        // sample in each of `parts` equal parts of the total load, `firsts` has the flow at which
        // the search begins.
        let parts = self.flows.len();
        let mut firsts = Vec::with_capacity(parts);
        let mut first = 0;
        for part in 0..parts {
            let begin = total * part.saturating_sub(1) as f64 / parts as f64;
            while ends[first] <= begin && first + 1 < parts {
                first += 1;
            }
            firsts.push(first);
        }
        let mut seen = vec![0.0; BUCKETS];
        for _ in 0..SAMPLES {
            let share = self.chance.share();
            let at = share * total;
            let mut flow = firsts[(share * parts as f64) as usize];
            while ends[flow] <= at && flow + 1 < parts {
                flow += 1;
            }
            seen[usize::from(self.flows[flow].0)] += total / SAMPLES as f64;
        }
        self.samples = self.samples * (1.0 - Tuning::DEFAULT.recent) + SAMPLES as f64;
        let weight = if self.sampled.iter().all(|load| *load == 0.0) { 1.0 } else { Tuning::DEFAULT.recent };
        self.sampled.iter_mut().zip(seen).for_each(|(known, seen)| *known += weight * (seen - *known));
    }

    pub(super) fn throughput_of_look(&mut self) -> f64 {
        self.check();
        let (handled, offered) = self.handled;
        handled / offered
    }

    pub(super) fn check(&mut self) -> Option<MoveCause> {
        let is_late = self.late > Duration::ZERO && self.chance.below(2) == 0;
        let delay = if is_late { self.late.mul_f64(self.chance.share()) } else { Duration::ZERO };
        let elapsed = REFINE_EVERY + delay;
        self.now = self.now + elapsed;
        self.window += elapsed;
        let buckets = self.buckets();
        let (loads, received) = (self.loads(&buckets), self.received(&buckets));
        // If a receiving CPU is too busy, it receives fewer packets than arrive, and all CPUs have
        // less work.
        let asks =
            self.others.iter().zip(&loads).map(|(others, load)| 1.0 - (others + load.min(1.0) - 1.0).clamp(0.0, 0.9));
        let slowed = 1.0 / loads[0].max(1.0) * asks.fold(1.0, f64::min);
        let busy = |cpu: usize| loads[cpu] * slowed;
        let mut work = vec![0.0; self.cpus];
        self.map.iter().zip(&buckets).for_each(|(cpu, load)| work[usize::from(*cpu)] += load);
        let done = (0..self.cpus).map(|cpu| work[cpu] * slowed / busy(cpu).max(1.0)).sum();
        self.handled = (done, buckets.iter().sum());
        let cpus: Vec<CpuLoad> = (0..self.cpus)
            .map(|cpu| CpuLoad {
                busy: busy(cpu),
                full: if busy(cpu) > 0.9 { 1.0 } else { 0.0 },
                receive: if cpu == 0 { (received * slowed).min(1.0) } else { 0.0 },
                timed: 1000.0,
                others: self.others[cpu],
                others_want: self.others[cpu],
                packets: (work[cpu] * slowed / busy(cpu).max(1.0) * 1e6 / self.cost * elapsed.as_secs_f64() * 1.0)
                    as u64,
            })
            .collect();
        let shares = (self.window >= Tuning::DEFAULT.probe).then(|| {
            self.window = Duration::ZERO;
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
            elapsed,
            order: &order,
            owners: 1,
            map: &self.map,
            cpus: &cpus,
            apart: &self.apart,
            window,
            can_wait: false,
        };
        let wish = self.policy.refine(&load)?;
        let moved = |bucket: u16| self.map[usize::from(bucket)] != wish.map[usize::from(bucket)];
        let buckets = (0..BUCKETS as u16).filter(|bucket| moved(*bucket)).count();
        let flows = self.flows.iter().filter(|(bucket, _)| moved(*bucket)).count();
        self.requests.push((wish.cause, buckets, flows));
        self.map = wish.map;
        Some(wish.cause)
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.check();
        }
    }

    pub(super) fn moves(&self, cause: MoveCause) -> usize {
        self.requests.iter().filter(|(why, ..)| *why == cause).count()
    }

    pub(super) fn worst(&mut self, time: Duration) -> f64 {
        let checks = time.as_nanos() / REFINE_EVERY.as_nanos();
        (0..checks)
            .map(|_| {
                self.check();
                self.uneven()
            })
            .fold(0.0, f64::max)
    }

    pub(super) fn flows_moved(&self) -> usize {
        self.requests.iter().map(|(_, _, flows)| flows).sum()
    }
}
