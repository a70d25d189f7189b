//! A CPU that joins is on trial: was it worth it, is it still, and where CPUs were moved apart or together, is it here?

use std::time::Duration;

use super::{Balance, is_contended, is_single, of};
use crate::ledger::MoveCause;
use crate::limits::{
    BUCKETS, CAPACITY_LOOKS, DISTANCE_CANDIDATES, DISTANCE_MATTERS, FULL_FROM, LOOK_BACK, LOST_MAX, SATURATED_FROM,
    TRIAL_AGAIN, TRIAL_AGAIN_MAX, TRIAL_GAIN, TRIAL_GAIN_FIRST, TRIAL_TIME, TRIAL_TIME_MAX, TRIAL_UNDECIDED,
};
use crate::platform::Timestamp;
use crate::policy::{GroupLoad, Wish};

/// A CPU has joined; whether it was worth it will be seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// When its buckets had arrived.
    since: Option<Timestamp>,
    /// What the group could do before.
    capacity: f64,
    /// What it did.
    rate: f64,
    /// What the function took for a packet, in nanoseconds.
    work: f64,
    /// By how much less was done since, as the time in which that would have been done before.
    lost: Duration,
}

/// All was on one CPU, and is no more; whether that is better will be seen.
#[derive(Clone, Debug)]
pub(super) struct Split {
    /// As in [`Trial`].
    since: Option<Timestamp>,
    /// Where all was.
    map: Box<[u16; BUCKETS]>,
    /// What was done then.
    rate: f64,
}

impl Balance {
    /// From when buckets have arrived on, against what was done without the CPU that joined.
    pub(super) fn begin_trial(&mut self) {
        let (capacity, rate, work) = (self.inline_capacity, self.inline_rate, self.work);
        self.trial = Some(Trial { since: None, capacity, rate, work, lost: Duration::ZERO });
    }

    /// With the next CPU, was more done?
    pub(super) fn judge(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let trial = self.trial.as_mut()?;
        let Some(since) = trial.since else {
            // The first look after its buckets arrived: from here on it counts.
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
        // The owners come first; a trial is about those behind.
        let contended = active.iter().skip(load.owners).any(|cpu| is_contended(load, *cpu));
        let too_little = contended && took >= TRIAL_TIME && self.rate < trial.rate;
        // What was lost until buckets found their places is no reason any more.
        let hopeless = took >= TRIAL_TIME && trial.lost >= LOST_MAX && lost_now > load.elapsed / 4;
        if took < TRIAL_TIME_MAX && !too_little && !hopeless {
            return None;
        }
        self.trial = None;
        if more_can_be_done && self.inline_is_vague && self.rate >= trial.rate {
            // More is done than in the first moments. And without the others, by now? That is to be measured before they are back.
            self.learned.here_mut().paid = None;
            return self.leave(load, &active[..load.owners.min(active.len())]);
        }
        // More could be done, and less was: there is less to do, or who sends has less of a CPU now. Inline is right for both, but
        // what it said of the function is nothing.
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

    /// Those that joined leave if no time is left and less is done than was done without them: where the CPUs of a virtual machine
    /// have moved apart, handing over costs more than when it was tried. Not at the first sign: when as much was lost as it takes
    /// to leave and come back. Should the work have become dearer instead, the next trial shows it.
    pub(super) fn no_more_worth_it(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let (at, wait) = self.look_back.filter(|(at, _)| load.now >= *at)?;
        if active.len() <= load.owners || !self.has_no_time(active) || self.measured < CAPACITY_LOOKS {
            return None;
        }
        if self.inline_capacity == 0.0 {
            // It began with them: what is done without them is yet to be seen.
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

    /// Where one CPU has all and another could take a part of it, flows have to be told apart, and what that costs both is a guess
    /// until it is done. So it is a trial, and not repeated at once if it was in vain.
    pub(super) fn may_be_split(&mut self, load: &GroupLoad<'_>, active: &[u16], wish: Wish) -> Option<Wish> {
        if !is_single(load.map) || is_single(&wish.map) || !self.has_no_time(active) {
            return Some(wish);
        }
        if load.now < self.learned.here().split_again.0 || self.measured < CAPACITY_LOOKS {
            return None;
        }
        self.split = Some(Split { since: None, map: Box::new(*load.map), rate: self.rate });
        Some(wish)
    }

    /// With a part of it elsewhere, was more done?
    pub(super) fn judge_split(&mut self, load: &GroupLoad<'_>) -> Option<Wish> {
        let split = self.split.as_mut()?;
        if is_single(load.map) {
            // Something else has decided.
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
        // What the function takes is not known while another CPU has all of it: should it be more by now, this is not put off for long.
        let wait = (again.1 * 2).clamp(TRIAL_UNDECIDED, TRIAL_AGAIN);
        *again = (load.now + wait, wait);
        let there = split.map.iter().all(|cpu| load.order.contains(cpu));
        there.then_some(Wish { map: split.map, cause: MoveCause::Balance })
    }

    fn has_no_time(&self, active: &[u16]) -> bool {
        of(&self.loads, active).any(|cpu| cpu.busy >= SATURATED_FROM && cpu.full >= FULL_FROM)
    }

    /// The CPU whose distance decides whether handing over pays: the one that was joined, or is next.
    fn in_question(&self, load: &GroupLoad<'_>, active: &[u16]) -> Option<u16> {
        match active {
            [_] if load.owners == 1 => self.next_to_join(load, active),
            [_, joined] if load.owners == 1 => Some(*joined),
            _ => None,
        }
    }

    /// Whether CPUs have moved, and if so what that asks for: what was learned at the new distance counts now. Where nothing
    /// was, it is tried.
    pub(super) fn moved_apart(&mut self, load: &GroupLoad<'_>, active: &[u16]) -> Option<Wish> {
        let in_question = self.in_question(load, active);
        let light = self.work <= DISTANCE_MATTERS.as_nanos() as f64;
        self.asks_distance = in_question.filter(|_| light && self.is_short_of_time(active));
        let joined = active.len() > load.owners;
        let in_question = in_question?;
        let apart = load.apart[usize::from(in_question)];
        if !joined && self.asks_distance.is_some() && self.learned.is_in_vain_at(apart, load.now, self.work) {
            // None is known to be near enough: one of them may be by now.
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

/// How much less was done since the last look than `rate` packets a second, as the time in which that would have been done.
fn lost(load: &GroupLoad<'_>, rate: f64) -> Duration {
    let packets: u64 = load.cpus.iter().map(|cpu| cpu.packets).sum();
    let done = Duration::try_from_secs_f64(packets as f64 / rate).unwrap_or_default();
    load.elapsed.saturating_sub(done)
}
