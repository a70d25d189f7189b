//! Lends (hands over without a copy) the frames in the blocks of an AF_PACKET ring, and later
//! returns the blocks to the kernel.
//!
//! The kernel fills the blocks in turn, and stops at the first block that was not returned, even if
//! other blocks are free. If a block is not returned for too long, it is *rescued*: a copy replaces
//! the block at the address from which its frames are read, and the kernel gets the block back.
//! After a rescue, the kernel puts new frames into the block. New frames in a rescued block are
//! lent from another address. If no address is free for lending, the new frames are copied one by
//! one.
//!
//! A full ring alone is no reason to rescue a block (to replace it by a copy). If frames arrive
//! faster than this queue is polled, the ring is full of frames that were not delivered yet. If the
//! ring is full because the queue is slow, the lent blocks will return soon. A copy of a lent block
//! would only make the queue slower.
//!
//! An alternative would be to copy the frames for a slow CPU when they arrive. A rescue has two
//! advantages over copies at arrival: steerage need not predict which CPU will be slow, and nothing
//! is copied while the ring has room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use steerage::device::{Blocks, Completions, Lending};

use super::sys::Memory;
use super::{BLOCK_UNITS, BLOCKS_MIN};

/// The kernel should have one fourth (1 / `FREE_PART`) of the ring free. If a smaller part of the
/// ring is free, the block that was lent first is rescued (replaced by a copy).
const FREE_PART: usize = 4;

/// A block is rescued (replaced by a copy) only if at least one half (1 / `YOUNG_PART`) of the ring
/// was delivered after this block. The kernel cannot skip a block that is still lent (in use by
/// handlers). Blocks that were delivered later need no rescue (copy): when the kernel reaches such
/// a block, more than one fourth of the ring still has undelivered frames.
const YOUNG_PART: usize = 2;

const _: () = assert!(BLOCKS_MIN >= FREE_PART && FREE_PART > YOUNG_PART);

#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) block: usize,
    pub(super) frames: u32,
    pub(super) at: usize,
    pub(super) used: usize,
    /// The place (an address range) from which the block's frames are lent. `None` if no place was
    /// free, so that the frames must be copied.
    pub(super) place: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Block,
    /// A copy of a block is mapped at the place (an address range). The number is the length of the
    /// copy in bytes. When no frame at this address range is lent any more, the copy is no longer
    /// used.
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
    /// The blocks that were delivered and have not been returned to the kernel yet, oldest first.
    out: VecDeque<Out>,
    /// True if a copy of a block could not be mapped. The warning that a copy could not be mapped
    /// is printed only once.
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

    /// The ring's memory, from which frames are lent. `blocks` can be called only once.
    pub(super) fn blocks(&mut self) -> io::Result<Blocks> {
        self.memory.blocks()
    }

    pub(super) fn own<'o>(&self, out: &'o mut Completions<'_>) -> Option<&'o mut Blocks> {
        self.memory.own(out)
    }

    /// Returns the used part of the current block, from which the block's frames are lent.
    pub(super) fn lending<'o>(&self, out: &'o mut Completions<'_>, current: &Current) -> Option<Lending<'o>> {
        self.memory.lending(out, (current.block, current.place?), current.used)
    }

    /// Returns true if the kernel describes the offloads of each frame.
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

    /// Returns to the kernel all blocks that have no lent frames (frames in use by handlers) any
    /// more.
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

    /// Maps the block at the first free place (an address range). Address ranges that were used
    /// before are reused first, so that the memory of the copies in them becomes free.
    #[cold]
    fn show(&mut self, blocks: &Blocks, socket: BorrowedFd<'_>, block: usize) {
        let is_free = |place: &usize| self.shows[*place] != Shown::Block && blocks.out(*place) == 0;
        let free = (0..self.shows.len()).find(is_free);
        // If the block cannot be mapped, the frames that it contains now are copied.
        if let Some(place) = free.filter(|place| self.memory.show(socket, block, *place).is_ok()) {
            (self.places[block], self.shows[place]) = (Some(place), Shown::Block);
        }
    }

    /// Returns the bytes of the current block, which has no place (address range) for lending. The
    /// frames of a block without a place (address range) must be copied.
    pub(super) fn unlent(&self, current: &Current) -> &[u8] {
        self.memory.unlent(current.block, current.used)
    }

    /// Returns true if frames may have been dropped because the ring was full. The ring may have
    /// been full if at least half of the ring's blocks are lent, or more than half of the ring is
    /// filled.
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

    /// Rescues the block that was lent first (replaces it by a copy), if the kernel has too little
    /// free space before this block. Returns the number of copied frames, which is the number of
    /// lent frames of this block.
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

    /// Returns true if another copy of `used` bytes is allowed. All copies in use together may take
    /// at most as much memory as the ring.
    fn has_room_for_copy(&self, blocks: &Blocks, used: usize) -> bool {
        let copies = self.shows.iter().enumerate().map(|(place, shown)| match shown {
            Shown::Copy(bytes) if blocks.out(place) > 0 => *bytes,
            _ => 0,
        });
        let shape = self.memory.shape();
        copies.sum::<usize>() + used <= shape.blocks * shape.block_bytes
    }

    /// Returns true if the kernel will reach `block` before it has filled one fourth of the ring
    /// (see
    /// [`FREE_PART`]).
    fn is_in_the_way(&self, block: usize) -> bool {
        let count = self.memory.shape().blocks;
        let part = count / FREE_PART;
        let before = (block + count - self.next) % count;
        if before > count / YOUNG_PART {
            return false;
        }
        // The kernel fills blocks in order. Consider the block that lies one fourth of the ring
        // before `block`. If that earlier block is not filled, all blocks between the earlier block
        // and `block` are free.
        before <= part || self.memory.is_filled((block + count - part) % count)
    }
}
