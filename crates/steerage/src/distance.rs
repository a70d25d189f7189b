//! How far CPUs are from one another while they work. A virtual machine's are moved about by their host, and what handing over
//! costs moves with them, so a policy can have it measured: the CPU that receives and another one stop for some microseconds,
//! between two rounds, and hand a cache line to and fro.
//!
//! Neither waits long for the other. Who is to answer waits where it comes by; who asks goes on with its rounds until it finds
//! that the other waits, and gives up after [`DISTANCE_PATIENCE`](crate::DISTANCE_PATIENCE). The less the distance changes, the less
//! often it is measured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use crate::handler::Handler;
use crate::limits::{
    DISTANCE_EVERY, DISTANCE_EVERY_MAX, DISTANCE_PATIENCE, DISTANCE_SAME, DISTANCE_SAMPLES, DISTANCE_STEADY,
    DISTANCE_TIME, DISTANCE_TRIPS,
};
use crate::moves::State;
use crate::platform::{Platform, Timestamp};
use crate::rps_map::CpuIndex;
use crate::shared::Shared;
use crate::softnet::Softnet;
use crate::topology::Line;

/// Whether two distances are the same but for what measurements of one differ by.
pub(crate) fn is_same(one: Duration, other: Duration) -> bool {
    let (less, more) = (one.min(other).as_nanos() as f64, one.max(other).as_nanos() as f64);
    more <= less * DISTANCE_SAME
}

/// What was measured of whom.
#[derive(Debug, Default)]
pub(crate) struct Distances {
    /// Each CPU is one of the machine's: else there is nothing to measure.
    pub(crate) are_real: bool,
    game: Option<Game>,
    /// By who asked and who answered.
    known: BTreeMap<(CpuIndex, CpuIndex), Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    apart: Option<Duration>,
    /// Since when it is that.
    since: Timestamp,
    /// When it is to be measured again.
    next: Timestamp,
    /// How often nothing came of it since it was measured last.
    missed: u32,
}

/// Two CPUs that are to meet.
#[derive(Debug)]
struct Game {
    line: Arc<Line>,
    asks: CpuIndex,
    answers: CpuIndex,
    /// The other has come, or is on its way.
    is_answered: bool,
    since: Timestamp,
}

/// Somebody's part in it.
enum Part {
    Ask(Arc<Line>),
    Answer(Arc<Line>),
    /// The other is not there yet.
    Wait,
}

impl Distances {
    /// One way of a cache line between these, when it was measured last.
    pub(crate) fn between(&self, one: CpuIndex, other: CpuIndex) -> Option<Duration> {
        self.known.get(&(one, other))?.apart
    }

    /// Has them measure it, if it is time. Returns whether they are to know.
    pub(crate) fn ask(&mut self, asks: CpuIndex, answers: CpuIndex, now: Timestamp) -> bool {
        // Whoever asked the last time may have ended.
        let busy = self.game.as_ref().is_some_and(|game| now.since(game.since) < DISTANCE_PATIENCE + DISTANCE_TIME);
        let due = self.known.get(&(asks, answers)).is_none_or(|known| now >= known.next);
        if !self.are_real || busy || !due || asks == answers {
            return false;
        }
        if let Some(late) = self.game.take() {
            late.line.end();
        }
        self.game = Some(Game { line: Arc::default(), asks, answers, is_answered: false, since: now });
        true
    }

    fn part_of(&mut self, cpu: CpuIndex, now: Timestamp) -> Option<Part> {
        let game = self.game.as_mut()?;
        if game.answers == cpu && !std::mem::replace(&mut game.is_answered, true) {
            return Some(Part::Answer(Arc::clone(&game.line)));
        }
        if game.asks != cpu {
            return None;
        }
        if game.line.is_ready() {
            return Some(Part::Ask(Arc::clone(&game.line)));
        }
        if now.since(game.since) < DISTANCE_PATIENCE && !game.line.is_over() {
            return Some(Part::Wait);
        }
        self.end_game(None, now);
        None
    }

    fn end_game(&mut self, measured: Option<Duration>, now: Timestamp) {
        let Some(game) = self.game.take() else { return };
        game.line.end();
        let known = self.known.entry((game.asks, game.answers)).or_default();
        let Some(apart) = measured else {
            known.missed += 1;
            known.next = now + (DISTANCE_EVERY * (1 << known.missed.min(16))).min(DISTANCE_EVERY_MAX);
            return;
        };
        if !known.apart.is_some_and(|before| is_same(before, apart)) {
            known.since = now;
        }
        let steady = now.since(known.since) / DISTANCE_STEADY;
        known.next = now + steady.clamp(DISTANCE_EVERY, DISTANCE_EVERY_MAX);
        (known.apart, known.missed) = (Some(apart), 0);
    }
}

impl<H: Handler, P: Platform> Softnet<H, P> {
    /// Plays this CPU's part, if it has one. Without the lock, which it is given and gives back.
    pub(crate) fn measure_distance<'a>(
        &mut self,
        shared: &'a Shared<H::Moved>,
        mut state: MutexGuard<'a, State<H::Moved>>,
    ) -> MutexGuard<'a, State<H::Moved>> {
        let deadline = Instant::now() + DISTANCE_TIME;
        match state.distances.part_of(self.index, self.cpu.now) {
            None => state,
            Some(Part::Wait) => {
                self.duty = true;
                state
            }
            Some(Part::Answer(line)) => {
                drop(state);
                line.answer(Some(deadline));
                shared.steering.lock()
            }
            Some(Part::Ask(line)) => {
                drop(state);
                // What disturbs a sample makes it longer.
                let apart = line.ask(DISTANCE_SAMPLES, DISTANCE_TRIPS, deadline).and_then(|all| all.into_iter().min());
                let mut state = shared.steering.lock();
                state.distances.end_game(apart, self.cpu.now);
                state
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u128) -> Timestamp {
        Timestamp::from_nanos(nanos as u64)
    }

    /// One game at a time, of which something came or nothing did; when the next may be.
    fn play(distances: &mut Distances, from: Timestamp, apart: Option<Duration>) -> Duration {
        let start = (0..).map(|nth| from + nth * Duration::from_millis(1)).find(|now| distances.ask(0, 1, *now));
        let mut now = start.unwrap_or_default();
        assert!(!distances.ask(0, 1, now), "they are at it");
        assert!(matches!(distances.part_of(0, now), Some(Part::Wait)));
        assert!(matches!(distances.part_of(1, now), Some(Part::Answer(_))) && distances.part_of(1, now).is_none());
        assert!(distances.part_of(2, now).is_none());
        if apart.is_some() {
            distances.end_game(apart, now);
        } else {
            now = now + DISTANCE_PATIENCE;
            assert!(distances.part_of(0, now).is_none(), "who should answer never came");
        }
        distances.known[&(0, 1)].next.since(now)
    }

    #[test]
    fn the_steadier_the_less_often() {
        let mut distances = Distances { are_real: true, ..Distances::default() };
        let (near, far) = (Duration::from_nanos(45), Duration::from_nanos(210));
        assert_eq!(distances.between(0, 1), None);
        assert_eq!(play(&mut distances, at(0), Some(near)), DISTANCE_EVERY);
        assert_eq!(distances.between(0, 1), Some(near));
        let later = at(10 * DISTANCE_EVERY_MAX.as_nanos());
        assert_eq!(play(&mut distances, later, Some(near + near / 2)), DISTANCE_EVERY_MAX * 10 / DISTANCE_STEADY);
        let later = at(100 * DISTANCE_EVERY_MAX.as_nanos());
        assert_eq!(play(&mut distances, later, Some(near)), DISTANCE_EVERY_MAX);
        assert_eq!(play(&mut distances, later, Some(far)), DISTANCE_EVERY, "it has changed");
        assert_eq!(distances.between(0, 1), Some(far));
    }

    #[test]
    fn who_does_not_come_is_asked_less_often_and_nothing_is_forgotten() {
        let mut distances = Distances { are_real: true, ..Distances::default() };
        let near = Duration::from_nanos(45);
        play(&mut distances, at(0), Some(near));
        let mut now = at(DISTANCE_EVERY.as_nanos());
        for missed in 1..10 {
            let wait = play(&mut distances, now, None);
            assert_eq!(wait, (DISTANCE_EVERY * (1 << missed)).min(DISTANCE_EVERY_MAX));
            now = now + wait + DISTANCE_EVERY_MAX;
        }
        assert_eq!(distances.between(0, 1), Some(near));
    }

    #[test]
    fn who_asked_and_has_ended_keeps_nobody_from_asking() {
        let mut distances = Distances { are_real: true, ..Distances::default() };
        assert!(distances.ask(0, 1, at(0)));
        assert!(!distances.ask(0, 2, at(0)));
        assert!(distances.ask(0, 2, at((DISTANCE_PATIENCE + DISTANCE_TIME).as_nanos())));
        assert!(!distances.ask(3, 3, at(DISTANCE_EVERY_MAX.as_nanos())), "nobody is far from itself");
    }

    #[test]
    fn cpus_that_are_not_the_machines_are_nowhere() {
        assert!(!Distances::default().ask(0, 1, at(0)));
    }
}
