//! Unpacks gzip and zstd data.

use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::bufread::MultiGzDecoder;

use super::{READ_BYTES, zstd};

/// The first bytes of a gzip file (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The number of first bytes that identify the compression of a file.
pub(super) const MAGIC_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Recognises the compression of a file by its first bytes. Returns `None` for an uncompressed
    /// file.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        match *head.first_chunk::<MAGIC_BYTES>()? {
            [a, b, ..] if [a, b] == GZIP_MAGIC => Some(Self::Gzip),
            magic => zstd::is_magic(magic).then_some(Self::Zstd),
        }
    }

    /// Unpacks all of `from`. Unpacked bytes are written before more input is read, except for the
    /// window of zstd.
    ///
    /// # Errors
    /// An error of `from` or `to`, or an error in the compressed data.
    pub(super) fn unpack(self, from: impl Read, to: &mut impl Write) -> io::Result<()> {
        let mut from = BufReader::with_capacity(READ_BYTES, from);
        match self {
            Self::Gzip => gunzip(from, to),
            Self::Zstd => zstd::unpack(&mut from, to),
        }
    }
}

fn gunzip(from: impl BufRead, to: &mut impl Write) -> io::Result<()> {
    let mut unpacker = MultiGzDecoder::new(from);
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match unpacker.read(&mut bytes)? {
            0 => return Ok(()),
            read => to.write_all(&bytes[..read])?,
        }
    }
}
