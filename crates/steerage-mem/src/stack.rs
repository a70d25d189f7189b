//! [`PageStack`]: a lock-free stack of pages. Any thread may push pages to the stack, or take some
//! or all of its pages.

use crate::page::{BLANK, Page};
use crate::region::Region;
use crate::sync::{AtomicU64, Ordering};

/// The increment of `top` for one push. The upper half of `top` counts the pushes.
const PUSH: u64 = 1 << 32;

/// A stack of pages of one region. A page is in at most one stack. Therefore the region stores the
/// links between the pages of a stack.
#[derive(Debug)]
pub(crate) struct PageStack {
    /// The lower half of `top` is the page that was pushed last, or `BLANK`. The upper half of
    /// `top` is the number of pushes. Between two pushes, pages are only taken from the stack.
    /// Therefore, if `top` has not changed, the stack has not changed. (A thread mistakes one value
    /// of `top` for another only if a multiple of 2^32 pushes occurs while the thread is stopped.)
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
            // The store is relaxed: the exchange after this store makes the link visible.
            below.store(top as u32, Ordering::Relaxed);
            let pushed = (top & !u64::from(BLANK)).wrapping_add(PUSH) | u64::from(page.number());
            // H1, release: pairs with H2. Pages that were pushed earlier become visible too: each
            // change of `top` is a read-modify-write operation, so it continues the release
            // sequences of the earlier pushes.
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
        // H2, acquire: pairs with H1. The operation is a release: if another thread finds the stack
        // empty, it sees what this thread did before, such as giving pages to the shared pool. This
        // operation sets all bits of the lower half of `top`, which is the value `BLANK`.
        let mut top = self.top.fetch_or(u64::from(BLANK), Ordering::AcqRel) as u32;
        while top != BLANK {
            // The link is read before the page is passed on, because the page's next holder may
            // push the page again.
            let below = below(region, top);
            each(Page::new(top));
            top = below;
        }
    }

    /// Takes up to `most` pages from the stack, and passes each of them to `each`. Returns the
    /// number of pages taken. Pages that this call does not take stay in the stack all the time.
    pub(crate) fn take(&self, region: &Region, most: usize, mut each: impl FnMut(Page)) -> usize {
        // The memory order H2 (acquire) pairs with H1, and makes the links and the pages visible.
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            // If another thread takes one of these pages, the page's link may change at the same
            // time, but then the exchange of `top` fails. The limit `most` ends the loop even if
            // links change.
            let (mut count, mut rest) = (0, top as u32);
            while rest != BLANK && count < most.min(region.pages()) {
                rest = below(region, rest);
                count += 1;
            }
            if count == 0 {
                return 0;
            }
            let shorter = (top & !u64::from(BLANK)) | u64::from(rest);
            // The memory order H3 (release) pairs with H2 of the thread that takes a page. This
            // loop has read the link of that page. Therefore this thread reads the link before the
            // other thread changes it. On failure acquire: H2 of the next attempt.
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
