//! The pages that a CPU has for copies of lent frames. The pages come from the shared pool in bulk.

use std::cell::RefCell;
use std::sync::Arc;

use super::SharedPool;
use crate::header::FrameHeader;
use crate::kept::{Kept, KeptPages};
use crate::page::Page;

const BULK: usize = 64;

/// One CPU's pages for copies of lent frames.
#[derive(Debug)]
pub struct Spare {
    pages: RefCell<Vec<Page>>,
    shared: Arc<SharedPool>,
}

impl Spare {
    /// Creates an empty set, whose pages will come from `shared`.
    pub fn new(shared: Arc<SharedPool>) -> Self {
        // One more entry, for a page that is put back.
        Self { pages: RefCell::new(Vec::with_capacity(BULK + 1)), shared }
    }

    /// Copies `parts`, joined together, to a page, as [`KeptPages::keep_copy`] does. The page comes
    /// from this CPU's pages, or else from the shared pool. If neither has a page, the page comes
    /// from the pages that returned to `kept_pages` and that the queue's owner has not collected,
    /// perhaps because the owner sleeps. Returns `None` if there is no page, if the parts are too
    /// long for a page, or if too many frames are kept.
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

    /// Returns the pages to the shared pool.
    pub fn close(&self) {
        self.shared.give_back(&mut self.pages.borrow_mut());
    }
}
