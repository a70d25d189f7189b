use std::cell::{Cell, Ref, RefCell};

use super::Dissection;

/// The dissections of a batch of packets, by position, so that each header is read only once.
///
/// ```
/// use steerage_flow::{LinkType, dissect::{Layers, Dissections, dissect}};
///
/// let (known, frame) = (Dissections::of_batches(64), [0; 14]);
/// let reads = std::cell::Cell::new(0);
/// let read = || {
///     reads.set(reads.get() + 1);
///     dissect(&frame, LinkType::ETHERNET, Layers::Outer)
/// };
/// assert_eq!(known.get_or(5, read).key, known.get_or(5, read).key);
/// assert_eq!(reads.get(), 1);
/// ```
#[derive(Debug)]
pub struct Dissections {
    each: Box<[RefCell<Option<Dissection>>]>,
    are_some: Cell<bool>,
}

impl Dissections {
    /// Creates dissections for batches of up to `packets` packets.
    pub fn of_batches(packets: usize) -> Self {
        Self { each: (0..packets).map(|_| RefCell::default()).collect(), are_some: Cell::new(false) }
    }

    /// Returns the dissection of the packet at position `nth`, and calls `dissect` if the
    /// dissection is missing.
    pub fn get_or(&self, nth: usize, dissect: impl FnOnce() -> Dissection) -> Ref<'_, Dissection> {
        let known = &self.each[nth];
        if known.borrow().is_none() {
            self.are_some.set(true);
            *known.borrow_mut() = Some(dissect());
        }
        Ref::map(known.borrow(), |known| known.as_ref().expect("it was just filled in"))
    }

    /// Drops the dissection of the packet at position `nth`, because the packet has changed.
    pub fn forget(&self, nth: usize) {
        if self.are_some.get() {
            *self.each[nth].borrow_mut() = None;
        }
    }

    /// Drops all stored dissections. Call this function before the next batch.
    pub fn clear(&self) {
        if self.are_some.take() {
            self.each.iter().for_each(|known| *known.borrow_mut() = None);
        }
    }
}
