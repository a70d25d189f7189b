//! Memory that holds many frames at once: a stretch of a capture file, a block of an AF_PACKET ring.
//!
//! Its frames are lent: read-only, without headroom, and the block may be filled again when the last of them is home.
//! The count is the owner's alone (a frame comes home when the owner reads its slot back behind the finished index), so
//! it is a plain number and no atomic.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::page::{Completion, FRAME_BYTES_MAX};
use crate::region::{Region, RegionError};

/// The blocks of one queue, and how many frames of each are out.
#[derive(Debug)]
pub struct Blocks {
    region: Arc<Region>,
    out: Box<[u32]>,
}

impl Blocks {
    /// Maps `count` blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map(count: usize, block_bytes: usize) -> Result<Self, RegionError> {
        // The tokens of single pages are not given out: a block is written through `writable` alone.
        let (region, _tokens) = Region::map(count, block_bytes)?;
        Ok(Self { region, out: vec![0; count].into() })
    }

    /// Blocks in memory that somebody else mapped: `count` of them, of `block_bytes` bytes, from `base` on.
    ///
    /// # Errors
    /// [`RegionError`] for a size of nothing or too much.
    ///
    /// # Safety
    /// `base` points to `count * block_bytes` readable and writable bytes that stay mapped until the last `Arc` of
    /// [`region`](Self::region) is gone, and that nobody else writes while a frame lent from their block is out.
    pub unsafe fn foreign(base: NonNull<u8>, count: usize, block_bytes: usize) -> Result<Self, RegionError> {
        Ok(Self { region: Region::foreign(base, count, block_bytes)?, out: vec![0; count].into() })
    }

    /// The memory they lie in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// How many blocks there are.
    pub fn count(&self) -> usize {
        self.out.len()
    }

    /// How many frames of `block` are out. 0 for a block there isn't.
    #[inline(always)]
    pub fn out(&self, block: usize) -> u32 {
        self.out.get(block).copied().unwrap_or(0)
    }

    /// How many frames are out in all.
    pub fn out_in_all(&self) -> u64 {
        self.out.iter().map(|n| u64::from(*n)).sum()
    }

    /// The bytes of `block`, to be filled: `None` while a frame of it is out.
    pub fn writable(&mut self, block: usize) -> Option<&mut [u8]> {
        if *self.out.get(block)? > 0 {
            return None;
        }
        let len = self.region.page_bytes();
        let start = self.region.start_of(self.region.number_of(block as u32), 0, len)?;
        // SAFETY: the span was checked. No frame of the block is out, frames are made by `lend` alone, which needs
        // `&mut self` as this does: so for as long as the slice lives nobody else can reach these bytes.
        Some(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// The bytes of `block`, to be read: by its owner while frames of it are out.
    pub fn readable(&self, block: usize) -> &[u8] {
        if block >= self.out.len() {
            return &[];
        }
        let len = self.region.page_bytes();
        match self.region.start_of(self.region.number_of(block as u32), 0, len) {
            // SAFETY: the span was checked, and `writable` needs `&mut self`: nobody writes while this is borrowed.
            Some(start) => unsafe { std::slice::from_raw_parts(start, len) },
            None => &[],
        }
    }

    /// Lends `len` bytes at `offset` of `block` as a frame: `None` if they do not lie within it, or are more than
    /// [`FRAME_BYTES_MAX`].
    #[inline]
    pub fn lend(&mut self, block: usize, offset: u32, len: usize) -> Option<Completion> {
        let out = self.out.get_mut(block)?;
        let number = self.region.number_of(block as u32);
        if len > FRAME_BYTES_MAX {
            return None;
        }
        self.region.start_of(number, offset, len)?;
        *out = out.checked_add(1)?;
        Some(Completion::lent(number, offset, len))
    }

    /// Takes a frame home. `Err` returns one that is not of these blocks.
    #[inline]
    pub fn recycle(&mut self, frame: Completion) -> Result<(), Completion> {
        let slot = frame.slot();
        match self.region.index_of(slot.page) {
            Some(block) if slot.is_lent() => {
                self.out[block as usize] -= 1;
                Ok(())
            }
            _ => Err(frame),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_writable_only_when_all_its_frames_are_home() {
        let mut blocks = Blocks::map(2, 4096).unwrap();
        blocks.writable(0).unwrap()[..4].copy_from_slice(b"abcd");
        let first = blocks.lend(0, 0, 2).unwrap();
        let second = blocks.lend(0, 2, 2).unwrap();
        assert!(blocks.writable(0).is_none());
        assert!(blocks.writable(1).is_some());
        assert_eq!(&blocks.readable(0)[..4], b"abcd");
        blocks.recycle(first).unwrap();
        assert!(blocks.writable(0).is_none());
        blocks.recycle(second).unwrap();
        assert!(blocks.writable(0).is_some());
        assert_eq!(blocks.out_in_all(), 0);
    }

    #[test]
    fn frames_outside_their_block_are_not_lent() {
        let mut blocks = Blocks::map(1, 128).unwrap();
        assert!(blocks.lend(0, 100, 29).is_none());
        assert!(blocks.lend(1, 0, 1).is_none());
        assert!(blocks.lend(0, 1, usize::MAX).is_none());
        assert!(blocks.lend(0, 100, 28).is_some());
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
