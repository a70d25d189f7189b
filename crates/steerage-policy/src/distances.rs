//! Measures how long a cache line takes from one CPU to another while both work, because a
//! hypervisor may move a virtual machine's CPUs at any time. The receiving CPU (asking) and another
//! CPU (answering) pause for a few microseconds between two rounds, and pass a cache line back and
//! forth.
//!
//! Neither CPU waits long. The answering CPU waits for the asking CPU as soon as it reaches its
//! part of the measurement. The asking CPU continues its rounds until the answering CPU waits, for
//! at most [`PATIENCE`]. The control ([`PolicyControl`](crate::PolicyControl)) collects the result
//! at a later load check. A distance that does not change is measured less and less often.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steerage_core::ids::CpuIndex;
use steerage_core::limits::BETWEEN_ROUNDS_MAX;
use steerage_core::placement::{BetweenRounds, HookStatus};
use steerage_flow::Timestamp;
use steerage_topology::probe::Line;

use crate::limits::{MIN_SAMPLES, REFINE_EVERY, REFINE_EVERY_MAX, Tuning};

/// A measurement takes about 20 us on each CPU, and wakes the answering CPU if that CPU sleeps.
const EVERY: Duration = REFINE_EVERY;

/// The maximum time of a measurement, and of the wait for the first arrival of the cache line. A
/// round of the receiving CPU, which asks, takes about 10 us if the distance of CPUs matters.
const TIME: Duration = BETWEEN_ROUNDS_MAX;

/// A sleeping CPU of a virtual machine may need several hundred microseconds to wake up.
const PATIENCE: Duration = REFINE_EVERY;

/// The wait until the next measurement, as a fraction of the time since the distance last changed.
const STEADY: f64 = Tuning::DEFAULT.budget;

/// Returns true if two distances between CPUs are equal, apart from measurement error.
///
/// ```
/// use std::time::Duration;
///
/// let near = [40, 60].map(Duration::from_nanos);
/// assert!(steerage_policy::is_same_distance(near[0], near[1])); // steerage::policy::is_same_distance
/// assert!(!steerage_policy::is_same_distance(near[0], Duration::from_nanos(150)));
/// ```
pub fn is_same_distance(one: Duration, other: Duration) -> bool {
    is_same(one, other, Tuning::DEFAULT.same)
}

pub(crate) fn is_same(one: Duration, other: Duration, factor: f64) -> bool {
    let (less, more) = (one.min(other).as_nanos() as f64, one.max(other).as_nanos() as f64);
    more <= less * factor
}

#[derive(Debug, Default)]
pub(crate) struct Distances {
    are_real: bool,
    probe: Option<Probe>,
    known: BTreeMap<(CpuIndex, CpuIndex), Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    apart: Option<Duration>,
    since: Timestamp,
    next: Timestamp,
    missed: u32,
}

#[derive(Debug)]
struct Probe {
    asks: CpuIndex,
    answers: CpuIndex,
    meeting: Arc<Meeting>,
}

#[derive(Debug)]
struct Meeting {
    line: Line,
    since: Timestamp,
    /// The distance in nanoseconds, or [`PENDING`] or [`FAILED`], written once by the asking CPU.
    ///
    /// All accesses are relaxed, because no other memory depends on this number.
    result: AtomicU64,
}

const PENDING: u64 = 0;
const FAILED: u64 = u64::MAX;

#[derive(Debug)]
struct Asks(Arc<Meeting>);

#[derive(Debug)]
struct Answers(Arc<Meeting>);

impl BetweenRounds for Asks {
    fn run(&self, now: &dyn Fn() -> Timestamp) -> HookStatus {
        let Meeting { line, since, result } = &*self.0;
        let is_ready = line.is_ready();
        if !is_ready && !line.is_over() && now().since(*since) < PATIENCE {
            return HookStatus::Again;
        }
        let clock = || now().since(Timestamp::ZERO);
        let samples = || line.ask::<{ MIN_SAMPLES as usize }>(MIN_SAMPLES, &clock, clock() + TIME);
        // Disturbances only make samples longer, so the shortest sample counts.
        let shortest = is_ready.then(samples).flatten().and_then(|samples| samples.into_iter().min());
        line.end();
        let nanos = shortest.map_or(FAILED, |shortest| (shortest.as_nanos() as u64).clamp(PENDING + 1, FAILED - 1));
        result.store(nanos, Ordering::Relaxed);
        HookStatus::Done
    }
}

impl BetweenRounds for Answers {
    fn run(&self, now: &dyn Fn() -> Timestamp) -> HookStatus {
        let clock = || now().since(Timestamp::ZERO);
        self.0.line.answer_until(&clock, clock() + TIME);
        HookStatus::Done
    }
}

pub(crate) type Part = (CpuIndex, Arc<dyn BetweenRounds>);

impl Distances {
    pub(crate) fn new<'a>(
        are_real: bool,
        measured: impl Iterator<Item = (&'a (CpuIndex, CpuIndex), &'a Duration)>,
    ) -> Self {
        let known = measured.map(|(pair, apart)| (*pair, Known { apart: Some(*apart), ..Known::default() }));
        Self { are_real, probe: None, known: known.collect() }
    }

    pub(crate) fn between(&self, one: CpuIndex, other: CpuIndex) -> Option<Duration> {
        self.known.get(&(one, other))?.apart
    }

    pub(crate) fn begin(&mut self, asks: CpuIndex, answers: CpuIndex, now: Timestamp) -> Option<[Part; 2]> {
        let due = self.known.get(&(asks, answers)).is_none_or(|known| now >= known.next);
        if !self.are_real || self.probe.is_some() || !due || asks == answers {
            return None;
        }
        let meeting = Arc::new(Meeting { line: Line::default(), since: now, result: AtomicU64::new(PENDING) });
        self.probe = Some(Probe { asks, answers, meeting: Arc::clone(&meeting) });
        // The answering CPU gets its part of the measurement first, because it may have to wake up.
        Some([(answers, Arc::new(Answers(Arc::clone(&meeting)))), (asks, Arc::new(Asks(meeting)))])
    }

    pub(crate) fn collect(&mut self, now: Timestamp) {
        let Some(probe) = self.probe.take() else { return };
        let (meeting, pair) = (&probe.meeting, (probe.asks, probe.answers));
        let measured = match meeting.result.load(Ordering::Relaxed) {
            PENDING if now.since(meeting.since) < PATIENCE + TIME => {
                self.probe = Some(probe);
                return;
            }
            PENDING | FAILED => None,
            nanos => Some(Duration::from_nanos(nanos)),
        };
        meeting.line.end();
        self.note(pair, measured, meeting.since);
    }

    fn note(&mut self, pair: (CpuIndex, CpuIndex), measured: Option<Duration>, at: Timestamp) {
        let known = self.known.entry(pair).or_default();
        let Some(apart) = measured else {
            known.missed += 1;
            known.next = at + (EVERY * (1 << known.missed.min(16))).min(REFINE_EVERY_MAX);
            return;
        };
        if !known.apart.is_some_and(|before| is_same_distance(before, apart)) {
            known.since = at;
        }
        let steady = at.since(known.since).mul_f64(STEADY);
        known.next = at + steady.clamp(EVERY, REFINE_EVERY_MAX);
        (known.apart, known.missed) = (Some(apart), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn real() -> Distances {
        Distances::new(true, std::iter::empty())
    }

    fn at(time: Duration) -> Timestamp {
        Timestamp::ZERO + time
    }

    fn play(distances: &mut Distances, from: Timestamp, apart: Option<Duration>) -> Duration {
        assert!(distances.begin(0, 1, from).is_some(), "a probe is due");
        assert!(distances.begin(0, 1, from).is_none(), "one probe at a time");
        let probe = distances.probe.as_ref().expect("it has begun");
        let nanos = apart.map_or(FAILED, |apart| apart.as_nanos() as u64);
        probe.meeting.result.store(nanos, Ordering::Relaxed);
        distances.collect(from + Duration::from_secs(1));
        assert!(distances.probe.is_none());
        distances.known[&(0, 1)].next.since(from)
    }

    #[test]
    fn the_steadier_the_less_often() {
        let mut distances = real();
        let (near, far) = (Duration::from_nanos(45), Duration::from_nanos(210));
        assert_eq!(distances.between(0, 1), None);
        assert_eq!(play(&mut distances, at(Duration::ZERO), Some(near)), EVERY);
        assert_eq!(distances.between(0, 1), Some(near));
        let later = at(10 * REFINE_EVERY_MAX);
        assert_eq!(play(&mut distances, later, Some(near + near / 2)), (REFINE_EVERY_MAX * 10).mul_f64(STEADY));
        let later = at(200 * REFINE_EVERY_MAX);
        assert_eq!(play(&mut distances, later, Some(near)), REFINE_EVERY_MAX);
        let later = later + REFINE_EVERY_MAX;
        assert!(distances.begin(0, 1, at(later.since(at(Duration::from_nanos(1))))).is_none(), "it is not due yet");
        assert_eq!(play(&mut distances, later, Some(far)), EVERY, "it has changed");
        assert_eq!(distances.between(0, 1), Some(far));
    }

    #[test]
    fn a_cpu_that_does_not_come_is_asked_less_often_and_nothing_is_forgotten() {
        let mut distances = real();
        let near = Duration::from_nanos(45);
        play(&mut distances, at(Duration::ZERO), Some(near));
        let mut now = at(EVERY);
        for missed in 1..10 {
            let wait = play(&mut distances, now, None);
            assert_eq!(wait, (EVERY * (1 << missed)).min(REFINE_EVERY_MAX));
            now = now + wait;
        }
        assert_eq!(distances.between(0, 1), Some(near));
    }

    #[test]
    fn a_probe_that_never_ends_makes_room_for_another_one() {
        let mut distances = real();
        let parts = distances.begin(0, 1, at(Duration::ZERO));
        let patience = PATIENCE + TIME;
        distances.collect(at(patience - Duration::from_nanos(1)));
        assert!(distances.begin(0, 2, at(patience)).is_none());
        distances.collect(at(patience));
        assert!(distances.begin(0, 2, at(patience)).is_some());
        for (_, part) in parts.into_iter().flatten() {
            assert_eq!(part.run(&|| at(patience)), HookStatus::Done);
        }
        assert_eq!(distances.between(0, 1), None);
        assert!(real().begin(3, 3, at(REFINE_EVERY_MAX)).is_none(), "no CPU is far from itself");
        assert!(
            Distances::new(false, std::iter::empty()).begin(0, 1, at(REFINE_EVERY_MAX)).is_none(),
            "virtual CPUs are nowhere"
        );
    }

    #[test]
    fn the_asking_cpu_goes_on_with_its_rounds_until_its_patience_ends() {
        let mut distances = real();
        let [_, (asks, ask)] = distances.begin(0, 1, at(Duration::ZERO)).expect("a probe");
        assert_eq!(asks, 0);
        assert_eq!(ask.run(&|| at(PATIENCE / 2)), HookStatus::Again);
        distances.collect(at(PATIENCE / 2));
        assert!(distances.probe.is_some());
        assert_eq!(ask.run(&|| at(PATIENCE)), HookStatus::Done);
        distances.collect(at(PATIENCE));
        assert!(distances.probe.is_none() && distances.known[&(0, 1)].missed == 1);
    }

    /// The test's clock is stopped, so neither CPU gives up waiting for the other.
    #[test]
    fn two_cpus_that_meet_measure() {
        let mut distances = real();
        let [(answers, answer), (_, ask)] = distances.begin(0, 1, at(Duration::ZERO)).expect("a probe");
        assert_eq!(answers, 1);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(answer.run(&|| at(Duration::ZERO)), HookStatus::Done));
            while ask.run(&|| at(Duration::ZERO)) == HookStatus::Again {
                thread::yield_now();
            }
        });
        distances.collect(at(Duration::ZERO));
        assert_eq!(distances.between(0, 1), Some(Duration::from_nanos(1)), "the clock stood still");
    }
}
