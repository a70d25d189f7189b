//! A ring of an AF_XDP socket, which is shared with the kernel. The producer writes entries and
//! advances the producer index. The consumer reads the entries and advances the consumer index.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::map;

/// The kernel's `struct xdp_ring_offset`, which says where a ring's fields are in a mapping.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingOffsets {
    producer: u64,
    consumer: u64,
    entries: u64,
    flags: u64,
}

/// The kernel's `struct xdp_desc`, which describes a frame in a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::af_xdp) struct Descriptor {
    pub(in crate::af_xdp) address: u64,
    pub(in crate::af_xdp) len: u32,
    pub(super) options: u32,
}

impl Descriptor {
    /// Returns true if the next descriptor belongs to the same frame.
    pub(in crate::af_xdp) fn goes_on(&self) -> bool {
        self.options & libc::XDP_PKT_CONTD != 0
    }
}

/// This process's side of a ring: producer or consumer. `T` consists of plain numbers.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    bytes: usize,
    offsets: RingOffsets,
    entries: NonNull<T>,
    /// The number of entries: a power of two.
    size: u32,
    /// The index of this process's side of the ring, including entries that are not published yet.
    position: u32,
    /// The index of the kernel's side of the ring, as last read.
    other: u32,
}

// SAFETY: only the kernel shares this memory, and the shared words are accessed as atomics.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring. `place` is the offset of the ring for mmap(2), and `size`, the number of
    /// entries, is a power of two.
    pub(super) fn map(socket: BorrowedFd<'_>, place: i64, offsets: RingOffsets, size: u32) -> io::Result<Self> {
        let bytes = offsets.entries as usize + size as usize * size_of::<T>();
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let base = map(bytes, access, flags, socket.as_raw_fd(), place)?;
        let first = offsets.entries as usize;
        // SAFETY: the entries begin within the mapping, which is long enough for all of them.
        let entries = unsafe { base.add(first) }.cast();
        let ring = Self { base, bytes, offsets, entries, size, position: 0, other: 0 };
        let positions = [offsets.producer, offsets.consumer, offsets.flags].map(|at| at as usize);
        let sound = size.is_power_of_two()
            && first % align_of::<T>() == 0
            && positions.iter().all(|at| at % align_of::<u32>() == 0 && at + size_of::<u32>() <= bytes);
        if sound { Ok(ring) } else { Err(io::Error::other("the kernel's ring has a layout that cannot be")) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: `map` checked that the word is within the mapping and aligned. All accesses to it
        // are atomic.
        unsafe { self.base.add(at as usize).cast().as_ref() }
    }

    fn entry(&self, position: u32) -> NonNull<T> {
        // SAFETY: the index is less than `size`, and all `size` entries are within the mapping.
        unsafe { self.entries.add((position & (self.size - 1)) as usize) }
    }

    // ---- as a producer

    #[inline]
    pub(super) fn room(&mut self) -> u32 {
        if self.room_as_seen() == 0 {
            self.look();
        }
        self.room_as_seen()
    }

    #[inline]
    pub(super) fn room_for(&mut self, entries: u32) -> bool {
        if self.room_as_seen() < entries {
            self.look();
        }
        self.room_as_seen() >= entries
    }

    fn room_as_seen(&self) -> u32 {
        self.size.saturating_sub(self.position.wrapping_sub(self.other))
    }

    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.look();
        self.position.wrapping_sub(self.other).min(self.size)
    }

    pub(super) fn peek_waiting(&mut self, nth: u32) -> Option<T> {
        // SAFETY: the entry is within the mapping, and only this side writes it.
        (nth < self.waiting()).then(|| unsafe { self.entry(self.other.wrapping_add(nth)).read() })
    }

    pub(super) fn peek_taken(&mut self) -> Option<T> {
        // SAFETY: as in `peek_waiting`. No later push has overwritten the entry.
        (self.waiting() < self.size).then(|| unsafe { self.entry(self.other.wrapping_sub(1)).read() })
    }

    /// Overwrites a published entry. The caller must know that the kernel never reads entries
    /// outside of system calls.
    pub(super) fn poke_waiting(&mut self, nth: u32, entry: T) {
        if nth < self.waiting() {
            // SAFETY: the entry is within the mapping. Any bytes are valid, because the kernel
            // checks the entries that it reads.
            unsafe { self.entry(self.other.wrapping_add(nth)).write(entry) };
        }
    }

    #[inline]
    fn look(&mut self) {
        // Acquire pairs with the kernel's release store of the consumer index: the kernel has
        // already read the entries that this side will overwrite.
        self.other = self.word(self.offsets.consumer).load(Ordering::Acquire);
    }

    /// Appends an entry, for which the ring must have room.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the entry is within the mapping, and the kernel does not read it before it is
        // published.
        unsafe { self.entry(self.position).write(entry) };
        self.position = self.position.wrapping_add(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        // Release pairs with the kernel's acquire load of the producer index, so that the kernel
        // sees the entries.
        self.word(self.offsets.producer).store(self.position, Ordering::Release);
    }

    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: the flag is a hint. If this poll misses a change of the flag, the next poll sees
        // the change.
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    // ---- as a consumer

    #[inline]
    pub(super) fn filled(&mut self) -> u32 {
        if self.other == self.position {
            // Acquire pairs with the kernel's release store of the producer index: the kernel has
            // already written the entries and their pages.
            self.other = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        self.other.wrapping_sub(self.position).min(self.size)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.filled() == 0 {
            return None;
        }
        // SAFETY: the entry is within the mapping, and the kernel does not write to it before it is
        // consumed.
        let entry = unsafe { self.entry(self.position).read() };
        self.position = self.position.wrapping_add(1);
        Some(entry)
    }

    #[inline]
    pub(super) fn consumed(&mut self) {
        // Release pairs with the kernel's acquire load of the consumer index: the kernel overwrites
        // entries only after this side has read them.
        self.word(self.offsets.consumer).store(self.position, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping from `map`, and no code reaches it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
