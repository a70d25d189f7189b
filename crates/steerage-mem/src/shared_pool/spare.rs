use std::cell::RefCell;
use std::sync::Arc;

use super::SharedPool;
use crate::header::FrameHeader;
use crate::kept::{Kept, KeptPages};
use crate::page::Page;

const BULK: usize = 64;

/// The pages that one CPU has for copies of lent frames, taken from the shared pool in bulk.
#[derive(Debug)]
pub struct Spare {
    pages: RefCell<Vec<Page>>,
    shared: Arc<SharedPool>,
}

impl Spare {
    /// Creates an empty set, which takes pages from `shared` when it needs them.
    pub fn new(shared: Arc<SharedPool>) -> Self {
        // The list has room for one page more than `BULK`, because a page may be put back.
        Self { pages: RefCell::new(Vec::with_capacity(BULK + 1)), shared }
    }

    /// Copies the joined `parts` to a page, as [`KeptPages::keep_copy`] does. The page is one of
    /// this CPU, of the shared pool, or of the pages that have returned to `kept_pages`. `None` if
    /// no page is free, `parts` do not fit into the page, or handlers keep too many frames.
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
