//! A ring that is shared with the kernel. One side writes entries and advances the producer's index, and the other
//! advances the consumer's.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const XDP_RING_NEED_WAKEUP: u32 = 1;

/// Where its parts are: `struct xdp_ring_offset`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingOffsets {
    producer: u64,
    consumer: u64,
    entries: u64,
    flags: u64,
}

/// A filled chunk: `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

/// One side of a ring of `T`, which is plain numbers.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    bytes: usize,
    offsets: RingOffsets,
    entries: NonNull<T>,
    /// A power of two.
    size: u32,
    /// Our own position, as far as we have come.
    position: u32,
    /// The other side's, as it was last seen.
    other: u32,
}

// SAFETY: it has its memory to itself but for the kernel, and what is shared with that is reached by atomics.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries, a power of two, that the socket has at `place`.
    pub(super) fn map(socket: BorrowedFd<'_>, place: i64, offsets: RingOffsets, size: u32) -> io::Result<Self> {
        let bytes = offsets.entries as usize + size as usize * size_of::<T>();
        let protection: c_int = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), place) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base: NonNull<u8> =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))?;
        let first = offsets.entries as usize;
        // SAFETY: the entries begin within the mapping, which was made as long as they want.
        let entries = unsafe { base.add(first) }.cast();
        let ring = Self { base, bytes, offsets, entries, size, position: 0, other: 0 };
        let positions = [offsets.producer, offsets.consumer, offsets.flags].map(|at| at as usize);
        let sound = size.is_power_of_two()
            && first % align_of::<T>() == 0
            && positions.iter().all(|at| at % align_of::<u32>() == 0 && at + size_of::<u32>() <= bytes);
        if sound { Ok(ring) } else { Err(io::Error::other("the kernel's ring has a layout that cannot be")) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: `map` checked that it lies in the mapping and is aligned; nobody takes it for anything but an atomic.
        unsafe { self.base.add(at as usize).cast().as_ref() }
    }

    fn entry(&self, position: u32) -> NonNull<T> {
        // SAFETY: below `size` entries, all of which lie in the mapping.
        unsafe { self.entries.add((position & (self.size - 1)) as usize) }
    }

    // ---- as a producer

    /// How many entries may be pushed.
    #[inline]
    pub(super) fn room(&mut self) -> u32 {
        if self.room_as_seen() == 0 {
            self.look();
        }
        self.room_as_seen()
    }

    /// Whether so many entries may be pushed.
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

    /// How many entries the kernel has yet to consume.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.look();
        self.position.wrapping_sub(self.other).min(self.size)
    }

    /// The `nth` entry of those, as it was pushed.
    pub(super) fn peek_waiting(&mut self, nth: u32) -> Option<T> {
        // SAFETY: an entry of the mapping, which this side alone writes.
        (nth < self.waiting()).then(|| unsafe { self.entry(self.other.wrapping_add(nth)).read() })
    }

    /// The entry that the kernel consumed last, as it was pushed.
    pub(super) fn peek_taken(&mut self) -> Option<T> {
        // SAFETY: as `peek_waiting`: it was not pushed anew.
        (self.waiting() < self.size).then(|| unsafe { self.entry(self.other.wrapping_sub(1)).read() })
    }

    /// Writes the `nth` entry of those anew: for a kernel that reads only when it is told to.
    pub(super) fn poke_waiting(&mut self, nth: u32, entry: T) {
        if nth < self.waiting() {
            // SAFETY: an entry of the mapping; any bytes are an entry to the kernel, which checks what it reads.
            unsafe { self.entry(self.other.wrapping_add(nth)).write(entry) };
        }
    }

    #[inline]
    fn look(&mut self) {
        // Pairs with the kernel's release as it consumes: it is done reading what is overwritten then.
        self.other = self.word(self.offsets.consumer).load(Ordering::Acquire);
    }

    /// Writes an entry for which there is room.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: an entry of the mapping; the kernel does not read it before it is published.
        unsafe { self.entry(self.position).write(entry) };
        self.position = self.position.wrapping_add(1);
    }

    /// Shows what was pushed.
    #[inline]
    pub(super) fn publish(&mut self) {
        // Pairs with the kernel's acquire of the producer's position: it sees the entries.
        self.word(self.offsets.producer).store(self.position, Ordering::Release);
    }

    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint. That it is seen too late is mended by the next poll.
        self.word(self.offsets.flags).load(Ordering::Relaxed) & XDP_RING_NEED_WAKEUP != 0
    }

    // ---- as a consumer

    /// How many entries there are.
    #[inline]
    pub(super) fn filled(&mut self) -> u32 {
        if self.other == self.position {
            // Pairs with the kernel's release of the producer's position: the entries, and what they say of, are written.
            self.other = self.word(self.offsets.producer).load(Ordering::Acquire);
        }
        self.other.wrapping_sub(self.position).min(self.size)
    }

    /// Reads the next entry.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.filled() == 0 {
            return None;
        }
        // SAFETY: an entry of the mapping, which the kernel does not write before it is consumed.
        let entry = unsafe { self.entry(self.position).read() };
        self.position = self.position.wrapping_add(1);
        Some(entry)
    }

    /// Gives the room of what was popped back.
    #[inline]
    pub(super) fn consumed(&mut self) {
        // Pairs with the kernel's acquire of the consumer's position: it writes there after we have read.
        self.word(self.offsets.consumer).store(self.position, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: what was mapped, and nobody reaches it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
