//! The source of a capture's bytes: a file, a pipe or any reader, compressed or not.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::info::CaptureInfo;
use super::zstd::{self, Zstd};
use super::{PACKED_BYTES, READ_BYTES, UNPACK_BYTES};

/// The first bytes of a gzip file (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How many bytes show the compression of a file.
const MAGIC_BYTES: usize = 4;

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// This many bytes were read, more than 0.
    Bytes(usize),
    /// There is no data yet.
    Later,
    /// The input has ended.
    End,
}

/// The input, as it is stored.
pub(super) enum Input {
    /// A file. Reading it never waits.
    File(File),
    /// A pipe, which may have no data at times.
    Pipe(Pipe),
    /// A reader, which returns [`io::ErrorKind::WouldBlock`] if it has no data yet.
    Reader(Box<dyn Read + Send>),
}

/// A pipe, FIFO or socket, and the epoll instance for waiting.
pub(super) struct Pipe {
    file: File,
    /// Contains the pipe only while the pipe has no data, because the pipe must not report events
    /// while the queue does not want to read.
    waker: Arc<Epoll>,
    waits: bool,
}

impl Pipe {
    pub(super) fn new(file: File, waker: Arc<Epoll>) -> Self {
        Self { file, waker, waits: false }
    }

    /// Reads the available data. Other processes may share the file, so this polls the file first
    /// instead of making it non-blocking.
    fn read(&mut self, to: &mut [u8]) -> io::Result<Got> {
        if self.waits {
            self.waker.delete(&self.file)?;
            self.waits = false;
        }
        let mut events = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        if poll(&mut events, PollTimeout::ZERO)? == 0 {
            self.waker.add(&self.file, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            self.waits = true;
            return Ok(Got::Later);
        }
        read(&mut self.file, to)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.waits {
            // Standard input stays open when this copy of it is closed, and would remain in the
            // epoll instance.
            let _ = self.waker.delete(&self.file);
        }
    }
}

impl Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<Got> {
        match self {
            Self::File(file) => read(file, to),
            Self::Pipe(pipe) => pipe.read(to),
            Self::Reader(reader) => read(reader, to),
        }
    }
}

fn read(from: &mut impl Read, to: &mut [u8]) -> io::Result<Got> {
    loop {
        match from.read(to) {
            Ok(0) => return Ok(Got::End),
            Ok(read) => return Ok(Got::Bytes(read)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Got::Later),
            Err(e) => return Err(e),
        }
    }
}

/// An input with a read-ahead buffer, from which the unpackers read. It returns
/// [`io::ErrorKind::WouldBlock`] if there is no data yet, and continues from there at the next
/// read.
pub(super) struct Feed {
    input: Input,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes read from the input.
    read: u64,
    info: Arc<CaptureInfo>,
}

impl Feed {
    fn new(input: Input, info: Arc<CaptureInfo>) -> Self {
        Self { input, buffer: Vec::new(), at: 0, read: 0, info }
    }

    fn ahead(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Appends up to `most` bytes to the read-ahead buffer.
    fn read_ahead(&mut self, most: usize) -> io::Result<Got> {
        self.buffer.drain(..std::mem::take(&mut self.at));
        let from = self.buffer.len();
        self.buffer.resize(from + most, 0);
        let got = self.input.read(&mut self.buffer[from..]);
        let read = if let Ok(Got::Bytes(read)) = got { read } else { 0 };
        self.buffer.truncate(from + read);
        self.count(read);
        got
    }

    /// Reads to `to`. If the buffer is empty, this reads directly from the input.
    fn read_direct(&mut self, to: &mut [u8]) -> io::Result<Got> {
        let ahead = self.ahead().len().min(to.len());
        if ahead > 0 {
            to[..ahead].copy_from_slice(&self.ahead()[..ahead]);
            self.at += ahead;
            return Ok(Got::Bytes(ahead));
        }
        let got = self.input.read(to)?;
        if let Got::Bytes(read) = got {
            self.count(read);
        }
        Ok(got)
    }

    fn count(&mut self, read: usize) {
        self.read += read as u64;
        self.info.add_bytes_read(read as u64);
    }
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.ahead().is_empty() && self.read_ahead(PACKED_BYTES)? == Got::Later {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.ahead())
    }

    fn consume(&mut self, amount: usize) {
        self.at = self.buffer.len().min(self.at + amount);
    }
}

impl Read for Feed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.len().min(to.len());
        to[..read].copy_from_slice(&self.ahead()[..read]);
        self.consume(read);
        Ok(read)
    }
}

/// The bytes of a capture, unpacked.
pub(super) struct Source {
    /// `None` only during a change.
    packing: Option<Packing>,
    /// Unpacked bytes that were read for [`peek`](Self::peek).
    peeked: Vec<u8>,
    /// The error that follows the bytes that were handed out last.
    failed: Option<io::Error>,
}

enum Packing {
    Unknown(Feed),
    Plain(Feed),
    Gzip(Box<MultiGzDecoder<Feed>>),
    Zstd(Box<Zstd<Feed>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.packing {
            None | Some(Packing::Unknown(_)) => "Source",
            Some(Packing::Plain(_)) => "Source, not packed",
            Some(Packing::Gzip(_)) => "Source, gzip",
            Some(Packing::Zstd(_)) => "Source, zstd",
        })
    }
}

impl Source {
    pub(super) fn new(input: Input, info: Arc<CaptureInfo>) -> Self {
        Self { packing: Some(Packing::Unknown(Feed::new(input, info))), peeked: Vec::new(), failed: None }
    }

    /// Whether the input is compressed.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.packing, Some(Packing::Gzip(_) | Packing::Zstd(_)))
    }

    /// How many bytes of the file itself have been read.
    pub(super) fn offset(&self) -> u64 {
        match &self.packing {
            Some(Packing::Unknown(feed) | Packing::Plain(feed)) => feed.read,
            Some(Packing::Gzip(unpacker)) => unpacker.get_ref().read,
            Some(Packing::Zstd(unpacker)) => unpacker.feed().read,
            None => 0,
        }
    }

    /// The size of the next read, in bytes.
    pub(super) fn read_bytes(&self) -> usize {
        if self.is_packed() { UNPACK_BYTES } else { READ_BYTES }
    }

    /// The first `most` bytes, or fewer if the input is shorter. [`fill`](Self::fill) returns them
    /// again. This is only for inputs that never wait.
    pub(super) fn peek(&mut self, most: usize) -> io::Result<&[u8]> {
        let mut head = vec![0; most];
        let mut len = 0;
        while len < most {
            match self.fill(&mut head[len..])? {
                Got::Bytes(read) => len += read,
                Got::Later | Got::End => break,
            }
        }
        head.truncate(len);
        self.peeked = head;
        Ok(&self.peeked)
    }

    /// Reads the available bytes.
    ///
    /// # Errors
    /// The kernel's error, or an error in the compressed data.
    pub(super) fn fill(&mut self, to: &mut [u8]) -> io::Result<Got> {
        if !self.peeked.is_empty() {
            let peeked = self.peeked.len().min(to.len());
            to[..peeked].copy_from_slice(&self.peeked[..peeked]);
            self.peeked.drain(..peeked);
            return Ok(Got::Bytes(peeked));
        }
        if let Some(Packing::Unknown(feed)) = &mut self.packing {
            while feed.ahead().len() < MAGIC_BYTES {
                match feed.read_ahead(MAGIC_BYTES)? {
                    Got::Bytes(_) => {}
                    Got::Later => return Ok(Got::Later),
                    Got::End => break,
                }
            }
            self.packing = self.packing.take().map(Packing::recognised);
        }
        match &mut self.packing {
            Some(Packing::Unknown(feed) | Packing::Plain(feed)) => feed.read_direct(to),
            Some(Packing::Gzip(unpacker)) => unpack(unpacker, to, &mut self.failed),
            Some(Packing::Zstd(unpacker)) => unpack(unpacker, to, &mut self.failed),
            None => Ok(Got::End),
        }
    }
}

impl Packing {
    /// Chooses the unpacker by the first bytes.
    fn recognised(self) -> Self {
        let Self::Unknown(feed) = self else { return self };
        match feed.ahead().first_chunk::<MAGIC_BYTES>() {
            Some([a, b, ..]) if [*a, *b] == GZIP_MAGIC => Self::Gzip(Box::new(MultiGzDecoder::new(feed))),
            Some(magic) if zstd::is_magic(*magic) => Self::Zstd(Box::new(Zstd::new(feed))),
            _ => Self::Plain(feed),
        }
    }
}

/// Unpacks until `to` is full or there is no more data. If an error follows valid bytes, the next
/// call reports it.
fn unpack(unpacker: &mut impl Read, to: &mut [u8], failed: &mut Option<io::Error>) -> io::Result<Got> {
    if let Some(error) = failed.take() {
        return Err(error);
    }
    let mut done = 0;
    while done < to.len() {
        match read(unpacker, &mut to[done..]) {
            Ok(Got::Bytes(read)) => done += read,
            nothing if done == 0 => return nothing,
            nothing => {
                *failed = nothing.err();
                break;
            }
        }
    }
    Ok(Got::Bytes(done))
}
