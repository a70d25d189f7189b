//! Finished slots, on their way home to the producer.

use std::ops::Range;

use crate::page::{BLANK, Completion, Page, Slot};
use crate::region::Region;
use crate::sync::UnsafeCell;

/// The most slots that are passed at a time. The pages of a few lines are looked at twice, so they must still be in the cache.
pub(super) const TOGETHER: u64 = 64;

/// Some finished slots that lie next to each other. They belong to the producer again.
#[derive(Debug)]
pub struct Finished<'a>(&'a [UnsafeCell<Slot>]);

impl<'a> Finished<'a> {
    /// # Safety
    /// The slots belong to the producer, and no other thread gets their frames.
    pub(super) unsafe fn new(slots: &'a [UnsafeCell<Slot>]) -> Self {
        Self(slots)
    }

    fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + 'a {
        // SAFETY: the slots belong to the producer, as `new` demands, so nobody writes them.
        self.0.iter().map(|slot| unsafe { slot.with(|slot| *slot) })
    }

    /// Appends the pages to `home`, which has room for `room` of them, and returns their number. `Err` returns the slots: there is too
    /// little room, or one of them is not a frame in a page of its own with a number in `own`. `region` is where those pages lie.
    ///
    /// This takes a few instructions per page, where passing each frame to a function takes three times as many.
    #[inline(always)]
    pub fn pages_to(
        self,
        home: &mut Vec<Page>,
        room: usize,
        (region, own): (&Region, &Range<u32>),
    ) -> Result<usize, Self> {
        let numbers = own.end.wrapping_sub(own.start);
        // Without a branch, so that the compiler looks at several slots at a time. A blank slot has none of these numbers.
        let is_common = |slot: Slot| (slot.page.wrapping_sub(own.start) < numbers) & slot.is_whole_page();
        if self.0.len() > room || !self.slots().fold(true, |all, slot| all & is_common(slot)) {
            return Err(self);
        }
        let before = home.len();
        home.extend(self.slots().map(|slot| Page::new(slot.page)));
        home[before..].iter_mut().for_each(|page| region.release(page));
        Ok(self.0.len())
    }

    /// Passes each frame to `home`, except those that a handler kept.
    #[inline(always)]
    pub fn for_each(self, mut home: impl FnMut(Completion)) {
        self.slots().filter(|slot| slot.page != BLANK).for_each(|slot| home(Completion::from_slot(slot)));
    }
}
