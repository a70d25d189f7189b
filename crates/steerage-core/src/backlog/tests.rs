//! A queue's rings with nothing around them.

use steerage_mem::ring::{RingOptions, parking_lot, ring};
use steerage_mem::{Memory, Page, Region};

use super::*;
use crate::limits::POLL_BUDGET;

/// One queue's rings to two CPUs, with both ends.
struct Two {
    rings: QueueRings,
    consumers: Vec<Consumer>,
    pages: Vec<Page>,
}

impl Two {
    fn new() -> Self {
        let (region, pages) = Region::map(2 * POLL_BUDGET, 256).unwrap();
        let options = RingOptions { slots: POLL_BUDGET, limit: POLL_BUDGET, arrivals: false };
        let memory = Memory::new(region, None);
        let (by_cpu, consumers): (Vec<_>, Vec<_>) = (0..2).map(|_| ring(options, memory.clone())).unzip();
        let ledgers = by_cpu.iter().map(|ring| Arc::new(RingLedger::of(ring.gauge()))).collect();
        Self { rings: QueueRings::new(by_cpu, parking_lot(options), ledgers), consumers, pages }
    }

    fn stage(&mut self, cpu: usize, frames: usize) {
        for page in self.pages.drain(..frames) {
            self.rings.to[cpu].stage(Completion::new(page, 0, 60), 0).unwrap();
        }
    }

    /// After a poll of so many frames, publishes as CPU 0. Returns which CPUs were shown something.
    fn publish(&mut self, polled: usize) -> Vec<CpuIndex> {
        let mut shown = Vec::new();
        self.rings.publish(0, polled, POLL_BUDGET, |cpu| shown.push(cpu));
        shown
    }
}

#[test]
fn a_cpu_is_shown_frames_only_if_there_are_some_for_it() {
    let mut two = Two::new();
    assert_eq!(two.publish(POLL_BUDGET), []);
    two.stage(0, 1);
    assert_eq!(two.publish(POLL_BUDGET), [0], "its own share is published at once");
    two.stage(1, 1);
    assert_eq!(two.publish(POLL_BUDGET), [], "another CPU's share waits while polls are full");
    assert_eq!(two.publish(POLL_BUDGET - 1), [1]);
    assert_eq!(two.publish(0), []);
    assert!(two.consumers.iter().all(|consumer| consumer.waiting() == 1));
}

/// The queue's owner is about to sleep, and cannot poll before there is room.
#[test]
fn only_a_cpu_without_room_for_a_poll_is_asked_to_wake_the_owner() {
    const WEIGHT: usize = POLL_BUDGET / 2;
    let mut two = Two::new();
    two.stage(0, POLL_BUDGET - WEIGHT);
    two.stage(1, POLL_BUDGET - WEIGHT + 1);
    two.rings.publish_all(|_| ());
    two.rings.wake_when_there_is_room(WEIGHT);
    let asked: Vec<bool> = two
        .consumers
        .iter_mut()
        .map(|consumer| {
            consumer.take(POLL_BUDGET);
            consumer.finish();
            consumer.producer_waits()
        })
        .collect();
    assert_eq!(asked, [false, true]);
}
