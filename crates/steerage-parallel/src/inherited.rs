//! A file descriptor that a job inherits. The job's command contains the path of the descriptor
//! (`/proc/self/fd/N`).
//!
//! Therefore a pipe or file with packets needs no name in a directory, and no other user can open
//! the pipe or file. The kernel removes such a pipe or file when no process has it open any more,
//! even after a crash.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use steerage_guard::file;
use steerage_guard::path::Directory;

use super::error::Error;

/// The lowest number of an inherited file descriptor. Smaller numbers are avoided, because shell
/// scripts use the numbers 0 to 9 in redirections.
const NUMBER_MIN: i32 = 10;

/// The permission bits of a file with packets. Every user may read the file, because the job's
/// program may drop its privileges before it opens its input. This file mode is safe, because only
/// the job has a descriptor of the file.
const READABLE: Mode = Mode::from_raw_mode(0o644);

#[derive(Debug)]
pub(super) struct Inherited(OwnedFd);

impl Inherited {
    pub(super) fn new(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self(fcntl_dupfd_cloexec(fd, NUMBER_MIN)?))
    }

    /// Returns the path of the file or pipe. The job, and each program that the job starts, can
    /// open this path. The path is not `/dev/fd/N`. If a program gets the path `/dev/fd/N`, it may
    /// read from the descriptor itself instead of opening the file again. The descriptor can be
    /// read only once.
    pub(super) fn path(&self) -> OsString {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Returns the file descriptor. Programs that this process starts while the descriptor is open
    /// inherit the descriptor.
    pub(super) fn opened_for_programs(self) -> io::Result<OwnedFd> {
        fcntl_setfd(&self.0, FdFlags::empty())?;
        Ok(self.0)
    }
}

/// Creates a pipe that child processes do not inherit. Returns the reading end and the writing end
/// of the pipe.
pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|error| Error::Pipe(error.into()))
}

pub(super) fn temporary_directory() -> PathBuf {
    std::env::temp_dir()
}

pub(super) fn temporary_file() -> Result<File, Error> {
    let directory = temporary_directory();
    let created = Directory::open_for_new_files(&directory).and_then(|opened| file::unnamed(&opened));
    created.map_err(|error| Error::Temporary { directory, error: error.into() })
}

/// Opens a temporary file a second time, so that a job can read it. The new file descriptor has its
/// own file position.
pub(super) fn for_reading(file: &File) -> io::Result<Inherited> {
    fchmod(file, READABLE)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Inherited::new(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
