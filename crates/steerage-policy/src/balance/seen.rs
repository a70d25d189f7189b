use super::regime::{Regime, RegimeKind};
use crate::limits::Tuning;
use crate::policy::{CpuLoad, GroupLoad};

/// A fair scheduler gives half of a CPU to each of two programs that want the whole CPU.
const FAIR_SHARE: f64 = 0.5;

#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) load: &'a GroupLoad<'a>,
    /// The receiving CPUs, which are first in the group's order.
    pub(super) owners: &'a [u16],
    pub(super) regime: Regime,
    /// Handled packets per nanosecond.
    pub(super) rate: f64,
    /// Handled packets, and packets that full backlogs dropped, per nanosecond.
    pub(super) offered: f64,
    pub(super) is_short: bool,
}

impl<'a> Seen<'a> {
    pub(super) fn of(load: &'a GroupLoad<'a>, tuning: &Tuning) -> Self {
        let (owners, rest) = load.order.split_at(load.owners.min(load.order.len()));
        let mut has_buckets = vec![false; load.cpus.len()];
        load.map.iter().for_each(|cpu| has_buckets[usize::from(*cpu)] = true);
        let others: Vec<u16> = rest.iter().copied().filter(|cpu| has_buckets[usize::from(*cpu)]).collect();
        let kind = match others[..] {
            [] => RegimeKind::Inline,
            [_] if owners.iter().all(|cpu| !has_buckets[usize::from(*cpu)]) => RegimeKind::Collector,
            _ => RegimeKind::Spread,
        };
        let is_short = |cpus: &[u16]| {
            let mean = |of: fn(&CpuLoad) -> f64| {
                cpus.iter().map(|cpu| of(&load.cpus[usize::from(*cpu)]).min(1.0)).sum::<f64>() / cpus.len() as f64
            };
            !cpus.is_empty() && mean(|cpu| cpu.busy) >= tuning.fill && mean(|cpu| cpu.full) >= tuning.full
        };
        let nanos = load.elapsed.as_nanos().max(1) as f64;
        let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
        let offered: f64 = load.cpus.iter().map(|cpu| cpu.packets as f64 * cpu.busy.max(1.0)).sum();
        let is_short = is_short(owners) || is_short(&others);
        let regime = Regime { kind, others };
        Self { load, owners, regime, rate: packets as f64 / nanos, offered: offered / nanos, is_short }
    }

    pub(super) fn cpu(&self, cpu: u16) -> &CpuLoad {
        &self.load.cpus[usize::from(cpu)]
    }

    /// The share of a CPU's time that the group may use.
    ///
    /// Another program may send packets to a live device, so other programs get all the time that
    /// they want. With devices that can wait, such as files, the group gets what other programs
    /// leave on a CPU that steerage keeps busy, and at least half of any other CPU.
    pub(super) fn capacity(&self, cpu: u16, tuning: &Tuning) -> f64 {
        let seen = self.cpu(cpu);
        let others = match self.load.can_wait {
            true if seen.busy >= tuning.fill => seen.others,
            true => seen.others_want.min(FAIR_SHARE),
            false => seen.others_want,
        };
        (1.0 - others).clamp(0.0, 1.0)
    }

    /// The time that `cpus` spent on the work `of`, as a number of CPUs, without the time of other
    /// programs.
    pub(super) fn time(&self, cpus: &[u16], of: fn(&CpuLoad) -> f64) -> f64 {
        cpus.iter().map(|cpu| of(self.cpu(*cpu)).min(1.0) * (1.0 - self.cpu(*cpu).others).clamp(0.0, 1.0)).sum()
    }

    pub(super) fn timed(&self, cpus: &[u16]) -> f64 {
        cpus.iter().map(|cpu| self.cpu(*cpu).timed).sum::<f64>().max(f64::MIN_POSITIVE)
    }

    pub(super) fn rate_of(&self, cpus: &[u16]) -> f64 {
        let packets: u64 = cpus.iter().map(|cpu| self.cpu(*cpu).packets).sum();
        packets as f64 / self.load.elapsed.as_nanos().max(1) as f64
    }

    pub(super) fn is_full(&self, cpus: &[u16], tuning: &Tuning) -> bool {
        let full: f64 = cpus.iter().map(|cpu| self.cpu(*cpu).full).sum();
        full >= tuning.full * cpus.len() as f64
    }
}
