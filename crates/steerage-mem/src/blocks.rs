//! Blocks: memory that holds many frames at once, such as a part of a capture file or of an
//! AF_PACKET ring.
//!
//! A frame in a block is called a lent frame. A lent frame is read-only and has no headroom: a
//! handler that writes or keeps the frame gets a copy in a page. A block may be filled again when
//! all of its lent frames have returned. A lent frame returns when the CPU that handled it has
//! advanced its finished index past the frame's slot, and the owner of the blocks has then read the
//! slot. Only the owner of the blocks counts lent frames, so this count needs no atomic variable.
//!
//! The device lends the frames of a block in order. The part of a block after the last lent frame
//! is the [`Tail`], which may be written while earlier frames are in use. In the tail, the reader
//! of a capture file replaces the next record header by a [`FrameHeader`](crate::FrameHeader). Some
//! blocks can be windows: parts of a mapped file ([`FileWindows`]), which no code writes. The
//! record headers in a window stay before the frames, and are parsed only when a handler needs them
//! ([`RecordForm`](crate::RecordForm)).
//!
//! The receive path holds the [`Blocks`], and the device keeps the [`Claim`], without which no code
//! can write, read or lend from a block. Safe code, such as a wrapper around the device, therefore
//! cannot access blocks that the kernel is writing.
//!
//! A device should fill a block in less time than the workers (the CPUs that handle its packets)
//! need to empty their backlogs, or else the device and the workers wait for each other. The owner
//! of the blocks collects finished frames only in every eighth poll, because reading the finished
//! index moves a cache line from the worker's CPU.

mod bus_error;
mod lease;
mod runs;
mod shares;
mod tail;
mod windows;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::mapping::RegionError;
use crate::page::{Completion, FRAME_BYTES_MAX, offset_of};
use crate::region::{Owner, Region};
use shares::Shares;

pub use lease::LeasedFile;
pub use runs::Homecoming;
pub use tail::{Spot, Tail};
pub use windows::{FileWindows, LeaseRequest, Shown};

/// The right to access the bytes of the [`Blocks`] that were created together with this claim.
///
/// ```compile_fail,E0451
/// // Nobody can make one.
/// let claim = steerage_mem::Claim { first: 0 };
/// ```
///
/// ```compile_fail,E0599
/// let (_blocks, claim) = steerage_mem::Blocks::map(1, 64).unwrap();
/// let second = claim.clone();
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Claim {
    first: u32,
}

/// The blocks of one queue, and how many frames of each block are lent.
///
/// ```
/// use steerage_mem::Blocks;
///
/// let (mut blocks, claim) = Blocks::map(1, 64)?;
/// blocks.tail(&claim, 0).unwrap().bytes()[..3].copy_from_slice(b"abc");
/// let frame = blocks.lend(&claim, 0, 0, 3).unwrap();
/// assert_eq!(blocks.out(0), 1);
///
/// // Another claim is none.
/// let (_, other) = Blocks::map(1, 64)?;
/// assert!(blocks.tail(&other, 0).is_none() && blocks.lend(&other, 0, 3, 3).is_none());
/// blocks.recycle(frame).unwrap();
/// # Ok::<(), steerage_mem::RegionError>(())
/// ```
///
/// Without the claim, the bytes of the blocks cannot be accessed:
///
/// ```compile_fail,E0061
/// # let (mut blocks, _claim) = steerage_mem::Blocks::map(1, 64).unwrap();
/// blocks.tail(0);
/// ```
#[derive(Debug)]
pub struct Blocks {
    region: Arc<Region>,
    lent: Box<[Lent]>,
    /// The number and the size of the memory blocks, which come before the windows in the region.
    memory_blocks: usize,
    block_bytes: usize,
    /// For each window (a block into which a part of a file is mapped), the number of bytes that
    /// can be read.
    shown: Box<[u32]>,
    memory: usize,
    shares: Shares,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    frames: u32,
    /// An offset at or after the end of the last lent frame. No byte before `end` is written while
    /// a frame of the block is lent.
    end: u32,
}

impl Lent {
    #[inline(always)]
    fn writable_from(self) -> u32 {
        if self.frames == 0 { 0 } else { self.end }
    }
}

impl Blocks {
    /// Maps `count` blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Region::map`].
    pub fn map(count: usize, block_bytes: usize) -> Result<(Self, Claim), RegionError> {
        // The page tokens of the region are not needed, because blocks are written only through
        // `tail`.
        let (region, _tokens) = Region::map(count, block_bytes)?;
        let memory = region.bytes();
        Ok(Self::of(region, memory))
    }

    fn of(region: Arc<Region>, memory: usize) -> (Self, Claim) {
        let claim = Claim { first: region.number_of(0) };
        let lent = vec![Lent::default(); region.pages()].into();
        let (memory_blocks, block_bytes) = (region.pages(), region.page_bytes());
        let (shown, shares) = (Box::default(), Shares::default());
        (Self { region, lent, memory_blocks, block_bytes, shown, memory, shares }, claim)
    }

    /// Creates `count` blocks of `block_bytes` bytes in memory that the caller has mapped at
    /// `base`. `owner` is dropped when no code can reach the blocks any more. The blocks take up to
    /// `memory` bytes.
    ///
    /// # Errors
    /// [`RegionError`] if the size is zero or too large.
    ///
    /// # Safety
    /// `base` points to `count * block_bytes` bytes that stay mapped until `owner` is dropped. No
    /// other `Blocks` ever contain any of these bytes. The caller does not give the [`Claim`] to
    /// other code.
    ///
    /// The caller uses the claim for a block only while the block is readable and writable, and
    /// while nothing else writes it. "Nothing else" includes other threads, other processes and the
    /// kernel. A block is in use while there is a [`Tail`] of the block, a borrow from
    /// [`readable`](Self::readable), or a frame that was lent from the block. A block in use stays
    /// readable, and no thread, process or kernel changes the bytes that are read from the block.
    pub unsafe fn foreign(
        base: NonNull<u8>,
        count: usize,
        block_bytes: usize,
        owner: impl Any + Send + Sync,
        memory: usize,
    ) -> Result<(Self, Claim), RegionError> {
        Ok(Self::of(Region::foreign(base, count, block_bytes, Owner::new(owner))?, memory))
    }

    /// Limits how many blocks the waiting frames of one CPU can hold, so that a stalled CPU leaves
    /// blocks for the other CPUs. `units` is the sum of the units of all blocks. Each block counts
    /// as one unit, or as the number of units that [`weigh`](Self::weigh) sets.
    ///
    /// A CPU may hold a further block if all its blocks then have at most as many units as the free
    /// blocks have together. For a frame of at most 16 KiB, the CPU may hold three times as many
    /// units as the free blocks have. The limit on held blocks takes effect when the blocks belong
    /// to an [`Outbox`](crate::Outbox).
    #[must_use]
    pub fn shared(mut self, units: u32) -> Self {
        self.shares = Shares::new(self.lent.len(), units);
        self
    }

    pub(crate) fn divide(&mut self, rings: usize) {
        self.shares.divide(rings);
    }

    /// Sets the number of units of a block, unless a frame of the block waits for a CPU.
    pub fn weigh(&mut self, claim: &Claim, block: usize, units: u32) {
        if self.are_claimed_by(claim) {
            self.shares.weigh(block, units);
        }
    }

    #[inline]
    pub(crate) fn is_share_full(&self, ring: usize) -> bool {
        self.shares.is_full(ring)
    }

    /// Returns true if `claim` is the claim to these blocks.
    #[inline(always)]
    pub fn are_claimed_by(&self, claim: &Claim) -> bool {
        claim.first == self.region.number_of(0)
    }

    /// The maximum memory of the blocks, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory
    }

    /// The region of the blocks.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The number of blocks.
    pub fn count(&self) -> usize {
        self.lent.len()
    }

    /// Returns how many lent frames of `block` have not returned, or 0 if `block` does not exist.
    #[inline(always)]
    pub fn out(&self, block: usize) -> u32 {
        self.lent.get(block).map_or(0, |lent| lent.frames)
    }

    /// Returns how many lent frames of all blocks have not returned.
    pub fn out_in_all(&self) -> u64 {
        self.lent.iter().map(|lent| u64::from(lent.frames)).sum()
    }

    /// Returns the part of `block` after the last lent frame, for lending and, unless the block is
    /// a window, for writing. `None` if the block does not exist, or if `claim` belongs to other
    /// blocks.
    #[inline]
    pub fn tail(&mut self, claim: &Claim, block: usize) -> Option<Tail<'_>> {
        if !self.are_claimed_by(claim) {
            return None;
        }
        let end = self.end_of(block);
        let lent = self.lent.get_mut(block)?;
        lent.end = lent.writable_from();
        let number = self.region.number_of(block as u32);
        let len = end.checked_sub(lent.end as usize)?;
        let start = self.region.start_of(number, lent.end, len)?;
        // SAFETY: the span was checked, and no lent frame reaches into it (`end`). Frames are made
        // only through a `Tail` or by `lend`, which need `&mut self` like this function. So no
        // other code can reach these bytes as long as the `Tail` exists. When a `Tail` lends bytes,
        // it no longer contains these bytes. For memory that a device has mapped, the holder of the
        // claim has promised that nothing else writes it. A window is readable up to its end, and
        // no code writes it.
        Some(unsafe { Tail::new(start, len, block < self.memory_blocks, number, lent) })
    }

    #[inline(always)]
    fn end_of(&self, block: usize) -> usize {
        if block < self.memory_blocks {
            return self.block_bytes;
        }
        self.shown.get(block - self.memory_blocks).map_or(0, |shown| *shown as usize)
    }

    /// Returns the bytes of `block`. Empty if the block does not exist, or if `claim` belongs to
    /// other blocks.
    pub fn readable(&self, claim: &Claim, block: usize) -> &[u8] {
        if block >= self.lent.len() || !self.are_claimed_by(claim) {
            return &[];
        }
        let len = self.end_of(block);
        match self.region.start_of(self.region.number_of(block as u32), 0, len) {
            // SAFETY: the span was checked. A `Tail` needs `&mut self`, so no code writes the block
            // while this slice is borrowed. For memory that a device has mapped, the same promise
            // holds as for `tail`.
            Some(start) => unsafe { std::slice::from_raw_parts(start, len) },
            None => &[],
        }
    }

    /// Lends `len` bytes at `offset` of `block` as a frame. `None` if the bytes do not lie within
    /// the block or exceed [`FRAME_BYTES_MAX`], or if `claim` belongs to other blocks.
    #[inline]
    pub fn lend(&mut self, claim: &Claim, block: usize, offset: usize, len: usize) -> Option<Completion> {
        let offset = offset_of(offset);
        if len > FRAME_BYTES_MAX || !self.are_claimed_by(claim) {
            return None;
        }
        if (offset as usize).checked_add(len)? > self.end_of(block) {
            return None;
        }
        let lent = self.lent.get_mut(block)?;
        let number = self.region.number_of(block as u32);
        self.region.start_of(number, offset, len)?;
        let frames = lent.frames.checked_add(1)?;
        *lent = Lent { frames, end: lent.writable_from().max(offset + len as u32) };
        Some(Completion::lent(number, offset, len))
    }

    /// Takes a lent frame back. `Err` returns the frame if it does not lie in these blocks.
    #[inline]
    pub fn recycle(&mut self, frame: Completion) -> Result<(), Completion> {
        self.homecoming().recycle(frame)
    }

    /// Records that a frame has left the ring `ring`. The frame stays lent.
    pub(crate) fn unpublish(&mut self, ring: usize, frame: &Completion) {
        if let Some(block) = self.region.index_of(frame.slot().page) {
            self.shares.give_back(ring, block as usize, 1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{FrameHeader, Memory};

    #[test]
    fn a_block_is_writable_behind_its_frames_until_they_are_home() {
        let (mut blocks, claim) = Blocks::map(2, 4096).unwrap();
        blocks.tail(&claim, 0).unwrap().bytes()[..8].copy_from_slice(b"abcdefgh");
        let mut tail = blocks.tail(&claim, 0).unwrap();
        let first = tail.lend(0, 2).unwrap();
        let second = tail.lend(1, 0).unwrap();
        assert_eq!(tail.offset(), 3);
        assert_eq!(&tail.bytes()[..3], b"def");
        assert_eq!((blocks.tail(&claim, 0).unwrap().offset(), blocks.tail(&claim, 1).unwrap().offset()), (3, 0));
        assert_eq!(&blocks.readable(&claim, 0)[..4], b"abcd");
        blocks.recycle(second).unwrap();
        assert_eq!(blocks.tail(&claim, 0).unwrap().offset(), 3);
        blocks.recycle(first).unwrap();
        assert_eq!(blocks.tail(&claim, 0).unwrap().offset(), 0);
        assert_eq!(blocks.out_in_all(), 0);
        assert!(blocks.tail(&claim, 2).is_none());
    }

    #[test]
    fn a_tail_lends_what_it_has_and_no_more() {
        let (mut blocks, claim) = Blocks::map(1, 128).unwrap();
        let mut tail = blocks.tail(&claim, 0).unwrap();
        for (at, len) in [(129, 0), (128, 1), (0, 129), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(tail.lend(at, len).is_none(), "{len} at {at}");
        }
        assert_eq!(tail.bytes().len(), 128);
        let mut shorter = blocks.tail(&claim, 0).unwrap().up_to(10);
        assert!(shorter.bytes().len() == 10 && shorter.lend(0, 11).is_none());
        let mut tail = blocks.tail(&claim, 0).unwrap().up_to(1000);
        let all = tail.lend(28, 100).unwrap();
        assert!(tail.bytes().is_empty() && tail.lend(0, 1).is_none());
        blocks.recycle(all).unwrap();
    }

    #[test]
    fn frames_lent_out_of_order_are_not_written_either() {
        let (mut blocks, claim) = Blocks::map(1, 128).unwrap();
        let late = blocks.lend(&claim, 0, 60, 20).unwrap();
        let early = blocks.lend(&claim, 0, 10, 20).unwrap();
        assert_eq!(blocks.tail(&claim, 0).unwrap().offset(), 80);
        blocks.recycle(late).unwrap();
        assert_eq!(blocks.tail(&claim, 0).unwrap().offset(), 80);
        blocks.recycle(early).unwrap();
    }

    #[test]
    fn frames_outside_their_block_are_not_lent() {
        let (mut blocks, claim) = Blocks::map(1, 128).unwrap();
        assert!(blocks.lend(&claim, 0, 100, 29).is_none());
        assert!(blocks.lend(&claim, 1, 0, 1).is_none());
        assert!(blocks.lend(&claim, 0, 1, usize::MAX).is_none());
        assert!(blocks.lend(&claim, 0, 100, 28).is_some());
    }

    #[test]
    fn the_owner_of_foreign_memory_goes_last() {
        #[repr(align(64))]
        struct Bytes(#[expect(dead_code, reason = "read by its address")] [u8; 256]);
        let memory = Box::into_raw(Box::new(Bytes([7; 256])));
        let base = NonNull::new(memory).unwrap().cast();
        let owner = Arc::new(());
        // SAFETY: no other code knows the memory, which is freed below.
        let (mut blocks, claim) = unsafe { Blocks::foreign(base, 2, 128, Arc::clone(&owner), 1000) }.unwrap();
        assert_eq!(blocks.memory_bytes(), 1000);
        assert_eq!(blocks.tail(&claim, 1).unwrap().bytes()[127], 7);
        let region = Arc::clone(blocks.region());
        drop(blocks);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
        // SAFETY: it came from a box, and no code can reach it any more.
        drop(unsafe { Box::from_raw(memory) });
    }

    const HEADER: FrameHeader = FrameHeader { nanos: 1 << 40, wire_len: 99, link: 1, interface: 2 };

    proptest! {
        #[test]
        fn frames_lent_together_are_the_same(
            spots in prop::collection::vec((12..40_usize, 0..60_usize), 0..12), room in 0..12_usize,
        ) {
            let (mut each, claim_each) = Blocks::map(2, 512).unwrap();
            let (mut together, claim_together) = Blocks::map(2, 512).unwrap();
            let memory = |blocks: &Blocks| Memory::new(Region::map(1, 64).unwrap().0, Some(blocks.region().clone()));
            let (memory_each, memory_together) = (memory(&each), memory(&together));
            for (blocks, claim) in [(&mut each, &claim_each), (&mut together, &claim_together)] {
                let mut tail = blocks.tail(claim, 1).unwrap();
                tail.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
            }
            let mut wanted = Vec::new();
            let mut tail = each.tail(&claim_each, 1).unwrap();
            for (at, len) in spots.iter().take(room) {
                let to = tail.bytes().get_mut(..*at).filter(|_| *at >= FrameHeader::BYTES);
                let Some(to) = to.and_then(<[u8]>::last_chunk_mut) else { break };
                let before = *to;
                *to = HEADER.to_bytes();
                let Some(frame) = tail.lend(*at, *len) else {
                    *tail.bytes()[..*at].last_chunk_mut().unwrap() = before;
                    break;
                };
                wanted.push(frame.with_header());
            }
            let mut next = spots.iter();
            let (mut frames, mut wire_bytes) = (Vec::new(), 7);
            let mut tail = together.tail(&claim_together, 1).unwrap();
            let end = tail.lend_records((&mut frames, &mut wire_bytes), room, None, || "outside", |_| {
                let (at, len) = next.next().ok_or("no more")?;
                Ok(Spot::new(*at, *len, HEADER))
            });
            prop_assert_eq!(wire_bytes, 7 + frames.len() as u64 * u64::from(HEADER.wire_len));
            prop_assert_eq!(tail.offset(), each.tail(&claim_each, 1).unwrap().offset());
            prop_assert_eq!(frames.len(), wanted.len());
            prop_assert_eq!(end.is_none(), frames.len() == room);
            prop_assert_eq!((together.out(1), together.out(0)), (frames.len() as u32, 0));
            for (one, other) in frames.iter().zip(&wanted) {
                prop_assert_eq!((one.offset(), memory_together.bytes(one)), (other.offset(), memory_each.bytes(other)));
                prop_assert_eq!(memory_together.header_of(one), Some(HEADER));
            }
            frames.into_iter().for_each(|frame| together.recycle(frame).unwrap());
            wanted.into_iter().for_each(|frame| each.recycle(frame).unwrap());
            prop_assert_eq!(together.out_in_all() + each.out_in_all(), 0);
        }

        #[test]
        fn all_that_come_home_are_counted(of in prop::collection::vec(0..3_usize, 0..60)) {
            let (mut blocks, claim) = Blocks::map(3, 64).unwrap();
            let (mut others, claim_others) = Blocks::map(1, 64).unwrap();
            let frames: Vec<_> = of.iter().map(|block| blocks.lend(&claim, *block, 0, 1).unwrap()).collect();
            let stranger = others.lend(&claim_others, 0, 0, 1).unwrap();
            let mut left = [0; 3];
            of.iter().for_each(|block| left[*block] += 1);
            let mut frames = frames.into_iter().zip(&of);
            for part in [of.len() / 3, of.len()] {
                let mut homecoming = blocks.homecoming();
                for (frame, block) in frames.by_ref().take(part) {
                    homecoming.recycle(frame).unwrap();
                    left[*block] -= 1;
                }
                drop(homecoming);
                prop_assert_eq!([0, 1, 2].map(|block| blocks.out(block)), left);
            }
            let stranger = blocks.homecoming().recycle(stranger).unwrap_err();
            others.recycle(stranger).unwrap();
        }
    }

    #[test]
    fn a_panic_while_frames_are_lent_loses_none() {
        let (mut blocks, claim) = Blocks::map(1, 512).unwrap();
        let (mut frames, mut wire_bytes) = (Vec::new(), 0);
        let lent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut left = 3;
            blocks.tail(&claim, 0).unwrap().lend_each(
                (&mut frames, &mut wire_bytes),
                8,
                || (),
                |_| {
                    left -= 1;
                    if left == 0 { panic!("as asked for") } else { Ok(Spot::new(16, 8, HEADER)) }
                },
            )
        }));
        assert!(lent.is_err());
        assert_eq!((frames.len(), blocks.out(0), blocks.tail(&claim, 0).unwrap().offset()), (2, 2, 48));
        frames.into_iter().for_each(|frame| blocks.recycle(frame).unwrap());
    }

    #[test]
    fn a_claim_to_other_blocks_is_none() {
        let (mut blocks, claim) = Blocks::map(1, 128).unwrap();
        let (others, wrong) = Blocks::map(1, 128).unwrap();
        assert!(blocks.are_claimed_by(&claim) && !blocks.are_claimed_by(&wrong) && others.are_claimed_by(&wrong));
        assert!(blocks.tail(&wrong, 0).is_none() && blocks.lend(&wrong, 0, 0, 1).is_none());
        assert!(blocks.readable(&wrong, 0).is_empty());
        assert_eq!((blocks.readable(&claim, 0).len(), blocks.out_in_all()), (128, 0));
    }

    #[test]
    fn a_frame_of_other_blocks_is_returned() {
        let (mut a, claim) = Blocks::map(1, 128).unwrap();
        let (mut b, _) = Blocks::map(1, 128).unwrap();
        let frame = a.lend(&claim, 0, 0, 8).unwrap();
        assert!(b.recycle(frame).is_err());
        assert_eq!(a.out(0), 1);
    }
}
