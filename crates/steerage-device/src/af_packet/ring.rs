//! Lends the blocks of a ring, and gives them back to the kernel.
//!
//! The kernel fills the blocks in turn, and stops at the first that was not returned, even if
//! others are free. So a block that stays out too long is *rescued*: a copy replaces it at the
//! address from which its frames are read, and the kernel gets the block back. Frames that the
//! kernel then puts into that block cannot be lent until the last rescued frame has returned. They
//! are copied one by one.
//!
//! A full ring alone is no reason for a rescue. If frames come faster than this queue is polled, the
//! ring is full of frames that nobody has seen yet. Then the blocks that are out will return soon,
//! and a copy would only make the queue slower.
//!
//! An alternative is to copy the frames that go to a slow CPU. A rescue needs no guess about which
//! CPU will be slow, and copies nothing while the ring has room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use steerage::device::{Blocks, Completions, Lending};

use super::BLOCKS_MIN;
use super::sys::{Frame, Memory};

/// The part of a ring that should be free for the kernel: one fourth. If less is free, the block
/// that has been out longest is rescued.
const FREE_PART: usize = 4;

/// A block is rescued only when this part of the ring was handed over after it: one half. If a younger
/// block is in the way, more than one fourth of the ring is full of frames that nobody has seen yet.
const YOUNG_PART: usize = 2;

const _: () = assert!(BLOCKS_MIN >= FREE_PART && FREE_PART > YOUNG_PART);

/// The memory from which a block's frames are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    /// The block of the ring.
    Block,
    /// A copy of the block's earlier contents.
    Copy,
}

/// A block whose frames are being handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) block: usize,
    /// How many of the block's frames are left.
    pub(super) frames: u32,
    /// The offset of the next frame's header.
    pub(super) at: usize,
    /// How many bytes of the block are used.
    pub(super) used: usize,
    /// Whether the block's frames can be lent. Otherwise they must be copied.
    pub(super) lends: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    memory: Memory,
    states: Box<[BlockState]>,
    /// The block that the kernel is filling or fills next.
    next: usize,
    /// The blocks that were handed over and not given back yet, oldest first, each with its number
    /// of used bytes.
    out: VecDeque<(usize, usize)>,
    /// Whether mapping a copy has failed. The warning appears only once.
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

    /// The ring's memory, from which frames are lent. It is given away once.
    pub(super) fn blocks(&mut self) -> io::Result<Blocks> {
        self.memory.blocks()
    }

    /// The ring's blocks, if the queue is polled with them.
    pub(super) fn own<'o>(&self, out: &'o mut Completions<'_>) -> Option<&'o mut Blocks> {
        self.memory.own(out)
    }

    /// The used part of the block, from which its frames are lent.
    pub(super) fn lending<'o>(&self, out: &'o mut Completions<'_>, current: &Current) -> Option<Lending<'o>> {
        self.memory.lending(out, current.block, current.used)
    }

    /// Whether the kernel has filled the next block.
    pub(super) fn is_ready(&self) -> bool {
        self.memory.is_filled(self.next)
    }

    /// Whether half of the ring is free for the kernel.
    pub(super) fn has_room(&self) -> bool {
        let count = self.memory.shape().blocks;
        !self.memory.is_filled((self.next + count / 2) % count)
    }

    /// Gives blocks back to the kernel if all of their frames have returned.
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
        // If mapping the block fails, its frames are copied this time too.
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

    /// Notes that all frames of the block were handed over.
    pub(super) fn end(&mut self, current: &Current) {
        if current.lends {
            self.out.push_back((current.block, current.used));
        } else {
            self.memory.give_back(current.block);
        }
        self.next = (current.block + 1) % self.memory.shape().blocks;
    }

    /// Rescues the block that has been out longest if the kernel has too little free space before
    /// it. Returns how many of its frames were out, since these were copied.
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

    /// Whether the kernel will reach `block`, which has been out for a while, before it has filled one
    /// part of the ring (see [`FREE_PART`]).
    fn is_in_the_way(&self, block: usize) -> bool {
        let count = self.memory.shape().blocks;
        let part = count / FREE_PART;
        let before = (block + count - self.next) % count;
        if before > count / YOUNG_PART {
            return false;
        }
        // The kernel fills blocks in order. If the block one part before this one is not filled,
        // all blocks in between are free.
        before <= part || self.memory.is_filled((block + count - part) % count)
    }
}
