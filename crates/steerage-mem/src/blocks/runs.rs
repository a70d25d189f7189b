//! Counts the frames of blocks as they are published or returned, many frames at a time. Most
//! consecutive frames belong to the same block, and are added to that block's count together.

use super::Blocks;
use crate::page::{BLANK, Completion};

impl Blocks {
    /// Begins to take back lent frames (frames that lie in blocks). None of these frames is in a
    /// ring.
    #[inline(always)]
    pub fn homecoming(&mut self) -> Homecoming<'_> {
        self.homecoming_from(NO_RING)
    }

    #[inline(always)]
    pub(crate) fn homecoming_from(&mut self, ring: usize) -> Homecoming<'_> {
        Homecoming { number: self.region.number_of(0), block: 0, frames: 0, ring, blocks: self }
    }

    #[inline(always)]
    pub(crate) fn publishing(&mut self, ring: usize) -> Option<Publishing<'_>> {
        let is_limited = self.shares.are_limited();
        is_limited.then_some(Publishing { number: BLANK, block: 0, frames: 0, ring, blocks: self })
    }
}

/// The value that means "no ring" where a ring number is expected.
const NO_RING: usize = usize::MAX;

/// Counts the frames of a published list for each block. Takes back frames for which their ring
/// would hold more blocks than its limit allows.
#[derive(Debug)]
pub(crate) struct Publishing<'a> {
    blocks: &'a mut Blocks,
    ring: usize,
    /// The index of the block that contains the latest frames, the block's page number, and the
    /// number of these frames that the block's count does not include yet.
    block: u32,
    number: u32,
    frames: u32,
}

impl Publishing<'_> {
    /// Returns `frame` if it may be published. Otherwise, takes `frame` back and returns `None`.
    #[inline(always)]
    pub(crate) fn publish(&mut self, frame: Completion) -> Option<Completion> {
        if frame.slot().page == self.number {
            self.frames += 1;
            return Some(frame);
        }
        self.publish_of_another_block(frame)
    }

    #[inline]
    fn publish_of_another_block(&mut self, frame: Completion) -> Option<Completion> {
        let number = frame.slot().page;
        let Some(block) = self.blocks.region.index_of(number) else { return Some(frame) };
        self.count();
        (self.block, self.number, self.frames) = (block, number, 0);
        if self.blocks.shares.take(self.ring, block as usize, frame.len()) {
            return Some(frame);
        }
        self.number = BLANK;
        self.blocks.recycle(frame).err()
    }

    fn count(&mut self) {
        if self.frames > 0 {
            self.blocks.shares.add(self.ring, self.block as usize, self.frames);
        }
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

/// Takes many frames back. Most consecutive frames belong to the same block, and are added to that
/// block's count together. If frames were counted one by one, each addition would have to wait for
/// the previous addition (1.5 ns per frame).
#[derive(Debug)]
pub struct Homecoming<'a> {
    blocks: &'a mut Blocks,
    block: u32,
    number: u32,
    frames: u32,
    ring: usize,
}

impl Homecoming<'_> {
    /// Like [`Blocks::recycle`], but may reduce the block's count of lent frames later, at the
    /// latest when this value is dropped.
    #[inline(always)]
    pub fn recycle(&mut self, frame: Completion) -> Result<(), Completion> {
        let slot = frame.slot();
        // No page of the pool has the page number of a block. Therefore a frame whose slot has the
        // page number of a block lies in that block.
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
        if self.blocks.shares.are_limited() {
            self.blocks.shares.give_back(self.ring, self.block as usize, self.frames);
        }
    }
}

impl Drop for Homecoming<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.count();
    }
}
