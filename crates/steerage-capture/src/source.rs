//! The source of a capture's bytes: a file, a pipe or any reader. A compressed input is unpacked by
//! another thread into a pipe, and read from there.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::info::CaptureInfo;
use super::opener::{Helper, gone};
use super::pipe;
use super::unpack::{Compression, MAGIC_BYTES};

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
    /// Contains the pipe only while the pipe has no data. It must not report events while the queue
    /// does not want to read.
    waker: Option<Arc<Epoll>>,
    waits: bool,
}

impl Pipe {
    /// `None` for `waker` if no epoll instance should report the pipe's data.
    pub(super) fn new(file: File, waker: Option<Arc<Epoll>>) -> Self {
        Self { file, waker, waits: false }
    }

    /// Reads the available data. Other processes may share the file, so this polls the file first
    /// instead of making it non-blocking.
    fn read(&mut self, to: &mut [u8]) -> io::Result<Got> {
        self.leave_waker()?;
        let mut events = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        if poll(&mut events, PollTimeout::ZERO)? == 0 {
            if let Some(waker) = &self.waker {
                waker.add(&self.file, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
                self.waits = true;
            }
            return Ok(Got::Later);
        }
        read(&mut self.file, to)
    }

    fn leave_waker(&mut self) -> io::Result<()> {
        match &self.waker {
            Some(waker) if std::mem::take(&mut self.waits) => Ok(waker.delete(&self.file)?),
            _ => Ok(()),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Standard input stays open when this copy of it is closed, and would remain in the epoll
        // instance.
        let _ = self.leave_waker();
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

/// The input of the thread that unpacks. Reading waits until there is data.
struct Waiting<'a> {
    input: Input,
    info: Arc<CaptureInfo>,
    /// The pipe to which the input is unpacked. Waiting ends if nobody reads it any more.
    output: BorrowedFd<'a>,
}

impl Read for Waiting<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.input.read(to)? {
                Got::Bytes(read) => {
                    self.info.add_bytes_read(read as u64);
                    return Ok(read);
                }
                Got::End => return Ok(0),
                Got::Later => {}
            }
            let mut events = vec![PollFd::new(self.output, PollFlags::empty())];
            let timeout = if let Input::Pipe(pipe) = &self.input {
                events.push(PollFd::new(pipe.file.as_fd(), PollFlags::POLLIN));
                PollTimeout::NONE
            } else {
                PollTimeout::ZERO
            };
            match poll(&mut events, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            if events[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR)) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

/// What the sources of a capture share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Becomes readable when a silent pipe has data. All pipes share it, because the waiting CPU
    /// asks for it only once. `None` if the input is a reader.
    pub(super) waker: Option<Arc<Epoll>>,
    /// The thread that unpacks.
    pub(super) unpacker: OnceLock<Helper>,
}

/// The bytes of a capture, unpacked.
pub(super) struct Source {
    /// The input, or the pipe to which it is unpacked.
    input: Input,
    packing: Packing,
    shared: Arc<Shared>,
    info: Arc<CaptureInfo>,
    /// The number of bytes that were read from earlier files.
    before: u64,
}

enum Packing {
    /// These are the first bytes.
    Unknown(Vec<u8>),
    Plain,
    /// Another thread unpacks, and sends the outcome after the last byte.
    Packed(Receiver<io::Result<()>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("is_packed", &self.is_packed()).finish_non_exhaustive()
    }
}

impl Source {
    pub(super) fn new(input: Input, shared: Arc<Shared>, info: Arc<CaptureInfo>) -> Self {
        let before = info.bytes_read();
        Self { input, packing: Packing::Unknown(Vec::new()), shared, info, before }
    }

    /// Whether the input is compressed.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.packing, Packing::Packed(_))
    }

    /// How many bytes of the file itself have been read.
    pub(super) fn offset(&self) -> u64 {
        self.info.bytes_read() - self.before
    }

    /// Reads the available bytes. The first read needs room for [`MAGIC_BYTES`].
    ///
    /// # Errors
    /// The kernel's error, or an error in the compressed data.
    pub(super) fn fill(&mut self, to: &mut [u8]) -> io::Result<Got> {
        if let Packing::Unknown(head) = &mut self.packing {
            while head.len() < MAGIC_BYTES {
                let mut bytes = [0; MAGIC_BYTES];
                let room = MAGIC_BYTES - head.len();
                match self.input.read(&mut bytes[..room])? {
                    Got::Bytes(read) => head.extend(&bytes[..read]),
                    Got::Later => return Ok(Got::Later),
                    Got::End => break,
                }
            }
            let head = std::mem::take(head);
            self.info.add_bytes_read(head.len() as u64);
            if let Some(compression) = Compression::of(&head) {
                self.packing = Packing::Packed(self.unpack(compression, head)?);
            } else {
                self.packing = Packing::Plain;
                to[..head.len()].copy_from_slice(&head);
                return Ok(if head.is_empty() { Got::End } else { Got::Bytes(head.len()) });
            }
        }
        let got = self.input.read(to)?;
        match (&self.packing, got) {
            (Packing::Packed(outcome), Got::End) => outcome.recv().unwrap_or_else(|_| Err(gone()))?,
            (Packing::Plain, Got::Bytes(read)) => self.info.add_bytes_read(read as u64),
            _ => {}
        }
        Ok(got)
    }

    /// Has the rest of the input unpacked, and makes the pipe the input. Returns what receives the outcome.
    fn unpack(&mut self, compression: Compression, head: Vec<u8>) -> io::Result<Receiver<io::Result<()>>> {
        let helper = self.shared.unpacker.get().ok_or_else(gone)?;
        let (reader, output) = helper.call(pipe::pair)?;
        let unpacked = Input::Pipe(Pipe::new(reader, self.shared.waker.clone()));
        let mut input = std::mem::replace(&mut self.input, unpacked);
        if let Input::Pipe(pipe) = &mut input {
            // The queue does not read it any more.
            pipe.waker = None;
        }
        let info = Arc::clone(&self.info);
        let (done, outcome) = mpsc::channel();
        helper.begin(move || {
            let from = Waiting { input, info, output: output.as_fd() };
            // Nobody receives the outcome if nobody reads the pipe any more.
            let _ = done.send(compression.unpack(head.chain(from), &mut &output));
        })?;
        Ok(outcome)
    }
}
