//! What trials have taught, for each distance at which CPUs were seen: on a virtual machine they move while it runs, and whether
//! handing over pays, and how much of it, is another question each time.

use std::time::Duration;

use crate::distance::is_same;
use crate::limits::{BUCKETS, DISTANCES_MAX, WORK_CHANGED, WORK_CHANGED_NANOS};
use crate::platform::Timestamp;

/// At one distance.
#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    /// One way of a cache line; `None`: not measured.
    apart: Option<Duration>,
    /// A trial was in vain.
    pub(super) again: Option<Again>,
    /// It has paid, where the function took so long for a packet, in nanoseconds: the least of it.
    pub(super) paid: Option<f64>,
    /// It has not, where it took so long.
    pub(super) failed: Option<f64>,
    /// When it may be tried again to spread over several what one CPU has, and how long after the last time.
    pub(super) split_again: (Timestamp, Duration),
    /// Where buckets were then, when CPUs were last seen at this distance.
    pub(super) map: Option<Box<[u16; BUCKETS]>>,
}

/// When there may be another trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    at: Timestamp,
    /// How long that is from the last one.
    pub(super) wait: Duration,
    /// What the function took for a packet then, in nanoseconds.
    work: f64,
}

impl Learned {
    /// A trial has paid, where the function took so long.
    pub(super) fn has_paid(&mut self, work: f64) {
        self.again = None;
        self.paid = Some(self.paid.map_or(work, |least| least.min(work)));
    }

    /// It was in vain, or pays no more: until then it is not tried again.
    pub(super) fn is_in_vain_until(&mut self, at: Timestamp, wait: Duration, work: f64) {
        self.again = Some(Again { at, wait, work });
        self.paid = None;
    }

    /// Whether a trial would be in vain, as the last one was.
    pub(super) fn is_in_vain(&self, now: Timestamp, work: f64) -> bool {
        self.again.is_some_and(|again| now < again.at && !is_more(work, again.work))
    }

    /// Whether it has paid where the function took no longer than that.
    pub(super) fn pays(&self, work: f64) -> bool {
        self.paid.is_some_and(|paid| !is_more(paid, work))
    }
}

/// Whether a function that takes so long takes so much longer that what came of a trial says nothing.
fn is_more(work: f64, than: f64) -> bool {
    work > than * WORK_CHANGED && work > than + WORK_CHANGED_NANOS
}

/// All distances seen, and where the CPUs are now.
#[derive(Clone, Debug, Default)]
pub(super) struct Experience {
    here: Learned,
    /// The one that was left last at the end.
    elsewhere: Vec<Learned>,
}

impl Experience {
    /// As the CPUs are now.
    pub(super) fn here(&self) -> &Learned {
        &self.here
    }

    pub(super) fn here_mut(&mut self) -> &mut Learned {
        &mut self.here
    }

    /// Whether a trial would be in vain of a CPU at that distance.
    pub(super) fn is_in_vain_at(&self, apart: Option<Duration>, now: Timestamp, work: f64) -> bool {
        let at = |known: &&Learned| known.apart.zip(apart).is_some_and(|(known, apart)| is_same(known, apart));
        let known = std::iter::once(&self.here).chain(&self.elsewhere).find(at);
        known.is_some_and(|known| known.is_in_vain(now, work))
    }

    /// They are so far apart now, and `map` is what has come of a trial that paid, if one has. Returns whether that is another
    /// distance than before.
    pub(super) fn are_apart(&mut self, apart: Duration, map: Option<&[u16; BUCKETS]>) -> bool {
        let Some(before) = self.here.apart else {
            self.here.apart = Some(apart);
            return false;
        };
        if is_same(before, apart) {
            return false;
        }
        if let Some(map) = map.filter(|_| self.here.paid.is_some()) {
            self.here.map = Some(Box::new(*map));
        }
        let known = self.elsewhere.iter().position(|other| other.apart.is_some_and(|other| is_same(other, apart)));
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
