//! The way home for pages that did not go back by the finished index: those that a handler kept.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::chain::Segments;
use crate::header::FrameHeader;
use crate::lives::Life;
use crate::memory::Memory;
use crate::page::{Completion, Page, Slot};
use crate::ring::Frame;
use crate::stack::PageStack;
use crate::sync::{AtomicU64, Ordering};

/// Where the kept pages of one queue come home.
#[derive(Debug)]
pub struct Home {
    memory: Memory,
    waiting: PageStack,
    /// Frames kept and not yet released.
    kept: AtomicU64,
    limit: u64,
}

impl Home {
    /// A home for pages of `memory`'s pool, at most `limit` of which may be kept at a time.
    pub fn new(memory: Memory, limit: usize) -> Arc<Self> {
        Arc::new(Self { memory, waiting: PageStack::new(), kept: AtomicU64::new(0), limit: limit as u64 })
    }

    /// How many frames are kept.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// How many may be.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Keeps a frame beyond its batch. `Err` gives it back where the limit is reached, or if it is lent.
    pub fn keep<'a>(self: &Arc<Self>, frame: Frame<'a>) -> Result<Kept, Frame<'a>> {
        if frame.is_lent() || !self.count_one() {
            return Err(frame);
        }
        match frame.take() {
            Ok(completion) => Ok(self.kept_in(completion.slot())),
            Err(frame) => {
                self.kept.fetch_sub(1, Ordering::Relaxed);
                Err(frame)
            }
        }
    }

    /// Keeps a copy of `bytes` in `page`, with `offset` bytes of headroom, at whose end `header` goes. `Err` gives the page
    /// back where the limit is reached, the page is of another pool, or it all does not fit.
    pub fn keep_copy(
        self: &Arc<Self>,
        mut page: Page,
        offset: u32,
        header: Option<FrameHeader>,
        bytes: &[u8],
    ) -> Result<Kept, Page> {
        if !self.count_one() {
            return Err(page);
        }
        let copied = copy_to(self.memory.pool().page_mut(&mut page), offset as usize, header, bytes);
        if copied.is_none() {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            return Err(page);
        }
        let copy = Completion::new(page, offset, bytes.len());
        let copy = if header.is_some() { copy.with_header() } else { copy };
        Ok(self.kept_in(copy.slot()))
    }

    fn kept_in(self: &Arc<Self>, slot: Slot) -> Kept {
        Kept { slot, life: self.memory.pool().life_of(slot.page), home: Arc::clone(self) }
    }

    fn count_one(&self) -> bool {
        // Relaxed: a limit, not a hand-over. An add that overshoots is taken back.
        let room = self.kept.fetch_add(1, Ordering::Relaxed) < self.limit;
        if !room {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// Whether pages wait: a look that costs one shared read.
    #[inline(always)]
    pub fn waiting(&self) -> bool {
        self.waiting.any()
    }

    /// Takes all waiting pages off and hands each over. For the pool's owner; another caller would merely share.
    pub fn collect(&self, each: impl FnMut(Page)) {
        self.waiting.collect(self.memory.pool(), each);
    }
}

fn copy_to(page: &mut [u8], offset: usize, header: Option<FrameHeader>, bytes: &[u8]) -> Option<()> {
    let (headroom, rest) = page.split_at_mut_checked(offset)?;
    if let Some(header) = header {
        *headroom.last_chunk_mut()? = header.to_bytes();
    }
    rest.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(())
}

/// A frame that a worker kept beyond its batch: owned, writable, `Send`. Its pages go home when it is dropped, from
/// whichever thread that is.
#[derive(Debug)]
pub struct Kept {
    slot: Slot,
    /// The life of its page that it is in: nothing, but in debug and fuzz builds.
    life: Life,
    home: Arc<Home>,
}

impl Kept {
    /// The flow hash that the frame was steered by.
    pub fn hash(&self) -> Option<crate::hash::FlowHash> {
        self.slot.flow_hash()
    }

    /// The frame's bytes, part by part: [`Deref`] gives its head's.
    pub fn segments(&self) -> Segments<'_> {
        // SAFETY: the slot is ours alone, and writing needs `&mut self`.
        unsafe { self.home.memory.segments_of(&self.slot) }
    }

    /// The length of all of its parts, in bytes.
    pub fn total_len(&self) -> usize {
        self.home.memory.total_of(&self.slot)
    }

    /// As [`Frame::linearise`](crate::ring::Frame::linearise).
    pub fn linearise(&mut self) -> bool {
        if !self.slot.is_chained() {
            return true;
        }
        // SAFETY: as `deref_mut`: all of its pages are ours alone.
        let linear = unsafe { self.home.memory.linearise(&self.slot) };
        self.slot = linear.unwrap_or(self.slot);
        linear.is_some()
    }

    /// How many bytes there are before the frame in its page, and behind it in that of its last part.
    pub fn room(&self) -> (usize, usize) {
        self.home.memory.room(&self.slot)
    }

    /// As [`Frame::resize`](crate::ring::Frame::resize).
    pub fn resize(&mut self, front: i32, back: i32) -> bool {
        // SAFETY: as `deref_mut`: all of its pages are ours alone.
        let resized = unsafe { self.home.memory.resize(&self.slot, front, back) };
        self.slot = resized.unwrap_or(self.slot);
        resized.is_some()
    }

    /// What the device knows of the frame, where it wrote that down.
    pub fn header(&self) -> Option<FrameHeader> {
        // SAFETY: the slot is ours alone, and its page is written only through `&mut self`.
        unsafe { self.home.memory.header(&self.slot) }
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.home.memory.pool().check_life(self.slot.page, self.life);
        // SAFETY: the slot was taken off its ring, so it is ours alone, and writing needs `&mut self`.
        unsafe { self.home.memory.slice(&self.slot) }
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.home.memory.pool().check_life(self.slot.page, self.life);
        // SAFETY: as `deref`; lent frames are never kept.
        unsafe { self.home.memory.slice_mut(&self.slot) }
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.home.memory.pool().check_life(self.slot.page, self.life);
        }
        let pool = self.home.memory.pool();
        pool.take_apart(Completion::from_slot(self.slot), |page, _, _| self.home.waiting.put(pool, page));
        // Relaxed: a count. After the put, so that the limit never admits a page that is not yet home.
        self.home.kept.fetch_sub(1, Ordering::Relaxed);
    }
}
