//! Steering by load: [`Balance`].
//!
//! The CPU that receives also runs the packet function while it keeps up. This is the same as the path without steering: one CPU
//! has all buckets, so nothing is hashed and nothing is handed over. If that CPU has no time left, the next CPU of the order joins.
//! CPUs leave again if the remaining CPUs would be busy for less than half of their time. Meanwhile, buckets move from the busiest
//! CPU to the least busy one.
//!
//! # Trials
//!
//! A CPU that joins is on trial, because handing over may cost more than it brings. Only trying it shows whether it does: no figure
//! that was measured elsewhere is valid on a machine whose CPUs move between physical CPUs. Measurements differ by a tenth from one
//! moment to the next, so no single measurement decides. Instead, a loss is added up as time, and the CPU leaves when the sum
//! reaches what leaving and joining again cost (`LOST_MAX`).
//!
//! A capture file may end before a trial does. A caller that knows that the packet function is worth handing over uses
//! [`Balance::begin_joined`], as `steerage meter` does if a CPU near the receiver was measured.
//!
//! # Distance
//!
//! The result of a trial is valid for the distance that the CPUs had. A hypervisor moves the CPUs of a virtual machine about every
//! second, and adding up losses of 50 ms at each move would be too much. So the distance itself is measured (`distances`), and what
//! trials have shown is kept for each distance (`learned`). Timing the hand-overs that happen anyway would not do: there are none
//! while one CPU has all buckets, which is when the policy must know whether another CPU should join.
//!
//! # Saturated receivers
//!
//! A receiving CPU without time left does not know how many packets wait in its device. Its load is taken to be higher than
//! measured (see `base`), so it gives work away in steps until it keeps up.

mod learned;
mod trial;

use std::time::Duration;

use learned::Experience;
use trial::{Split, Trial};

use crate::limits::{
    BEGUN_JOINED_FOR, CAPACITY_CHANGED, CAPACITY_LOOKS, CAPACITY_LOOKS_FIRST, CONTENDED_FROM, ELEPHANT_FROM, FULL_FROM,
    JOIN_FROM, KEEPS_UP, LEAVE_AFTER, LEAVE_AFTER_MAX, LEAVE_BELOW, LOOK_BACK, LOOK_EVERY, LOOKS_AVERAGED, PACK_WITHIN,
    SATURATED_FROM, SHORT_OF_TIME, UNEVEN_FROM,
};
use crate::packing::Loads;
use crate::policy::{CpuLoad, GroupLoad, Policy, Window, Wish};
use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_core::placement::{Findings, Plan};
use steerage_flow::Timestamp;

/// The largest number of elephants in the report.
const ELEPHANTS_SHOWN: usize = 8;

/// Steers by load.
///
/// ```
/// use steerage_policy::{Balance, Policy};
///
/// assert_eq!(Balance::new().name(), "balance");
/// // Says what it would do, and moves nothing.
/// assert_eq!(Balance::dry_run().name(), "dry-run");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Balance {
    dry_run: bool,
    begins_joined: bool,
    /// The load of each CPU, averaged over the last looks.
    loads: Vec<CpuLoad>,
    /// The capacity of the group with its present CPUs: packets per second of the busiest CPU's busy time.
    capacity: f64,
    /// The throughput in packets per second.
    rate: f64,
    /// The number of looks over which these two were measured, since CPUs joined or left.
    measured: u32,
    /// The capacity of the receiving CPUs alone, when they were last short of time.
    inline_capacity: f64,
    /// Their throughput at that time.
    inline_rate: f64,
    /// These two were measured over few looks only.
    inline_is_vague: bool,
    /// The time per packet of the packet function when it runs inline, in nanoseconds.
    work: f64,
    /// The time per packet of receiving while packets are hashed, in nanoseconds. They are not if one CPU has all buckets.
    receive_hashed: Option<f64>,
    trial: Option<Trial>,
    /// The trial of distributing over several CPUs what one CPU had.
    split: Option<Split>,
    /// The results of earlier trials.
    learned: Experience,
    /// The CPU whose distance to the receiver should be measured next.
    asks_distance: Option<u16>,
    /// How many times a CPU other than the next candidate was asked for. It selects which of them is next.
    asked_others: usize,
    /// When to check next whether the CPUs that joined still pay, and the time from their trial to that check.
    look_back: Option<(Timestamp, Duration)>,
    /// The loss that they have caused since they last paid, as time.
    lost: Duration,
    /// The time since which the other CPUs could do without the last one.
    quiet_since: Option<Timestamp>,
    leave_after: Duration,
    left_at: Option<Timestamp>,
    findings: Findings,
}

impl Balance {
    /// A policy that has learned nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with all work on the first CPU that does not receive, if there is one. This suits input that is always ready,
    /// such as a file, and a packet function that takes about as long as receiving. A second later the policy tries whether
    /// running inline is better. A file may have ended by then.
    pub fn begin_joined() -> Self {
        Self { begins_joined: true, ..Self::default() }
    }

    /// Leaves all buckets where [`Hash`](super::Hash) puts them, and only reports what it would move.
    pub fn dry_run() -> Self {
        Self { dry_run: true, ..Self::default() }
    }

    /// Updates the averages over the last looks. A late look counts like the looks that it stands for.
    fn average(&mut self, load: &GroupLoad<'_>) {
        if self.loads.len() != load.cpus.len() {
            self.loads = load.cpus.to_vec();
        }
        let old_share = (1.0 - 1.0 / LOOKS_AVERAGED).powi(looks(load) as i32);
        let towards = |old: &mut f64, new: f64| *old += (new - *old) * (1.0 - old_share);
        for (old, new) in self.loads.iter_mut().zip(load.cpus) {
            towards(&mut old.busy, new.busy);
            towards(&mut old.receive, new.receive);
            towards(&mut old.full, new.full);
            old.packets = new.packets;
        }
    }

    /// Updates capacity and throughput of the active CPUs, and the time per packet of the packet function.
    fn measure_capacity(&mut self, load: &GroupLoad<'_>, active: &[u16]) {
        let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
        let busiest = of(load.cpus, active).map(|cpu| cpu.busy).fold(0.0, f64::max);
        let seconds = load.elapsed.as_secs_f64() * busiest;
        if seconds > 0.0 && packets > 0 {
            let now = packets as f64 / seconds;
            // A large difference is not random: the work has changed.
            let far = (now - self.capacity).abs() > self.capacity * CAPACITY_CHANGED;
            let looks = looks(load);
            self.measured = if far { looks } else { (self.measured + looks).min(CAPACITY_LOOKS) };
            let weight = f64::from(looks) / f64::from(self.measured);
            self.capacity += (now - self.capacity) * weight;
            self.rate += (packets as f64 / load.elapsed.as_secs_f64() - self.rate) * weight;
            if let [only] = active {
                let cpu = load.cpus[usize::from(*only)];
                let work = (cpu.busy - cpu.receive) * load.elapsed.as_nanos() as f64 / packets as f64;
                self.work += (work - self.work) * weight;
            }
        }
    }

    /// Updates the time per packet of receiving, if packets are hashed.
    fn note_receiving(&mut self, load: &GroupLoad<'_>) {
        if let Some(new) = receiving(load).filter(|_| !is_single(load.map)) {
            let known = self.receive_hashed.get_or_insert(new);
            *known += (new - *known) / LOOKS_AVERAGED;
        }
    }

    /// Adds one CPU if the CPUs that have buckets are short of time, unless a trial has shown that it does not pay.
    fn join(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let next = self.next_to_join(load, active)?;
        if !self.is_short_of_time(active) {
            return None;
        }
        let first = active.len() <= load.owners;
        let here = self.learned.here();
        let paid = first && self.inline_capacity > 0.0 && here.pays(self.work);
        if first {
            if here.is_in_vain(load.now, self.work) {
                return None;
            }
            // A program that has just started is slow, so whatever comes later seems to be an improvement.
            let is_first = self.inline_capacity == 0.0;
            let enough = if is_first { CAPACITY_LOOKS_FIRST } else { CAPACITY_LOOKS };
            if self.measured < enough && !paid {
                return None;
            }
            if self.measured >= enough {
                (self.inline_capacity, self.inline_rate) = (self.capacity, self.rate);
                self.inline_is_vague = self.measured < CAPACITY_LOOKS;
            }
            self.begin_trial();
        }
        self.findings.joined += 1;
        self.quiet_since = None;
        if self.left_at.take().is_some_and(|left| load.now.since(left) < self.leave_after() * 4) {
            // The last CPU left too soon.
            self.leave_after = (self.leave_after() * 2).min(LEAVE_AFTER_MAX);
        }
        let active: Vec<u16> = active.iter().copied().chain([next]).collect();
        let known = self.learned.here().map.as_ref().filter(|map| paid && map.iter().all(|cpu| active.contains(cpu)));
        let map = known.cloned().unwrap_or_else(|| self.pack(load, &active));
        Some(Wish { map, cause: MoveCause::Joined })
    }

    /// The next CPU to join. CPUs that no other program needs come first. Among those, CPUs come first whose distance has not
    /// failed in a trial. Otherwise the order of the group counts.
    fn next_to_join(&self, load: &GroupLoad<'_>, active: &[u16]) -> Option<u16> {
        let left = load.order.iter().copied().filter(|cpu| !active.contains(cpu));
        let is_in_vain = |cpu: u16| self.learned.is_in_vain_at(load.apart[usize::from(cpu)], load.now, self.work);
        left.min_by_key(|cpu| (is_contended(load, *cpu), is_in_vain(*cpu)))
    }

    /// Whether the CPUs that have buckets are short of time on average.
    fn is_short_of_time(&self, active: &[u16]) -> bool {
        let wants = |cpu: CpuLoad| cpu.busy.min(if cpu.full < FULL_FROM { KEEPS_UP } else { 1.0 });
        of(&self.loads, active).map(wants).sum::<f64>() / active.len() as f64 >= JOIN_FROM
    }

    fn leave(&mut self, load: &GroupLoad<'_>, stay: &[u16]) -> Option<Wish> {
        self.findings.left += 1;
        self.quiet_since = None;
        (self.capacity, self.measured) = (0.0, 0);
        Some(Wish { map: self.pack(load, stay), cause: MoveCause::Left })
    }

    fn leave_after(&self) -> Duration {
        self.leave_after.max(LEAVE_AFTER)
    }

    /// Removes CPUs if the others would have been busy for less than half of their time for long enough.
    fn quiet(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let least = load.owners.min(load.order.len());
        if active.len() <= least {
            return None;
        }
        let total: f64 = of(&self.loads, active).map(|cpu| cpu.busy).sum();
        // Small batches make CPUs look busier than they are. If the inline capacity is known, it decides instead.
        let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
        let by_rate = (packets as f64) < load.elapsed.as_secs_f64() * self.inline_capacity * LEAVE_BELOW;
        let room = |cpus: usize| total < LEAVE_BELOW * cpus as f64;
        // The other CPUs may have idle time only because one CPU, such as the receiver, is short of time.
        let short = of(&self.loads, active).any(|cpu| cpu.busy > JOIN_FROM && cpu.full >= FULL_FROM);
        if short || !(room(active.len() - 1) || by_rate) {
            self.quiet_since = None;
            return None;
        }
        let since = *self.quiet_since.get_or_insert(load.now);
        if load.now.since(since) < self.leave_after() {
            return None;
        }
        let stay = (least..active.len()).find(|cpus| by_rate || room(*cpus)).unwrap_or(active.len() - 1);
        self.left_at = Some(load.now);
        self.trial = None;
        self.leave(load, &active[..stay])
    }

    /// Moves buckets if the busiest CPU is further above the best than random error explains.
    fn even_out(&mut self, load: &GroupLoad<'_>, window: &Window<'_>, active: &[u16]) -> Option<Wish> {
        let mut base = base(load, window);
        let apart = self.receive_hashed.filter(|_| is_single(load.map) && active.len() > 1);
        if let (Some(apart), Some(now)) = (apart, receiving(load)) {
            // With a second CPU, packets must be hashed again, and the receiving CPUs do that.
            let factor = (apart / now).max(1.0);
            for owner in &load.order[..load.owners.min(load.order.len())] {
                let owner = usize::from(*owner);
                base[owner] += window.cpus[owner].receive * (factor - 1.0);
            }
        }
        let loads = Loads { map: load.map, buckets: window.buckets, base: &base, active };
        let (busiest, best) = (loads.busiest(), loads.best());
        let uneven = if best > 0.0 { busiest / best } else { 1.0 };
        self.findings.uneven = Some(uneven);
        let overfills = |load: f64| load > ELEPHANT_FROM;
        let mut elephants: Vec<(u16, f64)> =
            (0..).zip(window.buckets.iter().copied()).filter(|(_, load)| overfills(*load)).collect();
        elephants.sort_by(|a, b| b.1.total_cmp(&a.1));
        elephants.truncate(ELEPHANTS_SHOWN);
        self.findings.elephants = elephants;
        // The work of CPUs is counted, not sampled, but which packets arrive is random.
        let packets = of(window.cpus, active).map(|cpu| cpu.packets).sum::<u64>() as f64 / active.len() as f64;
        let mut chance = 3.0 / packets.max(1.0).sqrt();
        let (all, largest) =
            window.buckets.iter().fold((0.0, 0.0_f64), |(all, most), load| (all + load, most.max(*load)));
        if largest >= best / 2.0 && all > 0.0 {
            // The best depends on one bucket, whose load is sampled.
            chance = chance.max(2.0 / (window.samples as f64 * largest / all).max(1.0).sqrt());
        }
        // If a CPU is saturated, small differences count too. Otherwise only large ones do, since few flows have to move for them.
        let fine = uneven < UNEVEN_FROM && of(window.cpus, active).any(|cpu| cpu.busy >= SATURATED_FROM);
        let part = |factor: f64| if fine { 1.0 + (factor - 1.0) * SHORT_OF_TIME } else { factor };
        let (uneven_from, within) = (part(UNEVEN_FROM), part(PACK_WITHIN));
        if active.len() < 2 || uneven < uneven_from + chance {
            return None;
        }
        let map = loads.pack(within);
        let after = Loads { map: &map, ..loads }.busiest();
        // If moving a bucket does not help, none moves.
        let helps = after < busiest - (uneven_from - within) * best / 2.0;
        helps.then_some(Wish { map, cause: MoveCause::Balance })
    }

    /// Distributes the work over the `active` CPUs, by what is known of the buckets.
    fn pack(&self, load: &GroupLoad<'_>, active: &[u16]) -> Box<[u16; BUCKETS]> {
        if let Some(window) = &load.window {
            let base = base(load, window);
            return Loads { map: load.map, buckets: window.buckets, base: &base, active }.pack(PACK_WITHIN);
        }
        // Nothing is known: assume that all buckets of a CPU take equal parts of its work.
        let mut held = vec![0u32; load.cpus.len()];
        load.map.iter().for_each(|cpu| held[usize::from(*cpu)] += 1);
        let work = |cpu: u16| {
            let at = usize::from(cpu);
            (self.loads[at].busy - self.loads[at].receive).max(0.0) / f64::from(held[at])
        };
        let buckets: Vec<f64> = load.map.iter().map(|cpu| work(*cpu)).collect();
        let base: Vec<f64> = (0..load.cpus.len())
            .map(|cpu| if held[cpu] > 0 { self.loads[cpu].receive } else { self.loads[cpu].busy })
            .collect();
        Loads { map: load.map, buckets: &buckets, base: &base, active }.pack(PACK_WITHIN)
    }
}

/// The number of looks in time that this look stands for. It is more than 1 if the look is late, or if the instance was idle.
fn looks(load: &GroupLoad<'_>) -> u32 {
    let looks = load.elapsed.as_nanos() / LOOK_EVERY.as_nanos();
    looks.clamp(1, u128::from(CAPACITY_LOOKS)) as u32
}

fn is_single(map: &[u16; BUCKETS]) -> bool {
    map.iter().all(|cpu| *cpu == map[0])
}

/// The time per finished packet that the receiving CPUs spent on receiving since the last look, in nanoseconds.
fn receiving(load: &GroupLoad<'_>) -> Option<f64> {
    let owners = &load.order[..load.owners.min(load.order.len())];
    let receive: f64 = of(load.cpus, owners).map(|cpu| cpu.receive).sum();
    let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
    (packets > 0 && receive > 0.0).then(|| receive * load.elapsed.as_nanos() as f64 / packets as f64)
}

/// The load of each CPU besides its buckets.
fn base(load: &GroupLoad<'_>, window: &Window<'_>) -> Vec<f64> {
    let mut base: Vec<f64> = window.cpus.iter().map(|cpu| cpu.busy).collect();
    for (cpu, load) in load.map.iter().zip(window.buckets) {
        base[usize::from(*cpu)] -= load;
    }
    // Nobody has counted the packets that wait in the device of a saturated CPU. So half of the idle time of the least busy CPU
    // is added to its load: the more idle time there is, the larger the step that can be tried.
    let active = load.order.iter().filter(|cpu| load.map.contains(cpu));
    let least = active.map(|cpu| window.cpus[usize::from(*cpu)].busy).fold(1.0, f64::min);
    for owner in &load.order[..load.owners.min(load.order.len())] {
        let owner = usize::from(*owner);
        if window.cpus[owner].busy >= SATURATED_FROM {
            base[owner] += (1.0 - least) / 2.0;
        }
    }
    base.iter_mut().for_each(|load| *load = load.max(0.0));
    base
}

/// Whether other programs or guests take too much of a CPU's time for it to help much.
fn is_contended(load: &GroupLoad<'_>, cpu: u16) -> bool {
    load.cpus[usize::from(cpu)].others >= CONTENDED_FROM
}

fn of<'a>(cpus: &'a [CpuLoad], active: &'a [u16]) -> impl Iterator<Item = CpuLoad> + 'a {
    active.iter().map(|cpu| cpus[usize::from(*cpu)])
}

impl Policy for Balance {
    fn name(&self) -> &'static str {
        if self.dry_run { "dry-run" } else { "balance" }
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(Self { dry_run: self.dry_run, begins_joined: self.begins_joined, ..Self::default() })
    }

    fn plan(&mut self, order: &[u16], owners: usize, active: &[u16]) -> Plan {
        if self.dry_run {
            return Plan::all();
        }
        let owners = owners.min(order.len());
        let first: Vec<u16> = match active {
            [] if self.begins_joined && owners < order.len() => {
                self.findings.joined += 1;
                vec![order[owners]]
            }
            [] => order[..owners].to_vec(),
            active => order.iter().copied().filter(|cpu| active.contains(cpu)).collect(),
        };
        Plan { active: first.len(), order: first }
    }

    fn cpus_changed(&mut self) {
        // What was measured before is no longer comparable.
        (self.trial, self.split) = (None, None);
    }

    fn look(&mut self, load: &GroupLoad<'_>) -> Option<Wish> {
        self.average(load);
        // The CPUs that receive always count, even if all of their buckets are on other CPUs.
        let owners = load.owners.min(load.order.len());
        let with_buckets = load.order[owners..].iter().filter(|cpu| load.map.contains(cpu));
        let active: Vec<u16> = load.order[..owners].iter().chain(with_buckets).copied().collect();
        self.measure_capacity(load, &active);
        self.note_receiving(load);
        if std::mem::take(&mut self.begins_joined) && active.len() > owners {
            self.look_back = Some((load.now + BEGUN_JOINED_FOR, LOOK_BACK));
        }
        if self.dry_run {
            if let Some(window) = &load.window {
                let wish = self.even_out(load, window, &active);
                let moves = |wish: Wish| wish.map.iter().zip(load.map).filter(|(new, old)| new != old).count();
                self.findings.would_move = Some(wish.map_or(0, moves));
            }
            return None;
        }
        let moved = self.moved_apart(load, &active);
        if moved.is_some() {
            return moved;
        }
        if self.trial.is_some() {
            let wish = self.judge(load, &active);
            if wish.is_some() {
                return wish;
            }
        } else {
            let wish = self.no_longer_pays(load, &active).or_else(|| self.join(load, &active));
            if let Some(wish) = wish.or_else(|| self.quiet(load, &active)) {
                return Some(wish);
            }
        }
        if let Some(wish) = self.judge_split(load) {
            return Some(wish);
        }
        let window = load.window.as_ref()?;
        let wish = self.even_out(load, window, &active)?;
        self.try_split(load, &active, wish)
    }

    fn asks_distance(&self) -> Option<u16> {
        self.asks_distance
    }

    fn findings(&self) -> Findings {
        let here = self.learned.here();
        let time = |nanos: f64| Duration::from_nanos(nanos as u64);
        let mut findings = self.findings.clone();
        (findings.pays_at, findings.fails_at) = (here.paid.map(time), here.failed.map(time));
        findings
    }
}
