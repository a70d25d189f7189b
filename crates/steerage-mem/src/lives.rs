//! In debug and fuzz builds: what life each page is in, so that a use after its release does not go unnoticed.
//!
//! Safe code cannot use a page that it gave back: the token is gone. What can is a mistake in this crate, and a device that still
//! writes what it was told to let go. So a released page is filled with a pattern, which has to stand when it is taken again; each
//! release and each taking begins another life, and who keeps a page beyond its batch has to be in the life that it was kept in.
//! Other builds have none of this: a [`Life`] is then nothing, and so is what is done with it.

#[cfg(any(debug_assertions, fuzzing))]
pub(crate) use checked::{Life, Lives};
#[cfg(not(any(debug_assertions, fuzzing)))]
pub(crate) use unchecked::{Life, Lives};

#[cfg(any(debug_assertions, fuzzing))]
mod checked {
    // Not loom's: nothing is handed over by it.
    use std::sync::atomic::{AtomicU32, Ordering};

    /// As the kernel's slab allocator fills what is free (`POISON_FREE`, include/linux/poison.h).
    const POISON: u8 = 0x6b;

    /// Compared in one go.
    const POISONED: [u8; 4096] = [POISON; 4096];

    /// Odd: released. It wraps around: two lives of a page that are 2^32 apart are never seen by the same holder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Life(u32);

    /// Of each page of a region. Relaxed throughout: a page is handed on by something else, and what is seen here is at least
    /// what its holder saw.
    #[derive(Debug)]
    pub(crate) struct Lives(Box<[AtomicU32]>);

    impl Lives {
        pub(crate) fn new(pages: usize) -> Self {
            Self((0..pages).map(|_| AtomicU32::new(0)).collect())
        }

        pub(crate) fn now(&self, index: u32) -> Life {
            Life(self.0.get(index as usize).map_or(0, |life| life.load(Ordering::Relaxed)))
        }

        pub(crate) fn release(&self, index: u32, bytes: &mut [u8]) {
            let before = self.0[index as usize].fetch_add(1, Ordering::Relaxed);
            assert!(before % 2 == 0, "page {index} of its region is released twice");
            bytes.fill(POISON);
        }

        /// A page that was never released has no pattern to stand.
        pub(crate) fn take(&self, index: u32, bytes: &[u8]) {
            let life = &self.0[index as usize];
            if life.load(Ordering::Relaxed) % 2 == 0 {
                return;
            }
            let mut pieces = bytes.chunks(POISONED.len());
            let stands = pieces.all(|piece| piece == &POISONED[..piece.len()]);
            assert!(stands, "page {index} of its region was written after its release");
            life.fetch_add(1, Ordering::Relaxed);
        }

        #[inline]
        pub(crate) fn check_out(&self, index: u32) {
            assert!(self.now(index).0 % 2 == 0, "page {index} of its region is used after its release");
        }

        #[inline]
        pub(crate) fn check(&self, index: u32, life: Life) {
            assert!(self.now(index) == life, "page {index} of its region is used after its release, in another life");
        }

        /// For tests: as if the page had been released and taken so often.
        #[cfg(test)]
        pub(crate) fn set(&self, index: u32, life: u32) {
            self.0[index as usize].store(life, Ordering::Relaxed);
        }
    }
}

#[cfg(not(any(debug_assertions, fuzzing)))]
mod unchecked {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Life;

    #[derive(Debug)]
    pub(crate) struct Lives;

    impl Lives {
        pub(crate) fn new(_: usize) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn now(&self, _: u32) -> Life {
            Life
        }

        #[inline(always)]
        pub(crate) fn release(&self, _: u32, _: &mut [u8]) {}

        #[inline(always)]
        pub(crate) fn take(&self, _: u32, _: &[u8]) {}

        #[inline(always)]
        pub(crate) fn check_out(&self, _: u32) {}

        #[inline(always)]
        pub(crate) fn check(&self, _: u32, _: Life) {}
    }
}

#[cfg(all(test, not(loom), debug_assertions))]
mod tests {
    use std::sync::Arc;

    use crate::{Completion, Home, Kept, Memory, Page, Region};

    const PAGE_BYTES: usize = 5000;

    fn one() -> (Arc<Region>, Page) {
        let (region, mut pages) = Region::map(1, PAGE_BYTES).unwrap();
        (region, pages.pop().unwrap())
    }

    /// What no safe code can have: a second token of the same page.
    fn twin(page: &Page) -> Page {
        Page::new(page.number())
    }

    #[test]
    fn lives_go_on_past_their_wrap() {
        let (region, mut page) = one();
        region.page_mut(&mut page).fill(7);
        region.lives.set(0, u32::MAX - 3);
        for _ in 0..4 {
            region.release(&mut page);
            region.take(&mut page);
        }
        assert_eq!(region.lives.now(0), {
            region.lives.set(0, 4);
            region.lives.now(0)
        });
        let memory = Memory::new(region, None);
        assert_eq!(memory.bytes(&Completion::new(page, 4990, 10)), [0x6b; 10], "a released page keeps nothing");
    }

    #[test]
    fn a_page_that_was_never_released_is_taken_as_it_is() {
        let (region, mut page) = one();
        region.page_mut(&mut page)[0] = 1;
        region.take(&mut page);
        assert_eq!(region.page_mut(&mut page)[0], 1);
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_double_release_is_seen() {
        let (region, mut page) = one();
        let mut again = twin(&page);
        region.release(&mut page);
        region.release(&mut again);
    }

    #[test]
    #[should_panic(expected = "written after its release")]
    fn a_write_after_release_is_seen() {
        let (region, mut page) = one();
        let mut device = twin(&page);
        region.release(&mut page);
        region.page_mut(&mut device)[PAGE_BYTES - 1] = 0;
        region.take(&mut page);
    }

    #[test]
    #[should_panic(expected = "used after its release")]
    fn a_frame_that_is_read_after_release_is_seen() {
        let (region, mut page) = one();
        let frame = Completion::new(twin(&page), 0, 60);
        region.release(&mut page);
        let _ = Memory::new(region, None).bytes(&frame);
    }

    fn kept() -> (Arc<Region>, Kept, Page) {
        let (region, page) = one();
        let twin = twin(&page);
        let home = Home::new(Memory::new(Arc::clone(&region), None), 1);
        (region, home.keep_copy(page, 0, None, b"kept").unwrap(), twin)
    }

    /// Released and taken again it is out, as it was, but in somebody else's hands.
    #[test]
    #[cfg_attr(miri, ignore = "it leaks, so that the panic is not followed by another one")]
    #[should_panic(expected = "in another life")]
    fn a_kept_page_of_another_life_is_seen() {
        let (region, kept, mut twin) = kept();
        // It does not come home in a life that is not its own.
        let kept = std::mem::ManuallyDrop::new(kept);
        assert_eq!(&kept[..], b"kept");
        region.release(&mut twin);
        region.take(&mut twin);
        let _ = kept.len();
    }

    #[test]
    #[should_panic(expected = "in another life")]
    fn a_kept_page_that_goes_home_in_another_life_is_seen() {
        let (region, kept, mut twin) = kept();
        region.release(&mut twin);
        region.take(&mut twin);
        drop(kept);
    }
}
