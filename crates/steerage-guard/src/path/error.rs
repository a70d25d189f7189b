use std::os::fd::RawFd;
use std::path::PathBuf;
use std::{fmt, io};

use rustix::io::Errno;
use rustix::process::geteuid;

/// The reason why a path cannot be used for writing. The message of the error has one line and does
/// not repeat the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// Another user, or a group, can change a directory of the path.
    #[error(
        "{by} can change the directory {}: name a directory that only {} can change, or change to the directory first",
        directory.display(),
        if geteuid().is_root() { "root" } else { "you and root" }
    )]
    Changeable {
        /// The directory that another user or a group can change.
        directory: PathBuf,
        /// The user or group that can change the directory.
        by: Who,
    },
    /// Another user, or a group, can change a link in the path.
    #[error("{by} can change the link {}: name the directory that it leads to", link.display())]
    Link {
        /// The link that another user or a group can change.
        link: PathBuf,
        /// The user or group that can change the link.
        by: Who,
    },
    /// Another user runs the directory's file system, and could read the files in it.
    #[error(
        "{by} runs the file system of {} and can read what is written there: name another directory",
        directory.display()
    )]
    FileSystem {
        /// The directory whose file system another user runs.
        directory: PathBuf,
        /// The user whose process serves the directory's file system.
        by: Who,
    },
    /// The path names the open file descriptor with this number instead of a file.
    #[error("the path names the open descriptor {0} instead of a file")]
    Descriptor(RawFd),
    /// Another user owns the FIFO, and could read the data that is written to it.
    #[error("user {owner} owns the FIFO and can read what is written to it: name another FIFO or a file")]
    Fifo {
        /// The owner of the FIFO.
        owner: u32,
    },
    /// The kernel refused an operation on the path.
    #[error("{0}")]
    System(#[source] io::Error),
}

impl From<Errno> for PathError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<PathError> for io::Error {
    fn from(error: PathError) -> Self {
        match error {
            PathError::System(error) => error,
            PathError::Descriptor(_) => Self::new(io::ErrorKind::InvalidInput, error),
            PathError::Changeable { .. }
            | PathError::Link { .. }
            | PathError::FileSystem { .. }
            | PathError::Fifo { .. } => Self::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

/// A user or group, except root and the effective user, that can change a directory or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The user with this ID.
    User(u32),
    /// The members of the group with this ID.
    Group(u32),
    /// Every user of the machine.
    Everybody,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Group(gid) => write!(f, "group {gid}"),
            Self::Everybody => f.write_str("every user"),
        }
    }
}
