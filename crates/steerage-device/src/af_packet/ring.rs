//! Lends (hands over without a copy) the frames in the blocks of an AF_PACKET ring, and later
//! returns the blocks to the kernel.
//!
//! The kernel fills the blocks in turn, and stops at the first block that was not returned, even if
//! other blocks are free. If a block is not returned for too long, it is *rescued*: a copy replaces
//! the block at the address from which its frames are read, and the kernel gets the block back. New
//! frames in a rescued block are lent from another address. If no address is free for lending, the
//! new frames are copied one by one.
//!
//! A full ring alone is no reason to rescue (copy) a block: if the queue is slow, the lent blocks
//! will return soon, and copies would only make the queue slower.
//!
//! Copying the frames for a slow CPU at their arrival would require a prediction of which CPU will
//! be slow, and would copy frames while the ring has room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use steerage::device::{Blocks, Completions, Lending};

use super::sys::Memory;
use super::{BLOCK_UNITS, BLOCKS_MIN};

/// If less than one fourth of the ring is free, the block that was lent first is rescued (copied).
const FREE_PART: usize = 4;

/// A block is rescued only if at least half of the ring was delivered after the block. A block that
/// was delivered later needs no rescue: when the kernel reaches this block, more than one fourth of
/// the ring waits for delivery.
const YOUNG_PART: usize = 2;

const _: () = assert!(BLOCKS_MIN >= FREE_PART && FREE_PART > YOUNG_PART);

#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) block: usize,
    pub(super) frames: u32,
    pub(super) at: usize,
    pub(super) used: usize,
    /// The place (address range) of the lent frames. `None` if no place was free: the frames are
    /// copied.
    pub(super) place: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Block,
    /// The place shows a copy of the block, of this length in bytes, while frames of the place are
    /// lent.
    Copy(usize),
}

#[derive(Clone, Copy, Debug)]
struct Out {
    block: usize,
    place: usize,
    used: usize,
}

#[derive(Debug)]
pub(super) struct Ring {
    memory: Memory,
    places: Box<[Option<usize>]>,
    shows: Box<[Shown]>,
    next: usize,
    /// The delivered blocks that were not returned to the kernel yet, oldest first.
    out: VecDeque<Out>,
    rescue_failed: bool,
}

impl Ring {
    pub(super) fn new(memory: Memory) -> Self {
        let (blocks, places) = (memory.shape().blocks, memory.shape().places);
        Self {
            memory,
            places: (0..blocks).map(Some).collect(),
            shows: (0..places).map(|place| if place < blocks { Shown::Block } else { Shown::Copy(0) }).collect(),
            next: 0,
            out: VecDeque::with_capacity(blocks),
            rescue_failed: false,
        }
    }

    pub(super) fn blocks(&mut self) -> io::Result<Blocks> {
        self.memory.blocks()
    }

    pub(super) fn own<'o>(&self, out: &'o mut Completions<'_>) -> Option<&'o mut Blocks> {
        self.memory.own(out)
    }

    pub(super) fn lending<'o>(&self, out: &'o mut Completions<'_>, current: &Current) -> Option<Lending<'o>> {
        self.memory.lending(out, (current.block, current.place?), current.used)
    }

    pub(super) fn has_offloads(&self) -> bool {
        self.memory.shape().offloads
    }

    pub(super) fn is_ready(&self) -> bool {
        self.memory.is_filled(self.next)
    }

    pub(super) fn has_room(&self) -> bool {
        let count = self.memory.shape().blocks;
        !self.memory.is_filled((self.next + count / 2) % count)
    }

    pub(super) fn give_back(&mut self, blocks: &Blocks) {
        let memory = &mut self.memory;
        self.out.retain(|Out { block, place, .. }| {
            let out = blocks.out(*place) > 0;
            if !out {
                memory.give_back(*block);
            }
            out
        });
    }

    pub(super) fn begin(&mut self, blocks: &mut Blocks, socket: BorrowedFd<'_>) -> Option<Current> {
        let block = self.next;
        let filled = self.memory.filled(block)?;
        if self.places[block].is_none() {
            self.show(blocks, socket, block);
        }
        let (place, used) = (self.places[block], filled.used);
        if let Some(place) = place {
            let units = (used * BLOCK_UNITS).div_ceil(self.memory.shape().block_bytes).max(1);
            self.memory.weigh(blocks, place, units as u32);
        }
        Some(Current { block, frames: filled.frames, at: filled.first, used, place })
    }

    /// Maps the block at the first free place. Places that were used before come first: mapping a
    /// block over a copy frees the copy's memory.
    #[cold]
    fn show(&mut self, blocks: &Blocks, socket: BorrowedFd<'_>, block: usize) {
        let is_free = |place: &usize| self.shows[*place] != Shown::Block && blocks.out(*place) == 0;
        let free = (0..self.shows.len()).find(is_free);
        if let Some(place) = free.filter(|place| self.memory.show(socket, block, *place).is_ok()) {
            (self.places[block], self.shows[place]) = (Some(place), Shown::Block);
        }
    }

    pub(super) fn unlent(&self, current: &Current) -> &[u8] {
        self.memory.unlent(current.block, current.used)
    }

    /// Returns true if the ring may have been so full that frames were dropped: at least half of
    /// its blocks are lent, or more than half of the ring is filled.
    pub(super) fn may_have_been_full(&self) -> bool {
        self.out.len() >= self.memory.shape().blocks / 2 || !self.has_room()
    }

    pub(super) fn end(&mut self, current: &Current) {
        let Current { block, used, .. } = *current;
        match current.place {
            Some(place) => self.out.push_back(Out { block, place, used }),
            None => self.memory.give_back(block),
        }
        self.next = (current.block + 1) % self.memory.shape().blocks;
    }

    /// Rescues the block that was lent first if the kernel has too little free space before the
    /// block. Returns the number of copied frames: the lent frames of the block.
    pub(super) fn rescue(&mut self, blocks: &Blocks) -> u64 {
        let Some(&Out { block, place, used }) = self.out.front() else { return 0 };
        if !self.is_in_the_way(block) {
            return 0;
        }
        let frames = blocks.out(place);
        if frames > 0 {
            if !self.has_room_for_copy(blocks, used) {
                return 0;
            }
            if let Err(error) = self.memory.rescue(place, used) {
                if !std::mem::replace(&mut self.rescue_failed, true) {
                    tracing::warn!("cannot copy a block of an AF_PACKET ring whose frames are held: {error}");
                }
                return 0;
            }
            (self.places[block], self.shows[place]) = (None, Shown::Copy(used));
        }
        self.out.pop_front();
        self.memory.give_back(block);
        u64::from(frames)
    }

    /// All copies in use may take at most as much memory as the ring.
    fn has_room_for_copy(&self, blocks: &Blocks, used: usize) -> bool {
        let copies = self.shows.iter().enumerate().map(|(place, shown)| match shown {
            Shown::Copy(bytes) if blocks.out(place) > 0 => *bytes,
            _ => 0,
        });
        let shape = self.memory.shape();
        copies.sum::<usize>() + used <= shape.blocks * shape.block_bytes
    }

    /// Returns true if less than one fourth of the ring, just before `block`, is free for the
    /// kernel to fill.
    fn is_in_the_way(&self, block: usize) -> bool {
        let count = self.memory.shape().blocks;
        let part = count / FREE_PART;
        let before = (block + count - self.next) % count;
        if before > count / YOUNG_PART {
            return false;
        }
        // The kernel fills blocks in order. If the kernel has not filled the block that is `part`
        // blocks before `block`, all blocks between the two are free.
        before <= part || self.memory.is_filled((block + count - part) % count)
    }
}
