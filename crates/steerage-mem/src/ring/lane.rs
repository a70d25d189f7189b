//! The frames of a poll arrive in the lane's list. Steering takes the frames for other CPUs out of
//! this list, and the remaining frames *are* the next batch of this CPU: no slot is copied,
//! published or reclaimed, and no atomic operation is needed. The lane's positions are `finished <=
//! taken <= len`.

use super::finished::Finished;
use super::frames::{Hand, InHand};
use crate::bits::bits;
use crate::memory::Memory;
use crate::page::{Completion, Slot};
use crate::sync::{AtomicU64, UnsafeCell};

/// The list of the frames that a queue's owner receives and handles itself. No other code can
/// access the list while frames are in hand, or are finished and still in the list.
#[derive(Debug)]
pub struct Lane {
    /// The first `taken` entries are frames in hand or finished frames, and are no longer tokens.
    frames: Vec<Completion>,
    arrivals: Vec<AtomicU64>,
    numbered: bool,
    /// The frames from `finished` to `taken`.
    hand: InHand,
}

impl Lane {
    /// Creates a lane with room for `frames` frames in `memory`.
    pub fn new(frames: usize, numbered: bool, memory: Memory) -> Self {
        // An empty slice needs a pointer that is not null.
        let (slots, arrivals) = (std::ptr::NonNull::dangling().as_ptr(), std::ptr::null());
        Self {
            frames: Vec::with_capacity(frames),
            arrivals: Vec::with_capacity(if numbered { frames } else { 0 }),
            numbered,
            hand: InHand { slots, arrivals, mask: u32::MAX, begin: 0, end: 0, hidden_end: 0, memory },
        }
    }

    /// The list of frames. `None` if frames were taken and not all of them are finished.
    #[inline(always)]
    pub fn list(&mut self) -> Option<&mut Vec<Completion>> {
        (self.hand.end == 0).then_some(&mut self.frames)
    }

    #[inline(always)]
    fn note_arrival(&mut self, arrival: u64) {
        if self.numbered {
            self.arrivals.push(AtomicU64::new(arrival));
        }
    }

    /// Records the arrival numbers of those frames of a poll that are in the set `stay`. The first
    /// frame of the poll has the number `arrival`.
    #[inline(always)]
    pub fn note_arrivals_of(&mut self, stay: u64, arrival: u64) {
        if self.numbered {
            bits(stay).for_each(|nth| self.note_arrival(arrival + nth as u64));
        }
    }

    /// Like [`note_arrivals_of`](Self::note_arrivals_of) if all frames of a poll stay on this CPU.
    #[inline(always)]
    pub fn note_arrivals(&mut self, arrival: u64) {
        if self.numbered {
            (arrival..).take(self.frames.len()).for_each(|arrival| self.note_arrival(arrival));
        }
    }

    /// Adds a frame. Always inlined, for the reason that `Outbox::stage` gives.
    #[inline(always)]
    pub fn push(&mut self, frame: Completion, arrival: u64) {
        self.frames.push(frame);
        self.note_arrival(arrival);
        self.point();
    }

    /// The number of frames that were not taken yet.
    #[inline(always)]
    pub fn waiting(&self) -> usize {
        self.frames.len() - self.hand.end as usize
    }

    /// Returns true if all frames of the lane are finished.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The number of frames that were taken and not finished.
    #[inline(always)]
    pub fn in_hand(&self) -> usize {
        (self.hand.end - self.hand.begin) as usize
    }

    /// The frames in hand.
    #[inline(always)]
    pub fn hand(&mut self) -> Hand<'_> {
        Hand(&mut self.hand)
    }

    /// Takes up to `most` frames, unless earlier frames are in hand. Set `fetch` for frames that
    /// this CPU has neither written nor read: `take` then prefetches the first cache line of each
    /// frame.
    #[inline(always)]
    pub fn take(&mut self, most: usize, fetch: bool) -> Hand<'_> {
        if self.in_hand() == 0 {
            self.point();
            self.hand.end += most.min(self.waiting()) as u64;
            if fetch {
                (self.hand.begin..self.hand.end).for_each(|at| self.hand.memory.prefetch(&self.hand.slot(at)));
            }
        }
        self.hand()
    }

    /// Updates the pointers, because the list may have moved in memory.
    #[inline(always)]
    fn point(&mut self) {
        self.hand.slots = self.frames.as_mut_ptr().cast::<UnsafeCell<Slot>>();
        if self.numbered {
            // Each frame gets an entry, so that no access goes past the end of `arrivals`.
            self.arrivals.resize_with(self.frames.len(), AtomicU64::default);
            self.hand.arrivals = self.arrivals.as_ptr();
        }
    }

    /// Finishes the frames in hand, and passes their slots to `home`.
    #[inline(always)]
    pub fn finish(&mut self, home: impl FnOnce(Finished<'_>)) {
        // The position of the first unfinished frame is set before `home` is called. If `home`
        // panics, pages are lost, but no page returns twice.
        let (first, count) = (self.hand.begin, self.in_hand());
        self.hand.begin = self.hand.end;
        let slots = self.hand.cell(first);
        if self.waiting() == 0 {
            self.clear();
        }
        // SAFETY: these slots lie in the list. `take` pointed the hand to the list, and `push` points
        // the hand to the list again if the list moves in memory. A `Completion` is a slot. The
        // list neither shrinks its memory nor reads these slots as tokens again. Each slot is
        // passed once.
        home(unsafe { Finished::new(std::slice::from_raw_parts(slots, count)) });
    }

    /// Takes all waiting frames out of the lane.
    pub fn withdraw(&mut self, each: impl FnMut(Completion)) {
        self.frames.drain(self.hand.end as usize..).for_each(each);
        self.arrivals.truncate(self.frames.len());
        if self.in_hand() == 0 {
            self.clear();
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        (self.hand.begin, self.hand.end) = (0, 0);
        self.frames.clear();
        self.arrivals.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameHeader, Page, Region};

    fn lane(pages: usize) -> (Lane, impl Iterator<Item = Completion>) {
        let (region, pages) = Region::map(pages, 256).unwrap();
        let frame = |(nth, page): (usize, Page)| Completion::new(page, 0, nth);
        (Lane::new(4, true, Memory::new(region, None)), pages.into_iter().enumerate().map(frame))
    }

    fn arrivals(lane: &mut Lane) -> Vec<(usize, u64)> {
        lane.hand().frames().map(|frame| (frame.len(), frame.arrival().unwrap())).collect()
    }

    fn finish(lane: &mut Lane) -> Vec<usize> {
        let mut home = Vec::new();
        lane.finish(|frames| frames.for_each(|frame| home.push(frame.len())));
        home
    }

    #[test]
    fn a_lane_is_a_queue_that_owns_its_frames() {
        let (mut lane, mut frames) = lane(100);
        let (_region, mut pages) = Region::map(1, 64).unwrap();
        let late = Completion::new(pages.remove(0), 0, 0);
        lane.list().unwrap().extend(frames.by_ref().take(3));
        lane.note_arrivals(7);
        assert_eq!((lane.waiting(), lane.in_hand()), (3, 0));
        assert_eq!(lane.take(2, true).len(), 2);
        assert_eq!(lane.take(9, true).len(), 2, "these are in hand");
        assert!(lane.list().is_none(), "the frames in hand belong to the handler");
        assert_eq!(arrivals(&mut lane), [(0, 7), (1, 8)]);
        let kept = lane.hand().frames().next().unwrap().take().unwrap();
        (20..).zip(frames).for_each(|(arrival, frame)| lane.push(frame, arrival));
        assert_eq!((lane.waiting(), kept.len()), (98, 0));
        assert_eq!(arrivals(&mut lane), [(0, 7), (1, 8)], "the list has moved");
        assert_eq!(finish(&mut lane), [1], "a kept frame does not return");
        assert!(lane.list().is_none() && !lane.is_empty());
        assert_eq!(lane.take(2, false).len(), 2);
        assert_eq!(arrivals(&mut lane), [(2, 9), (3, 20)]);
        let mut withdrawn = Vec::new();
        lane.withdraw(|frame| withdrawn.push(frame.len()));
        assert_eq!(withdrawn, (4..100).collect::<Vec<_>>());
        lane.push(late, 200);
        assert_eq!(finish(&mut lane), [2, 3]);
        assert_eq!(lane.take(2, false).len(), 1);
        assert_eq!(arrivals(&mut lane), [(0, 200)]);
        assert_eq!(finish(&mut lane), [0]);
        assert!(lane.is_empty() && lane.list().is_some());
        assert_eq!((lane.take(1, false).len(), finish(&mut lane)), (0, vec![]));
    }

    /// An arrival number that was not recorded is 0.
    #[test]
    fn a_frame_without_a_number_is_the_first() {
        let (mut lane, frames) = lane(3);
        lane.list().unwrap().extend(frames);
        lane.note_arrivals_of(0b100, 7);
        assert_eq!(lane.take(3, false).len(), 3);
        assert_eq!(arrivals(&mut lane), [(0, 9), (1, 0), (2, 0)]);
    }

    #[test]
    fn common_frames_are_read_together() {
        const LINK: u8 = 3;
        let header = FrameHeader { nanos: 5, wire_len: 70, link: 1, interface: 2 };
        let (region, mut pages) = Region::map(7, 128).unwrap();
        let (other, mut foreign) = Region::map(1, 128).unwrap();
        let mut frame = |offset: usize, len: usize| {
            let mut page = pages.pop().unwrap();
            region.page_mut(&mut page)[16..32].copy_from_slice(&header.to_bytes());
            let mut frame = Completion::new(page, offset, len);
            frame.set_link(LINK);
            frame
        };
        let headed = [frame(32, 40).with_header(), frame(8, 40).with_header()];
        let bare = [frame(0, 128), frame(100, 29)];
        let [is_headed, is_bare] = [(0, 40, header), (0, 128, FrameHeader::of_whole(128))];
        let [extra, mut chained, mut unlinked] = [frame(32, 1).with_extra(), frame(32, 2), frame(32, 3)];
        chained.set_chained();
        unlinked.set_link(LINK + 1);
        let mut foreign = Completion::new(foreign.pop().unwrap(), 32, 4);
        foreign.set_link(LINK);
        let mut lane = Lane::new(8, false, Memory::new(region.clone(), None));
        lane.list().unwrap().extend(headed.into_iter().chain(bare).chain([extra, chained, unlinked, foreign]));
        for (skipped, first) in [(0, is_headed), (2, is_bare)] {
            lane.list().unwrap().rotate_left(skipped);
            lane.take(8, false);
            for is_handled in [true, false] {
                let mut read = Vec::new();
                let others = lane.hand().read_common(LINK, |nth, frame, header| {
                    read.push((nth, frame.len(), header));
                    is_handled
                });
                assert_eq!((read, others), (vec![first], if is_handled { 0xfe } else { 0xff }));
            }
            lane.hand.end = 0;
        }
        assert_eq!(other.pages(), 1);
    }
}
