//! [`Spare`]: the pages that a CPU has for copies of lent frames. A CPU takes these pages from the
//! shared pool in bulk.

use std::cell::RefCell;
use std::sync::Arc;

use super::SharedPool;
use crate::header::FrameHeader;
use crate::kept::{Kept, KeptPages};
use crate::page::Page;

const BULK: usize = 64;

/// The pages that one CPU has for copies of lent frames.
#[derive(Debug)]
pub struct Spare {
    pages: RefCell<Vec<Page>>,
    shared: Arc<SharedPool>,
}

impl Spare {
    /// Creates an empty set of pages. The CPU takes pages from the pool `shared` when it needs
    /// them.
    pub fn new(shared: Arc<SharedPool>) -> Self {
        // The list has room for one more page than the CPU takes from the pool at a time, because
        // the CPU may put a page back into the list.
        Self { pages: RefCell::new(Vec::with_capacity(BULK + 1)), shared }
    }

    /// Copies `parts`, joined together, to a new page, as [`KeptPages::keep_copy`] does. The new
    /// page is one of this CPU's pages. If this CPU has no pages, it takes pages from the shared
    /// pool. If the shared pool is empty too, the CPU takes returned pages from `kept_pages`. The
    /// queue's owner has not collected the returned pages yet, perhaps because it sleeps. Returns
    /// `None` in three cases: no page is free, the parts are too long for a page, or handlers keep
    /// too many frames.
    pub fn copy(
        &self,
        kept_pages: &Arc<KeptPages>,
        offset: usize,
        header: Option<FrameHeader>,
        parts: &[&[u8]],
    ) -> Option<Kept> {
        let mut pages = self.pages.borrow_mut();
        if pages.is_empty() {
            self.shared.take_or_collect(&mut pages, BULK, kept_pages);
        }
        kept_pages.keep_copy(pages.pop()?, offset, header, parts).map_err(|page| pages.push(page)).ok()
    }

    /// Returns this CPU's pages to the shared pool.
    pub fn close(&self) {
        self.shared.give_back(&mut self.pages.borrow_mut());
    }
}
