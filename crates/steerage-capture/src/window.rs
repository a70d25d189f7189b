//! The window: the bytes of a capture that were read but not handled yet. The window moves through
//! one block of memory record by record, and then into the next block.

use std::io;

use steerage::device::{Blocks, Claim, FrameHeader};

use super::in_place::{InPlace, Step};
use super::source::{Got, Source};
use super::{BLOCK_BYTES, BLOCKS, READ_BYTES, RECORD_BYTES_MAX};

/// The free space in front of an incomplete record that is copied to another block: a frame header
/// must fit into it.
const LEAD_BYTES: usize = FrameHeader::BYTES;

/// The kernel copies fastest to the start of a page.
const ALIGNMENT: usize = 4096;

#[derive(Debug)]
pub(super) struct Window {
    /// The window's block of memory, and its start and end in this block.
    block: usize,
    at: usize,
    end: usize,
    offset: u64,
    /// The first bytes of an incomplete record, while they are copied to another block.
    carry: Vec<u8>,
    skip: u64,
    ended: bool,
    in_place: Option<InPlace>,
}

/// A system call that reads fewer bytes into the end of a block is not worth its cost.
const READ_BYTES_MIN: usize = READ_BYTES / 4;

/// If a block has more than this number of bytes of an incomplete record, and room for the whole
/// record, the missing bytes are read into that block.
const CARRY_BYTES: usize = READ_BYTES / 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// The window has more bytes, or the file has ended.
    Read,
    Later,
    /// The window has not changed, because handlers hold frames in all blocks.
    FramesOut,
}

impl Window {
    pub(super) fn new() -> Self {
        Self::with_carry(Vec::with_capacity(RECORD_BYTES_MAX))
    }

    fn with_carry(carry: Vec<u8>) -> Self {
        let (block, at, end) = (0, LEAD_BYTES, LEAD_BYTES);
        Self { block, at, end, offset: 0, carry, skip: 0, ended: false, in_place: None }
    }

    pub(super) fn begin_anew(&mut self) {
        *self = Self::with_carry(std::mem::take(&mut self.carry));
    }

    pub(super) fn begin_file(&mut self) {
        (self.at, self.offset, self.skip, self.ended, self.in_place) = (self.end, 0, 0, false, None);
    }

    /// Reads the file in place from the start of the window on. The bytes in the window are
    /// dropped, because the mapped file contains them, too.
    pub(super) fn go_on_in_place(&mut self, file: InPlace) {
        (self.at, self.in_place) = (self.end, Some(file));
    }

    /// Returns the window's block, and the window's start and end in this block.
    #[inline]
    pub(super) fn place(&self) -> (usize, usize, usize) {
        (self.block, self.at, self.end)
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.at
    }

    /// All bytes before `at` have been handled.
    pub(super) fn walked_to(&mut self, at: usize) {
        let at = at.clamp(self.at, self.end);
        self.offset += (at - self.at) as u64;
        self.at = at;
    }

    pub(super) fn skip(&mut self, bytes: u64) {
        let here = bytes.min(self.len() as u64);
        self.walked_to(self.at + here as usize);
        self.skip = bytes - here;
    }

    pub(super) fn skips(&self) -> bool {
        self.skip > 0
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Reads more of the file, for a record of `needs` bytes.
    ///
    /// If handlers release frames quickly, the window alternates between two blocks, with the bytes
    /// of one read in each, and both blocks stay in the CPU's cache. If handlers release frames
    /// late, or if a pipe delivers small pieces, the window fills a block before it moves to the
    /// next block, so that the blocks hold as many frames as possible.
    pub(super) fn fill(
        &mut self,
        (blocks, claim): (&mut Blocks, &Claim),
        source: &mut Source,
        needs: usize,
    ) -> io::Result<Filled> {
        if let Some(file) = &mut self.in_place {
            match file.step((blocks, claim), self.offset)? {
                Step::Bytes { block, at, end } => {
                    (self.block, self.at, self.end) = (block, at, end);
                    source.reached(self.offset + (end - at) as u64);
                    return Ok(Filled::Read);
                }
                Step::Later => return Ok(Filled::FramesOut),
                Step::End => {
                    // Reads the incomplete record at the end of the file again, because another
                    // process may have appended bytes.
                    source.seek(self.offset)?;
                    (self.at, self.in_place) = (self.end, None);
                }
            }
        }
        let bytes = BLOCK_BYTES;
        let fits = self.block < BLOCKS && self.at + needs <= bytes;
        let others = || (0..BLOCKS).filter(|block| *block != self.block);
        let late = || others().any(|block| blocks.out(block) > 0);
        let pays_here = || self.len() > CARRY_BYTES || (bytes - self.end >= READ_BYTES_MIN && late());
        let goes_on_here = fits && (self.end < READ_BYTES || pays_here());
        let free = others().find(|block| blocks.out(*block) == 0);
        match free {
            Some(block) if !goes_on_here => self.carry_to(block, (blocks, claim)),
            None if !fits => return Ok(Filled::FramesOut),
            _ => {}
        }
        let Some(mut tail) = blocks.tail(claim, self.block) else { return Ok(Filled::FramesOut) };
        let from = self.end.saturating_sub(tail.offset());
        let free = tail.bytes().get_mut(from..).unwrap_or_default();
        let most = free.len().min(READ_BYTES);
        match source.fill(&mut free[..most])? {
            Got::Bytes(read) => self.end += read,
            Got::Later => return Ok(Filled::Later),
            Got::End => self.ended = true,
        }
        self.skip(self.skip);
        Ok(Filled::Read)
    }

    fn carry_to(&mut self, block: usize, (blocks, claim): (&mut Blocks, &Claim)) {
        self.carry.clear();
        self.carry.extend_from_slice(blocks.readable(claim, self.block).get(self.at..self.end).unwrap_or_default());
        let len = self.carry.len();
        let at = (LEAD_BYTES + len).next_multiple_of(ALIGNMENT) - len;
        let Some(mut tail) = blocks.tail(claim, block) else { return };
        if let Some(to) = tail.bytes().get_mut(at..at + len) {
            to.copy_from_slice(&self.carry);
            (self.block, self.at, self.end) = (block, at, at + len);
        }
    }
}
