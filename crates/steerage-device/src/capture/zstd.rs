//! Zstandard, decompressed a block at a time, so that a pipe may pause anywhere, and memory is bounded whatever a file
//! claims.
//!
//! `ruzstd` decodes the blocks. Frames and blocks are found here: its own readers either hold everything that a buffer
//! of compressed bytes decompresses to, or cannot continue after a pipe made them wait. Format: RFC 8878.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const MAGIC: u32 = 0xfd2f_b528;
/// And the 15 that follow: frames to be skipped.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;

/// The most memory that a frame may ask for: what `ruzstd` allows. `zstd` itself asks for 8 MiB at level 19, and for up
/// to 128 MiB only by `--ultra` or `--long`.
pub(super) const WINDOW_BYTES_MAX: u64 = 100 << 20;

/// Magic and descriptor: as many bytes as tell the frame header's length.
const DESCRIPTOR_END: usize = 5;
const BLOCK_HEADER_BYTES: usize = 3;
const CHECKSUM_BYTES: usize = 4;

/// The most a block can unpack to, and be.
const BLOCK_BYTES_MAX: usize = 128 << 10;

/// Whether a file that begins with these bytes is packed so.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    let magic = u32::from_le_bytes(bytes);
    magic == MAGIC || magic & !0xf == SKIPPABLE_MAGIC
}

/// Unpacks what it reads from `feed`. Where that would block, it goes on from there when it is read again.
pub(super) struct Zstd<R> {
    feed: R,
    frame: FrameDecoder,
    next: NextPart,
    /// The bytes of what comes next, as far as they have come.
    pending: Vec<u8>,
}

/// What comes next in the packed bytes.
#[derive(Clone, Copy, Debug)]
enum NextPart {
    FrameHeader,
    Skip(u64),
    /// Of a frame with a checksum or without.
    Block {
        checksum: bool,
    },
    /// The frame is unpacked, and yet to be compared.
    FrameEnd {
        checksum: bool,
    },
}

impl<R: BufRead> Zstd<R> {
    pub(super) fn new(feed: R) -> Self {
        let pending = Vec::with_capacity(BLOCK_HEADER_BYTES + BLOCK_BYTES_MAX + CHECKSUM_BYTES);
        Self { feed, frame: FrameDecoder::new(), next: NextPart::FrameHeader, pending }
    }

    pub(super) fn feed(&self) -> &R {
        &self.feed
    }

    /// Sees to it that `bytes` bytes are pending. False if the input ended before the first.
    fn want(&mut self, bytes: usize) -> io::Result<bool> {
        while self.pending.len() < bytes {
            let come = self.feed.fill_buf()?;
            if come.is_empty() {
                return if self.pending.is_empty() { Ok(false) } else { Err(cut()) };
            }
            let taken = come.len().min(bytes - self.pending.len());
            self.pending.extend_from_slice(&come[..taken]);
            self.feed.consume(taken);
        }
        Ok(true)
    }

    /// As [`want`](Self::want), where the input must not end.
    fn need(&mut self, bytes: usize) -> io::Result<()> {
        if self.want(bytes)? { Ok(()) } else { Err(cut()) }
    }

    /// Goes on by one step. False at the end.
    fn step(&mut self) -> io::Result<bool> {
        self.next = match self.next {
            NextPart::FrameHeader => {
                if !self.want(DESCRIPTOR_END)? {
                    return Ok(false);
                }
                self.frame_header()?
            }
            NextPart::Skip(0) => NextPart::FrameHeader,
            NextPart::Skip(bytes) => {
                let come = self.feed.fill_buf()?.len() as u64;
                if come == 0 {
                    return Err(cut());
                }
                let skipped = come.min(bytes);
                self.feed.consume(skipped as usize);
                NextPart::Skip(bytes - skipped)
            }
            NextPart::Block { checksum } => self.block(checksum)?,
            NextPart::FrameEnd { checksum } => {
                if checksum && self.frame.get_checksum_from_data() != self.frame.get_calculated_checksum() {
                    return Err(damaged("zstd: what was unpacked does not match its checksum"));
                }
                NextPart::FrameHeader
            }
        };
        Ok(true)
    }

    fn frame_header(&mut self) -> io::Result<NextPart> {
        let [a, b, c, d, descriptor, ..] = self.pending[..] else { return Err(cut()) };
        let magic = u32::from_le_bytes([a, b, c, d]);
        if magic & !0xf == SKIPPABLE_MAGIC {
            self.need(8)?;
            let [.., a, b, c, d] = self.pending[..] else { return Err(cut()) };
            self.pending.clear();
            return Ok(NextPart::Skip(u32::from_le_bytes([a, b, c, d]).into()));
        }
        if magic != MAGIC {
            return Err(damaged("zstd: what follows is no frame"));
        }
        self.need(frame_header_bytes(descriptor))?;
        let window = window_bytes(&self.pending);
        if window > WINDOW_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("zstd: it asks for {window} bytes of memory, more than {WINDOW_BYTES_MAX}"),
            ));
        }
        self.frame.reset(&self.pending[..]).map_err(unpacking)?;
        self.pending.clear();
        Ok(NextPart::Block { checksum: descriptor & 4 != 0 })
    }

    fn block(&mut self, checksum: bool) -> io::Result<NextPart> {
        self.need(BLOCK_HEADER_BYTES)?;
        let header = u32::from_le_bytes([self.pending[0], self.pending[1], self.pending[2], 0]);
        let (last, repeated, size) = (header & 1 != 0, header >> 1 & 3 == 1, (header >> 3) as usize);
        if size > BLOCK_BYTES_MAX {
            return Err(damaged("zstd: a block is longer than 128 KiB"));
        }
        let content = if repeated { 1 } else { size };
        let trailer = if last && checksum { CHECKSUM_BYTES } else { 0 };
        self.need(BLOCK_HEADER_BYTES + content + trailer)?;
        self.frame.decode_blocks(&self.pending[..], BlockDecodingStrategy::UptoBlocks(1)).map_err(unpacking)?;
        self.pending.clear();
        Ok(if last { NextPart::FrameEnd { checksum } } else { NextPart::Block { checksum } })
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while !to.is_empty() {
            let read = self.frame.read(to)?;
            if read > 0 {
                return Ok(read);
            }
            if !self.step()? {
                break;
            }
        }
        Ok(0)
    }
}

/// The frame header's length, magic included, by its descriptor: with a byte for the window unless there is one segment,
/// a dictionary's number and the content's size.
fn frame_header_bytes(descriptor: u8) -> usize {
    let single = descriptor & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = match descriptor >> 6 {
        0 => usize::from(single),
        power => 1 << power,
    };
    DESCRIPTOR_END + usize::from(!single) + dictionary + size
}

/// How much of what is unpacked has to be kept, by the frame's header, which is whole.
fn window_bytes(header: &[u8]) -> u64 {
    let descriptor = header[DESCRIPTOR_END - 1];
    if descriptor & 0x20 == 0 {
        let window = header[DESCRIPTOR_END];
        let base = 1u64 << (10 + (window >> 3));
        return base + base / 8 * u64::from(window & 7);
    }
    let size_bytes = match descriptor >> 6 {
        0 => 1,
        power => 1 << power,
    };
    let mut size = [0; 8];
    size[..size_bytes].copy_from_slice(&header[header.len() - size_bytes..]);
    // A size of two bytes counts from 256 on.
    u64::from_le_bytes(size) + if size_bytes == 2 { 256 } else { 0 }
}

fn cut() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

fn damaged(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn unpacking(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {error}"))
}
