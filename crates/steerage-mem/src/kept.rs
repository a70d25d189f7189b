//! Frames that a handler keeps after their batch is finished ([`Kept`]). The slots of kept frames
//! are blanked (marked as having no page), and the pages return through a stack instead of the
//! finished index. Any thread may push pages on this stack, and the owner of the pool empties the
//! stack. A CPU that finds no free page in the pool takes as many pages as it needs from the stack.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::chain::{Behind, Segments, SegmentsMut};
use crate::header::FrameHeader;
use crate::memory::Memory;
use crate::page::{Completion, Page, Slot};
use crate::region::{Generation, Region};
use crate::ring::Frame;
use crate::stack::PageStack;
use crate::sync::{AtomicU64, Ordering};

/// The kept frames of one queue: their number, and the stack through which their pages return.
#[derive(Debug)]
pub struct KeptPages {
    memory: Memory,
    waiting: PageStack,
    kept: AtomicU64,
    limit: u64,
}

impl KeptPages {
    /// Handlers may keep at most `limit` frames, whose pages belong to the pool of `memory`.
    pub fn new(memory: Memory, limit: usize) -> Arc<Self> {
        Arc::new(Self { memory, waiting: PageStack::new(), kept: AtomicU64::new(0), limit: limit as u64 })
    }

    /// The number of frames that handlers keep.
    pub fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// The maximum number of frames that handlers may keep.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of a page, in bytes.
    pub fn page_bytes(&self) -> usize {
        self.memory.pool().page_bytes()
    }

    /// Keeps a frame after its batch. `Err` returns a frame that is lent or exceeds the limit.
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

    /// Keeps a copy of the joined `parts` at `offset` of `page`, with `header` just before it.
    /// `Err` returns the page if the limit is reached, the page belongs to another pool, or the
    /// copy does not fit.
    pub fn keep_copy(
        self: &Arc<Self>,
        mut page: Page,
        offset: usize,
        header: Option<FrameHeader>,
        parts: &[&[u8]],
    ) -> Result<Kept, Page> {
        if !self.count_one() {
            return Err(page);
        }
        let copied = copy_to(self.memory.pool().page_mut(&mut page), offset, header, parts);
        let Some(bytes) = copied else {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            return Err(page);
        };
        let copy = Completion::new(page, offset, bytes);
        let copy = if header.is_some() { copy.with_header() } else { copy };
        Ok(self.kept_in(copy.slot()))
    }

    fn kept_in(self: &Arc<Self>, slot: Slot) -> Kept {
        Kept {
            slot,
            front: 0,
            hidden: (0, 0),
            generation: self.memory.pool().generation_of(slot.page),
            kept_pages: Arc::clone(self),
        }
    }

    fn count_one(&self) -> bool {
        // Relaxed: no other memory depends on the count.
        let room = self.kept.fetch_add(1, Ordering::Relaxed) < self.limit;
        if !room {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// Returns true if pages of kept frames have returned. This check reads one shared cache line.
    #[inline(always)]
    pub fn waiting(&self) -> bool {
        self.waiting.any()
    }

    /// Takes all pages that have returned. Only the owner of the pool should call this function.
    pub fn collect(&self, each: impl FnMut(Page)) {
        self.waiting.collect(self.memory.pool(), each);
    }

    /// Takes up to `most` of the pages that have returned, and returns how many. Any thread may
    /// call this function.
    pub(crate) fn take(&self, most: usize, each: impl FnMut(Page)) -> usize {
        self.waiting.take(self.memory.pool(), most, each)
    }
}

fn copy_to(page: &mut [u8], offset: usize, header: Option<FrameHeader>, parts: &[&[u8]]) -> Option<usize> {
    let (headroom, rest) = page.split_at_mut_checked(offset)?;
    if let Some(header) = header {
        *headroom.last_chunk_mut()? = header.to_bytes();
    }
    let mut at = 0;
    for part in parts {
        rest.get_mut(at..)?.get_mut(..part.len())?.copy_from_slice(part);
        at += part.len();
    }
    Some(at)
}

/// A frame that a handler keeps after its batch. Dropping a `Kept`, on any thread, returns its
/// pages.
#[derive(Debug)]
pub struct Kept {
    slot: Slot,
    /// For a copy of only the first bytes of a frame, the number of these bytes. 0 for a whole
    /// frame.
    front: u16,
    /// The position of the first hidden frame, and the number of hidden frames. Hidden frames have
    /// the rest of a merged packet's payload.
    hidden: (u8, u8),
    /// The generation of the page when the frame was kept. Only debug and fuzz builds check it.
    generation: Generation,
    kept_pages: Arc<KeptPages>,
}

impl Kept {
    /// Marks a copy of the first `bytes` bytes of a frame. The bytes after the copied ones stay in
    /// the original frame.
    #[must_use]
    pub fn of_front(mut self, bytes: usize) -> Self {
        self.front = bytes as u16;
        self
    }

    /// Marks a copy of the first `bytes` bytes, the headers, of a [merged](crate::merged) packet.
    /// Stores `record` at the end of the page, or returns `None` if there is no room.
    pub fn of_merged(mut self, bytes: usize, record: [u8; FrameHeader::EXTRA_BYTES]) -> Option<Self> {
        let at = self.record_at()?;
        // SAFETY: as in `deref_mut`: no other code has the page.
        unsafe { self.kept_pages.memory.slice_mut(&at) }.copy_from_slice(&record);
        self.hidden = (0, 1);
        Some(self.of_front(bytes))
    }

    fn record_at(&self) -> Option<Slot> {
        let memory = &self.kept_pages.memory;
        let at = memory.pool().page_bytes().checked_sub(FrameHeader::EXTRA_BYTES)?;
        (self.slot.offset as usize + self.slot.len() <= at)
            .then(|| Slot::part(self.slot.page, at as u32, FrameHeader::EXTRA_BYTES as u32))
    }

    /// The record that [`of_merged`](Self::of_merged) stored, if any.
    pub fn record(&self) -> Option<[u8; FrameHeader::EXTRA_BYTES]> {
        let at = self.record_at().filter(|_| self.frames() > 1)?;
        // SAFETY: no other code has the page, and writing needs `&mut self`.
        unsafe { self.kept_pages.memory.slice(&at) }.first_chunk().copied()
    }

    /// The position of the first hidden frame in the batch, and the number of hidden frames.
    pub fn hidden(&self) -> Option<(usize, usize)> {
        (self.hidden.1 > 0).then_some((self.hidden.0.into(), self.hidden.1.into()))
    }

    /// Returns how many frames the packet counts as: one, plus the hidden frames.
    pub fn frames(&self) -> u64 {
        1 + if self.front == 0 { 0 } else { u64::from(self.hidden.1) }
    }

    /// Turns this merged packet into a frame of its first `len` bytes. After this call, the hidden
    /// frames (with the rest of the payload) belong to no packet. Changes nothing if the page is
    /// too short, or if this is not a merged packet.
    pub fn cut_to(&mut self, len: usize, frame: &Frame<'_>) {
        let (headers, most) = (self.slot.len(), self.slot.len() + self.behind_bytes(frame));
        let len = len.min(most);
        let Some(slot) = self.slot.resized(0, len as i32 - headers as i32).filter(|_| self.frames() > 1) else {
            return;
        };
        let memory = &self.kept_pages.memory;
        if memory.start(&slot).is_none() {
            return;
        }
        let mut at = headers;
        // SAFETY: as in `deref_mut`: no other code has the page.
        let bytes = unsafe { memory.slice_mut(&slot) };
        for part in self.behind(frame) {
            let part = &part[..part.len().min(len - at)];
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        // SAFETY: as above.
        self.slot = unsafe { memory.carry_header(&self.slot, slot, len as i32 - most as i32) };
        self.front = 0;
    }

    pub(crate) fn hide(&mut self, from: usize, count: usize) {
        self.hidden = (from as u8, count as u8);
    }

    /// For a copy of only the first bytes of a frame, returns the number of these bytes. `None` for
    /// a whole frame.
    #[inline]
    pub fn front(&self) -> Option<usize> {
        (self.front != 0).then_some(self.front.into())
    }

    /// The bytes of `frame` that were not copied, followed by the hidden frames merged with it.
    #[inline]
    pub fn behind<'f>(&self, frame: &'f Frame<'_>) -> Behind<'f> {
        frame.behind(self.front().unwrap_or(usize::MAX), self.hidden.0.into(), self.hidden.1.into())
    }

    /// The number of bytes over which [`behind`](Self::behind) iterates.
    #[inline]
    pub fn behind_bytes(&self, frame: &Frame<'_>) -> usize {
        if self.front == 0 { 0 } else { self.behind(frame).map(<[u8]>::len).sum() }
    }

    /// Returns the whole packet, page by page, if this is a copy of `frame` or of the first bytes
    /// of `frame`.
    #[inline]
    pub fn segments_with<'s>(&'s self, frame: &'s Frame<'_>) -> Segments<'s> {
        let copied = self.segments();
        if self.front == 0 { copied } else { copied.followed_by(self.behind(frame)) }
    }

    /// Splits a frame after the first `bytes` bytes. If `written` is a copy of the first bytes, the
    /// copy is returned instead of the bytes in the frame.
    #[inline]
    pub fn split<'s>(written: Option<&'s Self>, frame: &'s Frame<'_>, bytes: usize) -> (&'s [u8], Behind<'s>) {
        let whole = || (frame.bytes().get(..bytes).unwrap_or(frame.bytes()), frame.behind(bytes, 0, 0));
        written.map_or_else(whole, |copy| (&**copy, copy.behind(frame)))
    }

    /// The flow hash by which the frame was steered to its CPU.
    pub fn hash(&self) -> Option<u32> {
        self.slot.hash()
    }

    /// The kind of the frame's first header: see [`Frame::link`](crate::ring::Frame::link).
    pub fn link(&self) -> u8 {
        self.slot.link()
    }

    /// Like [`Frame::set_link`](crate::ring::Frame::set_link).
    pub fn set_link(&mut self, link: u8) {
        self.slot = self.slot.with_link(link);
    }

    /// The frame's bytes, part by part. [`Deref`] returns only the first part.
    pub fn segments(&self) -> Segments<'_> {
        // SAFETY: no other code has the slot, and writing needs `&mut self`.
        unsafe { self.kept_pages.memory.segments_of(&self.slot) }
    }

    /// The frame's bytes for writing, page by page.
    pub fn segments_mut(&mut self) -> SegmentsMut<'_> {
        // SAFETY: as in `deref_mut`: no other code has any of the pages.
        unsafe { self.kept_pages.memory.segments_mut_of(&self.slot) }
    }

    /// Returns true if the frame lies in pages of this region.
    pub fn is_in(&self, region: &Arc<Region>) -> bool {
        Arc::ptr_eq(self.kept_pages.memory.pool(), region)
    }

    /// The memory that the frame's pages occupy, in bytes.
    pub fn truesize(&self) -> usize {
        self.kept_pages.memory.truesize(&self.slot)
    }

    /// The length of the frame in all of its pages, in bytes.
    pub fn total_len(&self) -> usize {
        self.kept_pages.memory.total_of(&self.slot)
    }

    /// Like [`Frame::linearise`](crate::ring::Frame::linearise).
    pub fn linearise(&mut self) -> bool {
        if !self.slot.is_chained() {
            return true;
        }
        // SAFETY: as in `deref_mut`: no other code has any of the pages.
        let linear = unsafe { self.kept_pages.memory.linearise(&self.slot) };
        self.slot = linear.unwrap_or(self.slot);
        linear.is_some()
    }

    /// Like [`Frame::room`](crate::ring::Frame::room).
    pub fn room(&self) -> (usize, usize) {
        self.kept_pages.memory.room(&self.slot)
    }

    /// Like [`Frame::resize`](crate::ring::Frame::resize).
    pub fn resize(&mut self, front: i32, back: i32) -> bool {
        // SAFETY: as in `deref_mut`: no other code has any of the pages.
        let resized = unsafe { self.kept_pages.memory.resize(&self.slot, front, back) };
        self.slot = resized.unwrap_or(self.slot);
        resized.is_some()
    }

    /// The header that the device wrote, if any.
    pub fn header(&self) -> Option<FrameHeader> {
        // SAFETY: no other code has the slot, and its page is written only through `&mut self`.
        unsafe { self.kept_pages.memory.header(&self.slot) }
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.kept_pages.memory.pool().check_generation(self.slot.page, self.generation);
        // SAFETY: the slot was taken off its ring, so no other code has it, and writing needs
        // `&mut self`.
        unsafe { self.kept_pages.memory.slice(&self.slot) }
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.kept_pages.memory.pool().check_generation(self.slot.page, self.generation);
        // SAFETY: as `deref`; lent frames are never kept.
        unsafe { self.kept_pages.memory.slice_mut(&self.slot) }
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
            self.kept_pages.memory.pool().check_generation(self.slot.page, self.generation);
        }
        let pool = self.kept_pages.memory.pool();
        pool.take_apart(Completion::from_slot(self.slot), |page, _, _| self.kept_pages.waiting.put(pool, page));
        // Relaxed: no other memory depends on this count. The pages of a frame are pushed before
        // the count falls, so every page that is no longer counted has already returned.
        self.kept_pages.kept.fetch_sub(1, Ordering::Relaxed);
    }
}
