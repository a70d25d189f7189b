//! [`Completions`] takes the frames that a device received in one poll, and supplies free pages.

mod gather;

use crate::limits::HEADROOM;
use crate::page_cache::QueuePages;
use steerage_flow::offload::Offload;
use steerage_flow::{FlowHash, LinkType, Timestamp};
use steerage_ledger::PollCounts;
use steerage_mem::{Blocks, Claim, Completion, Fit, FrameHeader, Page, RecordForm, Spot, Tail};

pub use steerage_mem::Gather;

/// The bytes that must be free before a frame with an [`Offload`]: see [`Lending::push_offload`].
pub const OFFLOAD_BYTES: usize = FrameHeader::BYTES + FrameHeader::EXTRA_BYTES;

/// Describes a frame that a device wrote to a page: see [`RxQueue`](crate::rx::RxQueue).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Filled {
    /// The frame's length in the page, in bytes.
    pub len: usize,
    /// The frame's length on the wire, in bytes.
    pub wire_len: usize,
    /// The flow hash that the device computed, if there is one.
    pub hash: Option<FlowHash>,
}

impl Filled {
    /// Describes a complete frame without a flow hash.
    #[inline(always)]
    pub fn whole(len: usize) -> Self {
        Self { len, wire_len: len, hash: None }
    }

    /// Describes a frame of `wire_len` bytes of which only the first `len` bytes were stored.
    #[inline(always)]
    pub fn cut(len: usize, wire_len: usize) -> Self {
        Self { len, wire_len, hash: None }
    }

    /// Adds the flow's hash.
    #[must_use]
    #[inline(always)]
    pub fn with_hash(self, hash: Option<FlowHash>) -> Self {
        Self { hash, ..self }
    }
}

/// Limits a length on the wire to the largest value that a frame's header can store.
#[inline(always)]
fn on_the_wire(claimed: usize) -> u64 {
    claimed.min(u32::MAX as usize) as u64
}

/// Takes the frames that a poll received, and supplies pages for them.
#[derive(Debug)]
pub struct Completions<'a> {
    frames: &'a mut Vec<Completion>,
    pages: &'a mut QueuePages,
    now: Timestamp,
    /// The counters of the frames of this poll.
    pub counts: PollCounts,
    pub(crate) prefetch: usize,
    link: LinkType,
    copybreak: usize,
}

impl<'a> Completions<'a> {
    /// Appends the device's frames to `frames`. Frames of up to `copybreak` bytes are copied to
    /// another page, so that the device keeps its own pages.
    pub fn new(frames: &'a mut Vec<Completion>, pages: &'a mut QueuePages, now: Timestamp, copybreak: usize) -> Self {
        Self { frames, pages, now, counts: PollCounts::default(), prefetch: 0, link: LinkType::ETHERNET, copybreak }
    }
}

impl Completions<'_> {
    /// Returns the time at which this poll began.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets the type of the first header (the link type) for all frames of this poll. The default
    /// is Ethernet. If [`LinkType`] has no name for the type, all frames go to the same CPU.
    #[inline(always)]
    pub fn set_link(&mut self, link: LinkType) {
        self.link = link;
    }

    /// Returns the link type of this poll's frames.
    #[inline(always)]
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// Takes a page to fill. If no page is free (`None`), the device should poll again later.
    #[inline(always)]
    pub fn take_page(&mut self) -> Option<Page> {
        self.pages.pool.take()
    }

    /// Allocates a page for a frame that begins at [`HEADROOM`]. Returns `None` if no page is free,
    /// or if the pages are too short for the frames that `fit` describes (see
    /// [capabilities](crate::device::Capabilities)).
    #[inline]
    pub fn alloc(&mut self, fit: Fit) -> Option<Page> {
        if fit.page_bytes() > self.pages.pool.region().page_bytes() {
            return None;
        }
        self.take_page()
    }

    /// Refills a device's ring: passes up to `room` pages to `post`, each with room for the frames
    /// that `fit` describes. Returns how many pages were posted. If `post` returns a page that it
    /// cannot post, `refill` ends. If fewer than `room` pages were posted because no page is free,
    /// the device should poll again later. A device calls `refill` once per poll, and posts the
    /// pages that [`rx_finish`](Self::rx_finish) returns.
    pub fn refill(&mut self, room: usize, fit: Fit, mut post: impl FnMut(Page) -> Result<(), Page>) -> usize {
        for posted in 0..room {
            let Some(page) = self.alloc(fit) else { return posted };
            if let Err(page) = post(page) {
                self.pages.pool.put_back(page);
                return posted;
            }
        }
        room
    }

    /// Fills up to `count` pages, for devices whose frames are written by code on this CPU. `write`
    /// gets the bytes after a page's headroom, and describes the frame. If `write` returns `None`
    /// (no frame), `fill` ends. A frame that does not fit into the page also ends `fill`, and is
    /// lost (`device`).
    ///
    /// Returns how many pages were filled. If `write` never returned `None`, but fewer than `count`
    /// pages were filled, no page is free, and the device should poll again later.
    #[inline(always)]
    pub fn fill(&mut self, count: usize, mut write: impl FnMut(&mut [u8]) -> Option<Filled>) -> usize {
        let Self { frames, pages, .. } = self;
        let pool = &mut pages.pool;
        let (first, mut more, mut lost, mut wire_bytes) = (frames.len(), true, 0, 0);
        let (region, pages) = pool.take_many(count);
        // All frames are appended together, without a check of the list's capacity for each frame.
        frames.extend(pages.map(|mut page| {
            let bytes = &mut region.page_mut(&mut page)[HEADROOM..];
            let room = bytes.len();
            let Some(written) = (if more { write(bytes) } else { None }) else {
                more = false;
                return Completion::new(page, 0, 0);
            };
            if written.len > room {
                (more, lost) = (false, 1);
                return Completion::new(page, 0, 0);
            }
            wire_bytes += on_the_wire(written.wire_len);
            Completion::new(page, HEADROOM, written.len).with_hash(written.hash.map(|hash| hash.0))
        }));
        let mut filled = frames.len() - first;
        if !more {
            // Only a page that was not filled has an offset other than `HEADROOM`.
            filled = frames[first..].iter().take_while(|frame| frame.offset() == HEADROOM).count();
            let unused = frames.drain(first + filled..).rev();
            unused.filter_map(|frame| frame.into_page().ok()).for_each(|page| pool.put_back(page));
        }
        self.counts.lost += lost;
        self.counts.wire_bytes += wire_bytes;
        filled
    }

    /// Copies a whole frame to a page. Returns false if no page is free or the frame is too long.
    pub fn copy_in(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.frame_bytes_max() {
            return false;
        }
        self.fill(1, |page| {
            page[..frame.len()].copy_from_slice(frame);
            Some(Filled::whole(frame.len()))
        }) == 1
    }

    /// Finishes receiving a frame that the device wrote at `offset` of `page`. Returns a page for
    /// the device's ring, so that the ring never has a gap: another page, or `page` itself. `page`
    /// is returned if the frame was short and copied
    /// ([`QueueLimits::copybreak`](crate::limits::QueueLimits::copybreak)), if no page is free
    /// (`no_page`), or if the frame does not lie within the page (`device`).
    #[inline]
    pub fn rx_finish(&mut self, mut page: Page, offset: usize, filled: Filled) -> Page {
        let (Filled { len, wire_len, .. }, hash) = (filled, filled.hash.map(|hash| hash.0));
        if !self.pages.pool.region().has_room(&page, offset, len) {
            self.counts.lost += 1;
            return page;
        }
        self.counts.wire_bytes += on_the_wire(wire_len);
        if len <= self.copybreak.min(self.frame_bytes_max()) {
            let copied = self.pages.pool.copy_out(offset, |region, to| {
                to.get_mut(..len)?.copy_from_slice(region.page_mut(&mut page).get(offset..)?.get(..len)?);
                Some(len)
            });
            if let Some(copy) = copied {
                self.frames.push(copy.with_hash(hash));
                return page;
            }
        }
        let Some(other) = self.pages.pool.take() else {
            self.counts.no_page += 1;
            return page;
        };
        self.frames.push(Completion::new(page, offset, len).with_hash(hash));
        other
    }

    /// Returns an unused page to the pool.
    pub fn give_page(&mut self, page: Page) {
        self.pages.pool.recycle(page);
    }

    /// Returns the bytes of a page. A frame begins at offset [`HEADROOM`].
    #[inline(always)]
    pub fn page_mut<'p>(&'p self, page: &'p mut Page) -> &'p mut [u8] {
        self.pages.pool.region().page_mut(page)
    }

    /// The length of the longest frame that fits in a page after the headroom, in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        self.pages.pool.region().page_bytes() - HEADROOM
    }

    /// Announces that code on this CPU will write about `count` pages in the next poll. The pages
    /// are prefetched, which halves the cost of a frame that is handled on a far CPU.
    #[inline(always)]
    pub fn prefetch_pages(&mut self, count: usize) {
        self.prefetch = count;
    }

    /// Returns the blocks that [`RxQueue::open`](crate::rx::RxQueue::open) supplied. Returns `None`
    /// if the queue has no blocks, or if `claim` belongs to other blocks, so that a device that
    /// wraps another device cannot access the inner device's blocks.
    ///
    /// ```compile_fail,E0061
    /// fn tamper(out: &mut steerage_core::completions::Completions<'_>) {
    ///     out.blocks();
    /// }
    /// ```
    #[inline]
    pub fn blocks(&mut self, claim: &Claim) -> Option<&mut Blocks> {
        self.pages.blocks.as_mut().filter(|blocks| blocks.are_claimed_by(claim))
    }

    /// Hands a frame over. `wire_bytes` is the frame's length on the wire, which may exceed the
    /// stored length. A frame outside of this queue's memory is counted as lost (`device`).
    #[inline(always)]
    pub fn push(&mut self, frame: Completion, wire_bytes: usize) {
        self.push_if_sound(frame, wire_bytes);
    }

    #[inline(always)]
    fn push_if_sound(&mut self, frame: Completion, wire_bytes: usize) -> bool {
        let region = match &self.pages.blocks {
            Some(blocks) if frame.is_lent() => blocks.region(),
            _ => self.pages.pool.region(),
        };
        if !region.has_frame(&frame) {
            self.reject(frame);
            return false;
        }
        self.counts.wire_bytes += on_the_wire(wire_bytes);
        self.frames.push(frame);
        true
    }

    #[cold]
    fn reject(&mut self, frame: Completion) {
        self.counts.lost += 1;
        self.pages.take_home(frame);
    }

    /// Returns the part of `block` that follows the last lent frame, up to the offset `end`. The
    /// device hands over the frames of the returned part from front to back. Returns `None` if the
    /// block does not exist, or if `claim` belongs to another queue.
    #[inline]
    pub fn lending(&mut self, claim: &Claim, block: usize, end: usize) -> Option<Lending<'_>> {
        let tail = self.pages.blocks.as_mut()?.tail(claim, block)?.up_to(end);
        Some(Lending { tail, frames: self.frames, wire_bytes: &mut self.counts.wire_bytes })
    }

    /// Reports that `frames` frames were lost before this poll, for example in a ring of the
    /// kernel. These frames count as received and as dropped (`device`).
    pub fn lost(&mut self, frames: u64) {
        self.counts.lost += frames;
    }

    /// Reports that the device copied `frames` frames out of its blocks, a count that the ledger
    /// does not include.
    pub fn copied(&mut self, frames: u64) {
        self.counts.copied += frames;
    }

    /// Reports that the device left `frames` frames to the kernel, a count that the ledger does not
    /// include.
    pub fn passed(&mut self, frames: u64) {
        self.counts.passed += frames;
    }

    /// Removes the frames of this poll for which `keep` returns false, starting at index `from`
    /// (for devices that wrap other devices). The function `keep` gets only the part of a frame
    /// that lies in the frame's first page.
    pub fn retain(&mut self, from: usize, mut keep: impl FnMut(&[u8]) -> bool) {
        let from = from.min(self.frames.len());
        for frame in self.frames.split_off(from) {
            if keep(self.pages.memory.bytes(&frame)) {
                self.frames.push(frame);
                continue;
            }
            let wire = self.pages.memory.header_of(&frame).map_or(frame.len(), |header| header.wire_len as usize);
            self.counts.wire_bytes = self.counts.wire_bytes.saturating_sub(on_the_wire(wire));
            self.pages.take_home(frame);
        }
    }

    /// Returns how many frames the device has handed over since the start of this poll.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if the device has handed over no frame since the start of this poll.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// The part of a block that the device may still write and hand over, with an
/// [example](https://github.com/steerage/steerage/blob/main/docs/devices.md#memory-of-its-own).
#[derive(Debug)]
pub struct Lending<'a> {
    tail: Tail<'a>,
    frames: &'a mut Vec<Completion>,
    wire_bytes: &'a mut u64,
}

impl Lending<'_> {
    /// Returns the bytes of the block that the device has not handed over yet.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.tail.bytes()
    }

    /// Returns the offset within the block at which [`bytes`](Self::bytes) begins.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.tail.offset()
    }

    /// Hands over a frame of `len` bytes at offset `at` of [`bytes`](Self::bytes), with `header`
    /// before the frame. Afterwards, `bytes` returns the bytes after the frame. Returns false if
    /// the frame does not fit.
    #[inline(always)]
    pub fn push(&mut self, at: usize, len: usize, header: FrameHeader) -> bool {
        self.push_hashed(at, len, header, None)
    }

    /// Hands over up to `count` consecutive frames. The function `next` gets the bytes that were
    /// not handed over yet, and returns the position of the next frame, or an error that ends the
    /// loop. The function `outside` creates the error for a frame or header outside of the bytes
    /// that `next` got.
    #[inline(always)]
    pub fn push_each<E>(
        &mut self,
        count: usize,
        outside: impl Fn() -> E,
        next: impl FnMut(&mut [u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        self.tail.lend_each((self.frames, self.wire_bytes), count, outside, next)
    }

    /// Like [`push_each`](Self::push_each), but also accepts a *window*: a block that shows a part
    /// of a file of records, which steerage never writes. In the window of a file, the 16 bytes
    /// before a frame are the header of its record, in the format `form`. If `form` is `None`,
    /// frames in windows of files are rejected.
    #[inline(always)]
    pub fn push_records<E>(
        &mut self,
        count: usize,
        form: Option<RecordForm>,
        outside: impl Fn() -> E,
        next: impl FnMut(&[u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        self.tail.lend_records((self.frames, self.wire_bytes), count, form, outside, next)
    }

    /// Like [`push`](Self::push), with the flow hash that the device computed, if any.
    #[inline(always)]
    pub fn push_hashed(&mut self, at: usize, len: usize, header: FrameHeader, hash: Option<FlowHash>) -> bool {
        let Some(to) = self.tail.bytes().get_mut(..at).and_then(<[u8]>::last_chunk_mut) else { return false };
        *to = header.to_bytes();
        let Some(frame) = self.tail.lend(at, len) else { return false };
        self.frames.push(frame.with_header().with_hash(hash.map(|hash| hash.0)));
        *self.wire_bytes += on_the_wire(header.wire_len as usize);
        true
    }

    /// Like [`push_hashed`](Self::push_hashed), for a super-frame or a packet with an incomplete
    /// checksum. Returns false if fewer than [`OFFLOAD_BYTES`] bytes are free before the frame.
    pub fn push_offload(
        &mut self,
        at: usize,
        len: usize,
        (header, offload): (FrameHeader, Offload),
        hash: Option<FlowHash>,
    ) -> bool {
        let before = at.checked_sub(OFFLOAD_BYTES).and_then(|from| self.tail.bytes().get_mut(from..));
        let Some(to) = before.and_then(<[u8]>::first_chunk_mut) else { return false };
        *to = offload.to_bytes();
        if !self.push_hashed(at, len, header, hash) {
            return false;
        }
        *self.wire_bytes += (offload.wire_bytes(len) - len) as u64;
        self.frames.pop().into_iter().for_each(|frame| self.frames.push(frame.with_extra()));
        true
    }
}
