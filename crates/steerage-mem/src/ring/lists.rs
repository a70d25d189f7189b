//! Stages the frames of a poll as lists, with one list for each target ring.
//!
//! A loop without branches determines the target of each frame. Comparing a ring number with all
//! targets gives the set of frames for that ring, whose slots are then written one after another,
//! with the ring's tail in a register. If the frames were staged one by one, each store would wait
//! for the last change of a ring's tail, and the CPU would go to another ring before a cache line
//! is full.

use crate::{Completion, bits::bits, ring::Producer};

/// The maximum number of frames that are staged together: the frames of one poll.
const LIST_MAX: usize = 64;

/// The maximum number of lists for one poll. With 16 lists (of four frames on average), the
/// receiving CPU was 1.12 times as slow as without lists (lab/notes/path.md).
pub const LISTS_MAX: usize = 8;

/// A number that no ring has: that of the last bit in a set of rings.
const NO_RING: usize = u64::BITS as usize - 1;

impl Producer {
    /// Stages as many of the first `frames` as there is room for, with arrival numbers from
    /// `arrival` on. `staged` gets the index of each staged frame.
    #[inline(always)]
    pub fn stage_all(&mut self, frames: &mut Vec<Completion>, arrival: u64, mut staged: impl FnMut(usize)) {
        let count = self.room().min(frames.len() as u64) as usize;
        let (slots, mask, first) = (self.slots, self.mask, self.staged);
        let frames = frames.drain(..count);
        for (nth, frame) in frames.as_slice().iter().enumerate() {
            let at = (first + nth as u64) as u32 & mask;
            // SAFETY: as in `stage`, for each of the `count` slots behind the tail. The frame's
            // token ends with `frames`, even if `staged` panics.
            unsafe { (*slots.add(at as usize)).with_mut(|slot| *slot = frame.slot()) };
            staged(nth);
        }
        if self.numbered {
            (0..count as u64).for_each(|nth| self.note_arrival(first + nth, arrival + nth));
        }
        self.staged = first + count as u64;
    }

    /// Stages the `frames` as lists, one for each ring. `target` returns the ring number of a
    /// frame. Frames for the ring `own` stay in `frames`, and all frames keep their order. Arrival
    /// numbers begin with `arrival`. `staged` is called with 0, 1, 2 and so on.
    ///
    /// Returns the set of rings on which frames were staged, and the set of frames that stayed.
    /// `None`, without any effect, if there would be more than [`LISTS_MAX`] lists or too little
    /// room in a ring.
    #[inline(always)]
    pub fn stage_lists(
        rings: &mut [Self],
        own: usize,
        frames: &mut Vec<Completion>,
        arrival: u64,
        target: impl Fn(&Completion) -> usize,
        mut staged: impl FnMut(usize),
    ) -> Option<(u64, u64)> {
        let count = frames.len();
        if count == 0 || count > LIST_MAX || rings.len() > NO_RING {
            return None;
        }
        let all = u64::MAX >> (LIST_MAX - count);
        let (mut targets, mut lists) = ([0_u8; LIST_MAX], 0_u64);
        for (to, frame) in targets.iter_mut().zip(&*frames) {
            let ring = target(frame).min(NO_RING);
            *to = ring as u8;
            lists |= 1 << ring;
        }
        lists &= !1_u64.checked_shl(own as u32).unwrap_or(0);
        let fit = |ring: usize| rings.get(ring).is_some_and(|ring| ring.room() >= count as u64);
        if lists.count_ones() as usize > LISTS_MAX || !bits(lists).all(fit) {
            return None;
        }
        // If `staged` panics, no frame is both in a ring and in the list.
        let mut tokens = std::mem::take(frames);
        let mut done = 0;
        for number in bits(lists) {
            let list = equal(&targets, number as u8) & all;
            let ring = &mut rings[number];
            let (slots, mask, first) = (ring.slots, ring.mask, ring.staged);
            for (nth, place) in bits(list).enumerate() {
                let at = (first + nth as u64) as u32 & mask;
                let frame = &tokens[place];
                // SAFETY: as in `stage_all`: there is room for `count` slots in each of these
                // rings, and each frame is on one list.
                unsafe { (*slots.add(at as usize)).with_mut(|slot| *slot = frame.slot()) };
                staged(done);
                done += 1;
            }
            if ring.numbered {
                for (nth, place) in bits(list).enumerate() {
                    ring.note_arrival(first + nth as u64, arrival + place as u64);
                }
            }
            ring.staged = first + u64::from(list.count_ones());
        }
        let stay = if own < NO_RING { equal(&targets, own as u8) & all } else { 0 };
        bits(stay).enumerate().for_each(|(nth, place)| tokens.swap(nth, place));
        tokens.truncate(stay.count_ones() as usize);
        *frames = tokens;
        Some((lists, stay))
    }
}

#[inline(always)]
fn equal(targets: &[u8; LIST_MAX], number: u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
        const LANES: usize = 16;
        let mut bits = 0;
        for (nth, lanes) in targets.chunks_exact(LANES).enumerate() {
            // SAFETY: x86-64 has SSE2, and 16 bytes are read.
            let equal = unsafe {
                let lanes = _mm_loadu_si128(lanes.as_ptr().cast());
                _mm_movemask_epi8(_mm_cmpeq_epi8(lanes, _mm_set1_epi8(number as i8)))
            };
            bits |= u64::from(equal as u32) << (nth * LANES);
        }
        bits
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    targets.iter().enumerate().fold(0, |bits, (nth, target)| bits | u64::from(*target == number) << nth)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ring::{RingOptions, ring};
    use crate::sync::Ordering;
    use crate::{Memory, Region};

    const SLOTS: usize = 128;

    const FIRST: u64 = 7;

    fn rings(limits: &[usize], arrivals: bool, memory: &Memory) -> Vec<Producer> {
        let options = |limit: &usize| RingOptions { slots: SLOTS, slots_max: SLOTS, limit: *limit, arrivals };
        limits.iter().map(|limit| ring(options(limit), memory.clone()).0).collect()
    }

    /// The unpublished frames of each ring, identified by their lengths. Checks arrival numbers.
    fn held(rings: &mut [Producer]) -> Vec<Vec<usize>> {
        let each = |ring: &mut Producer| {
            let mut places = Vec::new();
            let numbers = (ring.published..ring.staged)
                .filter_map(|at| ring.shared.arrival(ring.mask, at))
                .map(|number| number.load(Ordering::Relaxed));
            let numbers: Vec<u64> = numbers.collect();
            ring.withdraw(u64::MAX, |frame| places.push(frame.len()));
            if ring.numbered {
                assert_eq!(numbers, places.iter().map(|place| FIRST + *place as u64).collect::<Vec<_>>());
            }
            places
        };
        rings.iter_mut().map(each).collect()
    }

    proptest! {
        #[test]
        fn lists_are_what_one_by_one_would_be(
            limits in prop::collection::vec(prop_oneof![3 => Just(SLOTS), 1 => 1..=SLOTS], 1..70),
            spread in prop_oneof![3 => 1..6_usize, 1 => 1..70_usize],
            targets in prop::collection::vec(any::<usize>(), 0..=70),
            own in prop_oneof![3 => 0..6_usize, 1 => 0..=NO_RING],
            arrivals: bool,
        ) {
            let (region, pages) = Region::map(1 + targets.len(), 64).unwrap();
            let memory = Memory::new(region, None);
            let mut rings = rings(&limits, arrivals, &memory);
            let spread = spread.min(rings.len());
            let mut frames: Vec<_> =
                pages.into_iter().zip(0..targets.len()).map(|(page, nth)| Completion::new(page, 0, nth)).collect();
            let to = |nth: usize| targets[nth] % spread;
            let mut wanted = vec![Vec::new(); rings.len()];
            (0..targets.len()).for_each(|nth| wanted[to(nth)].push(nth));
            let mut told = 0;
            let lists = Producer::stage_lists(&mut rings, own, &mut frames, FIRST, |frame| to(frame.len()), |nth| {
                assert_eq!(nth, told);
                told += 1;
            });
            let stay = wanted.get_mut(own).map(std::mem::take).unwrap_or_default();
            let used = wanted.iter().filter(|list| !list.is_empty()).count();
            let room = (0..limits.len()).all(|at| wanted[at].is_empty() || limits[at] >= targets.len());
            let lengths: Vec<usize> = frames.iter().map(Completion::len).collect();
            let fit = !targets.is_empty() && targets.len() <= LIST_MAX && limits.len() <= NO_RING;
            if used <= LISTS_MAX && room && fit {
                let (lists, stayed) = lists.unwrap();
                prop_assert_eq!(&bits(stayed).collect::<Vec<_>>(), &stay);
                prop_assert_eq!(&lengths, &stay);
                let filled = wanted.iter().enumerate().filter(|(_, list)| !list.is_empty());
                prop_assert_eq!(lists, filled.fold(0, |bits, (ring, _)| bits | 1 << ring));
                prop_assert_eq!(told, targets.len() - stay.len());
                prop_assert_eq!(held(&mut rings), wanted);
            } else {
                prop_assert_eq!(lists, None);
                prop_assert_eq!(lengths, (0..targets.len()).collect::<Vec<_>>());
                prop_assert!(held(&mut rings).iter().all(Vec::is_empty));
            }
        }

        #[test]
        fn all_of_them_as_far_as_there_is_room(
            limit in 1..=SLOTS,
            count in 0..200_usize,
            before in 0..SLOTS,
            arrivals: bool,
        ) {
            let (region, pages) = Region::map(2 * SLOTS + count, 64).unwrap();
            let memory = Memory::new(region, None);
            let options = RingOptions { slots: SLOTS, slots_max: SLOTS, limit, arrivals };
            let (mut ring, mut consumer) = ring(options, memory.clone());
            let mut pages = pages.into_iter();
            for page in pages.by_ref().take(before) {
                ring.stage(Completion::new(page, 0, 0), 0).unwrap();
                ring.publish();
                consumer.take(1);
                consumer.finish();
                ring.reclaim(|_| ());
            }
            let mut frames: Vec<_> = (0..count).zip(pages).map(|(nth, page)| Completion::new(page, 0, nth)).collect();
            let fit = count.min(limit);
            ring.stage_all(&mut frames, FIRST, |_| ());
            prop_assert_eq!(held(&mut [ring]).remove(0), (0..fit).collect::<Vec<_>>());
            prop_assert_eq!(frames.iter().map(Completion::len).collect::<Vec<_>>(), (fit..count).collect::<Vec<_>>());
        }
    }
}
