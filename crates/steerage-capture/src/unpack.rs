use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::bufread::GzDecoder;

use super::{READ_BYTES, zstd};

/// The first bytes of gzip data (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

pub(super) const MAGIC_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Returns `None` for an uncompressed file.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        match *head.first_chunk::<MAGIC_BYTES>()? {
            [a, b, ..] if [a, b] == GZIP_MAGIC => Some(Self::Gzip),
            magic => zstd::is_magic(magic).then_some(Self::Zstd),
        }
    }

    /// Unpacks the whole input `from`. Unpacked bytes are written before more input is read, except
    /// for the window of zstd. Returns the number of bytes after the compressed data, which are
    /// ignored, because they may be the padding of a tape or a signature.
    ///
    /// # Errors
    /// Returns an error of `from` or `to`, or an error in the compressed data.
    pub(super) fn unpack(self, from: impl Read, to: &mut impl Write) -> io::Result<u64> {
        let mut from = BufReader::with_capacity(READ_BYTES, from);
        let mut parts = 0;
        loop {
            let mut start = Vec::with_capacity(MAGIC_BYTES);
            from.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
            if start.is_empty() && parts > 0 {
                return Ok(0);
            }
            if parts > 0 && !self.may_begin_with(&start) {
                return Ok(start.len() as u64 + io::copy(&mut from, &mut io::sink())?);
            }
            let mut part = start.chain(&mut from);
            match self {
                Self::Gzip => gunzip(&mut part, to)?,
                Self::Zstd => zstd::unpack(&mut part, to)?,
            }
            parts += 1;
        }
    }

    /// Fewer bytes than [`MAGIC_BYTES`] may be the start of a magic number that was cut off.
    fn may_begin_with(self, start: &[u8]) -> bool {
        match (self, start.first_chunk()) {
            (Self::Gzip, _) => start.starts_with(&GZIP_MAGIC) || GZIP_MAGIC.starts_with(start),
            (Self::Zstd, Some(magic)) => zstd::is_magic(*magic),
            (Self::Zstd, None) => zstd::may_begin_with(start),
        }
    }
}

fn gunzip(from: impl BufRead, to: &mut impl Write) -> io::Result<()> {
    let mut unpacker = GzDecoder::new(from);
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match unpacker.read(&mut bytes)? {
            0 => return Ok(()),
            read => to.write_all(&bytes[..read])?,
        }
    }
}
