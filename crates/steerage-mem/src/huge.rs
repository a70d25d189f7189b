//! [`HugeVec`] is memory in huge pages, for many entries with random access, such as a flow table.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::mapping::{HUGE_BYTES, map_small, map_transparent, unmap};
use crate::region::prefetch_read;

/// A vector that never moves its entries: it reserves address space for its full capacity. With
/// small pages, each lookup in a large table also misses in the TLB, and the first access to each
/// page causes a page fault (a few microseconds on a virtual machine). A vector of at least 2 MiB
/// uses transparent huge pages if the kernel supports them.
///
/// ```
/// let mut flows = steerage_mem::HugeVec::with_capacity(1 << 20);
/// flows.push([0_u64; 16]);
/// flows.prefetch(0);
/// assert_eq!(flows[0], [0; 16]);
/// ```
pub struct HugeVec<T: Copy> {
    base: NonNull<T>,
    len: usize,
    capacity: usize,
    mapped: usize,
}

// SAFETY: the vector owns its entries, as a `Vec` does.
unsafe impl<T: Copy + Send> Send for HugeVec<T> {}
// SAFETY: as a `Vec`: a `&HugeVec` only gives access to a `&[T]`.
unsafe impl<T: Copy + Sync> Sync for HugeVec<T> {}

impl<T: Copy> HugeVec<T> {
    /// Reserves room for `capacity` entries. Aborts the process if there is too little address
    /// space.
    ///
    /// # Panics
    /// Panics if `capacity` or the size of an entry is 0, if the total size cannot be addressed, or
    /// if entries need an alignment of more than 4096 bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let layout = Layout::array::<T>(capacity).expect("no more than can be addressed");
        assert!(layout.size() > 0 && layout.align() <= 4096, "entries that have a size and a place in a page");
        let mapping =
            if layout.size() < HUGE_BYTES { map_small(layout.size()) } else { map_transparent(layout.size()) };
        let Ok((base, mapped)) = mapping else { handle_alloc_error(layout) };
        Self { base: base.cast(), len: 0, capacity, mapped }
    }

    /// Creates a vector of `len` entries with the same value.
    ///
    /// # Panics
    /// Panics in the same cases as [`with_capacity`](Self::with_capacity).
    #[must_use]
    pub fn filled(value: T, len: usize) -> Self {
        let mut all = Self::with_capacity(len);
        (0..len).for_each(|_| all.push(value));
        all
    }

    /// Appends an entry.
    ///
    /// # Panics
    /// Panics if the vector is full.
    #[inline]
    pub fn push(&mut self, value: T) {
        assert!(self.len < self.capacity, "a HugeVec of {} entries is full", self.capacity);
        // SAFETY: the entry lies within the mapping, which has room for `capacity` entries, and no
        // other reference to it exists.
        unsafe { self.base.add(self.len).write(value) };
        self.len += 1;
    }

    /// Prefetches the first two cache lines of an entry, if it exists.
    #[inline(always)]
    pub fn prefetch(&self, at: usize) {
        if at < self.len {
            // SAFETY: the entry lies within the mapping, as was checked.
            let entry = unsafe { self.base.add(at) }.as_ptr().cast::<u8>();
            prefetch_read(entry);
            if size_of::<T>() > LINE_BYTES {
                prefetch_read(entry.wrapping_add(LINE_BYTES));
            }
        }
    }
}

/// The size of a cache line on all machines with huge pages of 2 MiB.
const LINE_BYTES: usize = 64;

impl<T: Copy> Deref for HugeVec<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` entries were written.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for HugeVec<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` entries were written, and `&mut self` is the only way to reach them.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T: Copy> fmt::Debug for HugeVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HugeVec of {} entries, with room for {}", self.len, self.capacity)
    }
}

impl<T: Copy> Drop for HugeVec<T> {
    fn drop(&mut self) {
        // Entries are `Copy`, so they have no `Drop`. SAFETY: `base` and `mapped` are the address
        // and the length of the mapping. No reference to the mapping exists any more.
        unsafe { unmap(self.base.cast(), self.mapped) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_there_and_no_more() {
        for capacity in [1, 1000, (HUGE_BYTES / 16) + 1] {
            let mut all = HugeVec::with_capacity(capacity);
            assert!(all.is_empty());
            (0..capacity).for_each(|nth| all.push(nth as u128));
            assert!(all.iter().enumerate().all(|(nth, entry)| *entry == nth as u128) && all.len() == capacity);
            all[capacity - 1] = 7;
            assert_eq!(all.last(), Some(&7));
            (0..=capacity).for_each(|at| all.prefetch(at));
            all.prefetch(usize::MAX);
        }
    }

    #[test]
    #[should_panic(expected = "is full")]
    fn it_does_not_grow() {
        HugeVec::filled(1_u8, 3).push(1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri keeps books of each byte that is reserved")]
    fn room_costs_nothing_before_it_is_used() {
        let mut all = HugeVec::with_capacity(1 << 36);
        all.push([1_u64; 16]);
        assert_eq!(all.len(), 1);
    }

    #[test]
    #[should_panic(expected = "can be addressed")]
    fn too_much_is_refused() {
        let _ = HugeVec::<u64>::with_capacity(usize::MAX);
    }
}
