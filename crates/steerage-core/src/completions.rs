//! [`Completions`] is the interface between a device and one poll of the device's queue. The device
//! puts the frames that it received into [`Completions`], and takes free pages from
//! [`Completions`].

mod gather;

use crate::limits::HEADROOM;
use crate::page_cache::QueuePages;
use steerage_flow::offload::Offload;
use steerage_flow::{FlowHash, LinkType, Timestamp};
use steerage_ledger::PollCounts;
use steerage_mem::{Blocks, Claim, Completion, Fit, FrameHeader, Page, RecordForm, Spot, Tail};

pub use steerage_mem::Gather;

/// The number of bytes of memory that must be free before the start of a frame with an [`Offload`]:
/// see [`Lending::push_offload`].
pub const OFFLOAD_BYTES: usize = FrameHeader::BYTES + FrameHeader::EXTRA_BYTES;

/// Describes a frame that a device wrote to a page: see [`Completions::fill`]
/// and [`Completions::rx_finish`]. The example of [`RxQueue`](crate::rx::RxQueue) returns a
/// `Filled` for each frame.
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

    /// Describes a frame of which only the first `len` bytes were stored, and which had `wire_len`
    /// bytes on the wire.
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

/// Returns the number of bytes that the counters add for a frame. A frame counts with the length on
/// the wire that the device reports. The counted length is limited to the maximum of the length
/// field in the frame's header. A packet function reads the same length from the frame's header.
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
    /// Creates the `Completions` of one poll at the time `now`. The device's frames are appended to
    /// `frames`. Frames of up to `copybreak` bytes are copied to another page, so that the device
    /// keeps its own pages.
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
    /// is Ethernet. If [`LinkType`] has no name for the type of the first header, flows cannot be
    /// distinguished. If flows cannot be distinguished, all frames of the poll go to the same CPU.
    #[inline(always)]
    pub fn set_link(&mut self, link: LinkType) {
        self.link = link;
    }

    /// Returns the type of the first header (the link type) in all frames of this poll.
    #[inline(always)]
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// Takes a page to fill. Returns `None` if no page is free. If no page is free, the device
    /// should poll again later.
    #[inline(always)]
    pub fn take_page(&mut self) -> Option<Page> {
        self.pages.pool.take()
    }

    /// Allocates a page for a frame of this size and alignment. The frame begins at [`Fit::offset`]
    /// of the page. Returns `None` if no page is free, or if the pages are too short. A device
    /// declares its longest frame in its [capabilities](crate::device::Capabilities).
    #[inline]
    pub fn alloc(&mut self, fit: Fit) -> Option<Page> {
        if fit.page_bytes() > self.pages.pool.region().page_bytes() {
            return None;
        }
        self.take_page()
    }

    /// Refills a device's ring: allocates up to `room` pages for frames like `fit`, passes each
    /// page to `post`, and returns how many pages were posted. If `post` cannot post a page, it
    /// returns the page, and `refill` ends. If `post` accepted every page, but fewer than `room`
    /// pages were posted, no page is free. In this case, the device should poll again later. To
    /// keep its ring full, a device calls `refill` once per poll, and posts the pages that
    /// [`rx_finish`](Self::rx_finish) returns.
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

    /// Fills up to `count` pages. `fill` is for devices whose frames are written by code on this
    /// CPU (and not by hardware), and which post no pages. The function `write` gets the bytes of a
    /// page that follow the page's headroom. `write` returns a description of the frame, or `None`
    /// if no frame arrived. When `write` returns `None`, `fill` returns, and the page stays in the
    /// pool. If `write` reports more bytes than it was given, the frame is counted as lost
    /// (`device`), and `fill` also returns.
    ///
    /// Returns how many pages were filled. If `write` never returned `None`, but fewer than `count`
    /// pages were filled, no page is free. In this case, the device should poll again later.
    #[inline(always)]
    pub fn fill(&mut self, count: usize, mut write: impl FnMut(&mut [u8]) -> Option<Filled>) -> usize {
        let Self { frames, pages, .. } = self;
        let pool = &mut pages.pool;
        let (first, mut more, mut lost, mut wire_bytes) = (frames.len(), true, 0, 0);
        let (region, pages) = pool.take_many(count);
        // First, entries for all pages are added to the list of received frames. Because all
        // entries are added together, the list need not check its capacity for each frame. After
        // the loop, the entries of pages that were not filled are removed again.
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
            // An entry without headroom marks a page that was not filled.
            filled = frames[first..].iter().take_while(|frame| frame.offset() == HEADROOM).count();
            let unused = frames.drain(first + filled..).rev();
            unused.filter_map(|frame| frame.into_page().ok()).for_each(|page| pool.put_back(page));
        }
        self.counts.lost += lost;
        self.counts.wire_bytes += wire_bytes;
        filled
    }

    /// Copies a complete frame into a page and hands the frame over. Returns false if no page is
    /// free, or if the frame is too long for a page.
    pub fn copy_in(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.frame_bytes_max() {
            return false;
        }
        self.fill(1, |page| {
            page[..frame.len()].copy_from_slice(frame);
            Some(Filled::whole(frame.len()))
        }) == 1
    }

    /// Finishes receiving a frame that the device wrote at `offset` of `page`. Returns a page that
    /// the device posts in its ring instead of `page`, so that the ring never has a gap. Usually,
    /// the frame keeps its page, and `rx_finish` returns another page. If the frame is short, it is
    /// copied to another page ([`QueueLimits::copybreak`](crate::limits::QueueLimits::copybreak)),
    /// and `rx_finish` returns the page that the device filled.
    ///
    /// If no other page is free, the frame is dropped and counted (`no_page`), and `rx_finish`
    /// returns the page that the device filled. If the received frame does not lie within the page,
    /// it is counted as lost (`device`).
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

    /// Returns the bytes of a page, which the device fills. In a page, a frame begins at
    /// offset [`HEADROOM`], or at [`Fit::offset`].
    #[inline(always)]
    pub fn page_mut<'p>(&'p self, page: &'p mut Page) -> &'p mut [u8] {
        self.pages.pool.region().page_mut(page)
    }

    /// The length of the longest frame that fits in a page after the headroom, in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        self.pages.pool.region().page_bytes() - HEADROOM
    }

    /// Announces that code on this CPU will write frames to about `count` pages in the next poll.
    /// Before the next poll, these pages are prefetched into this CPU's cache. If the frames are
    /// handled on a far CPU, prefetching the pages halves the cost of a frame.
    #[inline(always)]
    pub fn prefetch_pages(&mut self, count: usize) {
        self.prefetch = count;
    }

    /// Returns the memory blocks that this queue's [`RxQueue::open`](crate::rx::RxQueue::open)
    /// supplied. Returns `None` if the queue supplied no blocks, or if `claim` belongs to other
    /// blocks. Therefore a device that wraps another device cannot access the memory blocks of the
    /// inner device.
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

    /// Hands a frame over. `wire_bytes` is the frame's length on the wire. In a capture file, a
    /// frame's length on the wire may exceed the length of the stored frame. If the frame does not
    /// lie in this queue's memory, it is counted as lost (`device`).
    #[inline(always)]
    pub fn push(&mut self, frame: Completion, wire_bytes: usize) {
        self.push_if_sound(frame, wire_bytes);
    }

    /// Like `push`. Returns true if the frame was handed over.
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

    /// Returns the part of `block` that begins at the end of the last lent frame and ends at the
    /// offset `end`. The device hands over the frames in this part of the block from front to back.
    /// Returns `None` if the block does not exist, or if `claim` belongs to blocks of another
    /// queue.
    #[inline]
    pub fn lending(&mut self, claim: &Claim, block: usize, end: usize) -> Option<Lending<'_>> {
        let tail = self.pages.blocks.as_mut()?.tail(claim, block)?.up_to(end);
        Some(Lending { tail, frames: self.frames, wire_bytes: &mut self.counts.wire_bytes })
    }

    /// Reports that `frames` frames were lost before this poll, for example because a ring in the
    /// kernel overflowed. The lost frames count as received and as dropped (`device`).
    pub fn lost(&mut self, frames: u64) {
        self.counts.lost += frames;
    }

    /// Reports that the device copied `frames` frames out of its blocks in order to reuse the
    /// blocks. A separate counter, which is not part of the ledger, counts the copied frames.
    pub fn copied(&mut self, frames: u64) {
        self.counts.copied += frames;
    }

    /// Reports that the device left `frames` frames to the kernel. A separate counter, which is not
    /// part of the ledger, counts the frames that were left to the kernel.
    pub fn passed(&mut self, frames: u64) {
        self.counts.passed += frames;
    }

    /// Filters the frames that the device has handed over in this poll, beginning with the frame at
    /// index `from`. Removes the frames for which `keep` returns false, as if these frames had not
    /// arrived. The argument of `keep` is the part of the frame in its first page. This method is
    /// for devices that wrap other devices.
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

/// The part of a block that the device may still write and hand over: see [`Completions::lending`].
/// The guide has an
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

    /// Hands over a frame of `len` bytes at offset `at` of [`bytes`](Self::bytes), and writes
    /// `header` before the frame. After the call, [`bytes`](Self::bytes) begins after the frame.
    /// Returns false if the frame does not lie within [`bytes`](Self::bytes) or has too little room
    /// before it for the header.
    #[inline(always)]
    pub fn push(&mut self, at: usize, len: usize, header: FrameHeader) -> bool {
        self.push_hashed(at, len, header, None)
    }

    /// Hands over up to `count` consecutive frames. The closure `next` gets the bytes that were not
    /// handed over yet. `next` returns the position of the next frame in these bytes. If `next`
    /// returns an error, the loop ends and the error is returned. `outside` creates the error for a
    /// frame that does not lie within the bytes of the block, or that has too little room for the
    /// header before it.
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
    /// of a file of records. This function writes nothing to a window (a block that shows a part of
    /// a file). In a window (a block that shows a part of a file), the 16 bytes before each frame
    /// are the header of a record in the format `form`. If `form` is `None`, frames in a window (a
    /// block that shows a part of a file) are rejected with the error `outside`.
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

    /// Like [`push`](Self::push), but also sets the flow hash that the device computed, if there is
    /// one.
    #[inline(always)]
    pub fn push_hashed(&mut self, at: usize, len: usize, header: FrameHeader, hash: Option<FlowHash>) -> bool {
        let Some(to) = self.tail.bytes().get_mut(..at).and_then(<[u8]>::last_chunk_mut) else { return false };
        *to = header.to_bytes();
        let Some(frame) = self.tail.lend(at, len) else { return false };
        self.frames.push(frame.with_header().with_hash(hash.map(|hash| hash.0)));
        *self.wire_bytes += on_the_wire(header.wire_len as usize);
        true
    }

    /// Like [`push_hashed`](Self::push_hashed), for a frame that needs offload work: a super-frame,
    /// or a packet whose checksum is not complete. `offload` is written to the memory before
    /// `header`, so [`OFFLOAD_BYTES`] bytes must be free before the frame. Returns false if fewer
    /// than [`OFFLOAD_BYTES`] bytes are free before the frame.
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
