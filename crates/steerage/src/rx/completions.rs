//! What a poll hands over, and the pages that it fills.

use std::sync::Arc;

use steerage_mem::hash::FlowHash;
use steerage_mem::{Blocks, Claim, Completion, FRAME_BYTES_MAX, FrameHeader, Memory, Page, Spot, Tail};

use crate::limits::HEADROOM;
use crate::platform::Timestamp;
use crate::pool::PagePool;

/// What was written to a page: see [`Completions::fill`] and [`Completions::rx_finish`].
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// The frame's length in the page, in bytes.
    pub len: usize,
    /// Its length on the wire.
    pub wire_len: usize,
    /// The flow's hash, if the device computes one.
    pub hash: Option<FlowHash>,
}

impl Filled {
    /// A whole frame without a hash.
    pub fn whole(len: usize) -> Self {
        Self { len, wire_len: len, hash: None }
    }
}

/// What a frame counts for in bytes, by the length on the wire that its device claims: no more than the longest frame has.
#[inline(always)]
pub(super) fn on_the_wire(claimed: usize) -> u64 {
    claimed.min(FRAME_BYTES_MAX) as u64
}

/// Where a poll puts what it received, and where it gets pages from.
#[derive(Debug)]
pub struct Completions<'a> {
    pub(crate) frames: &'a mut Vec<Completion>,
    pub(crate) pool: &'a mut PagePool,
    pub(crate) blocks: Option<&'a mut Blocks>,
    pub(crate) now: Timestamp,
    pub(crate) wire_bytes: u64,
    pub(crate) lost: u64,
    pub(crate) copied: u64,
    pub(crate) passed: u64,
    pub(crate) prefetch: usize,
    pub(crate) copybreak: usize,
    pub(crate) no_page: u64,
}

impl<'a> Completions<'a> {
    pub(crate) fn new(
        frames: &'a mut Vec<Completion>,
        pool: &'a mut PagePool,
        blocks: Option<&'a mut Blocks>,
        now: Timestamp,
        copybreak: usize,
    ) -> Self {
        let (wire_bytes, lost, copied, passed, prefetch, no_page) = Default::default();
        Self { frames, pool, blocks, now, wire_bytes, lost, copied, passed, prefetch, copybreak, no_page }
    }
}

impl Completions<'_> {
    /// The time at which this poll began.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// A page to fill. `None` while all are in use: poll again later.
    #[inline(always)]
    pub fn take_page(&mut self) -> Option<Page> {
        self.pool.take()
    }

    /// Fills up to `count` pages by this CPU's own stores, for devices that have no pages posted anywhere. `write` gets the
    /// bytes behind a page's headroom and returns what it wrote, or `None` if nothing came. `None` ends the filling: no packet
    /// is made, and the page stays in the pool. Returns how many pages were filled. If that is less than `count` and `write`
    /// never returned `None`, all pages are in use: poll again later. If `write` says that it wrote more than the bytes it was
    /// given, the frame is lost, counted (`device`), and the filling ends as well.
    #[inline(always)]
    pub fn fill(&mut self, count: usize, mut write: impl FnMut(&mut [u8]) -> Option<Filled>) -> usize {
        let Self { frames, pool, .. } = self;
        let (first, mut filled, mut more, mut lost, mut wire_bytes) = (frames.len(), 0, true, 0, 0);
        let (region, pages) = pool.take_many(count);
        // As many frames as pages, so that the list needs no look at its capacity for each. The pages behind the last that was
        // filled are taken out again below.
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
            filled += 1;
            wire_bytes += on_the_wire(written.wire_len);
            let mut frame = Completion::new(page, HEADROOM as u32, written.len);
            if let Some(hash) = written.hash {
                frame.set_hash(hash);
            }
            frame
        }));
        if !more {
            let unused = frames.drain(first + filled..).rev();
            unused.filter_map(|frame| frame.into_page().ok()).for_each(|page| pool.put_back(page));
        }
        self.lost += lost;
        self.wire_bytes += wire_bytes;
        filled
    }

    /// Copies a whole frame into a page and hands it over. False if there is no page, or the frame is too long for one.
    pub fn copy_in(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.frame_bytes_max() {
            return false;
        }
        self.fill(1, |page| {
            page[..frame.len()].copy_from_slice(frame);
            Some(Filled::whole(frame.len()))
        }) == 1
    }

    /// Finishes the receive of a frame that the device wrote at `offset` of `page`, and returns the page to post
    /// in that one's place, so that the device's ring never has a hole: another one, while the frame goes on in its own; or the
    /// same, where a small frame was copied out of it ([`QueueLimits::copybreak`](crate::QueueLimits::copybreak)). Where no
    /// page is to be had in exchange the frame drops, counted (`no_page`). A frame that does not lie in the page is lost, counted
    /// (`device`).
    #[inline]
    pub fn rx_finish(&mut self, mut page: Page, offset: u32, filled: Filled) -> Page {
        let Filled { len, wire_len, hash } = filled;
        if !self.pool.region().has_room(&page, offset, len) {
            self.lost += 1;
            return page;
        }
        self.wire_bytes += on_the_wire(wire_len);
        if len <= self.copybreak.min(self.frame_bytes_max()) {
            if let Some(copy) = self.pool.copy_out(&mut page, offset, len) {
                self.push_hashed(Completion::new(copy, HEADROOM as u32, len), hash);
                return page;
            }
        }
        let Some(other) = self.pool.take() else {
            self.no_page += 1;
            return page;
        };
        self.push_hashed(Completion::new(page, offset, len), hash);
        other
    }

    #[inline(always)]
    fn push_hashed(&mut self, mut frame: Completion, hash: Option<FlowHash>) {
        if let Some(hash) = hash {
            frame.set_hash(hash);
        }
        self.frames.push(frame);
    }

    /// Gives a page back that was not filled after all.
    pub fn give_page(&mut self, page: Page) {
        self.pool.recycle(page);
    }

    /// The bytes of a page, to be filled. The frame goes [`HEADROOM`] bytes in.
    #[inline(always)]
    pub fn page_mut<'p>(&'p self, page: &'p mut Page) -> &'p mut [u8] {
        self.pool.region().page_mut(page)
    }

    /// The longest frame that fits a page behind its headroom, in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        self.pool.region().page_bytes() - HEADROOM
    }

    /// Says that the next poll will fill some `count` pages by this CPU's own stores. They are then fetched into its cache
    /// meanwhile: far from the worker's cache that halves the cost of a frame.
    #[inline(always)]
    pub fn prefetch_pages(&mut self, count: usize) {
        self.prefetch = count;
    }

    /// The blocks that this queue's [`RxQueue::memory`](super::RxQueue::memory) brought. `None` if it brought none, or if the claim
    /// is to others: a device that is wrapped around another one does not get at that one's memory.
    ///
    /// ```compile_fail,E0061
    /// fn tamper(out: &mut steerage::Completions<'_>) {
    ///     out.blocks();
    /// }
    /// ```
    #[inline]
    pub fn blocks(&mut self, claim: &Claim) -> Option<&mut Blocks> {
        self.blocks.as_deref_mut().filter(|blocks| blocks.are_claimed_by(claim))
    }

    /// Hands a frame over. `wire_bytes` is its length on the wire, which a capture may have cut. A frame that does not lie in this
    /// queue's memory is lost, counted (`device`).
    #[inline(always)]
    pub fn push(&mut self, frame: Completion, wire_bytes: usize) {
        self.push_if_sound(frame, wire_bytes);
    }

    /// The same. Returns whether it was handed over.
    #[inline(always)]
    pub(super) fn push_if_sound(&mut self, frame: Completion, wire_bytes: usize) -> bool {
        let region = match &self.blocks {
            Some(blocks) if frame.is_lent() => blocks.region(),
            _ => self.pool.region(),
        };
        if !region.has_frame(&frame) {
            self.reject(frame);
            return false;
        }
        self.wire_bytes += on_the_wire(wire_bytes);
        self.frames.push(frame);
        true
    }

    #[cold]
    fn reject(&mut self, frame: Completion) {
        self.lost += 1;
        self.take_back(frame);
    }

    /// Takes the pages of a frame home, or the frame to its block. One of other memory is not ours to take.
    fn take_back(&mut self, frame: Completion) {
        match (frame.into_page(), self.blocks.as_deref_mut()) {
            (Ok(page), _) => self.pool.recycle(page),
            (Err(chained), _) if !chained.is_lent() => self.pool.recycle_chain(chained),
            (Err(lent), Some(blocks)) => drop(blocks.recycle(lent)),
            (Err(_), None) => {}
        }
    }

    /// What `block` holds up to byte `end`, behind the last frame lent: to be handed over from front to back. `None` for a
    /// block there isn't, and by a claim to other blocks than this queue's.
    #[inline]
    pub fn lending(&mut self, claim: &Claim, block: usize, end: usize) -> Option<Lending<'_>> {
        let tail = self.blocks.as_deref_mut()?.tail(claim, block)?.up_to(end);
        Some(Lending { tail, frames: self.frames, wire_bytes: &mut self.wire_bytes })
    }

    /// Says that `frames` were lost before the poll: in the kernel, in a ring that overflowed. They count as received
    /// and dropped (`device`).
    pub fn lost(&mut self, frames: u64) {
        self.lost += frames;
    }

    /// Says that `frames` of lent memory were copied so that the device can go on: they are counted, and that is all.
    pub fn copied(&mut self, frames: u64) {
        self.copied += frames;
    }

    /// Says that `frames` came by that the device left to the kernel: they are counted, and no part of the ledger.
    pub fn passed(&mut self, frames: u64) {
        self.passed += frames;
    }

    /// Of the frames handed over in this poll, keeps from the `from`th on those for which `keep` says so; the others are as if
    /// they had not come. `keep` gets a frame's first page. For devices around devices.
    pub fn retain(&mut self, from: usize, mut keep: impl FnMut(&[u8]) -> bool) {
        let blocks = self.blocks.as_ref().map(|blocks| Arc::clone(blocks.region()));
        let memory = Memory::new(Arc::clone(self.pool.region()), blocks);
        let from = from.min(self.frames.len());
        for frame in self.frames.split_off(from) {
            if keep(memory.bytes(&frame)) {
                self.frames.push(frame);
                continue;
            }
            let wire = memory.header_of(&frame).map_or(frame.len(), |header| header.wire_len as usize);
            self.wire_bytes = self.wire_bytes.saturating_sub(on_the_wire(wire));
            self.take_back(frame);
        }
    }

    /// How many frames this poll has handed over.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it has handed over none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// The part of a block that may be written and handed over: see [`Completions::lending`].
#[derive(Debug)]
pub struct Lending<'a> {
    tail: Tail<'a>,
    frames: &'a mut Vec<Completion>,
    wire_bytes: &'a mut u64,
}

impl Lending<'_> {
    /// What has yet to be handed over.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.tail.bytes()
    }

    /// Where in its block the first of [`bytes`](Self::bytes) lies.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.tail.offset()
    }

    /// Writes `header` in front of the `len` bytes that lie `at` bytes into [`bytes`](Self::bytes), and hands these over
    /// as a frame; they and what is before them are no longer part of it. False if there is no room for the header or
    /// they do not lie within it.
    #[inline(always)]
    pub fn push(&mut self, at: usize, len: usize, header: FrameHeader) -> bool {
        self.push_hashed(at, len, header, None)
    }

    /// Hands over up to `count` frames one behind the other: `next` gets what has yet to be handed over, and says where in it the
    /// next one is. Ends with what `next` says instead; a spot without room for the frame and its header gives `outside`.
    #[inline(always)]
    pub fn push_each<E>(
        &mut self,
        count: usize,
        outside: impl Fn() -> E,
        mut next: impl FnMut(&mut [u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        // A frame counts once the next one is asked for: if it lay outside, there is no next one.
        let (mut wire_bytes, mut last) = (0, 0);
        let counted = |bytes: &mut [u8]| {
            wire_bytes += std::mem::take(&mut last);
            let spot = next(bytes)?;
            last = on_the_wire(spot.wire_len() as usize);
            Ok(spot)
        };
        let end = self.tail.lend_each(self.frames, count, outside, counted);
        *self.wire_bytes += if end.is_none() { wire_bytes + last } else { wire_bytes };
        end
    }

    /// The same, with the flow's hash if the device computes one.
    #[inline(always)]
    pub fn push_hashed(&mut self, at: usize, len: usize, header: FrameHeader, hash: Option<FlowHash>) -> bool {
        let Some(to) = self.tail.bytes().get_mut(..at).and_then(<[u8]>::last_chunk_mut) else { return false };
        *to = header.to_bytes();
        let Some(mut frame) = self.tail.lend(at, len) else { return false };
        if let Some(hash) = hash {
            frame.set_hash(hash);
        }
        self.frames.push(frame.with_header());
        *self.wire_bytes += on_the_wire(header.wire_len as usize);
        true
    }
}
