//! In debug and fuzz builds, detects pages that are used after their release, by a mistake in this
//! crate or by a device that writes too late. A released page is filled with a pattern, which must
//! be unchanged when the page is taken again. A new generation of a page begins at each release and
//! each take, and a kept page must always have the generation that it had when it was kept.

#[cfg(any(debug_assertions, fuzzing))]
pub(crate) use checked::{Generation, Generations};
#[cfg(not(any(debug_assertions, fuzzing)))]
pub(crate) use unchecked::{Generation, Generations};

#[cfg(any(debug_assertions, fuzzing))]
mod checked {
    // Atomics of `std` even under loom, because generations make no other memory visible.
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The byte that fills a released page, as in the Linux slab allocator (`POISON_FREE`,
    /// include/linux/poison.h).
    const POISON: u8 = 0x6b;

    const POISONED: [u8; 4096] = [POISON; 4096];

    /// The generation of a page: odd if the page is released. The 32-bit number may wrap around,
    /// because no holder of a page sees two generations that are 2^32 apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Generation(u32);

    /// Relaxed: other atomics, by which a page passes to another thread, order these accesses.
    #[derive(Debug)]
    pub(crate) struct Generations(Box<[AtomicU32]>);

    impl Generations {
        pub(crate) fn new(pages: usize) -> Self {
            Self((0..pages).map(|_| AtomicU32::new(0)).collect())
        }

        pub(crate) fn current(&self, index: u32) -> Generation {
            Generation(self.0.get(index as usize).map_or(0, |generation| generation.load(Ordering::Relaxed)))
        }

        pub(crate) fn release(&self, index: u32, bytes: &mut [u8]) {
            let before = self.0[index as usize].fetch_add(1, Ordering::Relaxed);
            assert!(before % 2 == 0, "page {index} of its region is released twice");
            bytes.fill(POISON);
        }

        pub(crate) fn take(&self, index: u32, bytes: &[u8]) {
            let generation = &self.0[index as usize];
            if generation.load(Ordering::Relaxed) % 2 == 0 {
                return;
            }
            let mut pieces = bytes.chunks(POISONED.len());
            let stands = pieces.all(|piece| piece == &POISONED[..piece.len()]);
            assert!(stands, "page {index} of its region was written after its release");
            generation.fetch_add(1, Ordering::Relaxed);
        }

        #[inline]
        pub(crate) fn check_in_use(&self, index: u32) {
            assert!(self.current(index).0 % 2 == 0, "page {index} of its region is used after its release");
        }

        #[inline]
        pub(crate) fn check(&self, index: u32, generation: Generation) {
            assert!(
                self.current(index) == generation,
                "page {index} of its region is used after its release, in another generation"
            );
        }

        #[cfg(test)]
        pub(crate) fn set(&self, index: u32, generation: u32) {
            self.0[index as usize].store(generation, Ordering::Relaxed);
        }
    }
}

#[cfg(not(any(debug_assertions, fuzzing)))]
mod unchecked {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Generation;

    #[derive(Debug)]
    pub(crate) struct Generations;

    impl Generations {
        pub(crate) fn new(_: usize) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn current(&self, _: u32) -> Generation {
            Generation
        }

        #[inline(always)]
        pub(crate) fn release(&self, _: u32, _: &mut [u8]) {}

        #[inline(always)]
        pub(crate) fn take(&self, _: u32, _: &[u8]) {}

        #[inline(always)]
        pub(crate) fn check_in_use(&self, _: u32) {}

        #[inline(always)]
        pub(crate) fn check(&self, _: u32, _: Generation) {}
    }
}

#[cfg(all(test, not(loom), debug_assertions))]
mod tests {
    use std::sync::Arc;

    use crate::{Completion, Kept, KeptPages, Memory, Page, Region};

    const PAGE_BYTES: usize = 5000;

    fn one() -> (Arc<Region>, Page) {
        let (region, mut pages) = Region::map(1, PAGE_BYTES).unwrap();
        (region, pages.pop().unwrap())
    }

    fn twin(page: &Page) -> Page {
        Page::new(page.number())
    }

    #[test]
    fn generations_go_on_past_their_wrap() {
        let (region, mut page) = one();
        region.page_mut(&mut page).fill(7);
        region.generations.set(0, u32::MAX - 3);
        for _ in 0..4 {
            region.release(&mut page);
            region.take(&mut page);
        }
        assert_eq!(region.generations.current(0), {
            region.generations.set(0, 4);
            region.generations.current(0)
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
        let kept_pages = KeptPages::new(Memory::new(Arc::clone(&region), None), 1);
        (region, kept_pages.keep_copy(page, 0, None, &[b"kept"]).unwrap(), twin)
    }

    #[test]
    #[cfg_attr(miri, ignore = "it leaks, so that no second panic follows")]
    #[should_panic(expected = "in another generation")]
    fn a_kept_page_of_another_generation_is_seen() {
        let (region, kept, mut twin) = kept();
        let kept = std::mem::ManuallyDrop::new(kept);
        assert_eq!(&kept[..], b"kept");
        region.release(&mut twin);
        region.take(&mut twin);
        let _ = kept.len();
    }

    #[test]
    #[should_panic(expected = "in another generation")]
    fn a_kept_page_that_is_dropped_in_another_generation_is_seen() {
        let (region, kept, mut twin) = kept();
        region.release(&mut twin);
        region.take(&mut twin);
        drop(kept);
    }
}
