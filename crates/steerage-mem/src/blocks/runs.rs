use super::Blocks;
use crate::page::{BLANK, Completion};

impl Blocks {
    /// Begins to take back lent frames that are not in a ring.
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

const NO_RING: usize = usize::MAX;

/// Takes frames back if they would make their ring hold more blocks than the ring's limit allows.
#[derive(Debug)]
pub(crate) struct Publishing<'a> {
    blocks: &'a mut Blocks,
    ring: usize,
    /// The block of the latest frames, the page number of this block, and the number of its frames
    /// that are not counted yet.
    block: u32,
    number: u32,
    frames: u32,
}

impl Publishing<'_> {
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

/// Takes many frames back. Consecutive frames of one block are counted together, because separate
/// additions would wait for each other (1.5 ns per frame).
#[derive(Debug)]
pub struct Homecoming<'a> {
    blocks: &'a mut Blocks,
    block: u32,
    number: u32,
    frames: u32,
    ring: usize,
}

impl Homecoming<'_> {
    /// Like [`Blocks::recycle`], but the frame's return may stay uncounted until this value is
    /// dropped.
    #[inline(always)]
    pub fn recycle(&mut self, frame: Completion) -> Result<(), Completion> {
        let slot = frame.slot();
        // No page of the pool has the page number of a block.
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
