//! A file descriptor that a job inherits, with its path (`/proc/self/fd/N`) in the job's command.
//!
//! With this path, a pipe or file with packets needs no name in a directory. No other user can open
//! such a pipe or file, and the kernel removes it when no process has it open any more.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use steerage_guard::file;
use steerage_guard::path::Directory;

use super::error::Error;

/// The lowest number of an inherited descriptor. Shell scripts use the numbers 0 to 9 in
/// redirections.
const NUMBER_MIN: i32 = 10;

/// Every user may read the file, because the job's program may drop its privileges before it opens
/// its input. Only the job has a descriptor of this unnamed file.
const READABLE: Mode = Mode::from_raw_mode(0o644);

#[derive(Debug)]
pub(super) struct Inherited(OwnedFd);

impl Inherited {
    pub(super) fn new(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self(fcntl_dupfd_cloexec(fd, NUMBER_MIN)?))
    }

    /// Returns a path that the job, and programs that the job starts, can open. With the path
    /// `/dev/fd/N`, a program might read from descriptor N without opening the path, and a
    /// descriptor can be read only once.
    pub(super) fn path(&self) -> OsString {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Returns a descriptor that programs inherit if this process starts them while the descriptor
    /// is open.
    pub(super) fn opened_for_programs(self) -> io::Result<OwnedFd> {
        fcntl_setfd(&self.0, FdFlags::empty())?;
        Ok(self.0)
    }
}

/// Makes a pipe that child processes do not inherit. Returns the reading end and the writing end.
pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|error| Error::Pipe(error.into()))
}

pub(super) fn temporary_file() -> Result<File, Error> {
    let directory = std::env::temp_dir();
    let created = Directory::open_for_new_files(&directory).and_then(|opened| file::unnamed(&opened));
    created.map_err(|error| Error::Temporary { directory, error: error.into() })
}

/// Opens a temporary file a second time, with its own file position, for a job.
pub(super) fn for_reading(file: &File) -> io::Result<Inherited> {
    fchmod(file, READABLE)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Inherited::new(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
