//! A simulated machine with two packages and shared cores. Times are in nanoseconds.

use std::time::Duration;

use super::model::Chance;
use crate::balance::Balance;
use crate::limits::{REFINE_EVERY, Tuning};
use crate::policy::{CpuLoad, GroupLoad, Policy, Window};
use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_flow::Timestamp;

/// Costs per packet, in nanoseconds. In a pair, the first number is for near CPUs, and the second
/// for far CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) receive: f64,
    pub(super) hash: f64,
    pub(super) give: [f64; 2],
    pub(super) take: [f64; 2],
    pub(super) apart: [u64; 2],
}

impl Path {
    /// An older version of the receive path, on the machine that docs/performance.md calls Zen 4.
    const SLOW: Self = Self { receive: 30.0, hash: 9.0, give: [9.0, 28.0], take: [10.0, 26.0], apart: [55, 200] };
}

pub(super) struct Machine {
    pub(super) policy: Balance,
    pub(super) map: Box<[u16; BUCKETS]>,
    pub(super) path: Path,
    pub(super) work: f64,
    pub(super) is_far: Vec<bool>,
    /// The speed of each CPU, which the policy does not know.
    pub(super) speed: Vec<f64>,
    /// The share of each CPU's time that other programs take, which the policy knows.
    pub(super) stolen: Vec<f64>,
    /// The share of each CPU's time that competing programs want. On a CPU that steerage uses,
    /// competing programs get at most half of the time.
    pub(super) wanted: Vec<f64>,
    /// The factor on the speed of two CPUs that share a core (CPUs 2n and 2n + 1) if both are busy.
    pub(super) shared_core: f64,
    /// `heavy` has the time per packet of each bucket, as a multiple of the mean time.
    pub(super) share: Vec<f64>,
    pub(super) heavy: Vec<f64>,
    /// True if the input can wait for room, as a file can. If not, packets are dropped.
    pub(super) waits: bool,
    /// The number of sleeping CPUs that the receiving CPU can wake before the first of them sleeps
    /// again. If more CPUs than this join at once, CPU 0 spends the rest of the test on wake-ups.
    pub(super) wakes_at_most: usize,
    only_wakes: bool,
    pub(super) offered: fn(&Machine, Timestamp) -> f64,
    pub(super) rate: f64,
    pub(super) period: Duration,
    pub(super) full: f64,
    pub(super) full_from: f64,
    pub(super) noise: f64,
    pub(super) chance: Chance,
    pub(super) now: Timestamp,
    busy: Vec<f64>,
    shares: Option<Vec<(f64, f64)>>,
    sums: Vec<CpuLoad>,
    checks: f64,
    window: Duration,
    is_moving: bool,
    pub(super) changes: Vec<(Timestamp, MoveCause, usize)>,
}

/// The throughput and the best possible throughput, in packets per nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) handled: f64,
    pub(super) best: f64,
}

impl Machine {
    pub(super) fn new(cpus: usize, work: f64, tuning: Tuning) -> Self {
        Self {
            policy: Balance::with(tuning, false),
            map: Box::new([0; BUCKETS]),
            path: Path::SLOW,
            work,
            is_far: (0..cpus).map(|cpu| cpu >= cpus.div_ceil(2) && cpus > 2).collect(),
            speed: vec![1.0; cpus],
            stolen: vec![0.0; cpus],
            wanted: vec![0.0; cpus],
            shared_core: 1.0,
            share: vec![1.0 / BUCKETS as f64; BUCKETS],
            heavy: vec![1.0; BUCKETS],
            waits: true,
            wakes_at_most: cpus,
            only_wakes: false,
            offered: |_, _| f64::INFINITY,
            rate: 0.0,
            period: Duration::ZERO,
            full: 1.0,
            full_from: 0.9,
            noise: 0.03,
            chance: Chance::new(cpus as u64 + work as u64),
            now: Timestamp::ZERO,
            busy: vec![0.0; cpus],
            shares: None,
            sums: vec![CpuLoad::default(); cpus],
            checks: 0.0,
            window: Duration::ZERO,
            is_moving: false,
            changes: Vec::new(),
        }
    }

    pub(super) fn zipf(mut self, exponent: f64) -> Self {
        self.share.fill(0.0);
        for rank in 1..=100_000 {
            self.share[self.chance.below(BUCKETS)] += (rank as f64).powf(-exponent);
        }
        let all: f64 = self.share.iter().sum();
        self.share.iter_mut().for_each(|share| *share /= all);
        self
    }

    pub(super) fn elephant(mut self, part: f64) -> Self {
        self.share.iter_mut().for_each(|share| *share *= 1.0 - part);
        self.share[77] += part;
        self
    }

    /// Gives the buckets log-normal times per packet, with a standard deviation of 1 in the
    /// logarithm.
    pub(super) fn heavy_tailed(mut self) -> Self {
        for heavy in &mut self.heavy {
            *heavy = self.chance.normal().exp();
        }
        let mean: f64 = self.heavy.iter().zip(&self.share).map(|(heavy, share)| heavy * share).sum();
        self.heavy.iter_mut().for_each(|heavy| *heavy /= mean);
        self
    }

    pub(super) fn bursts(mut self, period: Duration, rate: f64) -> Self {
        (self.period, self.rate, self.waits) = (period * 2, rate, false);
        self.offered = |machine, now| {
            let phase = now.as_nanos() % machine.period.as_nanos() as u64;
            let is_on = (phase.max(1) - 1) < machine.period.as_nanos() as u64 / 2;
            if is_on { machine.rate } else { 0.0 }
        };
        self
    }

    pub(super) fn at_rate(mut self, rate: f64) -> Self {
        (self.rate, self.waits) = (rate, false);
        self.offered = |machine, _| machine.rate;
        self
    }

    pub(super) fn cpus(&self) -> usize {
        self.speed.len()
    }

    pub(super) fn inline(&self) -> f64 {
        1.0 / (self.path.receive + self.work)
    }

    pub(super) fn active(&self) -> Vec<u16> {
        (0..self.cpus() as u16).filter(|cpu| self.map.contains(cpu)).collect()
    }

    /// The factor by which a CPU is slower if each CPU has the load in `busy`.
    fn slowness(&self, cpu: usize, busy: &[f64]) -> f64 {
        let sibling = busy.get(cpu ^ 1).copied().unwrap_or(0.0).min(1.0);
        let shared = 1.0 + (1.0 / self.shared_core - 1.0) * sibling;
        shared / (self.speed[cpu] * (1.0 - self.stolen[cpu]))
    }

    fn take(&self, cpu: usize) -> f64 {
        if cpu == 0 { 0.0 } else { self.path.take[usize::from(self.is_far[cpu])] }
    }

    /// Returns, for each CPU, its total time and its time for receiving, both per packet that the
    /// whole machine handles. `shares` has each CPU's share of the packets and of the packet
    /// function's time.
    fn times(&self, shares: &[(f64, f64)], busy: &[f64]) -> Vec<(f64, f64)> {
        let is_hashed = shares.iter().all(|(packets, _)| *packets < 1.0 - 1e-9);
        let given: f64 =
            (1..shares.len()).map(|cpu| shares[cpu].0 * self.path.give[usize::from(self.is_far[cpu])]).sum();
        let times = shares.iter().enumerate().map(|(cpu, (packets, work))| {
            let receives =
                if cpu == 0 { self.path.receive + given + if is_hashed { self.path.hash } else { 0.0 } } else { 0.0 };
            let slow = self.slowness(cpu, busy);
            ((receives + work * self.work + packets * self.take(cpu)) * slow, receives * slow)
        });
        times.collect()
    }

    fn rates(&self, shares: &[(f64, f64)], times: &[(f64, f64)], offered: f64) -> (Vec<f64>, f64) {
        let most = times.iter().map(|(all, _)| *all).fold(0.0, f64::max);
        let received = offered.min(1.0 / if self.waits { most } else { times[0].0 });
        let rate =
            |((packets, _), (all, _)): (&(f64, f64), &(f64, f64))| packets * received / (received * all).max(1.0);
        (shares.iter().zip(times).map(rate).collect(), received)
    }

    fn shares(&self) -> Vec<(f64, f64)> {
        let mut shares = vec![(0.0, 0.0); self.cpus()];
        for ((cpu, share), heavy) in self.map.iter().zip(&self.share).zip(&self.heavy) {
            let (packets, work) = &mut shares[usize::from(*cpu)];
            *packets += share;
            *work += share * heavy;
        }
        shares
    }

    /// Returns the best throughput over all regimes and numbers of CPUs, if all work except the
    /// largest bucket can be divided.
    pub(super) fn best(&self, offered: f64) -> f64 {
        let by = |merit: &dyn Fn(usize) -> f64| {
            let mut order: Vec<usize> = (1..self.cpus()).collect();
            order.sort_by(|a, b| merit(*a).total_cmp(&merit(*b)));
            order
        };
        let idle = vec![0.0; self.cpus()];
        let time = |cpu: usize| self.slowness(cpu, &idle) * (self.work + self.take(cpu));
        let whole_cores = |cpu: usize| time(cpu) + if cpu % 2 == 1 && self.shared_core < 1.0 { 1e9 } else { 0.0 };
        let mut best: f64 = 0.0;
        for order in [by(&time), by(&whole_cores)] {
            for count in
                (0..self.cpus()).filter(|count| count % (1 + self.cpus() / 16) == 0 || count + 1 == self.cpus())
            {
                best = best.max(self.best_of(&order[..count], offered));
            }
        }
        best
    }

    fn best_of(&self, others: &[usize], offered: f64) -> f64 {
        let mut busy = vec![0.0; self.cpus()];
        [0].iter().chain(others).for_each(|cpu| busy[*cpu] = 1.0);
        let speeds: Vec<f64> =
            others.iter().map(|cpu| 1.0 / (self.slowness(*cpu, &busy) * (self.work + self.take(*cpu)))).collect();
        let all: f64 = speeds.iter().sum();
        let largest = self.share.iter().zip(&self.heavy).map(|(share, heavy)| share * heavy).fold(0.0, f64::max);
        let steps = if others.is_empty() { 0 } else { 50 };
        let mut best: f64 = 0.0;
        for step in 0..=steps {
            let handed = if steps == 0 { 0.0 } else { f64::from(step) / f64::from(steps) };
            let mut shares = vec![(0.0, 0.0); self.cpus()];
            shares[0] = (1.0 - handed, 1.0 - handed);
            for (cpu, speed) in others.iter().zip(&speeds) {
                shares[*cpu] = (handed * speed / all, handed * speed / all);
            }
            let times = self.times(&shares, &busy);
            let (rates, received) = self.rates(&shares, &times, offered);
            let time = |cpu: usize| self.slowness(cpu, &busy) * (self.work + self.take(cpu));
            let bound = 1.0 / (largest * (0..self.cpus()).map(time).fold(0.0, f64::max));
            let sum: f64 = rates.iter().sum();
            best = best.max(if self.waits { sum.min(bound) } else { sum - (received - bound).max(0.0) * largest });
        }
        best
    }

    /// In the order of CPUs, one CPU of each core comes first, as in steerage-topology.
    fn order(&self) -> Vec<u16> {
        let mut order: Vec<u16> = (0..self.cpus() as u16).collect();
        if self.shared_core < 1.0 {
            order.sort_by_key(|cpu| (cpu % 2, *cpu));
        }
        order
    }

    pub(super) fn next(&self) -> u16 {
        self.order()[1]
    }

    pub(super) fn check(&mut self) -> Done {
        self.now = self.now + REFINE_EVERY;
        self.window += REFINE_EVERY;
        let nanos = REFINE_EVERY.as_nanos() as f64;
        let offered = (self.offered)(self, self.now);
        let shares = self.shares.take().unwrap_or_else(|| self.shares());
        for (cpu, wanted) in self.wanted.iter().enumerate().filter(|(_, wanted)| **wanted > 0.0) {
            let is_used = cpu == 0 || shares[cpu].0 > 0.0;
            self.stolen[cpu] = if is_used { wanted.min(0.5) } else { *wanted };
        }
        let error = |chance: &mut Chance, noise: f64| 1.0 + noise * chance.normal();
        let slow = error(&mut self.chance, self.noise);
        let mut times = self.times(&shares, &self.busy);
        times.iter_mut().for_each(|(all, receive)| (*all, *receive) = (*all * slow, *receive * slow));
        let (mut rates, received) = self.rates(&shares, &times, offered);
        times.iter_mut().for_each(|(all, receive)| {
            let slow = error(&mut self.chance, self.noise / 3.0);
            (*all, *receive) = (*all * slow, *receive * slow);
        });
        let has_moved = std::mem::take(&mut self.is_moving);
        if self.only_wakes {
            rates.iter_mut().for_each(|rate| *rate *= 0.1);
        }
        if has_moved {
            rates.iter_mut().for_each(|rate| *rate *= 0.7);
        }
        let cpus: Vec<CpuLoad> = (0..self.cpus())
            .map(|cpu| {
                let (all, receive) = times[cpu];
                let busy = received * all;
                CpuLoad {
                    busy,
                    full: if busy > self.full_from { self.full } else { 0.0 },
                    receive: (received * receive).min(busy),
                    timed: 1000.0,
                    others: self.stolen[cpu],
                    others_want: self.stolen[cpu].max(self.wanted[cpu]),
                    packets: (rates[cpu] * nanos) as u64,
                }
            })
            .collect();
        self.busy = cpus.iter().map(|cpu| cpu.busy.min(1.0)).collect();
        self.shares = Some(shares);
        self.is_moving = has_moved;
        let closed = self.close_window(&cpus);
        self.is_moving = false;
        let apart: Vec<Option<Duration>> =
            self.is_far.iter().map(|far| Some(Duration::from_nanos(self.path.apart[usize::from(*far)]))).collect();
        let order = self.order();
        let window = closed.as_ref().map(|(cpus, buckets)| Window { cpus, buckets, samples: 60_000 });
        let mut load = GroupLoad::new(&order, 1, &self.map, &cpus, &apart);
        (load.now, load.window, load.can_wait) = (self.now, window, self.waits);
        if let Some(wish) = self.policy.refine(&load) {
            self.is_moving = true;
            let others = |active: Vec<u16>| active.into_iter().filter(|cpu| *cpu != 0).collect::<Vec<u16>>();
            let before = others(self.active());
            (self.map, self.shares) = (wish.map, None);
            let now = others(self.active());
            let joined = now.iter().filter(|cpu| !before.contains(cpu)).count();
            self.only_wakes |= joined > self.wakes_at_most;
            if before != now {
                self.changes.push((self.now, wish.cause, now.len()));
            }
        }
        Done { handled: rates.iter().sum(), best: offered }
    }

    fn close_window(&mut self, cpus: &[CpuLoad]) -> Option<(Vec<CpuLoad>, Vec<f64>)> {
        for (sum, now) in self.sums.iter_mut().zip(cpus) {
            (sum.busy, sum.receive, sum.full) = (sum.busy + now.busy, sum.receive + now.receive, sum.full + now.full);
            sum.packets += now.packets;
        }
        self.checks += 1.0;
        if self.is_moving {
            self.window = Duration::ZERO;
        }
        if self.window < Tuning::DEFAULT.probe {
            if self.window.is_zero() {
                (self.sums, self.checks) = (vec![CpuLoad::default(); cpus.len()], 0.0);
            }
            return None;
        }
        self.window = Duration::ZERO;
        let mut sums = std::mem::replace(&mut self.sums, vec![CpuLoad::default(); cpus.len()]);
        let checks = std::mem::take(&mut self.checks);
        for (sum, now) in sums.iter_mut().zip(cpus) {
            (sum.busy, sum.receive, sum.full) = (sum.busy / checks, sum.receive / checks, sum.full / checks);
            (sum.others, sum.others_want) = (now.others, now.others_want);
        }
        let mut seen: Vec<f64> = Vec::with_capacity(BUCKETS);
        for (share, heavy) in self.share.iter().zip(&self.heavy) {
            let error = self.chance.normal() / (share * 200_000.0).max(1.0).sqrt();
            seen.push(share * heavy * (1.0 + error).max(0.0));
        }
        let mut of_cpu = vec![0.0; cpus.len()];
        self.map.iter().zip(&seen).for_each(|(cpu, work)| of_cpu[usize::from(*cpu)] += work);
        for (cpu, work) in self.map.iter().zip(&mut seen) {
            let load = &sums[usize::from(*cpu)];
            *work *= (load.busy - load.receive) / of_cpu[usize::from(*cpu)].max(f64::MIN_POSITIVE);
        }
        Some((sums, seen))
    }

    pub(super) fn run(&mut self, time: Duration) -> f64 {
        let (mut handled, mut best, mut known) = (0.0, 0.0, Vec::<(u64, f64)>::new());
        for _ in 0..time.as_nanos() / REFINE_EVERY.as_nanos() {
            let done = self.check();
            handled += done.handled;
            let offered = done.best;
            let at = known.iter().position(|(key, _)| *key == offered.to_bits()).unwrap_or_else(|| {
                known.push((offered.to_bits(), self.best(offered)));
                known.len() - 1
            });
            best += known[at].1;
        }
        handled / best
    }
}
