//! The frames that a CPU has *in hand*: taken from a ring or a lane, and not finished.

use crate::chain::{Behind, Segments, SegmentsMut};
use crate::header::FrameHeader;
use crate::memory::Memory;
use crate::page::{BLANK, Completion, Page, Slot};
use crate::sync::{AtomicU64, Ordering, UnsafeCell};

/// Slots of a buffer that only one CPU may read and rewrite.
#[derive(Debug)]
pub(super) struct InHand {
    pub(super) slots: *const UnsafeCell<Slot>,
    pub(super) arrivals: *const AtomicU64,
    pub(super) mask: u32,
    pub(super) begin: u64,
    pub(super) end: u64,
    /// The position after the last hidden frame (which the handler does not see), or 0.
    pub(super) hidden_end: u64,
    pub(super) memory: Memory,
}

// SAFETY: the slots between `begin` and `end` belong to the holder alone. The owner of an `InHand`
// keeps the buffers alive, and moves to another thread together with it.
unsafe impl Send for InHand {}

impl InHand {
    #[inline(always)]
    pub(super) fn slot(&self, at: u64) -> Slot {
        // SAFETY: as for `cell`.
        unsafe { (*self.cell(at)).with(|slot| *slot) }
    }

    /// The masked position is less than the capacity of the buffer.
    #[inline(always)]
    pub(super) fn cell(&self, at: u64) -> *const UnsafeCell<Slot> {
        self.slots.wrapping_add((at as u32 & self.mask) as usize)
    }
}

/// The frames in hand, borrowed from their [`Consumer`](super::Consumer) or [`Lane`](super::Lane).
#[derive(Debug)]
pub struct Hand<'a>(pub(super) &'a mut InHand);

impl Hand<'_> {
    /// The number of frames.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "a handler is never called without frames")]
    pub fn len(&self) -> usize {
        (self.0.end - self.0.begin) as usize
    }

    /// The frames, in order.
    #[inline(always)]
    pub fn frames(&mut self) -> Frames<'_> {
        Frames::of(self.0)
    }

    /// Calls `run` with the first `count` frames. All other frames are hidden: `run` can only read
    /// the bytes of a hidden frame, as the continuation of the frame into which the hidden frame is
    /// [merged](crate::merged).
    pub fn with_first<R>(&mut self, count: usize, run: impl FnOnce(Hand<'_>) -> R) -> R {
        /// When dropped, makes the hidden frames visible again, even if `run` has panicked.
        struct Hidden<'h>(&'h mut InHand);

        impl Drop for Hidden<'_> {
            fn drop(&mut self) {
                (self.0.end, self.0.hidden_end) = (self.0.hidden_end, 0);
            }
        }

        self.0.hidden_end = self.0.end;
        self.0.end = self.0.end.min(self.0.begin + count as u64);
        let hidden = Hidden(self.0);
        run(Hand(hidden.0))
    }

    /// Moves the frame at position `order[nth]` to position `nth`. The list of arrival numbers is
    /// not reordered. Changes nothing and returns `false` if `order` does not contain each frame
    /// exactly once.
    pub(crate) fn reorder(&mut self, order: &[u8]) -> bool {
        let hand = &*self.0;
        let seen = order.iter().fold(0_u64, |seen, nth| seen | 1_u64.checked_shl(u32::from(*nth)).unwrap_or(0));
        let all = u64::MAX.checked_shr(u64::BITS - self.len().min(64) as u32).unwrap_or(0);
        if order.len() != self.len() || self.len() > 64 || seen != all {
            return false;
        }
        let mut before = [Slot::default(); 64];
        before.iter_mut().zip(hand.begin..hand.end).for_each(|(to, at)| *to = hand.slot(at));
        for (at, nth) in (hand.begin..).zip(order) {
            // SAFETY: the masked position is under the capacity and the slot in hand, so it is ours
            // to write. Each slot is written to exactly one position, so no slot is lost or
            // duplicated.
            unsafe { (*hand.cell(at)).with_mut(|slot| *slot = before[usize::from(*nth)]) };
        }
        true
    }
}

/// Iterates over the frames that the CPU has in hand.
#[derive(Debug)]
pub struct Frames<'a> {
    hand: &'a InHand,
    at: u64,
    end: u64,
}

impl<'a> Frames<'a> {
    #[inline(always)]
    pub(super) fn of(hand: &'a mut InHand) -> Self {
        Self { at: hand.begin, end: hand.end, hand }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Frame<'a>> {
        if self.at == self.end {
            return None;
        }
        let frame = Frame { hand: self.hand, slot: self.hand.slot(self.at), at: self.at };
        self.at += 1;
        Some(frame)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.at) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Frames<'_> {}

impl Hand<'_> {
    /// Passes the batch's *common frames*, with their numbers, to `read`, which returns true if it
    /// has handled the frame. A common frame lies in one page, has no [extra record](Frame::extra),
    /// has `link` as its [kind of header](Frame::link), and has a [device header](Frame::header) if
    /// and only if the first frame has one. For a frame without a device header, `read` gets a
    /// header without a time. In the result, bit `n` is set if `read` has not handled frame `n` (of
    /// the first 64 frames). `read_common` takes about half of the instructions of a loop over
    /// single frames.
    #[inline(always)]
    pub fn read_common(&mut self, link: u8, mut read: impl FnMut(usize, &[u8], FrameHeader) -> bool) -> u64 {
        const BYTES: usize = FrameHeader::BYTES;
        let (count, hand) = (self.len().min(u64::BITS as usize), &*self.0);
        if count == 0 {
            return 0;
        }
        let mut others = 0;
        let first = hand.slot(hand.begin);
        let (view, headed) = (hand.memory.view(&first), first.has_header());
        let before = if headed { BYTES } else { 0 };
        for nth in 0..count {
            let slot = hand.slot(hand.begin + nth as u64);
            let len = slot.len();
            let offset = slot.offset.checked_sub(before as u32).filter(|_| slot.is_common(link, headed));
            if !slot.is_lent() {
                hand.memory.pool().check_in_use(slot.page);
            }
            let start = offset.and_then(|offset| view.start_of(slot.page, offset, before + len));
            let done = start.is_some_and(|start| {
                // SAFETY: the span was checked, the slot is held, and writing a frame needs a
                // `Frame`, for which the hand would have to be borrowed.
                let all = unsafe { std::slice::from_raw_parts(start, before + len) };
                // `read` is called at only one place, because the compiler would not inline two
                // calls.
                let (frame, header) = match all.split_first_chunk() {
                    Some((header, frame)) if headed => (frame, slot.header_of(*header)),
                    _ => (all, FrameHeader::of_whole(len)),
                };
                read(nth, frame, header)
            });
            if !done {
                others |= 1 << nth;
            }
        }
        others
    }
}

/// One frame in hand. Two `Frame` values for one slot never exist at the same time, because a frame
/// is not `Clone`, and [`Hand::frames`] borrows the hand mutably.
#[derive(Debug)]
pub struct Frame<'a> {
    hand: &'a InHand,
    slot: Slot,
    at: u64,
}

impl<'a> Frame<'a> {
    /// The frame's number in the batch.
    #[inline(always)]
    pub fn nth(&self) -> usize {
        (self.at - self.hand.begin) as usize
    }

    /// The bytes of the frame, or of its first part if the frame lies in several pages.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the slot is in hand, and writing needs `&mut self`.
        unsafe { self.hand.memory.slice(&self.slot) }
    }

    /// The bytes for writing. `None` for a lent frame, because other code may read its block.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.slot.is_lent() {
            return None;
        }
        // SAFETY: the slot is in hand and its page is ours alone; `&mut self` keeps other slices of
        // it away.
        Some(unsafe { self.hand.memory.slice_mut(&self.slot) })
    }

    /// The frame's bytes as one slice for each page.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        // SAFETY: as `bytes`; the slot stands for all of its pages.
        unsafe { self.hand.memory.segments_of(&self.slot) }
    }

    /// The bytes for writing, part by part. `None` for a lent frame.
    #[inline]
    pub fn segments_mut(&mut self) -> Option<SegmentsMut<'_>> {
        if self.slot.is_lent() {
            return None;
        }
        // SAFETY: as `bytes_mut`; the slot stands for all of its pages.
        Some(unsafe { self.hand.memory.segments_mut_of(&self.slot) })
    }

    /// The memory of the frame, in bytes: all of its pages, or, for a lent frame, only its bytes
    /// and its header.
    pub fn truesize(&self) -> usize {
        self.hand.memory.truesize(&self.slot)
    }

    /// The length of the frame in all of its pages, in bytes.
    #[inline(always)]
    pub fn total_len(&self) -> usize {
        self.hand.memory.total_of(&self.slot)
    }

    /// Returns true if the frame lies in more than one page.
    #[inline(always)]
    pub fn is_chained(&self) -> bool {
        self.slot.is_chained()
    }

    /// The bytes of this frame and of `count` [hidden](Hand::with_first) frames from the position
    /// `from` on in the batch, each without its first `skip` bytes.
    #[inline]
    pub fn behind(&self, skip: usize, from: usize, count: usize) -> Behind<'_> {
        let hand = self.hand;
        let (from, to) = (hand.begin + from as u64, hand.begin + (from + count) as u64);
        let hidden = if hand.end <= from && to <= hand.hidden_end { from..to } else { 0..0 };
        let until_wrap = u64::from(hand.mask) + 1 - (hidden.start & u64::from(hand.mask));
        let first = (hidden.end - hidden.start).min(until_wrap);
        let part = |at: u64, count: u64| -> &[UnsafeCell<Slot>] {
            if count == 0 {
                return &[];
            }
            // SAFETY: the slots are in hand and hidden, so no frame is made of them while `self` is
            // borrowed. These slots do not extend past the end of the buffer, where the second part
            // of the slots begins.
            unsafe { std::slice::from_raw_parts(hand.cell(at), count as usize) }
        };
        let slots = [part(hidden.start, first), part(hidden.start + first, hidden.end - hidden.start - first)];
        Behind::new(&hand.memory, self.bytes(), slots, skip)
    }

    /// The last `len` bytes, for writing. `None` for a lent frame, or if the frame's last part is
    /// shorter than `len`.
    #[inline]
    pub fn tail_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.slot.is_lent() {
            return None;
        }
        let last = if self.slot.is_chained() { self.hand.memory.last_part(&self.slot) } else { self.slot };
        // SAFETY: as `bytes_mut`.
        let bytes = unsafe { self.hand.memory.slice_mut(&last) };
        let from = bytes.len().checked_sub(len)?;
        bytes.get_mut(from..)
    }

    /// Copies the bytes of all pages into the first page. The other pages stay part of the frame
    /// until the frame returns to the pool. Returns `false` and changes nothing if a page is too
    /// short for the frame, or if the frame was taken out of its batch.
    #[inline]
    pub fn linearise(&mut self) -> bool {
        if !self.slot.is_chained() || self.slot.page == BLANK {
            return self.slot.page != BLANK;
        }
        // SAFETY: the slot is in hand and its pages are ours alone; `&mut self` keeps slices of
        // them away.
        let Some(linear) = (unsafe { self.hand.memory.linearise(&self.slot) }) else { return false };
        self.rewrite(linear);
        true
    }

    /// The free bytes before the frame in its first page, and after the frame in its last page.
    /// Returns `(0, 0)` for a lent frame.
    #[inline]
    pub fn room(&self) -> (usize, usize) {
        self.hand.memory.room(&self.slot)
    }

    /// Makes the frame `front` bytes longer at its front and `back` bytes longer at its end, or
    /// shorter if these numbers are negative. Added bytes keep the values that they have in the
    /// page. If there is room, the device's header moves to the frame's new beginning, and its
    /// length on the wire is corrected. Returns `false` and changes nothing if the page is too
    /// short, the frame is lent, or the frame was taken out of its batch.
    #[inline]
    pub fn resize(&mut self, front: i32, back: i32) -> bool {
        if self.slot.page == BLANK {
            return false;
        }
        // SAFETY: the slot is in hand and its pages are ours alone; `&mut self` keeps slices of
        // them away.
        let Some(resized) = (unsafe { self.hand.memory.resize(&self.slot, front, back) }) else { return false };
        self.rewrite(resized);
        true
    }

    /// Replaces the kind of the frame's first header, unless the frame was taken out of its batch.
    #[inline]
    pub fn set_link(&mut self, link: u8) {
        if self.slot.page != BLANK {
            self.rewrite(self.slot.with_link(link));
        }
    }

    #[inline(always)]
    fn rewrite(&mut self, changed: Slot) {
        self.slot = changed;
        // SAFETY: the masked position is under the capacity and the slot in hand, so it is ours to
        // write.
        unsafe { (*self.hand.cell(self.at)).with_mut(|slot| *slot = changed) };
    }

    /// The header that the device wrote, if any, and the frame's bytes.
    #[inline(always)]
    pub fn with_header(&self) -> (Option<FrameHeader>, &[u8]) {
        // SAFETY: as `bytes` and `header`.
        unsafe { self.hand.memory.framed(&self.slot) }
    }

    /// The header that the device wrote, if any.
    #[inline]
    pub fn header(&self) -> Option<FrameHeader> {
        // SAFETY: the slot is in hand; its page is written only through `&mut self`, and a block is
        // not written before the end of a frame that is out.
        unsafe { self.hand.memory.header(&self.slot) }
    }

    /// Returns true if the device wrote an [extra record](Self::extra) before the header.
    #[inline(always)]
    pub fn has_extra(&self) -> bool {
        self.slot.has_extra()
    }

    pub(crate) fn mark_extra(&mut self, yes: bool) {
        self.rewrite(self.slot.with_extra(yes));
    }

    /// Turns the frame into a plain packet that begins with the kind of header `link`.
    pub fn be_packet(&mut self, link: u8) {
        self.rewrite(self.slot.with_extra(false).with_link(link));
    }

    /// Returns false if the frame is lent, or if other frames are merged into it.
    #[inline(always)]
    pub fn is_writable(&self) -> bool {
        self.slot.is_writable()
    }

    /// The extra record that the device wrote before the header, if any.
    #[inline]
    pub fn extra(&self) -> Option<[u8; FrameHeader::EXTRA_BYTES]> {
        // SAFETY: as `header`.
        unsafe { self.hand.memory.extra(&self.slot) }
    }

    /// The length of the frame's part in its first page, in bytes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "a frame's length, not a collection's")]
    pub fn len(&self) -> usize {
        self.slot.len()
    }

    /// The offset of the frame in its page or block.
    #[inline(always)]
    pub fn offset(&self) -> u32 {
        self.slot.offset
    }

    /// The flow hash by which the frame was steered, if any.
    #[inline(always)]
    pub fn hash(&self) -> Option<u32> {
        self.slot.hash()
    }

    /// The kind of the frame's first header, as [`Completion::set_link`] set it.
    #[inline(always)]
    pub fn link(&self) -> u8 {
        self.slot.link()
    }

    /// Returns true if the frame lies in a block.
    #[inline(always)]
    pub fn is_lent(&self) -> bool {
        self.slot.is_lent()
    }

    /// The frame's arrival number, if its ring or lane keeps arrival numbers.
    #[inline]
    pub fn arrival(&self) -> Option<u64> {
        if self.hand.arrivals.is_null() {
            return None;
        }
        // SAFETY: there are at least as many numbers as slots. Other threads only see numbers of a
        // ring, which are written atomically. Only this thread accesses the arrival numbers in a
        // lane (the CPU's own frames).
        let number = unsafe { &*self.hand.arrivals.add((self.at as u32 & self.hand.mask) as usize) };
        // Relaxed: the acquire load C1 made the arrival number visible together with the slot.
        Some(number.load(Ordering::Relaxed))
    }

    /// Takes the frame out of the ring and blanks its slot (marks the slot as having no page), so
    /// that the page does not return to the pool with the slot. `Err` for a lent frame, and for a
    /// frame that was taken out before.
    pub fn take(self) -> Result<Completion, Self> {
        if self.slot.is_lent() || self.slot.page == BLANK {
            return Err(self);
        }
        // SAFETY: the masked position is under the capacity and the slot in hand, so it is ours to
        // write.
        unsafe { (*self.hand.cell(self.at)).with_mut(|slot| (*slot).page = BLANK) };
        Ok(Completion::from_slot(self.slot))
    }

    /// Takes the frame with its pages out of the ring, in exchange for an empty frame with as many
    /// pages from the end of `pages`. `None` if `pages` has too few pages or pages of other memory,
    /// if the frame is lent, or if the frame was taken out before.
    #[inline]
    pub fn swap(&mut self, pages: &mut Vec<Page>) -> Option<Completion> {
        if self.slot.is_lent() || self.slot.page == BLANK {
            return None;
        }
        let empty = self.hand.memory.pool().in_exchange(&self.slot, pages)?.slot();
        let taken = self.slot;
        self.rewrite(empty);
        Some(Completion::from_slot(taken))
    }
}
