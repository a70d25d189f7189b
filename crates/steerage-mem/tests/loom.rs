//! loom explores every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p steerage-mem --test loom
//! --release`. The rings are as small as possible, and no thread spins.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use steerage_mem::park::Sleepers;
use steerage_mem::ring::{Consumer, Producer, RingOptions, ring};
use steerage_mem::{Completion, InFlight, Kept, KeptPages, Memory, Page, Region};

const PAGE_BYTES: usize = 64;

fn two_slots() -> RingOptions {
    RingOptions { slots: 2, slots_max: 2, limit: 2, arrivals: true }
}

fn memory(pages: usize) -> (Memory, Vec<Page>) {
    let (region, pages) = Region::map(pages, PAGE_BYTES).unwrap();
    (Memory::new(region, None), pages)
}

fn send(memory: &Memory, producer: &mut Producer, mut page: Page, value: u8) -> Result<(), Completion> {
    memory.pool().page_mut(&mut page)[0] = value;
    producer.stage(Completion::new(page, 0, 1), u64::from(value))
}

fn receive(consumer: &mut Consumer, last: &mut u8) {
    consumer.take(2);
    for frame in consumer.frames() {
        let value = frame.bytes()[0];
        assert_eq!(frame.arrival(), Some(u64::from(value)), "a slot is shown before it is whole");
        assert_eq!(value, *last + 1, "out of order, or a page was used again while it was read");
        *last = value;
    }
    consumer.finish();
}

/// Three frames, two slots and two pages: slots and pages are used again.
#[test]
fn hand_over_finish_and_reuse() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        let worker = thread::spawn(move || {
            let mut last = 0;
            receive(&mut consumer, &mut last);
            receive(&mut consumer, &mut last);
            (consumer, last)
        });
        let mut next = 1;
        for _ in 0..3 {
            if let Some(page) = pages.pop() {
                send(&memory, &mut producer, page, next).expect("as many pages as slots");
                producer.publish();
                next += 1;
            }
            producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        }
        let (mut consumer, mut last) = worker.join().unwrap();
        receive(&mut consumer, &mut last);
        producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        assert_eq!(last + 1, next, "a frame was lost");
        assert_eq!(pages.len(), 2, "a page is not home");
    });
}

/// The consumer may see no frame, both frames or the first one, but never the second one alone.
#[test]
fn lists_are_published_together() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        let worker = thread::spawn(move || {
            assert!([0, 2].contains(&consumer.take(2)), "half a list was seen");
            consumer.frames().for_each(|frame| assert!(frame.bytes()[0] > 0));
            consumer.finish();
        });
        send(&memory, &mut producer, pages.pop().unwrap(), 1).unwrap();
        send(&memory, &mut producer, pages.pop().unwrap(), 2).unwrap();
        producer.publish();
        worker.join().unwrap();
    });
}

fn frames(memory: &Memory, pages: Vec<Page>, first: u64) -> Vec<Completion> {
    let numbered = pages.into_iter().zip(first..).map(|(mut page, number)| {
        memory.pool().page_mut(&mut page)[0] = number as u8;
        Completion::new(page, 0, 1)
    });
    numbered.collect()
}

/// Arrival numbers have gaps if there is another ring, which gets the missing numbers.
fn receive_some(consumer: &mut Consumer, last: &mut u64) -> usize {
    consumer.take(2);
    let frames = consumer.frames();
    let count = frames.len();
    for frame in frames {
        let number = u64::from(frame.bytes()[0]);
        assert_eq!(frame.arrival(), Some(number), "a slot is shown before it is whole");
        assert!(number > *last, "out of order, or a page was used again while it was read");
        *last = number;
    }
    consumer.finish();
    count
}

/// Slots are used again while the consumer still finishes frames.
#[test]
fn all_of_a_poll_is_staged_beside_reclaim() {
    loom::model(|| {
        let (memory, mut pages) = memory(3);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        let worker = thread::spawn(move || {
            let mut last = 0;
            let mut count = receive_some(&mut consumer, &mut last);
            count += receive_some(&mut consumer, &mut last);
            (consumer, last, count)
        });
        let mut waiting = frames(&memory, std::mem::take(&mut pages), 1);
        for _ in 0..2 {
            producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
            let arrival = 4 - waiting.len() as u64;
            producer.stage_all(&mut waiting, arrival, |_| ());
            producer.publish();
        }
        let (mut consumer, mut last, mut count) = worker.join().unwrap();
        let mut home = |producer: &mut Producer| producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        for _ in 0..2 {
            count += receive_some(&mut consumer, &mut last);
            home(&mut producer);
            let arrival = 4 - waiting.len() as u64;
            producer.stage_all(&mut waiting, arrival, |_| ());
            producer.publish();
        }
        count += receive_some(&mut consumer, &mut last);
        home(&mut producer);
        assert_eq!((count, last), (3, 3), "a frame was lost or came twice");
        assert_eq!(pages.len(), 3, "a page is not home");
    });
}

#[test]
fn lists_are_staged_beside_reclaim() {
    // An atomic of `std`, because the value must survive from one interleaving to the next.
    static SLOTS_USED_AGAIN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    loom::model(|| {
        let (memory, mut pages) = memory(4);
        // A list is staged only if each ring has room for all frames: the third list must wait.
        let options = RingOptions { slots: 4, slots_max: 4, limit: 3, arrivals: true };
        let (first, mut to_first) = ring(options, memory.clone());
        let (second, mut to_second) = ring(options, memory.clone());
        let mut rings = [first, second];
        let target = |frame: &Completion| usize::from(memory.bytes(frame)[0] % 2 == 0);
        let worker = thread::spawn(move || {
            let (mut last_of_first, mut last_of_second) = (0, 0);
            let mut count = receive_some(&mut to_first, &mut last_of_first);
            count += receive_some(&mut to_second, &mut last_of_second);
            (to_first, to_second, last_of_first, last_of_second, count)
        });
        let mut next = 1;
        for _ in 0..3 {
            for ring in &mut rings {
                ring.reclaim(|frame| pages.push(frame.into_page().unwrap()));
            }
            if pages.len() < 2 {
                continue;
            }
            let mut list = frames(&memory, pages.split_off(pages.len() - 2), next);
            Producer::stage_lists(&mut rings, usize::MAX, &mut list, next, target, |_| ());
            if list.is_empty() {
                next += 2;
            }
            pages.extend(list.into_iter().map(|frame| frame.into_page().unwrap()));
            for ring in &mut rings {
                ring.publish();
            }
        }
        let (mut to_first, mut to_second, mut last_of_first, mut last_of_second, mut count) = worker.join().unwrap();
        for _ in 0..2 {
            count += receive_some(&mut to_first, &mut last_of_first);
            count += receive_some(&mut to_second, &mut last_of_second);
        }
        for ring in &mut rings {
            ring.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        }
        assert_eq!(count as u64, next - 1, "a frame was lost or came twice");
        assert_eq!((last_of_first, last_of_second), (next - 2, next - 1));
        assert_eq!(pages.len(), 4, "a page is not home");
        SLOTS_USED_AGAIN.fetch_or(next == 7, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(
        SLOTS_USED_AGAIN.load(std::sync::atomic::Ordering::Relaxed),
        "the third list was never staged: this tests no reuse"
    );
}

/// The page of a kept frame, whose slot in the ring is blank, returns through the page stack.
#[test]
fn keep_and_return() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let kept_pages = KeptPages::new(memory.clone(), 2);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        send(&memory, &mut producer, pages.pop().unwrap(), 1).unwrap();
        send(&memory, &mut producer, pages.pop().unwrap(), 2).unwrap();
        producer.publish();
        let worker = {
            let kept_pages = Arc::clone(&kept_pages);
            thread::spawn(move || {
                consumer.take(2);
                let kept: Vec<Kept> = consumer.frames().take(1).map(|frame| kept_pages.keep(frame).unwrap()).collect();
                consumer.finish();
                kept
            })
        };
        let mut back = Vec::new();
        producer.reclaim(|frame| back.push(frame.into_page().unwrap()));
        let mut kept = worker.join().unwrap();
        assert_eq!(kept[0][0], 1);
        kept[0][0] = 7;
        let elsewhere = thread::spawn(move || drop(kept));
        kept_pages.collect(|page| back.push(page));
        elsewhere.join().unwrap();
        producer.reclaim(|frame| back.push(frame.into_page().unwrap()));
        kept_pages.collect(|page| back.push(page));
        back.sort_by_key(Page::number);
        back.dedup();
        assert_eq!(back.len(), 2, "a page is lost or came home twice");
        assert_eq!(kept_pages.kept(), 0);
    });
}

fn shorten(consumer: &mut Consumer) {
    consumer.take(2);
    for mut frame in consumer.frames() {
        assert_eq!((frame.segments().count(), frame.total_len()), (2, 2), "a chain is shown before it is whole");
        assert!(frame.resize(0, -1));
    }
    consumer.finish();
}

/// The worker shortens a frame of two pages. The owner sees the new length and finds both pages.
#[test]
fn a_chain_is_handed_over_whole() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        let worker = thread::spawn(move || {
            shorten(&mut consumer);
            consumer
        });
        let mut frame = Completion::new(pages.pop().unwrap(), 0, 1);
        memory.pool().append(&mut frame, pages.pop().unwrap(), 0, 1).unwrap();
        producer.stage(frame, 1).unwrap();
        producer.publish();
        let mut home = |frame: Completion| {
            assert_eq!(memory.total_len(&frame), 1, "what its handler did to it is not seen");
            memory.pool().take_apart(frame, |page, _, _| pages.push(page));
        };
        producer.reclaim(&mut home);
        let mut consumer = worker.join().unwrap();
        shorten(&mut consumer);
        producer.reclaim(&mut home);
        pages.sort_by_key(Page::number);
        pages.dedup();
        assert_eq!(pages.len(), 2, "a page is lost or came home twice");
    });
}

#[test]
fn a_kept_chain_comes_home_whole() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let kept_pages = KeptPages::new(memory.clone(), 1);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        let mut frame = Completion::new(pages.pop().unwrap(), 0, 1);
        memory.pool().append(&mut frame, pages.pop().unwrap(), 0, 1).unwrap();
        producer.stage(frame, 1).unwrap();
        producer.publish();
        consumer.take(2);
        let kept = kept_pages.keep(consumer.frames().next().unwrap()).unwrap();
        consumer.finish();
        let elsewhere = thread::spawn(move || drop(kept));
        let mut back = Vec::new();
        kept_pages.collect(|page| back.push(page));
        if back.len() == 1 {
            let other = Completion::new(back.pop().unwrap(), 0, 1);
            assert_eq!(memory.segments(&other).count(), 1);
            back.push(other.into_page().unwrap());
        }
        elsewhere.join().unwrap();
        kept_pages.collect(|page| back.push(page));
        back.sort_by_key(Page::number);
        back.dedup();
        assert_eq!((back.len(), kept_pages.kept()), (2, 0), "a page is lost or came home twice");
    });
}

#[test]
fn the_stack_loses_nothing() {
    loom::model(|| {
        let (memory, pages) = memory(3);
        let kept_pages = KeptPages::new(memory.clone(), 3);
        let keep = |page| kept_pages.keep_copy(page, 0, None, &[b"x"]).unwrap();
        let kept: Vec<Kept> = pages.into_iter().map(keep).collect();
        let threads: Vec<_> = kept.into_iter().map(|kept| thread::spawn(move || drop(kept))).collect();
        let mut back = 0;
        kept_pages.collect(|_| back += 1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        kept_pages.collect(|_| back += 1);
        assert_eq!(back, 3);
    });
}

/// If pages are scarce, a CPU that makes copies also collects returned pages.
#[test]
fn two_who_collect_share_what_there_is() {
    loom::model(|| {
        let (memory, pages) = memory(2);
        let kept_pages = KeptPages::new(memory.clone(), 2);
        let keep = |page| kept_pages.keep_copy(page, 0, None, &[b"x"]).unwrap();
        let mut kept: Vec<Kept> = pages.into_iter().map(keep).collect();
        let (first, second) = (kept.pop(), kept.pop());
        let collect = |kept_pages: &KeptPages| {
            let mut back = Vec::new();
            kept_pages.collect(|page| back.push(page.number()));
            back
        };
        let other = {
            let kept_pages = Arc::clone(&kept_pages);
            thread::spawn(move || {
                drop(first);
                collect(&kept_pages)
            })
        };
        drop(second);
        let mut back = collect(&kept_pages);
        back.extend(other.join().unwrap());
        back.extend(collect(&kept_pages));
        back.sort_unstable();
        back.dedup();
        assert_eq!(back.len(), 2, "a page is lost or came home twice");
        assert_eq!(kept_pages.kept(), 0);
    });
}

/// A lost wake-up would be a deadlock, which loom reports.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let (mut producer, mut consumer) = ring(two_slots(), memory.clone());
        let sleepers = Arc::new(Sleepers::new(1));
        let bell = Arc::new(Notify::new());
        let worker = {
            let (sleepers, bell) = (Arc::clone(&sleepers), Arc::clone(&bell));
            thread::spawn(move || {
                let mut last = 0;
                while last < 2 {
                    receive(&mut consumer, &mut last);
                    if last == 2 {
                        break;
                    }
                    sleepers.about_to_sleep(0);
                    if consumer.waiting() == 0 {
                        bell.wait();
                    }
                    sleepers.awake(0);
                }
            })
        };
        for value in 1..=2 {
            send(&memory, &mut producer, pages.pop().unwrap(), value).unwrap();
            producer.publish();
            sleepers.after_publishing();
            if sleepers.must_wake(0) {
                bell.notify();
            }
        }
        worker.join().unwrap();
    });
}

#[test]
fn no_wish_for_room_is_lost() {
    loom::model(|| {
        let (memory, mut pages) = memory(1);
        let options = RingOptions { slots: 2, slots_max: 2, limit: 1, arrivals: true };
        let (mut producer, mut consumer) = ring(options, memory.clone());
        let bell = Arc::new(Notify::new());
        send(&memory, &mut producer, pages.pop().unwrap(), 1).unwrap();
        producer.publish();
        let worker = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || {
                let mut last = 0;
                receive(&mut consumer, &mut last);
                if consumer.producer_waits() {
                    bell.notify();
                }
            })
        };
        producer.wake_at(0);
        if producer.room() == 0 {
            producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        }
        // loom also simulates one spurious wake-up, for which the bell (an eventfd) did not ring.
        while producer.room() == 0 {
            bell.wait();
            producer.reclaim(|frame| pages.push(frame.into_page().unwrap()));
        }
        assert_eq!((producer.room(), pages.len()), (1, 1));
        worker.join().unwrap();
    });
}

#[test]
fn revoked_before_published_is_revoked() {
    loom::model(|| {
        let (memory, mut pages) = memory(2);
        let (mut producer, consumer) = ring(two_slots(), memory.clone());
        send(&memory, &mut producer, pages.pop().unwrap(), 1).unwrap();
        producer.revoke_until(producer.tail());
        producer.publish();
        let worker = thread::spawn(move || {
            if consumer.waiting() > 0 {
                assert_eq!(consumer.revoked(), 1);
            }
        });
        worker.join().unwrap();
    });
}

#[test]
fn what_was_sent_comes_back_to_its_sender() {
    loom::model(|| {
        let (region, pages) = Region::map(2, PAGE_BYTES).unwrap();
        let (in_flight, mut reaper) = InFlight::new(region, 2);
        let device = Arc::new(AtomicU32::new(0));
        let (told, sends) = (Arc::clone(&device), Arc::clone(&in_flight));
        let other = thread::spawn(move || {
            for address in (0..told.load(Ordering::Acquire)).map(|nth| u64::from(nth) * PAGE_BYTES as u64) {
                assert!(reaper.tell(address, 1, |page| panic!("{page:?} is not mine")), "it is in flight");
            }
            reaper
        });
        let mut back = Vec::new();
        for (nth, page) in pages.into_iter().enumerate() {
            sends.post(0, page, 1).unwrap();
            device.store(nth as u32 + 1, Ordering::Release);
            sends.collect(0, |page| back.push(page.number()));
        }
        let mut reaper = other.join().unwrap();
        reaper.take_all(0, |page| back.push(page.number()));
        back.sort_unstable();
        back.dedup();
        assert_eq!(back.len(), 2);
    });
}
