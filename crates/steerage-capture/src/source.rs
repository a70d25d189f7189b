//! Reads the bytes of a capture. If the input is compressed, a separate thread unpacks it into a
//! pipe, and the queue reads from this pipe.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Bytes(usize),
    Later,
    End,
}

pub(super) enum Input {
    /// A regular file, from which reads never block.
    File(Arc<File>),
    Pipe(Pipe),
    /// A reader, which returns [`io::ErrorKind::WouldBlock`] if it has no data yet.
    Reader(Box<dyn Read + Send>),
}

pub(super) struct Pipe {
    file: File,
    /// The pipe is registered with this epoll instance only while the pipe has no data, so that the
    /// epoll instance reports no events while the queue does not want to read.
    waker: Option<Arc<Epoll>>,
    waits: bool,
}

impl Pipe {
    pub(super) fn new(file: File, waker: Option<Arc<Epoll>>) -> Self {
        Self { file, waker, waits: false }
    }

    /// Polls the pipe before each read. The pipe stays in blocking mode, because other processes
    /// may share it.
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
        // If other copies of the descriptor exist, as for standard input, closing this copy would
        // leave the pipe registered in the epoll instance.
        let _ = self.leave_waker();
    }
}

impl Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<Got> {
        match self {
            Self::File(file) => read(&mut &**file, to),
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

/// The input of the unpacking thread. Reads from the unpacking thread's input block.
struct Waiting<'a> {
    input: Input,
    info: Arc<CaptureInfo>,
    /// The pipe into which the input is unpacked. Reads of the input fail when this pipe has no
    /// reader any more.
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

#[derive(Debug, Default)]
pub(super) struct Shared {
    /// An epoll instance that becomes readable when an empty pipe gets data. All pipes of a capture
    /// share one epoll instance, because a CPU requests the descriptor to wait for only once.
    /// `None` if the input is a reader.
    pub(super) waker: Option<Arc<Epoll>>,
    pub(super) unpacker: OnceLock<Helper>,
}

pub(super) struct Source {
    /// The uncompressed input itself, or the pipe into which the unpacking thread writes.
    input: Input,
    packing: Packing,
    shared: Arc<Shared>,
    info: Arc<CaptureInfo>,
    name: String,
    /// The number of bytes that were read from earlier files.
    before: u64,
}

enum Packing {
    /// The first bytes of the input, while its compression is not known yet.
    Unknown(Vec<u8>),
    Plain,
    /// Receives the result of unpacking after the last byte.
    Packed(Receiver<io::Result<()>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("is_packed", &self.is_packed()).finish_non_exhaustive()
    }
}

impl Source {
    pub(super) fn new(name: String, input: Input, shared: Arc<Shared>, info: Arc<CaptureInfo>) -> Self {
        let before = info.bytes_read();
        Self { input, packing: Packing::Unknown(Vec::new()), shared, info, name, before }
    }

    pub(super) fn is_packed(&self) -> bool {
        matches!(self.packing, Packing::Packed(_))
    }

    pub(super) fn offset(&self) -> u64 {
        self.info.bytes_read() - self.before
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.input, Input::File(_))
    }

    /// Returns the file if the source is an uncompressed file.
    pub(super) fn file(&self) -> Option<&Arc<File>> {
        match (&self.input, &self.packing) {
            (Input::File(file), Packing::Plain) => Some(file),
            _ => None,
        }
    }

    pub(super) fn reached(&self, offset: u64) {
        self.info.set_bytes_read(self.before + offset);
    }

    pub(super) fn seek(&mut self, offset: u64) -> io::Result<()> {
        let Input::File(file) = &self.input else { return Ok(()) };
        (&**file).seek(SeekFrom::Start(offset))?;
        self.reached(offset);
        Ok(())
    }

    /// Reads bytes into `to`. In the first call, `to` must have space for at least [`MAGIC_BYTES`]
    /// bytes.
    ///
    /// # Errors
    /// Returns the kernel's error, or an error in the compressed data.
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

    /// Starts to unpack the remaining input into a pipe, which becomes the new input.
    fn unpack(&mut self, compression: Compression, head: Vec<u8>) -> io::Result<Receiver<io::Result<()>>> {
        let helper = self.shared.unpacker.get().ok_or_else(gone)?;
        let (reader, output) = helper.call(pipe::pair)?;
        let unpacked = Input::Pipe(Pipe::new(reader, self.shared.waker.clone()));
        let mut input = std::mem::replace(&mut self.input, unpacked);
        if let Input::Pipe(pipe) = &mut input {
            // From now on, the queue reads from the unpacking thread's pipe, and not from the
            // original input.
            pipe.waker = None;
        }
        let (info, name) = (Arc::clone(&self.info), self.name.clone());
        let (done, outcome) = mpsc::channel();
        helper.begin(move || {
            let from = Waiting { input, info: Arc::clone(&info), output: output.as_fd() };
            let unpacked = compression.unpack(head.chain(from), &mut &output).map(|ignored| {
                if ignored > 0 {
                    info.add_note(format!("{name}: the last {ignored} bytes are not compressed data and were ignored"));
                }
            });
            // If the queue was dropped, no code receives the outcome of unpacking.
            let _ = done.send(unpacked);
        })?;
        Ok(outcome)
    }
}
