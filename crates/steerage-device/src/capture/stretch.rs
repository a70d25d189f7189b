//! The file, a stretch at a time, in blocks whose frames are lent.

use std::fs::File;
use std::io::{self, Read};

use steerage::{Blocks, Completion};

use super::RECORD_BYTES_MAX;
use super::walk::Span;

/// Where in the file, and in which block, reading is.
#[derive(Debug)]
pub(super) struct Stretches {
    file: File,
    /// The block that holds the current stretch, the part of it that was filled, and how far that has been walked.
    block: usize,
    filled: usize,
    at: usize,
    /// The offset of the block's first byte in the file.
    block_offset: u64,
    /// Bytes on their way to the next block: the beginning of a record whose end has yet to be read.
    carry: Vec<u8>,
    /// Bytes to pass over before the next record.
    skip: u64,
    /// The current stretch is the last.
    ended: bool,
}

/// What going on to the next stretch came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// It was read, or the file's end was.
    Read,
    /// Frames of its block are still out: nothing has changed.
    FramesOut,
}

impl Stretches {
    /// `begun` has been read already, `offset` bytes into the file.
    pub(super) fn new(file: File, offset: u64, begun: Vec<u8>) -> Self {
        let mut carry = Vec::with_capacity(RECORD_BYTES_MAX);
        carry.extend(begun);
        Self { file, block: 0, filled: 0, at: 0, block_offset: offset, carry, skip: 0, ended: false }
    }

    /// What of the current stretch is yet to be walked.
    pub(super) fn rest<'a>(&self, blocks: &'a Blocks) -> &'a [u8] {
        blocks.readable(self.block).get(self.at..self.filled).unwrap_or_default()
    }

    /// The length of [`rest`](Self::rest).
    pub(super) fn rest_bytes(&self) -> usize {
        self.filled - self.at
    }

    /// Lends a frame of [`rest`](Self::rest).
    #[inline(always)]
    pub(super) fn lend(&self, blocks: &mut Blocks, span: &Span) -> Option<Completion> {
        blocks.lend(self.block, self.at as u32 + span.at, span.len as usize)
    }

    /// `bytes` of [`rest`](Self::rest) are done with.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.at += bytes.min(self.rest_bytes());
    }

    /// `bytes` are to be passed over, in this stretch and those that follow.
    pub(super) fn skip(&mut self, bytes: u64) {
        let here = bytes.min(self.rest_bytes() as u64);
        self.consume(here as usize);
        self.skip = bytes - here;
    }

    /// Whether bytes are yet to be passed over.
    pub(super) fn skips(&self) -> bool {
        self.skip > 0
    }

    /// The offset in the file of what is to be walked next.
    pub(super) fn offset(&self) -> u64 {
        self.block_offset + self.at as u64
    }

    /// The offset in the file up to which it has been read.
    pub(super) fn end_offset(&self) -> u64 {
        self.block_offset + self.filled as u64
    }

    /// Whether there is nothing to read any more.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Reads the next stretch into the next block, behind what is left of the current one.
    pub(super) fn advance(&mut self, blocks: &mut Blocks) -> io::Result<Advance> {
        let next = (self.block + 1) % blocks.count();
        if blocks.out(next) > 0 {
            return Ok(Advance::FramesOut);
        }
        self.carry.extend_from_slice(self.rest(blocks));
        let Some((carried, free)) = blocks.writable(next).and_then(|to| to.split_at_mut_checked(self.carry.len()))
        else {
            return Ok(Advance::FramesOut);
        };
        carried.copy_from_slice(&self.carry);
        let (read, ended) = read_full(&mut self.file, free)?;
        self.ended = ended;
        self.block_offset = self.offset();
        self.block = next;
        self.at = 0;
        self.filled = self.carry.len() + read;
        self.carry.clear();
        self.skip(self.skip);
        Ok(Advance::Read)
    }
}

/// Reads until `to` is full or the file ends: how much, and whether it ended.
fn read_full(file: &mut File, to: &mut [u8]) -> io::Result<(usize, bool)> {
    let mut read = 0;
    while read < to.len() {
        match file.read(&mut to[read..]) {
            Ok(0) => return Ok((read, true)),
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok((read, false))
}
