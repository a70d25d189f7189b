//! Zstandard. It is decompressed a block at a time, so that a pipe may pause anywhere, and memory
//! is bounded whatever a file claims.
//!
//! `ruzstd` decodes the blocks, and this module finds frames and blocks. The readers of `ruzstd`
//! either keep everything that a buffer of compressed bytes decompresses to, or cannot continue
//! after a pipe made them wait. Format: RFC 8878.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const MAGIC: u32 = 0xfd2f_b528;
/// The first of 16 magic numbers for frames to skip.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;

/// The largest window, which is how far back unpacked bytes may be repeated. `zstd -d` has the same
/// limit. The compressor uses 8 MiB at level 19, and up to 128 MiB with `--ultra` or `--long`.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// The largest window in a header that the decoder sees. The decoder allocates the whole window at
/// once, however little data the frame has, and twice as much if the size is a power of two. So the
/// header of a larger window is changed to this size, and the additional bytes are [held
/// back](Zstd::held_back).
const TOLD_WINDOW_BYTES: u64 = 1 << 20;
/// The same size in the encoding of a frame header: the power of two above 1 KiB, without eighths
/// (RFC 8878, 3.1.1.1.2).
const TOLD_WINDOW: u8 = 10 << 3;

/// Magic and descriptor. This many bytes show the length of the frame header.
const DESCRIPTOR_END: usize = 5;
/// The length of a dictionary's number, by the descriptor.
const DICTIONARY_BYTES: [usize; 4] = [0, 1, 2, 4];
const BLOCK_HEADER_BYTES: usize = 3;
const CHECKSUM_BYTES: usize = 4;
/// The descriptor's bit for a checksum.
const CHECKSUM_FLAG: u8 = 4;

/// The most bytes of a block, both packed and unpacked.
const BLOCK_BYTES_MAX: usize = 128 << 10;

/// Whether a file that begins with these bytes is compressed with zstd.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    let magic = u32::from_le_bytes(bytes);
    magic == MAGIC || magic & !0xf == SKIPPABLE_MAGIC
}

/// Unpacks the bytes that it reads from `feed`. If `feed` would block, the next read continues from
/// there.
pub(super) struct Zstd<R> {
    feed: R,
    frame: FrameDecoder,
    next: NextPart,
    /// How many unpacked bytes stay in the decoder in addition to the window in its header. Until
    /// the end of the frame, the decoder repeats bytes from everything it still holds.
    held_back: usize,
    /// The bytes of the next part, as far as they have arrived.
    pending: Vec<u8>,
}

/// The next part of the packed bytes.
#[derive(Clone, Copy, Debug)]
enum NextPart {
    FrameHeader,
    Skip(u64),
    /// A block of a frame with or without a checksum.
    Block {
        checksum: bool,
    },
    /// The frame is unpacked, but its checksum is not compared yet.
    FrameEnd {
        checksum: bool,
    },
}

impl<R: BufRead> Zstd<R> {
    pub(super) fn new(feed: R) -> Self {
        let pending = Vec::with_capacity(BLOCK_HEADER_BYTES + BLOCK_BYTES_MAX + CHECKSUM_BYTES);
        Self { feed, frame: FrameDecoder::new(), next: NextPart::FrameHeader, held_back: 0, pending }
    }

    pub(super) fn feed(&self) -> &R {
        &self.feed
    }

    /// Makes sure that `bytes` bytes are pending. Returns false if the input ended before the first
    /// of them.
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

    /// As [`want`](Self::want), but the end of the input is an error.
    fn need(&mut self, bytes: usize) -> io::Result<()> {
        if self.want(bytes)? { Ok(()) } else { Err(cut()) }
    }

    /// Processes one part. Returns false at the end.
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
        let (window, dictionary) = (window_bytes(&self.pending), dictionary(&self.pending));
        if dictionary != 0 {
            return Err(unsupported(format!(
                "it was packed with dictionary {dictionary}: unpack it with zstd -dc -D DICTIONARY FILE | steerage count -"
            )));
        }
        if window > WINDOW_BYTES_MAX {
            return Err(unsupported(format!(
                "it needs a window of {window} bytes, more than {WINDOW_BYTES_MAX}: unpack it with \
                 zstd -dc --long=31 FILE | steerage count -"
            )));
        }
        let told = if window > TOLD_WINDOW_BYTES {
            let header = [a, b, c, d, descriptor & CHECKSUM_FLAG, TOLD_WINDOW];
            self.frame.reset(&header[..]).map(|()| TOLD_WINDOW_BYTES)
        } else {
            self.frame.reset(&self.pending[..]).map(|()| window)
        };
        self.held_back = (window - told.map_err(unpacking)?) as usize;
        self.pending.clear();
        Ok(NextPart::Block { checksum: descriptor & CHECKSUM_FLAG != 0 })
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
            let held_back = if self.frame.is_finished() { 0 } else { self.held_back };
            let free = self.frame.can_collect().saturating_sub(held_back).min(to.len());
            let read = self.frame.read(&mut to[..free])?;
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

/// The number of the dictionary for a frame, from its complete header. 0 if there is none.
fn dictionary(header: &[u8]) -> u32 {
    let descriptor = header[DESCRIPTOR_END - 1];
    let from = DESCRIPTOR_END + usize::from(descriptor & 0x20 == 0);
    let bytes = DICTIONARY_BYTES[usize::from(descriptor & 3)];
    let mut number = [0; 4];
    number[..bytes].copy_from_slice(&header[from..from + bytes]);
    u32::from_le_bytes(number)
}

/// The length of the frame header, including the magic, by its descriptor. It has a byte for the
/// window unless there is one segment, a dictionary's number and the content's size.
fn frame_header_bytes(descriptor: u8) -> usize {
    let single = descriptor & 0x20 != 0;
    let dictionary = DICTIONARY_BYTES[usize::from(descriptor & 3)];
    let size = match descriptor >> 6 {
        0 => usize::from(single),
        power => 1 << power,
    };
    DESCRIPTOR_END + usize::from(!single) + dictionary + size
}

/// How many unpacked bytes must be kept for a frame, from its complete header.
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
    // A size of two bytes has an offset of 256.
    u64::from_le_bytes(size) + if size_bytes == 2 { 256 } else { 0 }
}

fn cut() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// The error for valid data that this module cannot unpack.
fn unsupported(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("zstd: {text}"))
}

fn damaged(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn unpacking(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {error}"))
}
