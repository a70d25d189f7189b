//! A stack of pages that any thread may put on and only its owner empties, whole, so that the usual trap of such stacks (ABA)
//! cannot be set.

use crate::page::{BLANK, Page};
use crate::region::Region;
use crate::sync::{AtomicU32, Ordering};

/// Pages of one region. The links between them stand in the region, since a page is in one stack at most.
#[derive(Debug)]
pub(crate) struct PageStack {
    /// The page put on last, or `BLANK`.
    top: AtomicU32,
}

impl PageStack {
    pub(crate) fn new() -> Self {
        Self { top: AtomicU32::new(BLANK) }
    }

    /// Puts a page of `region` on: from any thread.
    pub(crate) fn put(&self, region: &Region, page: Page) {
        let Some(index) = region.index_of(page.number()) else { return };
        let below = &region.below[index as usize];
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // Relaxed: shown by the exchange below.
            below.store(top, Ordering::Relaxed);
            // H1, release: pairs with H2. Those put on earlier are shown too, since each put is a read-modify-write
            // and so continues their release sequence.
            match self.top.compare_exchange_weak(top, page.number(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Whether there are pages: a look that costs one shared read.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.top.load(Ordering::Relaxed) != BLANK
    }

    /// Takes all pages off and hands each over.
    pub(crate) fn collect(&self, region: &Region, mut each: impl FnMut(Page)) {
        // H2, acquire: pairs with H1.
        let mut top = self.top.swap(BLANK, Ordering::Acquire);
        while top != BLANK {
            let page = Page::new(top);
            let index = region.index_of(top).expect("only pages of this region were put on");
            top = region.below[index as usize].load(Ordering::Relaxed);
            each(page);
        }
    }
}
