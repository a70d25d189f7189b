//! [`Memory`] finds the bytes of a received frame, in pages of the pool or in a block of the
//! device.

use std::sync::Arc;

use crate::header::FrameHeader;
use crate::page::{Completion, Slot};
use crate::region::{Region, View, prefetch_read};

/// The memory of one queue's frames: the pages of the pool, and the blocks of the device.
#[derive(Clone, Debug)]
pub struct Memory {
    pool: Arc<Region>,
    blocks: Option<Arc<Region>>,
}

impl Memory {
    /// Creates the memory of a queue whose frames lie in pages of `pool` or in `blocks`.
    pub fn new(pool: Arc<Region>, blocks: Option<Arc<Region>>) -> Self {
        Self { pool, blocks }
    }

    /// The region of the pool's pages, which can be written.
    pub fn pool(&self) -> &Arc<Region> {
        &self.pool
    }

    /// The bytes of a frame, or of its first part. Empty if the bytes do not lie in this memory.
    #[inline(always)]
    pub fn bytes<'a>(&'a self, frame: &'a Completion) -> &'a [u8] {
        // SAFETY: the completion is borrowed for as long as the slice, so no other thread holds the
        // frame. No code reads lent memory unless a frame of its block is lent.
        unsafe { self.slice(&frame.slot()) }
    }

    /// The header that the device wrote for the frame, if any.
    #[inline]
    pub fn header_of(&self, frame: &Completion) -> Option<FrameHeader> {
        // SAFETY: as `bytes`. The holder of the completion owns its page. A block is not written
        // before the end of a frame that is lent.
        unsafe { self.header(&frame.slot()) }
    }

    #[inline(always)]
    pub(crate) fn start(&self, slot: &Slot) -> Option<*mut u8> {
        self.start_of(slot, slot.offset, slot.len())
    }

    #[inline(always)]
    fn start_of(&self, slot: &Slot, offset: u32, len: usize) -> Option<*mut u8> {
        if slot.is_lent() {
            self.blocks.as_ref()?.start_of(slot.page, offset, len)
        } else {
            self.pool.check_in_use(slot.page);
            self.pool.start_of(slot.page, offset, len)
        }
    }

    /// # Safety
    /// The caller holds the slot, and nobody writes the frame while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn slice(&self, slot: &Slot) -> &[u8] {
        match self.start(slot) {
            // SAFETY: `start` checked the span. The caller promises that no other code writes the
            // span.
            Some(start) => unsafe { std::slice::from_raw_parts(start, slot.len()) },
            None => &[],
        }
    }

    /// # Safety
    /// The caller holds the slot, and no code writes the bytes before the frame while this function
    /// runs.
    #[inline]
    pub(crate) unsafe fn header(&self, slot: &Slot) -> Option<FrameHeader> {
        let before = slot.has_header().then(|| slot.before(FrameHeader::BYTES))??;
        // SAFETY: the caller's promise; it covers the bytes before the frame.
        let bytes = unsafe { self.slice(&before) };
        bytes.first_chunk().copied().map(|bytes| slot.header_of(bytes))
    }

    /// # Safety
    /// As [`header`](Self::header).
    #[inline]
    pub(crate) unsafe fn extra(&self, slot: &Slot) -> Option<[u8; FrameHeader::EXTRA_BYTES]> {
        let before = slot.has_extra().then(|| slot.before(FrameHeader::BYTES + FrameHeader::EXTRA_BYTES))??;
        // SAFETY: the caller's promise; it covers the bytes before the frame.
        unsafe { self.slice(&before) }.first_chunk().copied()
    }

    /// # Safety
    /// The rules of [`slice`](Self::slice) apply to the bytes before the frame too.
    #[inline(always)]
    pub(crate) unsafe fn framed(&self, slot: &Slot) -> (Option<FrameHeader>, &[u8]) {
        const BYTES: usize = FrameHeader::BYTES;
        if slot.has_header() && slot.offset >= BYTES as u32 {
            if let Some(start) = self.start_of(slot, slot.offset - BYTES as u32, BYTES + slot.len()) {
                // SAFETY: `start_of` checked the span. The caller promises that no other code
                // writes the span or the bytes before the frame.
                let bytes = unsafe { std::slice::from_raw_parts(start, BYTES + slot.len()) };
                if let Some((header, frame)) = bytes.split_first_chunk() {
                    return (Some(slot.header_of(*header)), frame);
                }
            }
        }
        // SAFETY: the caller's promise.
        (None, unsafe { self.slice(slot) })
    }

    /// # Safety
    /// The caller holds the slot, the slot's frame is not lent, and no other slice of the frame
    /// exists.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the slot stands for the right to write, not the memory")]
    pub(crate) unsafe fn slice_mut(&self, slot: &Slot) -> &mut [u8] {
        match self.pool.start_of(slot.page, slot.offset, slot.len()) {
            // SAFETY: `start_of` checked the span. The caller promises that no other thread reaches
            // the span.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start, slot.len()) },
            None => &mut [],
        }
    }

    /// See [`Frame::room`](crate::ring::Frame::room).
    #[inline]
    pub(crate) fn room(&self, slot: &Slot) -> (usize, usize) {
        if slot.is_lent() || self.start(slot).is_none() {
            return (0, 0);
        }
        let last = if slot.is_chained() { self.last_part(slot) } else { *slot };
        let end = last.offset as usize + last.len();
        (slot.offset as usize, self.pool.page_bytes().saturating_sub(end))
    }

    /// Changes the length of a frame. Copies only the header, not the frame. If there is no room
    /// before the frame, the header is lost.
    ///
    /// # Safety
    /// The rules of [`slice_mut`](Self::slice_mut) apply to all pages of the frame.
    #[inline]
    pub(crate) unsafe fn resize(&self, slot: &Slot, front: i32, back: i32) -> Option<Slot> {
        if slot.is_chained() {
            // SAFETY: the caller's promise.
            return unsafe { self.resize_chain(slot, front, back) };
        }
        let resized = slot.resized(front, back)?;
        if slot.is_lent() || self.start(&resized).is_none() {
            return None;
        }
        // SAFETY: the caller's promise.
        Some(unsafe { self.carry_header(slot, resized, front + back) })
    }

    /// # Safety
    /// The rules of [`slice_mut`](Self::slice_mut) apply to the whole page.
    #[inline]
    pub(crate) unsafe fn carry_header(&self, slot: &Slot, resized: Slot, longer: i32) -> Slot {
        // SAFETY: the caller's promise.
        let Some(mut header) = (unsafe { self.header(slot) }) else { return resized };
        let Some(before) = resized.before(FrameHeader::BYTES) else { return resized.without_header() };
        header.wire_len = header.wire_len.saturating_add_signed(longer);
        // SAFETY: the caller's promise; the header was copied out.
        unsafe { self.slice_mut(&before) }.copy_from_slice(&header.to_bytes());
        resized
    }

    #[inline(always)]
    pub(crate) fn view(&self, slot: &Slot) -> View {
        match &self.blocks {
            Some(blocks) if slot.is_lent() => blocks.view(),
            _ => self.pool.view(),
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, slot: &Slot) {
        if let Some(start) = self.start(slot) {
            prefetch_read(start);
        }
    }

    /// Like [`bytes`](Self::bytes), but also prefetches the frame, unless a device has just written
    /// it.
    #[inline(always)]
    pub fn bytes_soon<'a>(&'a self, frame: &'a Completion) -> &'a [u8] {
        let bytes = self.bytes(frame);
        if !frame.is_lent() || frame.is_record() {
            prefetch_read(bytes.as_ptr());
        }
        bytes
    }
}
