//! [`PageStack`]: a lock-free stack of pages, which any thread may push or take.

use crate::page::{BLANK, Page};
use crate::region::Region;
use crate::sync::{AtomicU64, Ordering};

const PUSH: u64 = 1 << 32;

/// The links between the pages are stored in the region, because a page is in at most one stack.
#[derive(Debug)]
pub(crate) struct PageStack {
    /// The page that was pushed last, or `BLANK`, and the number of pushes in the upper half.
    /// Between two pushes, pages are only taken, so an unchanged `top` means an unchanged stack.
    top: AtomicU64,
}

impl PageStack {
    pub(crate) fn new() -> Self {
        Self { top: AtomicU64::new(u64::from(BLANK)) }
    }

    pub(crate) fn put(&self, region: &Region, page: Page) {
        let Some(index) = region.index_of(page.number()) else { return };
        let below = &region.below[index as usize];
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // Relaxed: the exchange below makes the link visible.
            below.store(top as u32, Ordering::Relaxed);
            let pushed = (top & !u64::from(BLANK)).wrapping_add(PUSH) | u64::from(page.number());
            // H1, release: pairs with H2, also for earlier pushes, because each change of `top` is
            // a read-modify-write operation, which continues the release sequences of earlier
            // pushes.
            match self.top.compare_exchange_weak(top, pushed, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.top.load(Ordering::Relaxed) as u32 != BLANK
    }

    pub(crate) fn collect(&self, region: &Region, mut each: impl FnMut(Page)) {
        // H2, acquire: pairs with H1. Release: a thread that finds the stack empty sees what this
        // thread did before, such as giving pages to the shared pool.
        let mut top = self.top.fetch_or(u64::from(BLANK), Ordering::AcqRel) as u32;
        while top != BLANK {
            // The link is read before the page is passed on, because the page's next holder may
            // push the page again.
            let below = below(region, top);
            each(Page::new(top));
            top = below;
        }
    }

    /// Takes up to `most` pages. Pages that this call does not take stay in the stack all the time.
    pub(crate) fn take(&self, region: &Region, most: usize, mut each: impl FnMut(Page)) -> usize {
        // H2, acquire: pairs with H1, which makes the links and the pages visible.
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            // Another thread that takes pages may change links, but then the exchange fails. The
            // loop ends after `most` pages even if the links were changed.
            let (mut count, mut rest) = (0, top as u32);
            while rest != BLANK && count < most.min(region.pages()) {
                rest = below(region, rest);
                count += 1;
            }
            if count == 0 {
                return 0;
            }
            let shorter = (top & !u64::from(BLANK)) | u64::from(rest);
            // H3, release: pairs with H2 of another thread that takes a page, so that this thread
            // reads the link before the other thread changes it. On failure acquire: H2 of the next
            // attempt.
            match self.top.compare_exchange_weak(top, shorter, Ordering::Release, Ordering::Acquire) {
                Ok(_) => {
                    let mut next = top as u32;
                    for _ in 0..count {
                        let below = below(region, next);
                        each(Page::new(next));
                        next = below;
                    }
                    return count;
                }
                Err(now) => top = now,
            }
        }
    }
}

fn below(region: &Region, number: u32) -> u32 {
    let index = region.index_of(number).expect("only pages of this region were put on");
    // Relaxed: `top` orders the link.
    region.below[index as usize].load(Ordering::Relaxed)
}
