//! [`Seen`] contains one load check in the form that the model uses.

use super::regime::{Regime, RegimeKind};
use crate::limits::Tuning;
use crate::policy::{CpuLoad, GroupLoad};

/// The share of a CPU that a fair scheduler gives to each of two programs that both want the whole
/// CPU.
const FAIR_SHARE: f64 = 0.5;

#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) load: &'a GroupLoad<'a>,
    /// The CPUs that receive. In the group's order of CPUs, the receiving CPUs are first.
    pub(super) owners: &'a [u16],
    pub(super) regime: Regime,
    /// The number of packets that were handled per nanosecond.
    pub(super) rate: f64,
    /// The number of packets that were offered per nanosecond: the handled packets, and the packets
    /// that were dropped because backlogs were full.
    pub(super) offered: f64,
    /// True if the receiving CPUs or all other CPUs are short of time.
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
    /// One of the other programs on this machine may be the program that sends packets to a live
    /// device. Therefore, with live devices, the other programs get all the time that they want.
    /// Devices that can wait, such as files, have no sender that competes for the CPU. Therefore,
    /// if the devices can wait, the group takes its fair share. On a CPU that steerage keeps busy,
    /// the group's share is the time that the other programs leave. On a CPU that is not busy, the
    /// group's share is at least half.
    pub(super) fn capacity(&self, cpu: u16, tuning: &Tuning) -> f64 {
        let seen = self.cpu(cpu);
        let others = match self.load.can_wait {
            true if seen.busy >= tuning.fill => seen.others,
            true => seen.others_want.min(FAIR_SHARE),
            false => seen.others_want,
        };
        (1.0 - others).clamp(0.0, 1.0)
    }

    /// Returns the time that `cpus` spent on `of`, summed over the CPUs, without the time that
    /// other programs took. The unit is the time of one CPU.
    pub(super) fn time(&self, cpus: &[u16], of: fn(&CpuLoad) -> f64) -> f64 {
        cpus.iter().map(|cpu| of(self.cpu(*cpu)).min(1.0) * (1.0 - self.cpu(*cpu).others).clamp(0.0, 1.0)).sum()
    }

    /// Returns the number of rounds (passes of a CPU's loop) in which the receiving time of `cpus`
    /// was measured.
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
