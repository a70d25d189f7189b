use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ring::{RingOptions, ring};
use crate::{Blocks, KeptPages};

const PAGE_BYTES: usize = 256;
const PAGES: usize = 32;

fn memory() -> (Memory, Vec<Page>) {
    let (region, pages) = Region::map(PAGES, PAGE_BYTES).unwrap();
    (Memory::new(region, None), pages)
}

fn frame(memory: &Memory, pages: &mut Vec<Page>, lens: &[usize]) -> Completion {
    let (mut frame, mut value) = (None, 0_u8);
    for len in lens {
        let mut page = pages.pop().unwrap();
        memory.pool().page_mut(&mut page)[32..32 + len].iter_mut().for_each(|byte| {
            *byte = value;
            value = value.wrapping_add(1);
        });
        match &mut frame {
            None => frame = Some(Completion::new(page, 32, *len)),
            Some(frame) => memory.pool().append(frame, page, 32, *len).unwrap(),
        }
    }
    frame.unwrap()
}

fn counted(segments: Segments<'_>) -> Vec<usize> {
    let parts: Vec<&[u8]> = segments.collect();
    assert!(parts.concat().iter().enumerate().all(|(at, byte)| *byte == at as u8));
    parts.iter().map(|part| part.len()).collect()
}

#[test]
fn a_frame_goes_on_and_its_pages_come_home() {
    let (memory, mut pages) = memory();
    let chained = frame(&memory, &mut pages, &[10, 0, 20, 30]);
    assert!(chained.is_chained());
    assert_eq!((chained.len(), memory.total_len(&chained), pages.len()), (10, 60, PAGES - 4));
    assert_eq!(counted(memory.segments(&chained)), [10, 20, 30]);
    let chained = chained.into_page().unwrap_err();
    let mut parts = Vec::new();
    memory.pool().take_apart(chained, |page, offset, len| {
        parts.push((offset, len));
        pages.push(page);
    });
    assert_eq!(parts, [(32, 10), (32, 0), (32, 20), (32, 30)]);
    let again = Completion::new(pages.pop().unwrap(), 0, 8);
    assert_eq!((memory.total_len(&again), memory.segments(&again).count()), (8, 1));
    pages.push(again.into_page().unwrap());
    let mut numbers: Vec<u32> = pages.iter().map(Page::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), PAGES);
}

#[test]
fn what_does_not_fit_is_given_back() {
    let (memory, mut pages) = memory();
    let (_other, mut others) = Region::map(1, PAGE_BYTES).unwrap();
    let mut chained = frame(&memory, &mut pages, &[1; SEGMENTS_MAX]);
    let page = memory.pool().append(&mut chained, pages.pop().unwrap(), 0, 1).unwrap_err();
    let mut short = Completion::new(page, 0, 1);
    for (offset, len) in [(PAGE_BYTES, 1), (0, PAGE_BYTES + 1), (usize::MAX, 1), (1 << 32, 1), (1, usize::MAX)] {
        let page = memory.pool().append(&mut short, pages.pop().unwrap(), offset, len).unwrap_err();
        pages.push(page);
    }
    assert!(memory.pool().append(&mut short, others.pop().unwrap(), 0, 1).is_err());
    assert!(!short.is_chained());
    let (mut blocks, claim) = Blocks::map(1, 64).unwrap();
    let mut lent = blocks.lend(&claim, 0, 0, 8).unwrap();
    assert!(memory.pool().append(&mut lent, pages.pop().unwrap(), 0, 1).is_err());
    memory.pool().take_apart(lent, |page, _, _| panic!("{page:?} of a lent frame"));
}

#[test]
fn a_chain_of_other_memory_ends_at_its_head() {
    let (ours, mut pages) = memory();
    let (theirs, _) = memory();
    let chained = frame(&ours, &mut pages, &[10, 10]);
    assert_eq!((theirs.segments(&chained).count(), theirs.total_len(&chained)), (0, 0));
    let mut named = 0;
    theirs.pool().take_apart(chained, |_, _, _| named += 1);
    assert_eq!(named, 1);
}

fn in_hand(memory: &Memory, frame: Completion, each: impl FnOnce(crate::ring::Frame<'_>)) -> Vec<Page> {
    let (mut producer, mut consumer) =
        ring(RingOptions { slots: 2, slots_max: 2, limit: 2, arrivals: false }, memory.clone());
    producer.stage(frame, 0).unwrap();
    producer.publish();
    consumer.take(1);
    each(consumer.frames().next().unwrap());
    consumer.finish();
    let mut home = Vec::new();
    producer.reclaim(|frame| memory.pool().take_apart(frame, |page, _, _| home.push(page)));
    home
}

#[test]
fn a_swapped_frame_leaves_as_many_pages() {
    let (memory, mut pages) = memory();
    let chained = frame(&memory, &mut pages, &[10, 20, 30]);
    let mut ours: Vec<Page> = pages.drain(..2).collect();
    let mut taken = None;
    let home = in_hand(&memory, chained, |mut frame| {
        assert!(frame.swap(&mut ours).is_none());
        ours.extend(pages.pop());
        taken = frame.swap(&mut ours);
        assert!(frame.swap(&mut Vec::new()).is_none());
        assert_eq!((frame.total_len(), frame.segments().count()), (0, 0));
    });
    assert_eq!((home.len(), ours.len()), (3, 0));
    assert_eq!(counted(memory.segments(&taken.unwrap())), [10, 20, 30]);
}

proptest! {
    #[test]
    fn a_chain_is_resized_as_a_row_of_bytes_is(
        lens in prop::collection::vec(0..40_usize, 2..5), steps in prop::collection::vec((-200..200_i32, -200..200_i32), 1..6),
    ) {
        let (memory, mut pages) = memory();
        let kept_pages = KeptPages::new(memory.clone(), 1);
        let chained = frame(&memory, &mut pages, &lens);
        let mut kept = None;
        let _ = in_hand(&memory, chained, |frame| kept = Some(kept_pages.keep(frame).unwrap()));
        let mut kept = kept.unwrap();
        for (front, back) in steps {
            let (before, head, room) = (whole(kept.segments()), kept.len(), kept.room());
            let total = before.len() as i32;
            // At the front of a frame, only bytes in the head (first page) can be removed, and only
            // the room in the head can be used.
            let goes = front <= room.0 as i32 && -front <= head as i32 && total + front + back >= 0;
            prop_assert_eq!(kept.resize(front, back), goes && back <= room.1 as i32, "{} {}", front, back);
            let after = whole(kept.segments());
            if goes && back <= room.1 as i32 {
                prop_assert_eq!(after.len() as i32, total + front + back);
                prop_assert_eq!(kept.total_len(), after.len());
                let (joined, left) = (front.max(0) as usize, (-front).max(0) as usize);
                let same = after.len().saturating_sub(joined).min(before.len() - left);
                let same = if back > 0 { before.len() - left } else { same };
                if same > 0 {
                    prop_assert_eq!(&after[joined..joined + same], &before[left..left + same]);
                }
            } else {
                prop_assert_eq!(after, before);
            }
        }
    }
}

fn whole(segments: Segments<'_>) -> Vec<u8> {
    segments.flatten().copied().collect()
}

#[test]
fn a_cut_at_the_end_may_reach_into_what_was_put_in_front() {
    let (memory, mut pages) = memory();
    let kept_pages = KeptPages::new(memory.clone(), 1);
    let chained = frame(&memory, &mut pages, &[10, 20]);
    let mut kept = None;
    let _ = in_hand(&memory, chained, |frame| kept = Some(kept_pages.keep(frame).unwrap()));
    let mut kept = kept.unwrap();
    assert!(!kept.resize(8, -39), "that is one byte more than there is then");
    assert!(kept.resize(8, -33));
    assert_eq!((kept.len(), kept.total_len(), kept.room().0), (5, 5, 24));
    assert!(!kept.resize(i32::MIN, i32::MIN) && !kept.resize(i32::MAX, i32::MIN) && !kept.resize(i32::MIN, i32::MAX));
}

#[test]
fn a_kept_frame_comes_home_with_all_of_its_pages() {
    let (memory, mut pages) = memory();
    let kept_pages = KeptPages::new(memory.clone(), 1);
    let chained = frame(&memory, &mut pages, &[10, 20, 30]);
    let mut kept = None;
    let by_ring = in_hand(&memory, chained, |frame| kept = Some(kept_pages.keep(frame).unwrap()));
    let mut kept = kept.unwrap();
    assert_eq!((by_ring.len(), kept.len(), kept.total_len(), Arc::strong_count(&kept_pages)), (0, 10, 60, 2));
    assert_eq!(counted(kept.segments()), [10, 20, 30]);
    assert!(kept.linearise() && kept.linearise());
    assert_eq!(counted(kept.segments()), [60]);
    let other = std::thread::spawn(move || drop(kept));
    other.join().unwrap();
    let mut back = 0;
    kept_pages.collect(|_| back += 1);
    assert_eq!((back, kept_pages.kept()), (3, 0));
}

#[test]
fn a_frame_is_brought_into_one_page_where_one_is_long_enough() {
    // The head's page has 256 bytes: 32 before the frame and 124 after the frame.
    for (lens, whole) in [(vec![100, 124], true), (vec![100, 140, 0, 16], true), (vec![100, 100, 57], false)] {
        let (memory, mut pages) = memory();
        let chained = frame(&memory, &mut pages, &lens);
        let home = in_hand(&memory, chained, |mut frame| {
            assert_eq!(frame.linearise(), whole);
            let expected = if whole { vec![lens.iter().sum()] } else { lens.clone() };
            assert_eq!(counted(frame.segments()), expected);
        });
        assert_eq!(home.len(), lens.len());
    }
}
