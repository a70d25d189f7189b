//! Opens and unpacks the files of a capture on separate threads. Packet threads should not have the
//! right to open files, and should not spend time on unpacking.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread;

use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, Signal};
use steerage_guard::capabilities;

pub(super) const STANDARD_INPUT: &str = "-";

#[derive(Debug)]
pub(super) struct Helper {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
}

impl Helper {
    /// Starts a thread that opens files, with the rights of the calling thread. The thread ends
    /// when the `Helper` is dropped.
    pub(super) fn opener() -> io::Result<Self> {
        Self::start("open")
    }

    /// Starts a thread that unpacks files, without capabilities. If the thread writes to a pipe
    /// without a reader, the process does not end.
    pub(super) fn unpacker() -> io::Result<Self> {
        let unpacker = Self::start("unpack")?;
        unpacker.call(|| {
            SigSet::from(Signal::SIGPIPE).thread_block()?;
            capabilities::drop_all().map_err(io::Error::other)
        })?;
        Ok(unpacker)
    }

    fn start(name: &str) -> io::Result<Self> {
        let (jobs, to_do) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new().name(name.to_owned()).spawn(|| to_do.into_iter().for_each(|job| job()))?;
        Ok(Self { jobs })
    }

    /// Runs `job` on the thread and waits for its result, at the cost of two thread switches.
    pub(super) fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (to, result) = mpsc::channel();
        self.begin(move || drop(to.send(job())))?;
        result.recv().unwrap_or_else(|_| Err(gone()))
    }

    pub(super) fn begin(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.jobs.send(Box::new(job)).map_err(|_| gone())
    }
}

/// A `Helper` thread ends early only if it panics.
pub(super) fn gone() -> io::Error {
    io::Error::other("the thread that opens or unpacks files is gone")
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() == STANDARD_INPUT {
        return io::stdin().as_fd().try_clone_to_owned().map(File::from);
    }
    // Without `O_NONBLOCK`, opening a FIFO waits for a writer. Regular files ignore `O_NONBLOCK`.
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}
