//! How the blocks of a ring are lent and returned.
//!
//! The kernel fills the blocks in turn, and stops at the first that was not returned, even if others are free. So a
//! block that stays out too long is *rescued*: a copy takes its place where its frames are read, and the kernel gets
//! the block back. Until the last of those frames has returned, the frames that the kernel puts into that block cannot
//! be lent, and are copied one by one.
//!
//! Another way would be to copy the frames that go to a slow CPU. A rescue needs no guess which CPU will be slow, and
//! copies nothing while the ring has room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use steerage::device::{Blocks, Completions, Lending};

use super::sys::{Frame, Memory};

/// The part of a ring that is to be free for the kernel: if less is, the block that has been out the longest is rescued.
const FREE_PART: usize = 4;

/// What lies where a block's frames are lent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    /// The ring's block.
    Block,
    /// A copy of what it once held.
    Copy,
}

/// A block whose frames are being handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) block: usize,
    /// How many of its frames are left.
    pub(super) frames: u32,
    /// Where the next one's header is.
    pub(super) at: usize,
    /// How much of the block is used.
    pub(super) used: usize,
    /// Whether its frames can be lent; else they have to be copied.
    pub(super) lends: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    memory: Memory,
    states: Box<[BlockState]>,
    /// The block that the kernel fills next, or has.
    next: usize,
    /// Those that were handed over and have not been given back, oldest first, with how much of each is used.
    out: VecDeque<(usize, usize)>,
    /// Nothing could be mapped for a copy: said once.
    rescue_failed: bool,
}

impl Ring {
    pub(super) fn new(memory: Memory) -> Self {
        let blocks = memory.shape().blocks;
        Self {
            memory,
            states: vec![BlockState::Block; blocks].into(),
            next: 0,
            out: VecDeque::with_capacity(blocks),
            rescue_failed: false,
        }
    }

    /// The ring's memory, to lend frames from: given away once.
    pub(super) fn blocks(&mut self) -> io::Result<Blocks> {
        self.memory.blocks()
    }

    /// Those blocks, if it is them that the queue is polled with.
    pub(super) fn own<'o>(&self, out: &'o mut Completions<'_>) -> Option<&'o mut Blocks> {
        self.memory.own(out)
    }

    /// What of a block may be handed over where it lies.
    pub(super) fn lending<'o>(&self, out: &'o mut Completions<'_>, current: &Current) -> Option<Lending<'o>> {
        self.memory.lending(out, current.block, current.used)
    }

    /// Whether the kernel has filled the block whose turn it is.
    pub(super) fn is_ready(&self) -> bool {
        self.memory.is_filled(self.next)
    }

    /// Whether half of the ring is free for the kernel.
    pub(super) fn has_room(&self) -> bool {
        let count = self.memory.shape().blocks;
        !self.memory.is_filled((self.next + count / 2) % count)
    }

    /// Gives those blocks back whose frames are all home.
    pub(super) fn give_back(&mut self, blocks: &Blocks) {
        let memory = &self.memory;
        self.out.retain(|(block, _)| {
            let out = blocks.out(*block) > 0;
            if !out {
                memory.give_back(*block);
            }
            out
        });
    }

    /// The next block, if the kernel has filled it.
    pub(super) fn begin(&mut self, blocks: &Blocks, socket: BorrowedFd<'_>) -> Option<Current> {
        let block = self.next;
        let filled = self.memory.filled(block)?;
        // If it cannot be mapped, its frames are copied this time as well.
        if self.states[block] == BlockState::Copy
            && blocks.out(block) == 0
            && self.memory.restore(socket, block).is_ok()
        {
            self.states[block] = BlockState::Block;
        }
        let lends = self.states[block] == BlockState::Block;
        Some(Current { block, frames: filled.frames, at: filled.first, used: filled.used, lends })
    }

    #[inline]
    pub(super) fn frame(&self, current: &Current) -> Option<Frame> {
        self.memory.frame(current.block, current.at, current.used)
    }

    pub(super) fn copy_to(&self, current: &Current, at: usize, to: &mut [u8]) -> bool {
        self.memory.copy_to(current.block, at, to)
    }

    /// All of the block's frames were handed over.
    pub(super) fn end(&mut self, current: &Current) {
        if current.lends {
            self.out.push_back((current.block, current.used));
        } else {
            self.memory.give_back(current.block);
        }
        self.next = (current.block + 1) % self.memory.shape().blocks;
    }

    /// Rescues the block that has been out the longest if the kernel has too few before it. Returns how many frames of it
    /// were out: they were copied.
    pub(super) fn rescue(&mut self, blocks: &Blocks) -> u64 {
        let Some(&(block, used)) = self.out.front() else { return 0 };
        if !self.is_in_the_way(block) {
            return 0;
        }
        let frames = blocks.out(block);
        if frames > 0 {
            if let Err(error) = self.memory.rescue(block, used) {
                if !std::mem::replace(&mut self.rescue_failed, true) {
                    tracing::warn!("cannot copy a block of an AF_PACKET ring whose frames are held: {error}");
                }
                return 0;
            }
            self.states[block] = BlockState::Copy;
        }
        self.out.pop_front();
        self.memory.give_back(block);
        u64::from(frames)
    }

    /// Whether the kernel will come to `block`, which is out, before it has filled a part of the ring.
    fn is_in_the_way(&self, block: usize) -> bool {
        let count = self.memory.shape().blocks;
        let part = count / FREE_PART;
        let before = (block + count - self.next) % count;
        // The kernel goes in order: if it has not filled the one so far before, those in between are free.
        before <= part || self.memory.is_filled((block + count - part) % count)
    }
}
