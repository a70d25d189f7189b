//! Zstandard (RFC 8878). Whatever sizes a compressed file states, the decoder's memory grows only
//! with the number of unpacked bytes, up to the window (the earlier output to which data may
//! refer).

use std::error::Error;
use std::fmt::Display;
use std::io::{self, BufRead, Read, Write};

use ruzstd::decoding::errors::{FrameDecoderError as Failed, FrameHeaderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const MAGIC: u32 = 0xfd2f_b528;
/// The first of the 16 magic numbers of skippable frames.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;

/// The largest supported window in bytes, which is also the limit of `zstd -d`. The compressor
/// `zstd` uses a window of 8 MiB at level 19, and up to 128 MiB with `--ultra` or `--long`.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Magic number, descriptor, and the window byte if there is one. No zstd frame is shorter.
const FRAME_START_BYTES: usize = 6;
/// If this bit of the descriptor is set, a zstd frame has no window byte: the whole content is the
/// window.
const SINGLE_SEGMENT: u8 = 0x20;

/// An empty block that ends a zstd frame, followed by zeros in place of a checksum.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    let magic = u32::from_le_bytes(bytes);
    magic == MAGIC || magic & !0xf == SKIPPABLE_MAGIC
}

pub(super) fn may_begin_with(start: &[u8]) -> bool {
    let is_skippable = start.first().is_none_or(|first| u32::from(first & 0xf0) == SKIPPABLE_MAGIC & 0xff)
        && SKIPPABLE_MAGIC.to_le_bytes()[1..].starts_with(start.get(1..).unwrap_or_default());
    is_skippable || MAGIC.to_le_bytes().starts_with(start)
}

/// Unpacks one zstd frame. If a block is damaged, the bytes of earlier blocks are written before
/// the error is returned.
pub(super) fn unpack(from: &mut impl BufRead, to: &mut impl Write) -> io::Result<()> {
    // A reused decoder allocates the whole window at once, and supports at most 100 MiB. A new
    // decoder allocates only as much as it unpacks.
    let mut frame = FrameDecoder::new();
    if !begin(&mut frame, from)? {
        return Ok(());
    }
    if let Err(error) = unpack_blocks(&mut frame, from, to) {
        // The decoder returns the bytes of the window only after the last block.
        let _ = frame.decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::UptoBlocks(1));
        return write_unpacked(&mut frame, to).and(Err(error));
    }
    Ok(())
}

fn begin(frame: &mut FrameDecoder, from: &mut impl BufRead) -> io::Result<bool> {
    let mut start = [0; FRAME_START_BYTES];
    from.read_exact(&mut start)?;
    let [.., descriptor, window] = start;
    let window = match frame.init(start.chain(&mut *from)) {
        Ok(()) if descriptor & SINGLE_SEGMENT != 0 => frame.content_size(),
        Ok(()) => window_bytes(window),
        Err(Failed::FrameHeaderError(FrameHeaderError::WindowTooBig { got })) => got,
        Err(Failed::DictNotProvided { dict_id }) => {
            return Err(unsupported(format!(
                "it was packed with dictionary {dict_id}: unpack it with zstd -dc -D DICTIONARY FILE | steerage count -"
            )));
        }
        Err(Failed::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
            let skipped = io::copy(&mut from.take(length.into()), &mut io::sink())?;
            return if skipped == length.into() { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        Err(error) => return Err(unpacking(error)),
    };
    if window > WINDOW_BYTES_MAX {
        return Err(unsupported(format!(
            "it needs a window of {window} bytes, more than {WINDOW_BYTES_MAX}: unpack it with \
             zstd -dc --long=31 FILE | steerage count -"
        )));
    }
    Ok(true)
}

fn unpack_blocks(frame: &mut FrameDecoder, from: &mut impl BufRead, to: &mut impl Write) -> io::Result<()> {
    while !frame.is_finished() {
        frame.decode_blocks(&mut *from, BlockDecodingStrategy::UptoBlocks(1)).map_err(unpacking)?;
        write_unpacked(frame, to)?;
    }
    match frame.get_checksum_from_data() {
        Some(sum) if Some(sum) != frame.get_calculated_checksum() => {
            Err(damaged("what was unpacked does not match its checksum"))
        }
        _ => Ok(()),
    }
}

/// Writes the unpacked bytes, except for the window of an unfinished frame.
fn write_unpacked(frame: &mut FrameDecoder, to: &mut impl Write) -> io::Result<()> {
    while frame.can_collect() > 0 {
        match frame.collect_to_writer(&mut *to) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the size of the window in bytes (RFC 8878, 3.1.1.1.2).
fn window_bytes(window: u8) -> u64 {
    let base = 1 << (10 + (window >> 3));
    base + base / 8 * u64::from(window & 7)
}

/// Returns the decoder's error, or the error of the input that caused it.
fn unpacking(error: Failed) -> io::Error {
    let mut cause: Option<&dyn Error> = Some(&error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return io::Error::new(error.kind(), error.to_string());
        }
        cause = error.source();
    }
    damaged(error)
}

fn unsupported(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("zstd: {text}"))
}

fn damaged(what: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {what}"))
}
