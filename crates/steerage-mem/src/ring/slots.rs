//! The memory for the slots of all rings of a queue, reserved once for the longest possible
//! backlog. Each ring has one buffer for each of its possible capacities, which are powers of two:
//! a ring that grows continues in a larger buffer while the smaller buffer is still in use.
//!
//! ```text
//!  | capacity 4: ring 0, ring 1, ... | capacity 8: ring 0, ring 1, ... | capacity 16: ...
//! ```

use std::io;

use room::Room;

use crate::page::Slot;
use crate::sync::{AtomicU64, UnsafeCell};

/// The distance between the buffers of two rings, in slots, so that the same positions of many
/// rings do not fall into the same cache set.
const APART: usize = 20;

#[derive(Debug)]
pub(super) struct SlotMemory {
    slots: Room<UnsafeCell<Slot>>,
    arrivals: Option<Room<AtomicU64>>,
    rings: usize,
    least: usize,
    most: usize,
}

// SAFETY: a slot's cell is reached by the ends of its ring alone, whose positions hand it over: see
// `RingBuffer`.
unsafe impl Sync for SlotMemory {}
// SAFETY: as above; slots are plain bits.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    /// Reserves the memory. `least` and `most` are powers of two. If there is no address space for
    /// larger buffers, the rings cannot grow.
    pub(super) fn reserve(rings: usize, least: usize, most: usize, arrivals: bool) -> io::Result<Self> {
        let reserve = |most: usize| {
            let all = before(least, 2 * most).checked_mul(rings).ok_or(io::ErrorKind::OutOfMemory)?;
            let arrivals = if arrivals { Some(Room::reserve(all)?) } else { None };
            Ok(Self { slots: Room::reserve(all)?, arrivals, rings, least, most })
        };
        reserve(most).or_else(|error| if most > least { reserve(least) } else { Err(error) })
    }

    pub(super) fn rings(&self) -> usize {
        self.rings
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    fn first(&self, ring: usize, capacity: usize) -> usize {
        debug_assert!(ring < self.rings && (self.least..=self.most).contains(&capacity));
        self.rings * before(self.least, capacity) + ring * (capacity + APART)
    }

    pub(super) fn slots(&self, ring: usize, capacity: usize) -> *const UnsafeCell<Slot> {
        // This pointer is valid for the whole buffer, unlike a pointer from a reference to the
        // first slot.
        self.slots.all()[self.first(ring, capacity)..][..capacity].as_ptr()
    }

    /// The arrival numbers of a buffer. Null if the rings keep no arrival numbers.
    pub(super) fn arrivals(&self, ring: usize, capacity: usize) -> *const AtomicU64 {
        let all = |numbers: &Room<AtomicU64>| numbers.all()[self.first(ring, capacity)..][..capacity].as_ptr();
        self.arrivals.as_ref().map_or(std::ptr::null(), all)
    }

    pub(super) fn arrival(&self, ring: usize, capacity: usize, at: usize) -> Option<&AtomicU64> {
        self.arrivals.as_ref()?.all().get(self.first(ring, capacity) + at)
    }
}

fn before(least: usize, capacity: usize) -> usize {
    capacity - least + APART * (capacity / least).ilog2() as usize
}

#[cfg(not(loom))]
mod room {
    use std::io;
    use std::ptr::NonNull;

    use crate::mapping::{map_unused, unmap};
    use crate::page::Slot;
    use crate::sync::{AtomicU64, UnsafeCell};

    /// Types for which all-zero bits are a valid value.
    pub(in crate::ring) trait Zeroed {}
    impl Zeroed for UnsafeCell<Slot> {}
    impl Zeroed for AtomicU64 {}

    #[derive(Debug)]
    pub(in crate::ring) struct Room<T> {
        base: NonNull<T>,
        len: usize,
        mapped: usize,
    }

    impl<T: Zeroed> Room<T> {
        pub(super) fn reserve(len: usize) -> io::Result<Self> {
            let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
            let (base, mapped) = map_unused(bytes)?;
            Ok(Self { base: base.cast(), len, mapped })
        }

        pub(super) fn all(&self) -> &[T] {
            // SAFETY: the mapping is zeroed, aligned to a page, has room for `len` entries, and
            // lives as long as `self`.
            unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
        }
    }

    impl<T> Drop for Room<T> {
        fn drop(&mut self) {
            // SAFETY: `base` and `mapped` are the address and the length of the mapping, and no
            // code refers to the mapping any more.
            unsafe { unmap(self.base.cast(), self.mapped) };
        }
    }
}

#[cfg(loom)]
mod room {
    use std::io;

    #[derive(Debug)]
    pub(in crate::ring) struct Room<T>(Box<[T]>);

    impl<T: Default> Room<T> {
        pub(super) fn reserve(len: usize) -> io::Result<Self> {
            Ok(Self((0..len).map(|_| T::default()).collect()))
        }

        pub(super) fn all(&self) -> &[T] {
            &self.0
        }
    }
}
