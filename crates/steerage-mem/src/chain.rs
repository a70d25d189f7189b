//! A frame that lies in several pages has one slot: the number of the first page, which is called
//! the head, and a bit that is set if more pages follow. The pages after the head are listed in a
//! separate table, with one entry for each page of the region.
//!
//! Why not one slot for each page: a frame could be cut in two when a ring or a parking lot becomes
//! full, when a budget is used up, or when slots are revoked. With one slot for each page, counters
//! would count slots instead of frames, and every loop over slots would have to check a flag. With
//! one slot for each frame, only the code that takes pages back checks whether more pages follow.
//! (The same comparison detects lent frames.)
//!
//! The links between pages are not stored in the pages, because devices and packet functions write
//! to pages. Code outside of this crate cannot change the links, and every page keeps its full
//! headroom.
//!
//! Whoever holds the slot of a frame holds all pages of its chain until the chain is [taken
//! apart](Region::take_apart). Pages that become unnecessary stay in the chain as empty parts. The
//! flow hash and the flow key are computed from the bytes in the head (first page).

#[cfg(all(test, not(loom)))]
mod tests;

use crate::header::FrameHeader;
use crate::links::Link;
use crate::memory::Memory;
use crate::page::{BLANK, Completion, FRAME_BYTES_MAX, Page, Slot, offset_of};
use crate::region::Region;
use crate::sync::{Ordering, UnsafeCell};

/// The maximum number of pages of a frame, as in AF_XDP: `CONFIG_MAX_SKB_FRAGS` (17 by default)
/// plus one (Documentation/networking/af_xdp.rst).
pub const SEGMENTS_MAX: usize = 18;

#[derive(Clone, Debug)]
pub(crate) struct Parts<'a> {
    region: &'a Region,
    next: Option<Slot>,
    left: usize,
}

impl Iterator for Parts<'_> {
    type Item = Slot;

    #[inline]
    fn next(&mut self) -> Option<Slot> {
        let part = self.next.take()?;
        self.left -= 1;
        // The link is read before the part is returned, because the caller may put this page into
        // another chain.
        if part.is_chained() && self.left > 0 {
            self.next = self.region.behind(&part);
        }
        Some(part)
    }
}

impl Region {
    fn link(&self, page: u32) -> Option<&Link> {
        self.links.get(self.index_of(page)? as usize)
    }

    fn behind(&self, part: &Slot) -> Option<Slot> {
        let link = self.link(part.page)?;
        let next = link.next.load(Ordering::Relaxed);
        self.index_of(next)?;
        Some(Slot::part(next, link.offset.load(Ordering::Relaxed), link.len.load(Ordering::Relaxed)))
    }

    fn parts_of(&self, slot: &Slot) -> Parts<'_> {
        Parts { region: self, next: Some(*slot), left: SEGMENTS_MAX }
    }

    /// Appends `len` bytes at `offset` of `page` to a frame as its last part. `Err` returns the
    /// page if it belongs to another region, the bytes do not lie in it, or the frame would have
    /// more than [`SEGMENTS_MAX`] parts or [`FRAME_BYTES_MAX`] bytes.
    pub fn append(&self, frame: &mut Completion, page: Page, offset: usize, len: usize) -> Result<(), Page> {
        let offset = offset_of(offset);
        let head = frame.slot();
        let (Some(first), false) = (self.link(head.page), head.is_lent()) else { return Err(page) };
        let Some(own) = self.link(page.number()) else { return Err(page) };
        let rest = if head.is_chained() { first.rest.load(Ordering::Relaxed) } else { 0 };
        let (parts, last) = self.parts_of(&head).fold((0, head), |(parts, _), part| (parts + 1, part));
        let fits = self.start_of(page.number(), offset, len).is_some();
        if parts >= SEGMENTS_MAX || !fits || head.len() + rest as usize + len > FRAME_BYTES_MAX {
            return Err(page);
        }
        let Some(last) = self.link(last.page) else { return Err(page) };
        own.next.store(BLANK, Ordering::Relaxed);
        last.offset.store(offset, Ordering::Relaxed);
        last.len.store(len as u32, Ordering::Relaxed);
        last.next.store(page.number(), Ordering::Relaxed);
        first.rest.store(rest + len as u32, Ordering::Relaxed);
        frame.set_chained();
        Ok(())
    }

    /// The length of a frame including all of its parts, in bytes.
    pub fn total_len(&self, frame: &Completion) -> usize {
        self.total_of(&frame.slot())
    }

    #[inline(always)]
    fn total_of(&self, slot: &Slot) -> usize {
        if slot.is_chained() { self.total_of_chain(slot.page, slot.len()) } else { slot.len() }
    }

    /// The arguments are passed by value, so that callers can keep the slot of a single-page frame
    /// in registers.
    #[cold]
    #[inline(never)]
    fn total_of_chain(&self, page: u32, len: usize) -> usize {
        // The length is 0 after the frame's pages were taken.
        self.link(page).map_or(0, |link| len + link.rest.load(Ordering::Relaxed) as usize)
    }

    /// Passes each page of a frame, with the offset and length of its part, to `each`.
    pub fn take_apart(&self, frame: Completion, mut each: impl FnMut(Page, u32, usize)) {
        let head = frame.slot();
        if !head.is_lent() {
            self.parts_of(&head).for_each(|part| each(Page::new(part.page), part.offset, part.len()));
        }
    }

    /// Creates an empty frame from `pages`, with as many pages as `frame` has, or returns `None`
    /// and takes no page.
    pub(crate) fn in_exchange(&self, frame: &Slot, pages: &mut Vec<Page>) -> Option<Completion> {
        let count = if frame.is_chained() { self.parts_of(frame).count() } else { 1 };
        let from = pages.len().checked_sub(count)?;
        if !pages[from..].iter().all(|page| self.holds(page)) {
            return None;
        }
        let mut empty = Completion::new(pages.pop()?, 0, 0);
        for page in pages.drain(from..) {
            let _ = self.append(&mut empty, page, 0, 0);
        }
        Some(empty)
    }
}

/// The bytes of a frame, part by part, without empty parts.
///
/// ```
/// /// The sum of a frame's bytes, whichever pages they lie in.
/// fn sum(frame: steerage_mem::Segments<'_>) -> u64 {
///     frame.flatten().map(|byte| u64::from(*byte)).sum()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    memory: &'a Memory,
    parts: Parts<'a>,
    /// The rest of a packet's payload, which is stored in the memory of other frames.
    then: Option<Behind<'a>>,
}

impl<'a> Segments<'a> {
    #[inline]
    pub(crate) fn followed_by(self, then: Behind<'a>) -> Self {
        Self { then: Some(then), ..self }
    }
}

/// The bytes after the copied headers of a packet, part by part: those of its frame, and those of
/// the frames that were [merged](crate::merged) into it.
#[derive(Clone, Debug)]
pub struct Behind<'a> {
    memory: &'a Memory,
    first: &'a [u8],
    slots: [&'a [UnsafeCell<Slot>]; 2],
    skip: usize,
}

impl<'a> Behind<'a> {
    /// While the new iterator exists, the caller must hold the slots, and no code may write the
    /// bytes.
    pub(crate) fn new(memory: &'a Memory, frame: &'a [u8], slots: [&'a [UnsafeCell<Slot>]; 2], skip: usize) -> Self {
        Self { memory, first: frame.get(skip..).unwrap_or_default(), slots, skip }
    }
}

impl<'a> Iterator for Behind<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let bytes = std::mem::take(&mut self.first);
            if !bytes.is_empty() {
                return Some(bytes);
            }
            let (slot, rest) = self.slots[0].split_first().or_else(|| {
                self.slots[0] = std::mem::take(&mut self.slots[1]);
                self.slots[0].split_first()
            })?;
            self.slots[0] = rest;
            // SAFETY: the code that made this iterator guarantees that the slots are held, and that
            // neither they nor their frames are written, while they are borrowed.
            let bytes = unsafe { self.memory.slice(&slot.with(|slot| *slot)) };
            self.first = bytes.get(self.skip..).unwrap_or_default();
        }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // SAFETY: the code that made this iterator guarantees that the frame is held, and not
        // written, while it is borrowed.
        let part = self.parts.by_ref().map(|part| unsafe { self.memory.slice(&part) }).find(|bytes| !bytes.is_empty());
        part.or_else(|| self.then.as_mut()?.next())
    }
}

/// The bytes of a frame for writing, part by part, without empty parts.
///
/// ```
/// /// Hides what a frame says.
/// fn blank(frame: steerage_mem::SegmentsMut<'_>) {
///     frame.for_each(|part| part.fill(0));
/// }
/// ```
#[derive(Debug)]
pub struct SegmentsMut<'a> {
    memory: &'a Memory,
    parts: Parts<'a>,
}

impl<'a> Iterator for SegmentsMut<'a> {
    type Item = &'a mut [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a mut [u8]> {
        // SAFETY: the code that made this iterator holds the frame mutably for as long. The parts
        // lie in different pages, because each page has one token and can be appended to only one
        // frame. So the slices do not overlap.
        self.parts.by_ref().map(|part| unsafe { self.memory.slice_mut(&part) }).find(|bytes| !bytes.is_empty())
    }
}

impl Memory {
    /// The frame's bytes, page by page.
    pub fn segments<'a>(&'a self, frame: &'a Completion) -> Segments<'a> {
        // SAFETY: the completion is borrowed for as long, as in `bytes`.
        unsafe { self.segments_of(&frame.slot()) }
    }

    /// The length of the frame including all of its parts, in bytes.
    pub fn total_len(&self, frame: &Completion) -> usize {
        self.total_of(&frame.slot())
    }

    /// # Safety
    /// The rules of [`slice`](Self::slice) apply to all parts of the frame.
    pub(crate) unsafe fn segments_of(&self, slot: &Slot) -> Segments<'_> {
        Segments { memory: self, parts: self.pool().parts_of(slot), then: None }
    }

    /// # Safety
    /// The rules of [`slice_mut`](Self::slice_mut) apply to all pages of the frame, as long as the
    /// iterator or one of its slices lives.
    pub(crate) unsafe fn segments_mut_of(&self, slot: &Slot) -> SegmentsMut<'_> {
        SegmentsMut { memory: self, parts: self.pool().parts_of(slot) }
    }

    /// Copies the bytes of all pages to `to`. Returns the number of copied bytes, or `None` if `to`
    /// is too short.
    pub fn copy_to(&self, frame: &Completion, to: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        for part in self.segments(frame) {
            to.get_mut(at..)?.get_mut(..part.len())?.copy_from_slice(part);
            at += part.len();
        }
        Some(at)
    }

    /// See [`Frame::truesize`](crate::ring::Frame::truesize).
    pub(crate) fn truesize(&self, slot: &Slot) -> usize {
        if slot.is_lent() {
            return slot.len() + if slot.has_header() { FrameHeader::BYTES } else { 0 };
        }
        let pages = if slot.is_chained() { self.pool().parts_of(slot).count() } else { 1 };
        pages * self.pool().page_bytes()
    }

    #[inline(always)]
    pub(crate) fn total_of(&self, slot: &Slot) -> usize {
        self.pool().total_of(slot)
    }

    pub(crate) fn last_part(&self, slot: &Slot) -> Slot {
        self.pool().parts_of(slot).filter(|part| part.len() > 0).last().unwrap_or(*slot)
    }

    /// # Safety
    /// As for `resize`.
    #[cold]
    pub(crate) unsafe fn resize_chain(&self, slot: &Slot, front: i32, back: i32) -> Option<Slot> {
        let mut chain = Chain::of(self.pool().parts_of(slot));
        let total = self.total_of(slot).checked_add_signed(front as isize)?.checked_add_signed(back as isize)?;
        if total > FRAME_BYTES_MAX {
            return None;
        }
        // The front is changed first, because a cut at the end may remove bytes that were added at
        // the front.
        chain.0[0] = chain.0[0].resized(front, 0)?;
        self.start(&chain.0[0])?;
        if back > 0 {
            let last = chain.parts().iter().rposition(|part| part.len() > 0).unwrap_or(0);
            let longer = chain.0[last].resized(0, back)?;
            self.start(&longer)?;
            chain.0[last] = longer;
        } else {
            chain.cut(total);
        }
        let resized = chain.0[0];
        chain.write(self.pool());
        // SAFETY: the caller's promise.
        Some(unsafe { self.carry_header(slot, resized, front + back) })
    }

    /// Joins the parts of a frame in its first page. If there is not enough room after the first
    /// part, the first part and the device's header before it are first moved towards the front of
    /// the page. Returns `None` and changes nothing if the page is too short.
    ///
    /// # Safety
    /// The rules of [`slice_mut`](Self::slice_mut) apply to all pages of the frame.
    #[cold]
    pub(crate) unsafe fn linearise(&self, slot: &Slot) -> Option<Slot> {
        let total = self.total_of(slot);
        let page_bytes = self.pool().page_bytes().min(FRAME_BYTES_MAX);
        let (from, len) = (slot.offset as usize, slot.len());
        let header = if slot.has_header() { FrameHeader::BYTES.min(from) } else { 0 };
        let to = page_bytes.checked_sub(total)?.min(from);
        if to < header {
            return None;
        }
        let mut chain = Chain::of(self.pool().parts_of(slot));
        // SAFETY: the caller's promise; no other part lies in the head's page.
        let page = unsafe { self.slice_mut(&Slot::part(slot.page, 0, page_bytes as u32)) };
        page.get(from - header..from + len)?;
        page.copy_within(from - header..from + len, to - header);
        let mut at = to + len;
        for part in &chain.parts()[1..] {
            // SAFETY: the caller's promise.
            let bytes = unsafe { self.slice(part) };
            page[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        chain.0[0] = chain.0[0].with_len(total);
        chain.0[0].offset = to as u32;
        chain.cut(total);
        chain.write(self.pool());
        Some(chain.0[0])
    }
}

struct Chain([Slot; SEGMENTS_MAX], usize);

impl Chain {
    fn of(parts: Parts<'_>) -> Self {
        let (mut all, mut count) = ([Slot::default(); SEGMENTS_MAX], 0);
        for part in parts {
            all[count] = part;
            count += 1;
        }
        Self(all, count)
    }

    fn parts(&self) -> &[Slot] {
        &self.0[..self.1]
    }

    fn cut(&mut self, mut len: usize) {
        for part in &mut self.0[..self.1] {
            *part = part.with_len(part.len().min(len));
            len -= part.len();
        }
    }

    fn write(&self, region: &Region) {
        let parts = self.parts();
        for pair in parts.windows(2) {
            if let Some(link) = region.link(pair[0].page) {
                link.len.store(pair[1].len() as u32, Ordering::Relaxed);
            }
        }
        if let Some(link) = region.link(parts[0].page) {
            let rest: usize = parts[1..].iter().map(Slot::len).sum();
            link.rest.store(rest as u32, Ordering::Relaxed);
        }
    }
}
