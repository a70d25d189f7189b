//! loom explores every interleaving of growing rings, inbox bits, and the limit over all queues.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use loom::thread;
use steerage_mem::park::Sleepers;
use steerage_mem::ring::{Consumer, Producer, RingOptions, ring};
use steerage_mem::{Admission, Completion, Inbox, Memory, Page, Region};

const PAGE_BYTES: usize = 64;

fn memory(pages: usize) -> (Memory, Vec<Page>) {
    let (region, pages) = Region::map(pages, PAGE_BYTES).unwrap();
    (Memory::new(region, None), pages)
}

fn send(memory: &Memory, producer: &mut Producer, mut page: Page, value: u8) {
    memory.pool().page_mut(&mut page)[0] = value;
    producer.stage(Completion::new(page, 0, 1), u64::from(value)).unwrap();
}

fn receive(consumer: &mut Consumer, last: &mut u8) {
    consumer.take(4);
    for frame in consumer.frames() {
        let value = frame.bytes()[0];
        assert_eq!(frame.arrival(), Some(u64::from(value)), "a slot of the wrong buffer was read");
        assert_eq!(value, *last + 1, "out of order");
        *last = value;
    }
    consumer.finish();
}

#[test]
fn a_ring_grows_under_its_consumer() {
    loom::model(|| {
        let (memory, mut pages) = memory(3);
        let options = RingOptions { slots: 2, slots_max: 4, limit: 2, arrivals: true };
        let (mut producer, mut consumer) = ring(options, memory.clone());
        let worker = thread::spawn(move || {
            let mut last = 0;
            receive(&mut consumer, &mut last);
            receive(&mut consumer, &mut last);
            (consumer, last)
        });
        send(&memory, &mut producer, pages.pop().unwrap(), 1);
        producer.publish();
        producer.set_limit(4);
        send(&memory, &mut producer, pages.pop().unwrap(), 2);
        send(&memory, &mut producer, pages.pop().unwrap(), 3);
        producer.publish();
        producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        let (mut consumer, mut last) = worker.join().unwrap();
        (0..3).for_each(|_| receive(&mut consumer, &mut last));
        producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        assert_eq!((last, pages.len()), (3, 3), "a frame is lost or a page is not home");
    });
}

/// Either the consumer sees the frame, or the ring's bit is set afterwards.
#[test]
fn no_ring_with_frames_stays_without_its_bit() {
    loom::model(|| {
        let (memory, mut pages) = memory(1);
        let options = RingOptions { slots: 2, slots_max: 2, limit: 2, arrivals: false };
        let (mut producer, mut consumer) = ring(options, memory.clone());
        let inbox = Arc::new(Inbox::new(1, None));
        let sleepers = Arc::new(Sleepers::new(1));
        inbox.note(0);
        let worker = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let mut taken = 0;
                if consumer.waiting() == 0 {
                    inbox.clear(0);
                    if consumer.waiting() > 0 {
                        inbox.note(0);
                    }
                } else {
                    taken = consumer.take(1);
                    consumer.finish();
                }
                (consumer, taken)
            })
        };
        producer.stage(Completion::new(pages.pop().unwrap(), 0, 1), 0).unwrap();
        producer.publish();
        sleepers.after_publishing();
        inbox.note(0);
        let (consumer, taken) = worker.join().unwrap();
        assert!(taken == 1 || consumer.waiting() == 1);
        assert!(taken == 1 || inbox.begin(0).peek() == Some(0), "a frame waits in a ring that no CPU looks at");
    });
}

/// A CPU that is about to sleep reads only the counter of waiting frames, and no ring. Either the
/// counter includes the frame, or the CPU is woken.
#[test]
fn no_cpu_sleeps_beside_a_counted_frame() {
    loom::model(|| {
        let admissions: Arc<[Admission]> = Arc::new([Admission::default()]);
        let inbox = Inbox::new(1, Some((Arc::clone(&admissions), 0)));
        let sleepers = Arc::new(Sleepers::new(1));
        let sleeper = {
            let sleepers = Arc::clone(&sleepers);
            thread::spawn(move || {
                sleepers.about_to_sleep(0);
                inbox.is_empty()
            })
        };
        assert_eq!(admissions[0].admit(1, 2), 1);
        sleepers.after_publishing();
        let is_woken = sleepers.must_wake(0);
        assert!(!sleeper.join().unwrap() || is_woken, "a frame waits for a CPU that sleeps");
    });
}

#[test]
fn no_cpu_sleeps_beside_a_ring_with_frames() {
    for was_noted in [false, true] {
        loom::model(move || {
            let (memory, mut pages) = memory(1);
            let options = RingOptions { slots: 2, slots_max: 2, limit: 2, arrivals: false };
            let (mut producer, consumer) = ring(options, memory);
            let inbox = Arc::new(Inbox::new(1, None));
            let sleepers = Arc::new(Sleepers::new(1));
            if was_noted {
                inbox.note(0);
            }
            let sleeper = {
                let (inbox, sleepers) = (Arc::clone(&inbox), Arc::clone(&sleepers));
                thread::spawn(move || {
                    if was_noted && consumer.waiting() == 0 {
                        inbox.clear(0);
                        if consumer.waiting() > 0 {
                            inbox.note(0);
                        }
                    }
                    sleepers.about_to_sleep(0);
                    let sees_it = inbox.begin(0).peek() == Some(0) && consumer.waiting() > 0;
                    (consumer, sees_it)
                })
            };
            producer.stage(Completion::new(pages.pop().unwrap(), 0, 1), 0).unwrap();
            producer.publish();
            sleepers.after_publishing();
            inbox.note(0);
            let is_woken = sleepers.must_wake(0);
            let (_consumer, sees_it) = sleeper.join().unwrap();
            assert!(sees_it || is_woken, "a frame waits for a CPU that sleeps");
        });
    }
}

#[test]
fn no_more_frames_wait_than_may() {
    const LIMIT: u64 = 2;
    loom::model(|| {
        let cpu = Arc::new(Admission::default());
        assert_eq!(cpu.admit(1, LIMIT), 1);
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let cpu = Arc::clone(&cpu);
                thread::spawn(move || cpu.admit(2, LIMIT))
            })
            .collect();
        cpu.finish(1);
        let admitted: u64 = producers.into_iter().map(|producer| producer.join().unwrap()).sum();
        assert!(admitted <= LIMIT);
        assert_eq!(cpu.waiting(), admitted);
        assert_eq!(cpu.admit(5, LIMIT), LIMIT - admitted, "what was refused takes no room");
    });
}
