//! The results of trials, for each distance between the CPUs. The CPUs of a virtual machine move while it runs, and whether handing
//! over pays depends on their distance.

use std::time::Duration;

use crate::distances::is_same_distance;
use crate::limits::{DISTANCES_MAX, WORK_CHANGED, WORK_CHANGED_NANOS};
use steerage_core::limits::BUCKETS;
use steerage_flow::Timestamp;

/// The results at one distance.
#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    /// How long a cache line takes from one CPU to the other. `None` if it was not measured.
    apart: Option<Duration>,
    /// When to try again, if the last trial failed.
    pub(super) again: Option<Again>,
    /// The shortest time per packet of the packet function at which a trial has paid, in nanoseconds.
    pub(super) paid: Option<f64>,
    /// The time per packet at which a trial has failed, in nanoseconds.
    pub(super) failed: Option<f64>,
    /// When to try again to distribute over several CPUs what one CPU has, and the time from the last such trial.
    pub(super) split_again: (Timestamp, Duration),
    /// The map that was in use when the CPUs were last at this distance, if handing over paid.
    pub(super) map: Option<Box<[u16; BUCKETS]>>,
}

/// When another trial may begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    at: Timestamp,
    /// The time from the last trial.
    pub(super) wait: Duration,
    /// The time per packet of the packet function in the last trial, in nanoseconds.
    work: f64,
}

impl Learned {
    /// Notes that a trial paid at this time per packet.
    pub(super) fn has_paid(&mut self, work: f64) {
        self.again = None;
        self.paid = Some(self.paid.map_or(work, |least| least.min(work)));
    }

    /// Notes that a trial failed, or that handing over no longer pays. It is not tried again before `at`.
    pub(super) fn is_in_vain_until(&mut self, at: Timestamp, wait: Duration, work: f64) {
        self.again = Some(Again { at, wait, work });
        self.paid = None;
    }

    /// Whether a trial would fail, as the last one did.
    pub(super) fn is_in_vain(&self, now: Timestamp, work: f64) -> bool {
        self.again.is_some_and(|again| now < again.at && !is_more(work, again.work))
    }

    /// Whether handing over has paid at this time per packet or a shorter one.
    pub(super) fn pays(&self, work: f64) -> bool {
        self.paid.is_some_and(|paid| !is_more(paid, work))
    }
}

/// Whether `work` is so much more than `than` that the result of a trial with `than` no longer applies.
fn is_more(work: f64, than: f64) -> bool {
    work > than * WORK_CHANGED && work > than + WORK_CHANGED_NANOS
}

/// The results at the present distance and at all earlier ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Experience {
    here: Learned,
    /// The results at other distances. The most recent one is last.
    elsewhere: Vec<Learned>,
}

impl Experience {
    /// The results at the present distance.
    pub(super) fn here(&self) -> &Learned {
        &self.here
    }

    pub(super) fn here_mut(&mut self) -> &mut Learned {
        &mut self.here
    }

    /// Whether a trial with a CPU at that distance would fail.
    pub(super) fn is_in_vain_at(&self, apart: Option<Duration>, now: Timestamp, work: f64) -> bool {
        let at = |known: &&Learned| known.apart.zip(apart).is_some_and(|(known, apart)| is_same_distance(known, apart));
        let known = std::iter::once(&self.here).chain(&self.elsewhere).find(at);
        known.is_some_and(|known| known.is_in_vain(now, work))
    }

    /// Notes the present distance. `map` is the present map if CPUs have joined and none is on trial. Returns whether the
    /// distance has changed.
    pub(super) fn are_apart(&mut self, apart: Duration, map: Option<&[u16; BUCKETS]>) -> bool {
        let Some(before) = self.here.apart else {
            self.here.apart = Some(apart);
            return false;
        };
        if is_same_distance(before, apart) {
            return false;
        }
        if let Some(map) = map.filter(|_| self.here.paid.is_some()) {
            self.here.map = Some(Box::new(*map));
        }
        let known =
            self.elsewhere.iter().position(|other| other.apart.is_some_and(|other| is_same_distance(other, apart)));
        let here = match known {
            Some(at) => self.elsewhere.remove(at),
            None => Learned { apart: Some(apart), ..Learned::default() },
        };
        self.elsewhere.push(std::mem::replace(&mut self.here, here));
        if self.elsewhere.len() >= DISTANCES_MAX {
            self.elsewhere.remove(0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distance_has_what_was_learned_at_it() {
        let nanos = Duration::from_nanos;
        let mut distances = Experience::default();
        distances.here_mut().has_paid(20.0);
        assert!(!distances.are_apart(nanos(45), None), "what was learned before it was known is of this distance");
        assert!(!distances.are_apart(nanos(60), None) && distances.here().pays(25.0) && !distances.here().pays(5.0));
        assert!(distances.are_apart(nanos(210), None) && !distances.here().pays(25.0));
        distances.here_mut().is_in_vain_until(Timestamp::from_nanos(1000), nanos(1000), 20.0);
        assert!(distances.are_apart(nanos(40), None) && distances.here().pays(25.0));
        assert!(distances.are_apart(nanos(180), None));
        let is_in_vain = |at, work| distances.here().is_in_vain(Timestamp::from_nanos(at), work);
        assert!(is_in_vain(999, 25.0) && !is_in_vain(1000, 25.0) && !is_in_vain(999, 40.0));
        // More than can be kept: the one that was left longest ago is forgotten.
        for nth in 0..DISTANCES_MAX as u32 {
            assert!(distances.are_apart(nanos(1000 << nth), None));
        }
        assert!(distances.are_apart(nanos(45), None) && !distances.here().pays(25.0));
    }
}
