//! What was read of packets' headers, so that it is read only once.

use std::cell::{Cell, Ref, RefCell};

use steerage_flow::dissect::Dissection;

use crate::limits::HANDLE_BUDGET;

/// What was read of the headers of a batch's packets, by their positions.
#[derive(Debug)]
pub(crate) struct Dissections {
    each: Box<[RefCell<Option<Dissection>>]>,
    are_some: Cell<bool>,
}

impl Dissections {
    pub(crate) fn new() -> Self {
        Self { each: (0..HANDLE_BUDGET).map(|_| RefCell::default()).collect(), are_some: Cell::new(false) }
    }

    /// What is known of the packet at `nth`, or else what `dissect` finds.
    pub(crate) fn get_or(&self, nth: usize, dissect: impl FnOnce() -> Dissection) -> Ref<'_, Dissection> {
        let known = &self.each[nth];
        if known.borrow().is_none() {
            self.are_some.set(true);
            *known.borrow_mut() = Some(dissect());
        }
        Ref::map(known.borrow(), |known| known.as_ref().expect("it was just filled in"))
    }

    pub(crate) fn forget(&self, nth: usize) {
        if self.are_some.get() {
            *self.each[nth].borrow_mut() = None;
        }
    }

    /// Prepares for the next batch.
    pub(crate) fn clear(&self) {
        if self.are_some.take() {
            self.each.iter().for_each(|known| *known.borrow_mut() = None);
        }
    }
}
