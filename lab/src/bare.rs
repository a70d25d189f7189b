//! The minimum cost of handing over packets: one CPU writes frames into pages and hands the pages
//! to another CPU. Only benchmarks use this loop, for comparison with the receive path.
//!
//! The loop has no page pool, no ledger (packet counters) and no backlog limit, and never moves
//! flows or sleeps. The writer and the reader use pages and slots in order, in batches of [`BATCH`]
//! frames. The writer advances the position `written`, and the reader advances the position `read`.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use steerage_mem::{Region, RegionError};

/// The number of frames of a hand-over.
pub const BATCH: usize = 32;

/// The length of a frame.
pub const FRAME_BYTES: usize = 64;

/// The number of pages and of slots.
const PAGES: u64 = 1024;

/// The size of a page is not a multiple of 1024 bytes, so that the first cache lines of pages
/// spread over many cache sets.
const PAGE_BYTES: usize = 2112;

/// The description of a frame. A slot has the size of a ring entry of the receive path.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    page: u32,
    offset: u32,
    hash: u32,
    len: u32,
}

#[derive(Debug)]
struct Shared {
    region: Arc<Region>,
    slots: Box<[UnsafeCell<Slot>; PAGES as usize]>,
    written: CachePadded<AtomicU64>,
    read: CachePadded<AtomicU64>,
}

// SAFETY: the writer reaches the slots and pages of `written..read + PAGES`, and the reader those
// of `read..written`. One side stores each position with release, and the other side loads it with
// acquire. There is only one writer and one reader, because neither type is `Clone`.
unsafe impl Sync for Shared {}
// SAFETY: as above; slots are plain bits.
unsafe impl Send for Shared {}

impl Shared {
    #[inline(always)]
    fn slot(&self, position: u64) -> &UnsafeCell<Slot> {
        &self.slots[(position % PAGES) as usize]
    }

    #[inline(always)]
    fn frame(&self, index: u64) -> *mut [u8; FRAME_BYTES] {
        self.region.base().as_ptr().wrapping_add(index as usize * PAGE_BYTES).cast()
    }
}

/// The writing end of the loop.
#[derive(Debug)]
pub struct BareWriter {
    shared: Arc<Shared>,
    written: u64,
    /// The reader's position when the writer last loaded `shared.read`.
    read: u64,
    prefetches: bool,
}

/// The reading end of the loop.
#[derive(Debug)]
pub struct BareReader {
    shared: Arc<Shared>,
    read: u64,
}

/// Creates both ends of the loop. If `prefetches` is true, the writer prefetches the pages of the
/// next batch while it writes a batch.
///
/// # Errors
/// Returns a [`RegionError`] if there is not enough memory.
pub fn bare(prefetches: bool) -> Result<(BareWriter, BareReader), RegionError> {
    let (region, mut pages) = Region::map(PAGES as usize, PAGE_BYTES)?;
    // Memory that was never accessed has no physical pages yet. The page tokens (rights to access
    // pages) are dropped, so that no other code can access the pages.
    pages.iter_mut().for_each(|page| region.page_mut(page).fill(0));
    let slots: Box<[UnsafeCell<Slot>]> = (0..PAGES).map(|_| UnsafeCell::default()).collect();
    let shared = Arc::new(Shared {
        region,
        slots: slots.try_into().unwrap_or_else(|_| unreachable!("there are as many slots as pages")),
        written: CachePadded::default(),
        read: CachePadded::default(),
    });
    Ok((BareWriter { shared: Arc::clone(&shared), written: 0, read: 0, prefetches }, BareReader { shared, read: 0 }))
}

impl BareWriter {
    /// Writes a batch of frames. The function `write` writes one frame and returns its hash.
    /// Returns false if there is no space for a batch.
    #[inline(always)]
    pub fn write(&mut self, mut write: impl FnMut(&mut [u8; FRAME_BYTES]) -> u32) -> bool {
        let Self { shared, written, read, prefetches } = self;
        let end = *written + BATCH as u64;
        if end - *read > PAGES {
            // Pairs with the release store in `BareReader::read`.
            *read = shared.read.load(Ordering::Acquire);
            if end - *read > PAGES {
                return false;
            }
        }
        if *prefetches {
            (end..end + BATCH as u64).for_each(|next| prefetch_write(shared.frame(next % PAGES).cast::<u8>()));
        }
        for position in *written..end {
            let page = position % PAGES;
            // SAFETY: the page lies in the region, and no other reference to it exists: the reader
            // is done with everything before `end - PAGES`, and has not seen `position`.
            let hash = write(unsafe { &mut *shared.frame(page) });
            let slot = Slot { page: page as u32, offset: 0, hash, len: FRAME_BYTES as u32 };
            // SAFETY: as for the page.
            unsafe { *shared.slot(position).get() = slot };
        }
        *written = end;
        // Pairs with the acquire load in `BareReader::read`.
        shared.written.store(end, Ordering::Release);
        true
    }
}

impl BareReader {
    /// Passes at most one batch of frames with their hashes to `each`. Returns the number of
    /// frames.
    #[inline(always)]
    pub fn read(&mut self, mut each: impl FnMut(&[u8; FRAME_BYTES], u32)) -> usize {
        let Self { shared, read } = self;
        // Pairs with the release store in `BareWriter::write`.
        let written = shared.written.load(Ordering::Acquire);
        let count = (written - *read).min(BATCH as u64) as usize;
        let mut slots = [Slot::default(); BATCH];
        for (slot, position) in slots[..count].iter_mut().zip(*read..) {
            // SAFETY: the position lies before `written`, so the writer is done with its slot, and
            // it is not before `read`, so the writer does not write it again.
            *slot = unsafe { *shared.slot(position).get() };
            prefetch_read(shared.frame(u64::from(slot.page)).cast::<u8>());
        }
        for slot in &slots[..count] {
            // SAFETY: as for the slot. The page number is below `PAGES`.
            each(unsafe { &*shared.frame(u64::from(slot.page)) }, slot.hash);
        }
        *read += count as u64;
        // Pairs with the acquire load in `BareWriter::write`.
        shared.read.store(*read, Ordering::Release);
        count
    }
}

#[inline(always)]
fn prefetch_read(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program can see and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// Prefetches a cache line for writing, which removes it from other CPUs' caches.
#[inline(always)]
fn prefetch_write(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as `prefetch_read`. Processors without PREFETCHW (before 2014 at Intel) execute it as a no-op.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_order_as_they_were_written() {
        const BATCHES: u64 = if cfg!(miri) { 100 } else { 10_000 };
        for prefetches in [false, true] {
            let (mut writer, mut reader) = bare(prefetches).unwrap();
            let total = BATCHES * BATCH as u64;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut next = 0_u64;
                    while next < total {
                        let begun = next;
                        let room = writer.write(|frame| {
                            *frame = [next as u8; FRAME_BYTES];
                            next += 1;
                            next as u32
                        });
                        assert_eq!(next - begun, if room { BATCH as u64 } else { 0 });
                        if !room {
                            std::thread::yield_now();
                        }
                    }
                });
                let mut next = 0_u64;
                while next < total {
                    let count = reader.read(|frame, hash| {
                        assert_eq!((*frame, hash), ([next as u8; FRAME_BYTES], next as u32 + 1));
                        next += 1;
                    });
                    if count == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    }

    #[test]
    fn a_writer_without_a_reader_stops_at_the_last_page() {
        let (mut writer, mut reader) = bare(true).unwrap();
        let written = (0..PAGES).take_while(|_| writer.write(|_| 0)).count();
        assert_eq!(written * BATCH, PAGES as usize);
        assert_eq!(reader.read(|_, _| ()), BATCH);
        assert!(writer.write(|_| 0) && !writer.write(|_| 0));
    }
}
