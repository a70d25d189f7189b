//! The window of memory in which a capture is read: a record at a time in one block, and on into the next.

use std::io;

use steerage::device::{Blocks, Claim, FrameHeader};

use super::source::{Got, Source};
use super::{READ_BYTES, RECORD_BYTES_MAX};

/// Where what is carried to another block goes at least: a header must fit in front of its first packet.
const LEAD_BYTES: usize = FrameHeader::BYTES;

/// The kernel copies fastest to the start of one of its pages.
const ALIGNMENT: usize = 4096;

/// The stretch of the file that is in memory and has yet to be walked.
#[derive(Debug)]
pub(super) struct Window {
    /// The block that it lies in, from where, and up to where.
    block: usize,
    at: usize,
    end: usize,
    /// The offset in the file, as unpacked, of what `at` points to.
    offset: u64,
    /// Bytes on their way to another block: the beginning of a record whose end has yet to be read.
    carry: Vec<u8>,
    /// Bytes to pass over before the next record.
    skip: u64,
    /// There is no more to read.
    ended: bool,
}

/// At the end of a block, a smaller stretch than this is not worth the system call.
const READ_BYTES_MIN: usize = READ_BYTES / 4;

/// More than this of a record is not carried to another block if the rest fits behind it: that is a copy of it.
const CARRY_BYTES: usize = READ_BYTES / 4;

/// What reading on came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// There is more in the window, or the file has ended.
    Read,
    /// There is nothing to read yet.
    Later,
    /// Frames of all blocks are still out: nothing has changed.
    FramesOut,
}

impl Window {
    pub(super) fn new() -> Self {
        let carry = Vec::with_capacity(RECORD_BYTES_MAX);
        Self { block: 0, at: LEAD_BYTES, end: LEAD_BYTES, offset: 0, carry, skip: 0, ended: false }
    }

    /// As it was when it was new.
    pub(super) fn begin_anew(&mut self) {
        let carry = std::mem::take(&mut self.carry);
        *self = Self { block: 0, at: LEAD_BYTES, end: LEAD_BYTES, offset: 0, carry, skip: 0, ended: false };
    }

    /// The next file begins.
    pub(super) fn begin_file(&mut self) {
        (self.at, self.offset, self.skip, self.ended) = (self.end, 0, 0, false);
    }

    /// The block, and where in it the window begins and ends.
    #[inline]
    pub(super) fn place(&self) -> (usize, usize, usize) {
        (self.block, self.at, self.end)
    }

    /// Bytes in the window.
    pub(super) fn len(&self) -> usize {
        self.end - self.at
    }

    /// What is before `at` has been dealt with.
    pub(super) fn walked_to(&mut self, at: usize) {
        let at = at.clamp(self.at, self.end);
        self.offset += (at - self.at) as u64;
        self.at = at;
    }

    /// `bytes` are to be passed over, in the window and behind it.
    pub(super) fn skip(&mut self, bytes: u64) {
        let here = bytes.min(self.len() as u64);
        self.walked_to(self.at + here as usize);
        self.skip = bytes - here;
    }

    /// Whether bytes are yet to be passed over.
    pub(super) fn skips(&self) -> bool {
        self.skip > 0
    }

    /// The offset in the file, as unpacked, of what is to be walked next.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether there is no more to read.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Reads on, for a record of `needs` bytes.
    ///
    /// While frames come home at once, two blocks take turns, a stretch each, and stay in the CPU's cache. Where they
    /// don't, and for the small pieces of a pipe, a block is filled up before the next: that holds the most frames.
    pub(super) fn fill(
        &mut self,
        (blocks, claim): (&mut Blocks, &Claim),
        source: &mut Source,
        needs: usize,
    ) -> io::Result<Filled> {
        let bytes = blocks.region().page_bytes();
        let fits = self.at + needs <= bytes;
        let others = || (0..blocks.count()).filter(|block| *block != self.block);
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
        let most = free.len().min(source.read_bytes());
        match source.fill(&mut free[..most])? {
            Got::Bytes(read) => self.end += read,
            Got::Later => return Ok(Filled::Later),
            Got::End => self.ended = true,
        }
        self.skip(self.skip);
        Ok(Filled::Read)
    }

    /// Takes the window's bytes along to another block.
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
