//! Trials: whether a CPU that joined helps, whether it still does later, and whether it does after the distance between the
//! CPUs has changed.

use std::time::Duration;

use super::{Balance, is_contended, is_single, of};
use crate::limits::{
    CAPACITY_LOOKS, DISTANCE_CANDIDATES, DISTANCE_MATTERS, FULL_FROM, LOOK_BACK, LOST_MAX, SATURATED_FROM, TRIAL_AGAIN,
    TRIAL_AGAIN_MAX, TRIAL_GAIN, TRIAL_GAIN_FIRST, TRIAL_TIME, TRIAL_TIME_MAX, TRIAL_UNDECIDED,
};
use crate::policy::{GroupLoad, Wish};
use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_flow::Timestamp;

/// The trial of a CPU that has joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// When its buckets had arrived. `None` until then.
    since: Option<Timestamp>,
    /// The group's capacity before.
    capacity: f64,
    /// The group's throughput before.
    rate: f64,
    /// The time per packet of the packet function, in nanoseconds.
    work: f64,
    /// The loss since the trial began, as the time in which the missing packets would have been handled before.
    lost: Duration,
}

/// The trial of distributing over several CPUs what one CPU had.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// When the buckets had arrived, as in [`Trial`].
    since: Option<Timestamp>,
    /// The map before, with all buckets on one CPU.
    map: Box<[u16; BUCKETS]>,
    /// The throughput before.
    rate: f64,
}

impl Balance {
    /// Begins a trial: once the buckets have arrived, the group is compared with the receiving CPUs alone.
    pub(super) fn begin_trial(&mut self) {
        let (capacity, rate, work) = (self.inline_capacity, self.inline_rate, self.work);
        self.trial = Some(Trial { since: None, capacity, rate, work, lost: Duration::ZERO });
    }

    /// Decides whether the CPU on trial stays.
    pub(super) fn judge(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let trial = self.trial.as_mut()?;
        let Some(since) = trial.since else {
            // This is the first look after its buckets arrived, so measuring begins here.
            trial.since = Some(load.now);
            (self.capacity, self.measured) = (0.0, 0);
            return None;
        };
        let lost_now = lost(load, trial.rate);
        trial.lost += lost_now;
        let (took, trial) = (load.now.since(since), *trial);
        let more_can_be_done = self.capacity > trial.capacity * TRIAL_GAIN;
        let enough = if self.inline_is_vague { TRIAL_GAIN_FIRST } else { TRIAL_GAIN };
        let paid = self.capacity > trial.capacity * enough && self.rate >= trial.rate;
        if paid && took >= TRIAL_TIME {
            self.trial = None;
            self.learned.here_mut().has_paid(trial.work);
            let wait = self.look_back.map_or(LOOK_BACK, |(_, wait)| wait);
            self.look_back = Some((load.now + wait, wait));
            return None;
        }
        // The owners come first. The trial is about the CPUs after them.
        let contended = active.iter().skip(load.owners).any(|cpu| is_contended(load, *cpu));
        let too_little = contended && took >= TRIAL_TIME && self.rate < trial.rate;
        // A loss while buckets moved to better CPUs is no reason to stop if it has ended by now.
        let hopeless = took >= TRIAL_TIME && trial.lost >= LOST_MAX && lost_now > load.elapsed / 4;
        if took < TRIAL_TIME_MAX && !too_little && !hopeless {
            return None;
        }
        self.trial = None;
        if more_can_be_done && self.inline_is_vague && self.rate >= trial.rate {
            // The throughput is higher than in the first moments. The receiving CPUs alone might have improved too, so this is
            // measured before the other CPUs join again.
            self.learned.here_mut().paid = None;
            return self.leave(load, &active[..load.owners.min(active.len())]);
        }
        // The capacity grew and the throughput fell. Either less traffic arrives, or the sender gets less CPU time now. Running
        // inline is right in both cases, but the trial has shown nothing about the packet function.
        let (least, most) = match (more_can_be_done, contended) {
            (true, false) => (TRIAL_UNDECIDED, TRIAL_AGAIN),
            (true, true) | (false, _) => (TRIAL_AGAIN, TRIAL_AGAIN_MAX),
        };
        let here = self.learned.here_mut();
        if !more_can_be_done {
            here.failed = Some(trial.work);
        }
        let wait = here.again.map_or(least, |again| again.wait * 2).clamp(least, most);
        here.is_in_vain_until(load.now + wait, wait, trial.work);
        self.leave(load, &active[..load.owners.min(active.len())])
    }

    /// Removes the CPUs that joined if the group is short of time and its throughput is lower than without them. This happens
    /// when the CPUs of a virtual machine have moved apart, so that handing over costs more than during the trial. The loss
    /// must first reach the cost of leaving and joining again. If the work per packet has grown instead, the next trial shows
    /// it.
    pub(super) fn no_longer_pays(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let (at, wait) = self.look_back.filter(|(at, _)| load.now >= *at)?;
        if active.len() <= load.owners || !self.has_no_time(active) || self.measured < CAPACITY_LOOKS {
            return None;
        }
        if self.inline_capacity == 0.0 {
            // The group began with these CPUs, so the capacity without them has not been measured yet.
            self.look_back = None;
            return self.leave(load, &active[..load.owners]);
        }
        if self.rate * TRIAL_GAIN > self.inline_capacity {
            self.lost = Duration::ZERO;
            return None;
        }
        self.lost += lost(load, self.inline_capacity);
        if self.lost < LOST_MAX {
            return None;
        }
        self.lost = Duration::ZERO;
        let next = (wait * 2).min(TRIAL_AGAIN);
        self.look_back = Some((at, next));
        self.learned.here_mut().is_in_vain_until(load.now + next, next, self.work);
        self.leave(load, &active[..load.owners])
    }

    /// Decides whether a part of the work of a CPU that has all buckets may move to another CPU. Packets must be hashed then,
    /// and what that costs is only known afterwards. So this is a trial, which is not repeated at once if it fails.
    pub(super) fn try_split(&mut self, load: &GroupLoad<'_>, active: &[u16], wish: Wish) -> Option<Wish> {
        if !is_single(load.map) || is_single(&wish.map) || !self.has_no_time(active) {
            return Some(wish);
        }
        if load.now < self.learned.here().split_again.0 || self.measured < CAPACITY_LOOKS {
            return None;
        }
        self.split = Some(Split { since: None, map: Box::new(*load.map), rate: self.rate });
        Some(wish)
    }

    /// Decides whether the work stays distributed.
    pub(super) fn judge_split(&mut self, load: &GroupLoad<'_>) -> Option<Wish> {
        let split = self.split.as_mut()?;
        if is_single(load.map) {
            // Another decision has ended the trial.
            self.split = None;
            return None;
        }
        let Some(since) = split.since else {
            split.since = Some(load.now);
            (self.capacity, self.measured) = (0.0, 0);
            return None;
        };
        let took = load.now.since(since);
        let less = self.rate * TRIAL_GAIN < split.rate;
        if took < if less { TRIAL_TIME } else { TRIAL_TIME_MAX } {
            return None;
        }
        let split = self.split.take()?;
        if self.rate >= split.rate * TRIAL_GAIN {
            self.learned.here_mut().split_again = (load.now, Duration::ZERO);
            return None;
        }
        let again = &mut self.learned.here_mut().split_again;
        // The time per packet is not measured while another CPU has all buckets. It may have grown, so the next trial comes soon.
        let wait = (again.1 * 2).clamp(TRIAL_UNDECIDED, TRIAL_AGAIN);
        *again = (load.now + wait, wait);
        let there = split.map.iter().all(|cpu| load.order.contains(cpu));
        there.then_some(Wish { map: split.map, cause: MoveCause::Balance })
    }

    fn has_no_time(&self, active: &[u16]) -> bool {
        of(&self.loads, active).any(|cpu| cpu.busy >= SATURATED_FROM && cpu.full >= FULL_FROM)
    }

    /// The CPU whose distance decides whether handing over pays: the one that has joined, or the next candidate.
    fn in_question(&self, load: &GroupLoad<'_>, active: &[u16]) -> Option<u16> {
        match active {
            [_] if load.owners == 1 => self.next_to_join(load, active),
            [_, joined] if load.owners == 1 => Some(*joined),
            _ => None,
        }
    }

    /// Checks whether the distance has changed. If it has, the results at the new distance apply. If there are none, a trial
    /// begins.
    pub(super) fn moved_apart(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let in_question = self.in_question(load, active);
        let light = self.work <= DISTANCE_MATTERS.as_nanos() as f64;
        self.asks_distance = in_question.filter(|_| light && self.is_short_of_time(active));
        let joined = active.len() > load.owners;
        let in_question = in_question?;
        let apart = load.apart[usize::from(in_question)];
        if !joined && self.asks_distance.is_some() && self.learned.is_in_vain_at(apart, load.now, self.work) {
            // No CPU is known to be near enough. One may have become so, so they are measured in turn.
            let candidates = &load.order[load.owners..];
            self.asks_distance = Some(candidates[self.asked_others % candidates.len().min(DISTANCE_CANDIDATES)]);
            self.asked_others = self.asked_others.wrapping_add(1);
        }
        let apart = apart?;
        let moved = self.learned.are_apart(apart, Some(load.map).filter(|_| joined && self.trial.is_none()));
        self.findings.apart = Some(apart);
        if !moved || !joined {
            return None;
        }
        (self.trial, self.split) = (None, None);
        (self.capacity, self.measured) = (0.0, 0);
        let here = self.learned.here();
        if here.is_in_vain(load.now, self.work) {
            return self.leave(load, &active[..load.owners]);
        }
        if here.pays(self.work) {
            let known = here.map.clone().filter(|map| map.iter().all(|cpu| active.contains(cpu)));
            return known.map(|map| Wish { map, cause: MoveCause::Balance });
        }
        if self.inline_capacity > 0.0 {
            self.begin_trial();
        }
        None
    }
}

/// The loss since the last look compared with `rate` packets per second, as the time in which the missing packets would have been
/// handled.
fn lost(load: &GroupLoad<'_>, rate: f64) -> Duration {
    let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
    let done = Duration::try_from_secs_f64(packets as f64 / rate).unwrap_or_default();
    load.elapsed.saturating_sub(done)
}
