use std::os::fd::RawFd;
use std::path::PathBuf;
use std::{error, fmt, io};

use rustix::io::Errno;
use rustix::process::geteuid;

/// The reason why a path cannot be used for writing. The message of the error has one line and does
/// not repeat the path.
#[derive(Debug)]
#[non_exhaustive]
pub enum PathError {
    /// Another user, or a group, can change a directory of the path.
    Changeable {
        /// The directory that another user or a group can change.
        directory: PathBuf,
        /// The user or group that can change the directory.
        by: Who,
    },
    /// Another user, or a group, can change a link in the path.
    Link {
        /// The link that another user or a group can change.
        link: PathBuf,
        /// The user or group that can change the link.
        by: Who,
    },
    /// Another user runs the directory's file system, and could read the files in it.
    FileSystem {
        /// The directory whose file system another user runs.
        directory: PathBuf,
        /// The user whose process serves the directory's file system.
        by: Who,
    },
    /// The path names the open file descriptor with this number instead of a file.
    Descriptor(RawFd),
    /// Another user owns the FIFO, and could read the data that is written to it.
    Fifo {
        /// The owner of the FIFO.
        owner: u32,
    },
    /// The kernel refused an operation on the path.
    System(io::Error),
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changeable { directory, by } => {
                let only = if geteuid().is_root() { "root" } else { "you and root" };
                let directory = directory.display();
                let advice = "can change, or change to the directory first";
                write!(f, "{by} can change the directory {directory}: name a directory that only {only} {advice}")
            }
            Self::Link { link, by } => {
                write!(f, "{by} can change the link {}: name the directory that it leads to", link.display())
            }
            Self::FileSystem { directory, by } => {
                let advice = "and can read what is written there: name another directory";
                write!(f, "{by} runs the file system of {} {advice}", directory.display())
            }
            Self::Descriptor(number) => {
                write!(f, "the path names the open descriptor {number} instead of a file")
            }
            Self::Fifo { owner } => {
                let advice = "name another FIFO or a file";
                write!(f, "user {owner} owns the FIFO and can read what is written to it: {advice}")
            }
            Self::System(error) => error.fmt(f),
        }
    }
}

impl error::Error for PathError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
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
