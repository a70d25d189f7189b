//! Compares rings that grow with a model that is a plain queue.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::{Page, Region};

const SLOTS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Step {
    Stage(usize),
    Publish,
    Take(usize),
    Finish,
    Reclaim,
    Withdraw(usize),
    Retain(u64),
    SetLimit(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..20_usize).prop_map(Step::Stage),
        3 => Just(Step::Publish),
        3 => (1..20_usize).prop_map(Step::Take),
        3 => Just(Step::Finish),
        2 => Just(Step::Reclaim),
        1 => (1..5_usize).prop_map(Step::Withdraw),
        1 => any::<u64>().prop_map(Step::Retain),
        1 => (1..=SLOTS_MAX).prop_map(Step::SetLimit),
    ]
}

/// The model is two queues: frames staged and not taken, and frames taken and not reclaimed.
struct World {
    producer: Producer,
    consumer: Consumer,
    pages: Vec<Page>,
    staged: VecDeque<u64>,
    unpublished: usize,
    in_hand: VecDeque<u64>,
    finished: VecDeque<u64>,
    next: u64,
}

impl World {
    fn new(slots: usize) -> Self {
        let (region, pages) = Region::map(2 * SLOTS_MAX, 64).unwrap();
        let options = RingOptions { slots, slots_max: SLOTS_MAX, limit: slots, arrivals: true };
        let (producer, consumer) = ring(options, Memory::new(region, None));
        let (staged, in_hand, finished) = Default::default();
        Self { producer, consumer, pages, staged, unpublished: 0, in_hand, finished, next: 1 }
    }

    /// Each frame has a length of its own, which identifies the frame.
    fn frame(page: Page, number: u64) -> Completion {
        Completion::new(page, 0, number as usize % 64)
    }

    fn stage(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(page) = self.pages.pop() else { return };
            match self.producer.stage(Self::frame(page, self.next), self.next) {
                Ok(()) => {
                    self.staged.push_back(self.next);
                    self.unpublished += 1;
                }
                Err(frame) => self.pages.push(frame.into_page().unwrap()),
            }
            self.next += 1;
        }
    }

    fn take(&mut self, most: usize) {
        if self.in_hand.is_empty() {
            let waiting = self.staged.len() - self.unpublished;
            let taken = self.consumer.take(most);
            assert!(taken <= most.min(waiting) && (taken > 0 || waiting == 0), "{taken} of {waiting}");
            self.in_hand.extend(self.staged.drain(..taken));
        }
        let seen: Vec<(u64, usize)> =
            self.consumer.frames().map(|frame| (frame.arrival().unwrap(), frame.len())).collect();
        let wanted: Vec<(u64, usize)> = self.in_hand.iter().map(|number| (*number, *number as usize % 64)).collect();
        assert_eq!(seen, wanted);
    }

    fn finish(&mut self) {
        self.consumer.finish();
        self.finished.extend(self.in_hand.drain(..));
    }

    fn reclaim(&mut self) {
        let (pages, finished) = (&mut self.pages, &mut self.finished);
        let count = self.producer.reclaim(|frame| {
            assert_eq!(frame.len(), finished.pop_front().expect("no more than were finished") as usize % 64);
            pages.push(frame.into_page().unwrap());
        });
        assert!(self.finished.is_empty(), "{count} came home");
    }

    fn withdraw(&mut self, most: usize) {
        let count = most.min(self.unpublished);
        let mut wanted = self.staged.split_off(self.staged.len() - count);
        let pages = &mut self.pages;
        self.producer.withdraw(most as u64, |frame| {
            assert_eq!(frame.len(), wanted.pop_front().expect("no more than were staged") as usize % 64);
            pages.push(frame.into_page().unwrap());
        });
        assert!(wanted.is_empty());
        self.unpublished -= count;
    }

    fn retain(&mut self, kept: u64) {
        let mut wanted = self.staged.split_off(self.staged.len() - self.unpublished);
        let (pages, mut nth) = (&mut self.pages, 0);
        self.unpublished = 0;
        self.producer.retain_unpublished(|frame| {
            let number = wanted.pop_front().expect("no more than were staged");
            assert_eq!(frame.len(), number as usize % 64);
            nth += 1;
            if kept >> (nth % 64) & 1 == 0 {
                pages.push(frame.into_page().unwrap());
                return None;
            }
            self.staged.push_back(number);
            self.unpublished += 1;
            Some(frame)
        });
        assert!(wanted.is_empty());
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Stage(frames) => self.stage(frames),
            Step::Publish => {
                assert_eq!(self.producer.publish(), self.unpublished > 0);
                self.unpublished = 0;
            }
            Step::Take(most) => self.take(most),
            Step::Finish => self.finish(),
            Step::Reclaim => self.reclaim(),
            Step::Withdraw(most) => self.withdraw(most),
            Step::Retain(kept) => self.retain(kept),
            Step::SetLimit(limit) => self.producer.set_limit(limit),
        }
        let occupied = self.staged.len() + self.in_hand.len() + self.finished.len();
        assert_eq!(self.producer.occupied(), occupied as u64);
        assert!(self.producer.room() <= (SLOTS_MAX - occupied.min(SLOTS_MAX)) as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 2000 }))]

    #[test]
    fn a_ring_that_grows_is_a_queue(slots in 2..20_usize, steps in prop::collection::vec(step(), 0..200)) {
        let mut world = World::new(slots);
        steps.into_iter().for_each(|step| world.run(step));
        world.run(Step::Publish);
        for _ in 0..2 * SLOTS_MAX {
            world.run(Step::Finish);
            world.run(Step::Take(SLOTS_MAX));
        }
        world.run(Step::Finish);
        world.run(Step::Reclaim);
        prop_assert_eq!(world.pages.len(), 2 * SLOTS_MAX);
        world.producer.set_limit(SLOTS_MAX);
        for _ in 0..2 {
            world.run(Step::Stage(SLOTS_MAX));
            world.run(Step::Publish);
            for _ in 0..4 {
                world.run(Step::Take(SLOTS_MAX));
                world.run(Step::Finish);
            }
            world.run(Step::Reclaim);
        }
        prop_assert_eq!(world.producer.room(), SLOTS_MAX as u64);
    }
}

#[test]
fn a_full_ring_grows_while_its_consumer_stands_still() {
    let mut world = World::new(16);
    world.run(Step::Stage(20));
    world.run(Step::Publish);
    assert_eq!(world.staged.len(), 16);
    world.run(Step::Take(4));
    world.run(Step::SetLimit(40));
    world.run(Step::Stage(60));
    assert_eq!(world.producer.occupied(), 40);
    world.run(Step::Publish);
    world.run(Step::SetLimit(SLOTS_MAX));
    world.run(Step::Stage(60));
    assert_eq!(world.producer.occupied(), SLOTS_MAX as u64, "40 were rounded up to 64 slots");
}

#[test]
fn a_ring_whose_consumer_has_not_followed_yet_grows_later() {
    let mut world = World::new(4);
    world.run(Step::Stage(4));
    world.run(Step::Publish);
    world.run(Step::SetLimit(8));
    world.run(Step::Stage(4));
    world.run(Step::SetLimit(SLOTS_MAX));
    world.run(Step::Stage(4));
    assert_eq!(world.producer.occupied(), 8, "the consumer would not see where the first buffer ends");
    world.run(Step::Publish);
    for _ in 0..3 {
        world.run(Step::Take(SLOTS_MAX));
        world.run(Step::Finish);
    }
    world.run(Step::Reclaim);
    world.run(Step::Stage(SLOTS_MAX));
    assert_eq!(world.producer.occupied(), SLOTS_MAX as u64);
}

#[test]
fn rings_do_not_share_slots() {
    let (region, pages) = Region::map(3 * 64, 64).unwrap();
    let memory = Memory::new(region, None);
    let options = RingOptions { slots: 16, slots_max: 64, limit: 16, arrivals: false };
    let mut rings = Rings::reserve(3, options).unwrap();
    let mut ends: Vec<_> = (0..3).map(|_| rings.ring(memory.clone())).collect();
    let mut pages = pages.into_iter();
    for (nth, (producer, _)) in ends.iter_mut().enumerate() {
        (0..16).for_each(|_| producer.stage(Completion::new(pages.next().unwrap(), 0, nth), 0).unwrap());
        producer.set_limit(64);
        (16..64).for_each(|_| producer.stage(Completion::new(pages.next().unwrap(), 0, nth), 0).unwrap());
        producer.publish();
    }
    for (nth, (_, consumer)) in ends.iter_mut().enumerate() {
        let mut seen = 0;
        while consumer.take(64) > 0 {
            assert!(consumer.frames().all(|frame| frame.len() == nth));
            seen += consumer.in_hand();
            consumer.finish();
        }
        assert_eq!(seen, 64);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri keeps books of each byte that is reserved")]
fn rings_without_frames_take_no_memory() {
    let (region, mut pages) = Region::map(1, 64).unwrap();
    let memory = Memory::new(region, None);
    let options = RingOptions { slots: 1024, slots_max: 1 << 16, limit: 1000, arrivals: true };
    let mut rings = Rings::reserve(2048, options).unwrap();
    let mut ends: Vec<_> = (0..2048).map(|_| rings.ring(memory.clone())).collect();
    let (producer, consumer) = &mut ends[1000];
    producer.stage(Completion::new(pages.pop().unwrap(), 0, 7), 9).unwrap();
    producer.publish();
    assert_eq!(consumer.take(1), 1);
    assert_eq!(consumer.frames().next().unwrap().arrival(), Some(9));
    consumer.finish();
}
