//! Errors with the kernel's error numbers.

use std::fmt;

use rustix::io::Errno;

/// What went wrong, as the kernel's error number of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// `EPERM`: only root and the instance's own user change things.
    NotPermitted,
    /// `ENOENT`: there is no such attribute.
    NoEntry,
    /// `EACCES`: it is for reading only.
    Access,
    /// `EBUSY`: too many ask at a time, or a CPU is busy.
    Busy,
    /// `EISDIR`: it is a directory.
    IsDirectory,
    /// `EINVAL`: this is no value of it.
    Invalid,
    /// `ERANGE`: a list with a CPU that there isn't.
    Range,
    /// `EOVERFLOW`: a bitmap of more CPUs than there are.
    Overflow,
    /// `ETIMEDOUT`: it did not come into force in time, and is as it was.
    TimedOut,
    /// What the kernel said of a file of its own.
    Kernel(i32),
}

impl ErrorCode {
    /// Its name, such as `EINVAL`; `EIO` of what has no name here.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotPermitted => "EPERM",
            Self::NoEntry => "ENOENT",
            Self::Access => "EACCES",
            Self::Busy => "EBUSY",
            Self::IsDirectory => "EISDIR",
            Self::Invalid => "EINVAL",
            Self::Range => "ERANGE",
            Self::Overflow => "EOVERFLOW",
            Self::TimedOut => "ETIMEDOUT",
            Self::Kernel(number) => match Errno::from_raw_os_error(number) {
                Errno::INVAL => "EINVAL",
                Errno::NOENT => "ENOENT",
                Errno::ACCESS => "EACCES",
                Errno::OPNOTSUPP => "EOPNOTSUPP",
                _ => "EIO",
            },
        }
    }

    /// Its number: errno(3).
    pub fn number(self) -> i32 {
        let errno = match self {
            Self::NotPermitted => Errno::PERM,
            Self::NoEntry => Errno::NOENT,
            Self::Access => Errno::ACCESS,
            Self::Busy => Errno::BUSY,
            Self::IsDirectory => Errno::ISDIR,
            Self::Invalid => Errno::INVAL,
            Self::Range => Errno::RANGE,
            Self::Overflow => Errno::OVERFLOW,
            Self::TimedOut => Errno::TIMEDOUT,
            Self::Kernel(number) => return number,
        };
        errno.raw_os_error()
    }
}

/// Why an attribute could not be read or written, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeError {
    code: ErrorCode,
    message: String,
}

impl AttributeError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// As the kernel numbers it.
    pub fn code(&self) -> ErrorCode {
        self.code
    }
}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for AttributeError {}
