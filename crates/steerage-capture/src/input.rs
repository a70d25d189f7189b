//! The input of a capture, as it is stored: a file, a pipe or any reader.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

/// How often a thread calls a reader that has no data yet before it pauses between the calls.
const READER_CALLS: u32 = 1000;
/// The pause between two calls of a reader that has had no data for a while, in milliseconds.
const READER_PAUSE: u16 = 1;

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

/// An input.
pub(super) enum Input {
    /// A file. Reading it never waits.
    File(File),
    /// A pipe. It may have no data at times.
    Pipe(Pipe),
    /// A reader. It returns [`io::ErrorKind::WouldBlock`] if it has no data yet.
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

    /// Reads the available data. The file may be shared with other processes. So this polls the
    /// file first instead of making it non-blocking.
    fn read(&mut self, to: &mut [u8]) -> io::Result<Got> {
        self.forget()?;
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

    /// Removes the pipe from the epoll instance.
    fn forget(&mut self) -> io::Result<()> {
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
        let _ = self.forget();
    }
}

impl Input {
    pub(super) fn read(&mut self, to: &mut [u8]) -> io::Result<Got> {
        match self {
            Self::File(file) => read(file, to),
            Self::Pipe(pipe) => pipe.read(to),
            Self::Reader(reader) => read(reader, to),
        }
    }

    /// Makes this the input of a thread that [waits](Self::read_waiting), after a read that got
    /// bytes.
    pub(super) fn stop_waking(&mut self) {
        if let Self::Pipe(pipe) = self {
            pipe.waker = None;
        }
    }

    /// Reads, and waits until there is data. Returns 0 at the end.
    ///
    /// # Errors
    /// The kernel's error, or [`io::ErrorKind::BrokenPipe`] if no process has the other end of the
    /// pipe `output` any more.
    pub(super) fn read_waiting(&mut self, to: &mut [u8], output: BorrowedFd<'_>) -> io::Result<usize> {
        let mut calls = 0;
        loop {
            match self.read(to)? {
                Got::Bytes(read) => return Ok(read),
                Got::End => return Ok(0),
                Got::Later => calls += 1,
            }
            let mut events = vec![PollFd::new(output, PollFlags::empty())];
            let timeout = match self {
                Self::Pipe(pipe) => {
                    events.push(PollFd::new(pipe.file.as_fd(), PollFlags::POLLIN));
                    PollTimeout::NONE
                }
                _ if calls < READER_CALLS => PollTimeout::ZERO,
                _ => READER_PAUSE.into(),
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
