use super::Balance;
use super::learn::Choice;
use super::regime::RegimeKind;
use super::seen::Seen;
use crate::limits::MIN_SAMPLES;
use crate::packing::{Loads, members};
use crate::policy::{CpuLoad, GroupLoad, MapRequest, Window};
use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;

impl Balance {
    pub(super) fn place(&self, seen: &Seen<'_>, choice: &Choice) -> Box<[u16; BUCKETS]> {
        let load = seen.load;
        let others = &choice.regime.others;
        if choice.regime.kind == RegimeKind::Collector {
            return Box::new([others[0]; BUCKETS]);
        }
        let buckets = load.window.as_ref().map_or(&self.buckets[..], |window| window.buckets);
        let even = [1.0; BUCKETS];
        let buckets = if buckets.iter().any(|load| *load > 0.0) { buckets } else { &even };
        let all: f64 = buckets.iter().sum();
        let (kept, handed) = &choice.shares;
        let kept = kept / seen.owners.len() as f64;
        let shares =
            seen.owners.iter().map(|cpu| (*cpu, kept)).chain(others.iter().copied().zip(handed.iter().copied()));
        // `pack` makes all CPUs equally busy, so a CPU that should get a smaller share starts with
        // a base load.
        let largest = shares.clone().map(|(_, share)| share).fold(0.0, f64::max);
        let mut base = vec![0.0; load.cpus.len()];
        shares.for_each(|(cpu, share)| base[usize::from(cpu)] = (largest - share) * all);
        let active: Vec<u16> = seen.owners.iter().chain(others).copied().collect();
        Loads { map: load.map, buckets, base: &base, active: &active }.pack(1.0 + self.tuning.noise / 2.0)
    }

    /// Moves buckets if the load of the busiest CPU is too high by more than random error.
    pub(super) fn even_out(&mut self, seen: &Seen<'_>, window: &Window<'_>) -> Option<MapRequest> {
        let (load, tuning) = (seen.load, &self.tuning);
        let active: Vec<u16> = seen.owners.iter().chain(&seen.regime.others).copied().collect();
        let is_saturated =
            |cpu: &u16| window.cpus[usize::from(*cpu)].busy >= tuning.fill && seen.is_full(&[*cpu], tuning);
        let busiest = active.iter().map(|cpu| window.cpus[usize::from(*cpu)].busy).fold(0.0, f64::max);
        let is_busiest = |cpu: &u16| is_saturated(cpu) && window.cpus[usize::from(*cpu)].busy >= busiest;
        let base = base(load, window, seen.owners.iter().copied().filter(is_busiest));
        let loads = Loads { map: load.map, buckets: window.buckets, base: &base, active: &active };
        let (busiest, best) = (loads.busiest(), loads.best());
        let uneven = if best > 0.0 { busiest / best } else { 1.0 };
        self.findings.uneven = Some(uneven);
        let mut elephants: Vec<(u16, f64)> =
            (0..).zip(window.buckets.iter().copied()).filter(|(_, load)| load + load > 1.0).collect();
        elephants.sort_by(|a, b| b.1.total_cmp(&a.1));
        elephants.truncate(MIN_SAMPLES as usize);
        self.findings.elephants = elephants;
        if active.len() < 2 || seen.regime.kind == RegimeKind::Collector {
            return None;
        }
        // A CPU's work is measured completely, but the packets that arrive are a random sample of
        // the traffic.
        let packets: u64 = active.iter().map(|cpu| window.cpus[usize::from(*cpu)].packets).sum();
        let mut chance = tuning.sure / (packets as f64 / active.len() as f64).max(1.0).sqrt();
        let (all, largest) =
            window.buckets.iter().fold((0.0, 0.0_f64), |(all, most), load| (all + load, most.max(*load)));
        if largest >= best / 2.0 && all > 0.0 {
            // The best possible load depends on the largest bucket, whose work is only sampled.
            chance = chance.max(tuning.sure / (window.samples as f64 * largest / all).max(1.0).sqrt());
        }
        // If the busiest CPU has idle time, no packets are lost because of its higher load.
        let fine = active.iter().any(is_saturated);
        let least = if fine { tuning.noise / 4.0 } else { tuning.noise };
        if uneven < 1.0 + least + chance {
            return None;
        }
        let map = loads.pack(1.0 + least / 2.0);
        let after = Loads { map: &map, ..loads }.busiest();
        // Only a switch of the regime may move all buckets to one CPU.
        let helps = after < busiest - least * best / 4.0 && map.iter().any(|cpu| *cpu != map[0]);
        helps.then_some(MapRequest { map, cause: MoveCause::Balance })
    }
}

fn base(load: &GroupLoad<'_>, window: &Window<'_>, saturated: impl Iterator<Item = u16>) -> Vec<f64> {
    // Other programs take a share of the time in which steerage does not use the CPU.
    let with_others = |(cpu, seen): (&CpuLoad, &CpuLoad)| cpu.busy + seen.others * (1.0 - cpu.busy).max(0.0);
    let all: Vec<f64> = window.cpus.iter().zip(load.cpus).map(with_others).collect();
    let mut base = all.clone();
    for (cpu, load) in load.map.iter().zip(window.buckets) {
        base[usize::from(*cpu)] -= load;
    }
    // Packets that wait in the device of a saturated CPU are missing from the CPU's load. As an
    // estimate, half of the idle time of the least busy CPU is added.
    let has_buckets = members(load.map);
    let active = load.order.iter().filter(|cpu| has_buckets(cpu));
    let least = active.map(|cpu| all[usize::from(*cpu)]).fold(1.0, f64::min);
    for owner in saturated {
        base[usize::from(owner)] += (1.0 - least) / 2.0;
    }
    base.iter_mut().for_each(|load| *load = load.max(0.0));
    base
}
