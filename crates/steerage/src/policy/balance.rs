//! Buckets by load: inline while it is quiet, CPUs that join and leave, the busiest one's buckets to the least busy.
//!
//! The CPU that receives runs the function itself while it keeps up: nothing is hashed then and nothing handed over. When it
//! has no time left, the next CPU of the order joins and gets its share of the work; when that was for nothing, because
//! handing over costs more than the function does, it leaves again, and what was learned is kept. CPUs leave when those that
//! are left would be at half of their time.

mod learned;
mod trial;

use std::time::Duration;

use learned::Experience;
use trial::{Split, Trial};

use super::spread::Loads;
use super::{CpuLoad, Findings, GroupLoad, Policy, Window, Wish};
use crate::ledger::MoveCause;
use crate::limits::{
    BEGUN_JOINED_FOR, BUCKETS, CAPACITY_CHANGED, CAPACITY_LOOKS, CAPACITY_LOOKS_FIRST, CONTENDED_FROM, ELEPHANT_FROM,
    FULL_FROM, JOIN_FROM, KEEPS_UP, LEAVE_AFTER, LEAVE_AFTER_MAX, LEAVE_BELOW, LOOK_BACK, LOOKS_AVERAGED,
    SATURATED_FROM, SHORT_OF_TIME, SPREAD_WITHIN, UNEVEN_FROM,
};
use crate::platform::Timestamp;

/// How many elephants are told.
const ELEPHANTS_SHOWN: usize = 8;

/// Steers by load.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    dry_run: bool,
    begins_joined: bool,
    /// What each CPU does, the last looks averaged.
    loads: Vec<CpuLoad>,
    /// What the group can do in a second with the CPUs it has: packets for each second of the busiest.
    capacity: f64,
    /// What was done in a second.
    rate: f64,
    /// Over how many looks that was measured, since CPUs joined or left.
    measured: u32,
    /// The same without any CPU that joined, when it was last short of time.
    inline_capacity: f64,
    /// And what was done then.
    inline_rate: f64,
    /// Over few looks only.
    inline_is_vague: bool,
    /// What the function takes for a packet where it runs inline, in nanoseconds.
    work: f64,
    /// What receiving takes for a packet while flows are told apart, in nanoseconds. Where one CPU has all, nothing is hashed.
    receive_spread: Option<f64>,
    trial: Option<Trial>,
    /// What was all on one CPU is spread over several, on trial.
    split: Option<Split>,
    /// What trials have taught.
    learned: Experience,
    /// Of whom it is to be known how far it is away.
    asks_distance: Option<u16>,
    /// How often that was another one than the next to join.
    asked_others: usize,
    /// When it may be seen whether those that joined are still worth it, and how long after their trial that is.
    look_back: Option<(Timestamp, Duration)>,
    /// What was lost by them since they were last worth it, as time.
    lost: Duration,
    /// Since when there would be room without the last CPU.
    quiet_since: Option<Timestamp>,
    leave_after: Duration,
    left_at: Option<Timestamp>,
    findings: Findings,
}

impl Balance {
    /// With nothing learned yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with all work on the first CPU that does not receive, where there is one: for input that need not be waited for,
    /// such as a file, and a function that takes about as long as receiving does. A second later it is seen whether inline is
    /// better; a file may be over by then.
    pub fn begin_joined() -> Self {
        Self { begins_joined: true, ..Self::default() }
    }

    /// Buckets stay where [`Hash`](super::Hash) has them; what would move is only told.
    pub fn dry_run() -> Self {
        Self { dry_run: true, ..Self::default() }
    }

    /// The averages over the last looks.
    fn average(&mut self, load: &GroupLoad<'_>) {
        if self.loads.len() != load.cpus.len() {
            self.loads = load.cpus.to_vec();
        }
        let towards = |old: &mut f64, new: f64| *old += (new - *old) / LOOKS_AVERAGED;
        for (old, new) in self.loads.iter_mut().zip(load.cpus) {
            towards(&mut old.busy, new.busy);
            towards(&mut old.receive, new.receive);
            towards(&mut old.full, new.full);
            old.packets = new.packets;
        }
    }

    /// Over the active CPUs, what the group could do in a second: packets a second of the busiest one's time.
    fn measure_capacity(&mut self, load: &GroupLoad<'_>, active: &[u16]) {
        let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
        let busiest = of(load.cpus, active).map(|cpu| cpu.busy).fold(0.0, f64::max);
        let seconds = load.elapsed.as_secs_f64() * busiest;
        if seconds > 0.0 && packets > 0 {
            let now = packets as f64 / seconds;
            // What is far off is no chance: the work has changed.
            let far = (now - self.capacity).abs() > self.capacity * CAPACITY_CHANGED;
            self.measured = if far { 1 } else { (self.measured + 1).min(CAPACITY_LOOKS) };
            self.capacity += (now - self.capacity) / f64::from(self.measured);
            self.rate += (packets as f64 / load.elapsed.as_secs_f64() - self.rate) / f64::from(self.measured);
            if let [only] = active {
                let cpu = load.cpus[usize::from(*only)];
                let work = (cpu.busy - cpu.receive) * load.elapsed.as_nanos() as f64 / packets as f64;
                self.work += (work - self.work) / f64::from(self.measured);
            }
        }
    }

    /// Where flows are told apart, what receiving takes.
    fn note_receiving(&mut self, load: &GroupLoad<'_>) {
        if let Some(new) = receiving(load).filter(|_| !is_single(load.map)) {
            let known = self.receive_spread.get_or_insert(new);
            *known += (new - *known) / LOOKS_AVERAGED;
        }
    }

    /// One CPU more, if those that have buckets have no time left and it is not known to be for nothing.
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
            // What begins is slow: what comes after would seem to be an improvement.
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
            // It had left too soon.
            self.leave_after = (self.leave_after() * 2).min(LEAVE_AFTER_MAX);
        }
        let active: Vec<u16> = active.iter().copied().chain([next]).collect();
        let known = self.learned.here().map.as_ref().filter(|map| paid && map.iter().all(|cpu| active.contains(cpu)));
        let map = known.cloned().unwrap_or_else(|| self.spread(load, &active));
        Some(Wish { map, cause: MoveCause::Joined })
    }

    /// The next CPU that has no buckets yet: in the order in which they are to join, but first those that others don't need, and
    /// of these the ones that are not as far away as others that joined in vain.
    fn next_to_join(&self, load: &GroupLoad<'_>, active: &[u16]) -> Option<u16> {
        let left = load.order.iter().copied().filter(|cpu| !active.contains(cpu));
        let is_in_vain = |cpu: u16| self.learned.is_in_vain_at(load.apart[usize::from(cpu)], load.now, self.work);
        left.min_by_key(|cpu| (is_contended(load, *cpu), is_in_vain(*cpu)))
    }

    /// Those that have buckets have no time left, on average.
    fn is_short_of_time(&self, active: &[u16]) -> bool {
        let wants = |cpu: CpuLoad| cpu.busy.min(if cpu.full < FULL_FROM { KEEPS_UP } else { 1.0 });
        of(&self.loads, active).map(wants).sum::<f64>() / active.len() as f64 >= JOIN_FROM
    }

    fn leave(&mut self, load: &GroupLoad<'_>, stay: &[u16]) -> Option<Wish> {
        self.findings.left += 1;
        self.quiet_since = None;
        (self.capacity, self.measured) = (0.0, 0);
        Some(Wish { map: self.spread(load, stay), cause: MoveCause::Left })
    }

    fn leave_after(&self) -> Duration {
        self.leave_after.max(LEAVE_AFTER)
    }

    /// The last CPU out, once the others could do its work in half of their time for long enough.
    fn quiet(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let least = load.owners.min(load.order.len());
        if active.len() <= least {
            return None;
        }
        let total: f64 = of(&self.loads, active).map(|cpu| cpu.busy).sum();
        // Little at a time seems to take more than it does: where it is known what can be done inline, that counts.
        let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
        let by_rate = (packets as f64) < load.elapsed.as_secs_f64() * self.inline_capacity * LEAVE_BELOW;
        let room = |cpus: usize| total < LEAVE_BELOW * cpus as f64;
        // One without time, the one that receives above all, may be why the others have.
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

    /// Evens out, if the busiest is further above the best than chance explains.
    fn even_out(&mut self, load: &GroupLoad<'_>, window: &Window<'_>, active: &[u16]) -> Option<Wish> {
        let mut base = base(load, window);
        let apart = self.receive_spread.filter(|_| is_single(load.map) && active.len() > 1);
        if let (Some(apart), Some(now)) = (apart, receiving(load)) {
            // With a second CPU flows have to be told apart again, and that is for those that receive to do.
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
        // What CPUs did is counted, not sampled; but which packets came is chance.
        let packets = of(window.cpus, active).map(|cpu| cpu.packets).sum::<u64>() as f64 / active.len() as f64;
        let mut chance = 3.0 / packets.max(1.0).sqrt();
        let (all, largest) =
            window.buckets.iter().fold((0.0, 0.0_f64), |(all, most), load| (all + load, most.max(*load)));
        if largest >= best / 2.0 && all > 0.0 {
            // What the best is hangs on one bucket, and that is sampled.
            chance = chance.max(2.0 / (window.samples as f64 * largest / all).max(1.0).sqrt());
        }
        // Where no time is left, the last bit counts as well; not sooner, since most of what is far off takes few flows.
        let fine = uneven < UNEVEN_FROM && of(window.cpus, active).any(|cpu| cpu.busy >= SATURATED_FROM);
        let part = |factor: f64| if fine { 1.0 + (factor - 1.0) * SHORT_OF_TIME } else { factor };
        let (uneven_from, within) = (part(UNEVEN_FROM), part(SPREAD_WITHIN));
        if active.len() < 2 || uneven < uneven_from + chance {
            return None;
        }
        let map = loads.spread(within);
        let after = Loads { map: &map, ..loads }.busiest();
        // Where a bucket more or less does not help, none moves.
        let helps = after < busiest - (uneven_from - within) * best / 2.0;
        helps.then_some(Wish { map, cause: MoveCause::Balance })
    }

    /// The work on `active` CPUs, by what is known of the buckets.
    fn spread(&self, load: &GroupLoad<'_>, active: &[u16]) -> Box<[u16; BUCKETS]> {
        if let Some(window) = &load.window {
            let base = base(load, window);
            return Loads { map: load.map, buckets: window.buckets, base: &base, active }.spread(SPREAD_WITHIN);
        }
        // Nothing known: as if each bucket of a CPU took an equal part of what it does for the group.
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
        Loads { map: load.map, buckets: &buckets, base: &base, active }.spread(SPREAD_WITHIN)
    }
}

fn is_single(map: &[u16; BUCKETS]) -> bool {
    map.iter().all(|cpu| *cpu == map[0])
}

/// What receiving took of the CPUs that do it since the last look, in nanoseconds for each packet that was done with.
fn receiving(load: &GroupLoad<'_>) -> Option<f64> {
    let owners = &load.order[..load.owners.min(load.order.len())];
    let receive: f64 = of(load.cpus, owners).map(|cpu| cpu.receive).sum();
    let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
    (packets > 0 && receive > 0.0).then(|| receive * load.elapsed.as_nanos() as f64 / packets as f64)
}

/// What each CPU has to do besides the buckets that it has.
fn base(load: &GroupLoad<'_>, window: &Window<'_>) -> Vec<f64> {
    let mut base: Vec<f64> = window.cpus.iter().map(|cpu| cpu.busy).collect();
    for (cpu, load) in load.map.iter().zip(window.buckets) {
        base[usize::from(*cpu)] -= load;
    }
    // What waits in a device for a CPU that has no time left, nobody has counted: something, and the more time another one has
    // to spare, the more of it can be tried.
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

/// Others have too much of a CPU's time for it to be of much help.
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

    fn active(&mut self, order: &[u16], owners: usize, active: &[u16]) -> Option<Vec<u16>> {
        if self.dry_run {
            return Some(order.to_vec());
        }
        if !active.is_empty() && active.iter().all(|cpu| order.contains(cpu)) {
            return None;
        }
        (self.trial, self.split) = (None, None);
        let owners = owners.min(order.len());
        if self.begins_joined && active.is_empty() && owners < order.len() {
            self.findings.joined += 1;
            return Some(vec![order[owners]]);
        }
        let stay = order[owners..].iter().filter(|cpu| active.contains(cpu));
        Some(order[..owners].iter().chain(stay).copied().collect())
    }

    fn look(&mut self, load: &GroupLoad<'_>) -> Option<Wish> {
        self.average(load);
        // Who receives is always one of them, even if all of its buckets went to others.
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
            let wish = self.no_more_worth_it(load, &active).or_else(|| self.join(load, &active));
            if let Some(wish) = wish.or_else(|| self.quiet(load, &active)) {
                return Some(wish);
            }
        }
        if let Some(wish) = self.judge_split(load) {
            return Some(wish);
        }
        let window = load.window.as_ref()?;
        let wish = self.even_out(load, window, &active)?;
        self.may_be_split(load, &active, wish)
    }

    fn asks_distance(&self) -> Option<u16> {
        self.asks_distance
    }

    fn findings(&self) -> Findings {
        let here = self.learned.here();
        let time = |nanos: f64| Duration::from_nanos(nanos as u64);
        Findings { pays_at: here.paid.map(time), fails_at: here.failed.map(time), ..self.findings.clone() }
    }
}
