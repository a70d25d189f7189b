//! Memory that holds many frames at once: a stretch of a capture file, a block of an AF_PACKET ring.
//!
//! Its frames are lent: read-only, without headroom, and the block may be filled again when the last of them is home.
//! The count is the owner's alone (a frame comes home when the owner reads its slot back behind the finished index), so
//! it is a plain number and no atomic.
//!
//! A block is lent from front to back, so the part behind the last frame lent may be written while frames before it are
//! out: a header in front of the next frame, or what a pipe brings in small pieces.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::header::FrameHeader;
use crate::page::{Completion, FRAME_BYTES_MAX};
use crate::region::{Owner, Region, RegionError};

/// The blocks of one queue, and what of each is out.
#[derive(Debug)]
pub struct Blocks {
    region: Arc<Region>,
    lent: Box<[Lent]>,
    /// What may be taken besides, in bytes.
    reserve: usize,
}

/// What of a block is out.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    /// How many frames.
    frames: u32,
    /// Where the last of them ends, or may end: nothing before is written while one is out.
    end: u32,
}

impl Lent {
    /// From where on the block may be written.
    #[inline(always)]
    fn writable_from(self) -> u32 {
        if self.frames == 0 { 0 } else { self.end }
    }
}

impl Blocks {
    /// Maps `count` blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map(count: usize, block_bytes: usize) -> Result<Self, RegionError> {
        // The tokens of single pages are not given out: a block is written through `writable` alone.
        let (region, _tokens) = Region::map(count, block_bytes)?;
        Ok(Self { region, lent: vec![Lent::default(); count].into(), reserve: 0 })
    }

    /// Blocks in memory that somebody else mapped: `count` of them, of `block_bytes` bytes, from `base` on. `owner` is
    /// dropped when nobody can reach them any more; what may be taken besides to keep them so, `reserve` bytes, counts as
    /// theirs.
    ///
    /// # Errors
    /// [`RegionError`] for a size of nothing or too much.
    ///
    /// # Safety
    /// `base` points to `count * block_bytes` readable and writable bytes that stay mapped until `owner` is dropped. Nobody
    /// else changes a block's bytes, as they are read from there, while a frame lent from it is out or a [`Tail`] of it
    /// is held; and whoever calls [`tail`](Self::tail) or [`readable`](Self::readable) does so only for a block that
    /// nobody else writes meanwhile.
    pub unsafe fn foreign(
        base: NonNull<u8>,
        count: usize,
        block_bytes: usize,
        owner: impl Any + Send + Sync,
        reserve: usize,
    ) -> Result<Self, RegionError> {
        let lent = vec![Lent::default(); count].into();
        Ok(Self { region: Region::foreign(base, count, block_bytes, Owner::new(owner))?, lent, reserve })
    }

    /// All the memory they may come to, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.region.bytes() + self.reserve
    }

    /// The memory they lie in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// How many blocks there are.
    pub fn count(&self) -> usize {
        self.lent.len()
    }

    /// How many frames of `block` are out. 0 for a block there isn't.
    #[inline(always)]
    pub fn out(&self, block: usize) -> u32 {
        self.lent.get(block).map_or(0, |lent| lent.frames)
    }

    /// How many frames are out in all.
    pub fn out_in_all(&self) -> u64 {
        self.lent.iter().map(|lent| u64::from(lent.frames)).sum()
    }

    /// The part of `block` behind the last frame lent, all of it while none is out: to be written, and to be lent from.
    /// `None` for a block there isn't.
    #[inline]
    pub fn tail(&mut self, block: usize) -> Option<Tail<'_>> {
        let lent = self.lent.get_mut(block)?;
        lent.end = lent.writable_from();
        let number = self.region.number_of(block as u32);
        let len = self.region.page_bytes() - lent.end as usize;
        let start = self.region.start_of(number, lent.end, len)?;
        // SAFETY: the span was checked. No frame that is out reaches into it (`end`), frames are made through a `Tail`
        // or by `lend` alone, which need `&mut self` as this does: so for as long as the slice lives nobody else can
        // reach these bytes, and a `Tail` gives up those that it lends.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
        Some(Tail { bytes, number, lent })
    }

    /// The bytes of `block`, to be read: by its owner while frames of it are out.
    pub fn readable(&self, block: usize) -> &[u8] {
        if block >= self.lent.len() {
            return &[];
        }
        let len = self.region.page_bytes();
        match self.region.start_of(self.region.number_of(block as u32), 0, len) {
            // SAFETY: the span was checked, and a `Tail` needs `&mut self`: nobody writes while this is borrowed.
            Some(start) => unsafe { std::slice::from_raw_parts(start, len) },
            None => &[],
        }
    }

    /// Lends `len` bytes at `offset` of `block` as a frame: `None` if they do not lie within it, or are more than
    /// [`FRAME_BYTES_MAX`].
    #[inline]
    pub fn lend(&mut self, block: usize, offset: u32, len: usize) -> Option<Completion> {
        let lent = self.lent.get_mut(block)?;
        let number = self.region.number_of(block as u32);
        if len > FRAME_BYTES_MAX {
            return None;
        }
        self.region.start_of(number, offset, len)?;
        let frames = lent.frames.checked_add(1)?;
        *lent = Lent { frames, end: lent.writable_from().max(offset + len as u32) };
        Some(Completion::lent(number, offset, len))
    }

    /// Takes a frame home. `Err` returns one that is not of these blocks.
    #[inline]
    pub fn recycle(&mut self, frame: Completion) -> Result<(), Completion> {
        self.homecoming().recycle(frame)
    }

    /// To take many frames home.
    #[inline(always)]
    pub fn homecoming(&mut self) -> Homecoming<'_> {
        Homecoming { number: self.region.number_of(0), block: 0, frames: 0, blocks: self }
    }
}

/// Frames on their way home: those of a block mostly come one behind the other, and are counted together. Each count on its own
/// would have to wait for the one before (1.5 ns a frame).
#[derive(Debug)]
pub struct Homecoming<'a> {
    blocks: &'a mut Blocks,
    /// The block that is being counted, and its page's number.
    block: u32,
    number: u32,
    frames: u32,
}

impl Homecoming<'_> {
    /// As [`Blocks::recycle`]; counted when this ends.
    #[inline(always)]
    pub fn recycle(&mut self, frame: Completion) -> Result<(), Completion> {
        let slot = frame.slot();
        if !slot.is_lent() {
            return Err(frame);
        }
        if slot.page != self.number {
            let Some(block) = self.blocks.region.index_of(slot.page) else { return Err(frame) };
            self.count();
            (self.block, self.number, self.frames) = (block, slot.page, 0);
        }
        self.frames += 1;
        Ok(())
    }

    fn count(&mut self) {
        self.blocks.lent[self.block as usize].frames -= self.frames;
    }
}

impl Drop for Homecoming<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.count();
    }
}

/// The part of a block that may be written and lent from, front to back.
#[derive(Debug)]
pub struct Tail<'a> {
    bytes: &'a mut [u8],
    number: u32,
    lent: &'a mut Lent,
}

impl Tail<'_> {
    /// What has yet to be lent.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The same, up to byte `end` of the block.
    #[inline]
    #[must_use]
    pub fn up_to(mut self, end: usize) -> Self {
        let len = end.saturating_sub(self.offset()).min(self.bytes.len());
        self.bytes = &mut std::mem::take(&mut self.bytes)[..len];
        self
    }

    /// Where in its block the first of [`bytes`](Self::bytes) lies.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.lent.end as usize
    }

    /// Lends `len` bytes, `at` bytes into [`bytes`](Self::bytes), as a frame; they and what is before them are no longer
    /// part of it. `None` if they do not lie within it.
    #[inline(always)]
    pub fn lend(&mut self, at: usize, len: usize) -> Option<Completion> {
        let end = at.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        let frames = self.lent.frames.checked_add(1)?;
        self.bytes = &mut std::mem::take(&mut self.bytes)[end..];
        let offset = self.lent.end + at as u32;
        *self.lent = Lent { frames, end: self.lent.end + end as u32 };
        Some(Completion::lent(self.number, offset, len))
    }
}

/// Where a frame lies, and what its device knows of it: see [`Tail::lend_each`].
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    at: usize,
    len: usize,
    /// As two words: put together of smaller ones on its way, it would have to be waited for (3 ns a frame).
    header: [u64; 2],
    wire_len: u32,
}

impl Spot {
    /// `len` bytes, `at` bytes on from the first that has yet to be lent: at least [`FrameHeader::BYTES`], which is where `header`
    /// goes.
    #[inline(always)]
    pub fn new(at: usize, len: usize, header: FrameHeader) -> Self {
        Self { at, len, header: header.to_words(), wire_len: header.wire_len }
    }

    /// The same, so many bytes further on.
    #[inline(always)]
    #[must_use]
    pub fn further(self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self }
    }

    /// The frame's length on the wire, in bytes.
    #[inline(always)]
    pub fn wire_len(&self) -> u32 {
        self.wire_len
    }
}

impl Tail<'_> {
    /// Lends up to `count` frames one behind the other, and puts them behind `frames`. `next` gets what has yet to be lent and says
    /// where in it the next one is. Ends with what `next` says instead; a spot that does not lie within it gives `outside`.
    ///
    /// The same as [`lend`](Self::lend) again and again, with all that changes from frame to frame in registers: half the
    /// instructions.
    #[inline(always)]
    pub fn lend_each<E>(
        &mut self,
        frames: &mut Vec<Completion>,
        count: usize,
        outside: impl Fn() -> E,
        mut next: impl FnMut(&mut [u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        frames.reserve(count);
        let first = frames.len();
        let bytes = std::mem::take(&mut self.bytes);
        let lent = *self.lent;
        let mut under_way = UnderWay { bytes, lent, first, lent_now: 0, frames, tail: self };
        let number = under_way.tail.number;
        while under_way.lent_now < count {
            let Spot { at, len, header, .. } = match next(under_way.bytes) {
                Ok(spot) => spot,
                Err(end) => return Some(end),
            };
            let bytes = std::mem::take(&mut under_way.bytes);
            let Some((before, rest)) = at.checked_add(len).and_then(|end| bytes.split_at_mut_checked(end)) else {
                return Some(outside());
            };
            let Some(to) = before.get_mut(..at).and_then(<[u8]>::last_chunk_mut) else { return Some(outside()) };
            *to = FrameHeader::bytes_of(header);
            under_way.bytes = rest;
            let frame = Completion::lent(number, under_way.lent.end + at as u32, len).with_header();
            // No more than there are bytes in a block, which 32 bits count.
            under_way.lent = Lent { frames: under_way.lent.frames + 1, end: under_way.lent.end + (at + len) as u32 };
            under_way.push(frame);
        }
        None
    }
}

/// What [`Tail::lend_each`] has to note when it ends, and be it by a panic: a frame that is out is counted.
struct UnderWay<'t, 'a> {
    bytes: &'a mut [u8],
    lent: Lent,
    first: usize,
    lent_now: usize,
    frames: &'t mut Vec<Completion>,
    tail: &'t mut Tail<'a>,
}

impl UnderWay<'_, '_> {
    #[inline(always)]
    fn push(&mut self, frame: Completion) {
        // SAFETY: `count` entries were reserved behind the `first`, and fewer than that have been written.
        unsafe { self.frames.as_mut_ptr().add(self.first + self.lent_now).write(frame) };
        self.lent_now += 1;
    }
}

impl Drop for UnderWay<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: so many entries have been written.
        unsafe { self.frames.set_len(self.first + self.lent_now) };
        self.tail.bytes = std::mem::take(&mut self.bytes);
        *self.tail.lent = self.lent;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_writable_behind_its_frames_until_they_are_home() {
        let mut blocks = Blocks::map(2, 4096).unwrap();
        blocks.tail(0).unwrap().bytes()[..8].copy_from_slice(b"abcdefgh");
        let mut tail = blocks.tail(0).unwrap();
        let first = tail.lend(0, 2).unwrap();
        let second = tail.lend(1, 0).unwrap();
        assert_eq!(tail.offset(), 3);
        assert_eq!(&tail.bytes()[..3], b"def");
        assert_eq!((blocks.tail(0).unwrap().offset(), blocks.tail(1).unwrap().offset()), (3, 0));
        assert_eq!(&blocks.readable(0)[..4], b"abcd");
        blocks.recycle(second).unwrap();
        assert_eq!(blocks.tail(0).unwrap().offset(), 3);
        blocks.recycle(first).unwrap();
        assert_eq!(blocks.tail(0).unwrap().offset(), 0);
        assert_eq!(blocks.out_in_all(), 0);
        assert!(blocks.tail(2).is_none());
    }

    #[test]
    fn a_tail_lends_what_it_has_and_no_more() {
        let mut blocks = Blocks::map(1, 128).unwrap();
        let mut tail = blocks.tail(0).unwrap();
        for (at, len) in [(129, 0), (128, 1), (0, 129), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(tail.lend(at, len).is_none(), "{len} at {at}");
        }
        assert_eq!(tail.bytes().len(), 128);
        let mut shorter = blocks.tail(0).unwrap().up_to(10);
        assert!(shorter.bytes().len() == 10 && shorter.lend(0, 11).is_none());
        let mut tail = blocks.tail(0).unwrap().up_to(1000);
        let all = tail.lend(28, 100).unwrap();
        assert!(tail.bytes().is_empty() && tail.lend(0, 1).is_none());
        blocks.recycle(all).unwrap();
    }

    /// Wherever it was lent, nothing of it is written.
    #[test]
    fn frames_lent_out_of_order_are_not_written_either() {
        let mut blocks = Blocks::map(1, 128).unwrap();
        let late = blocks.lend(0, 60, 20).unwrap();
        let early = blocks.lend(0, 10, 20).unwrap();
        assert_eq!(blocks.tail(0).unwrap().offset(), 80);
        blocks.recycle(late).unwrap();
        assert_eq!(blocks.tail(0).unwrap().offset(), 80);
        blocks.recycle(early).unwrap();
    }

    #[test]
    fn frames_outside_their_block_are_not_lent() {
        let mut blocks = Blocks::map(1, 128).unwrap();
        assert!(blocks.lend(0, 100, 29).is_none());
        assert!(blocks.lend(1, 0, 1).is_none());
        assert!(blocks.lend(0, 1, usize::MAX).is_none());
        assert!(blocks.lend(0, 100, 28).is_some());
    }

    /// Whoever holds the region, and be it without the blocks, keeps the memory.
    #[test]
    fn the_owner_of_foreign_memory_goes_last() {
        #[repr(align(64))]
        struct Bytes([u8; 256]);
        let memory = Box::leak(Box::new(Bytes([7; 256])));
        let base = NonNull::from(&mut memory.0).cast();
        let owner = Arc::new(());
        // SAFETY: the memory is leaked, and nobody else knows of it.
        let mut blocks = unsafe { Blocks::foreign(base, 2, 128, Arc::clone(&owner), 1000) }.unwrap();
        assert_eq!(blocks.memory_bytes(), 256 + 1000);
        assert_eq!(blocks.tail(1).unwrap().bytes()[127], 7);
        let region = Arc::clone(blocks.region());
        drop(blocks);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_frame_of_other_blocks_is_returned() {
        let mut a = Blocks::map(1, 128).unwrap();
        let mut b = Blocks::map(1, 128).unwrap();
        let frame = a.lend(0, 0, 8).unwrap();
        assert!(b.recycle(frame).is_err());
        assert_eq!(a.out(0), 1);
    }
}
