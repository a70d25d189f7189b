//! Schedules the checks of flows with a timing wheel (Varghese and Lauck, 1987).
//!
//! A flow is in the slot of the wheel in which its timeout ends if no packet arrives. When the
//! wheel reaches this slot, the flow has timed out, or moves to the slot of its new timeout. A flow
//! is thus checked once per timeout.

use super::lists::Lists;

/// A timeout spans at most half of the slots. A check is late by at most a thirtieth of a timeout.
const PLACES: u64 = 64;
const PLACES_OF_A_TIMEOUT: u64 = 30;

#[derive(Debug)]
pub(super) struct Wheel {
    lists: Lists,
    span: u64,
    cursor: u64,
}

impl Wheel {
    pub(super) fn new(timeout: u64, flows_max: usize) -> Self {
        Self { lists: Lists::new(PLACES as usize, flows_max), span: timeout / PLACES_OF_A_TIMEOUT + 1, cursor: 0 }
    }

    fn list(place: u64) -> usize {
        (place % PLACES) as usize
    }

    /// Schedules a check of the flow after `end`, or before `end` if that is further away than one
    /// turn of the wheel.
    pub(super) fn put(&mut self, flow: u32, end: u64) {
        let place = (end / self.span + 1).clamp(self.cursor, self.cursor + PLACES - 1);
        self.lists.push(Self::list(place), flow);
    }

    pub(super) fn remove(&mut self, flow: u32) {
        self.lists.remove(flow);
    }

    /// The returned flow stays in its slot until it is [moved](Self::later) or
    /// [removed](Self::remove).
    pub(super) fn due(&mut self, now: u64) -> Option<u32> {
        let target = now / self.span;
        // If the time jumps ahead, each slot of the wheel is visited once. If the clock was set
        // back, the wheel starts again at the new time.
        if target < self.cursor.saturating_sub(PLACES) || target > self.cursor + PLACES {
            self.cursor = target.saturating_sub(PLACES - 1);
        }
        while self.cursor <= target {
            if let Some(flow) = self.lists.first(Self::list(self.cursor)) {
                return Some(flow);
            }
            self.cursor += 1;
        }
        None
    }

    pub(super) fn later(&mut self, flow: u32, end: u64) {
        self.lists.remove(flow);
        // A checked flow never moves to the current slot, so that a loop over all due flows ends.
        let place = (end / self.span + 1).clamp(self.cursor + 1, self.cursor + PLACES - 1);
        self.lists.push(Self::list(place), flow);
    }

    pub(super) fn next(&self) -> Option<u32> {
        (self.cursor..self.cursor + PLACES).find_map(|place| self.lists.first(Self::list(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 60_000_000_000;

    fn take(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| {
            let flow = wheel.due(now)?;
            wheel.remove(flow);
            Some(flow)
        })
        .collect()
    }

    #[test]
    fn flows_are_due_when_their_time_is_over_and_not_before() {
        let mut wheel = Wheel::new(TIMEOUT, 100);
        let start = 1_700_000_000_000_000_000;
        assert_eq!(wheel.due(start), None);
        (0..100).for_each(|flow| wheel.put(flow, start + u64::from(flow) * TIMEOUT / 100));
        let mut seen = 0;
        for step in 0..=110 {
            let now = start + step * TIMEOUT / 100;
            for flow in take(&mut wheel, now) {
                assert_eq!(flow, seen, "in the order of their ends");
                assert!(start + u64::from(flow) * TIMEOUT / 100 < now, "not before");
                seen += 1;
            }
            assert!(u64::from(seen) + 100 / PLACES_OF_A_TIMEOUT + 1 >= step.min(100), "{seen} by {step}");
        }
        assert_eq!(seen, 100);
    }

    #[test]
    fn wherever_the_clock_jumps_all_are_found() {
        let mut wheel = Wheel::new(TIMEOUT, 100);
        let day = 86_400_000_000_000;
        wheel.due(100 * day);
        (0..10).for_each(|flow| wheel.put(flow, 100 * day + TIMEOUT));
        assert_eq!(take(&mut wheel, 101 * day).len(), 10);
        (0..10).for_each(|flow| wheel.put(flow, 101 * day + TIMEOUT));
        assert_eq!(take(&mut wheel, day).len() + take(&mut wheel, day + 3 * TIMEOUT).len(), 10);
    }

    #[test]
    fn later_is_never_in_the_same_round() {
        let mut wheel = Wheel::new(TIMEOUT, 100);
        wheel.due(1000 * TIMEOUT);
        wheel.put(1, 1000 * TIMEOUT);
        let now = 1001 * TIMEOUT;
        assert_eq!(wheel.due(now), Some(1));
        wheel.later(1, 0);
        assert_eq!(wheel.next(), Some(1));
        let looks = std::iter::from_fn(|| wheel.due(now).inspect(|flow| wheel.later(*flow, 0))).count();
        assert!(looks <= PLACES as usize, "{looks}");
        assert_eq!(wheel.next(), Some(1));
    }
}
