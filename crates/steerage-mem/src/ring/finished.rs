use std::mem::MaybeUninit;
use std::ops::Range;

use crate::page::{BLANK, Completion, Page, Slot};
use crate::region::Region;
use crate::sync::UnsafeCell;

/// The maximum number of slots for each call of `home`: so few that the slots are still in the
/// cache when they are read again.
pub(super) const TOGETHER: u64 = 64;

/// Finished slots that are adjacent in memory and belong to the producer again.
#[derive(Debug)]
pub struct Finished<'a>(&'a [UnsafeCell<Slot>]);

impl<'a> Finished<'a> {
    /// # Safety
    /// The slots belong to the producer, and no other thread gets their frames.
    pub(super) unsafe fn new(slots: &'a [UnsafeCell<Slot>]) -> Self {
        Self(slots)
    }

    /// The number of slots.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "the caller asks whether the slots fit somewhere")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the first `count` slots (all slots, if there are fewer), and the remaining slots.
    #[inline(always)]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        let (first, rest) = self.0.split_at(count.min(self.0.len()));
        (Self(first), Self(rest))
    }

    /// Appends the pages of the slots to `home`, and returns their number. `Err` returns the slots
    /// unless each slot has a frame in a single page of `region`, whose page numbers are `own`.
    /// Passing each frame to a function would take three times as many instructions.
    #[inline(always)]
    pub fn pages_to(self, home: &mut Vec<Page>, (region, own): (&Region, &Range<u32>)) -> Result<usize, Self> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let (count, before) = (self.0.len(), home.len());
        home.reserve(count);
        if !self.copy_pages(&mut home.spare_capacity_mut()[..count], own) {
            return Err(self);
        }
        // SAFETY: `copy_pages` has written all of these pages.
        unsafe { home.set_len(before + count) };
        home[before..].iter_mut().for_each(|page| region.release(page));
        Ok(count)
    }

    /// Copies the pages of the slots. Returns false unless each slot has a frame in a single page
    /// whose number is in `own`.
    #[inline(always)]
    fn copy_pages(&self, to: &mut [MaybeUninit<Page>], own: &Range<u32>) -> bool {
        let (fours, rest) = self.0.split_at(self.0.len() / 4 * 4);
        let (to_fours, to_rest) = to.split_at_mut(fours.len());
        copy_fours(fours, to_fours, own) & copy(rest, to_rest, own)
    }

    /// Passes each frame to `home`, except for frames that a handler kept.
    #[inline(always)]
    pub fn for_each(self, mut home: impl FnMut(Completion)) {
        self.0.iter().map(read).filter(|slot| slot.page != BLANK).for_each(|slot| home(Completion::from_slot(slot)));
    }
}

#[inline(always)]
fn read(slot: &UnsafeCell<Slot>) -> Slot {
    // SAFETY: the slots of [`Finished`] belong to the producer, as `new` demands, so nobody writes
    // them.
    unsafe { slot.with(|slot| *slot) }
}

#[inline(always)]
fn copy(slots: &[UnsafeCell<Slot>], to: &mut [MaybeUninit<Page>], own: &Range<u32>) -> bool {
    slots.iter().map(read).zip(to).fold(true, |all, (slot, to)| {
        to.write(Page::new(slot.page));
        all & own.contains(&slot.page) & slot.is_whole_page()
    })
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
use copy as copy_fours;

/// Four slots fill one cache line.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
#[inline(always)]
fn copy_fours(slots: &[UnsafeCell<Slot>], to: &mut [MaybeUninit<Page>], own: &Range<u32>) -> bool {
    use core::arch::x86_64::*;
    let Some(last) = own.end.checked_sub(own.start).and_then(|numbers| numbers.checked_sub(1)) else {
        return slots.is_empty();
    };
    // SAFETY: x86-64 has SSE2. A slot consists of four 32-bit words, in the order of its fields,
    // and no code writes it. A page is one such word.
    unsafe {
        // SSE2 only compares signed numbers, so half of the 32-bit range is added to both sides of
        // the comparison.
        let half = _mm_set1_epi32(i32::MIN);
        let (start, last) = (_mm_set1_epi32(own.start as i32), _mm_xor_si128(_mm_set1_epi32(last as i32), half));
        let (parts, none) = (_mm_set1_epi32(Slot::NO_WHOLE_PAGE as i32), _mm_setzero_si128());
        let mut bad = none;
        // `chunks_exact` would not be completely inlined without link-time optimisation.
        let mut at = 0;
        while at + 4 <= slots.len() {
            let (four, to) = (&slots[at..at + 4], &mut to[at..at + 4]);
            let load = |nth: usize| four[nth].with(|slot| _mm_load_si128(slot.cast()));
            let (a, b, c, d) = (load(0), load(1), load(2), load(3));
            at += 4;
            let pages = _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
            let flags = _mm_unpackhi_epi64(_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
            _mm_storeu_si128(to.as_mut_ptr().cast(), pages);
            let others = _mm_cmpgt_epi32(_mm_xor_si128(_mm_sub_epi32(pages, start), half), last);
            bad = _mm_or_si128(bad, _mm_or_si128(others, _mm_and_si128(flags, parts)));
        }
        _mm_movemask_epi8(_mm_cmpeq_epi32(bad, none)) == 0xffff
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(page: u32, parts: bool) -> UnsafeCell<Slot> {
        let whole = Completion::new(Page::new(page), 3, 60).slot();
        let cell = UnsafeCell::default();
        // SAFETY: nothing else has the cell.
        cell.with_mut(|slot| unsafe { *slot = if parts { Slot::part(page, 3, 60) } else { whole } });
        cell
    }

    proptest! {
        #[test]
        fn four_by_four_is_slot_by_slot(
            own in prop_oneof![Just(0..0), Just(0..u32::MAX), Just(1 << 31..u32::MAX), (any::<u32>(), any::<u32>()).prop_map(|(a, b)| a.min(b)..a.max(b))],
            pages in prop::collection::vec(any::<u64>(), 0..=70),
            wild in prop::option::of((0..70_usize, any::<u32>(), any::<bool>())),
        ) {
            let within = u64::from(own.end - own.start).max(1);
            let mut slots: Vec<_> = pages.iter().map(|page| slot(own.start.wrapping_add((page % within) as u32), false)).collect();
            if let Some((at, page, parts)) = wild.filter(|(at, ..)| *at < slots.len()) {
                slots[at] = slot(page, parts);
            }
            let fours = slots.len() / 4 * 4;
            let [mut by_four, mut by_slot] = [(); 2].map(|()| (0..fours).map(|_| MaybeUninit::new(Page::new(0))).collect::<Vec<_>>());
            let said = copy_fours(&slots[..fours], &mut by_four, &own);
            prop_assert_eq!(said, copy(&slots[..fours], &mut by_slot, &own));
            // SAFETY: each of them was written when it was made.
            let numbers = |to: &[MaybeUninit<Page>]| to.iter().map(|page| unsafe { page.assume_init_ref() }.number()).collect::<Vec<_>>();
            if said {
                prop_assert_eq!(numbers(&by_four), numbers(&by_slot));
            }
        }
    }
}
