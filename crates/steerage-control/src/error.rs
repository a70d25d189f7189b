//! Errors of the control tree, with the error numbers of the kernel.

use rustix::io::Errno;

/// The kind of an error, as the kernel's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// `EPERM`: only root and the instance's own user may change values.
    NotPermitted,
    /// `ENOENT`: no such attribute exists.
    NoEntry,
    /// `EACCES`: the attribute is read-only.
    Access,
    /// `EBUSY`: there are too many simultaneous requests, or a CPU is busy.
    Busy,
    /// `EISDIR`: the path names a directory and not an attribute.
    IsDirectory,
    /// `EINVAL`: the attribute does not accept this value.
    Invalid,
    /// `EOPNOTSUPP`: the value has no meaning for this queue.
    NotSupported,
    /// `ERANGE`: the list names a CPU that does not exist.
    Range,
    /// `EOVERFLOW`: the bitmap has bits for more CPUs than the machine has.
    Overflow,
    /// `ETIMEDOUT`: the change did not take effect in time, and has been undone.
    TimedOut,
    /// An error that the kernel returned for one of its own files. The value is the error number.
    Kernel(i32),
}

impl ErrorCode {
    /// Returns the name of the error, such as `EINVAL`. The name is `EIO` for kernel errors that
    /// are not in this table.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotPermitted => "EPERM",
            Self::NoEntry => "ENOENT",
            Self::Access => "EACCES",
            Self::Busy => "EBUSY",
            Self::IsDirectory => "EISDIR",
            Self::Invalid => "EINVAL",
            Self::NotSupported => "EOPNOTSUPP",
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

    /// Returns the error number of errno(3).
    pub fn number(self) -> i32 {
        let errno = match self {
            Self::NotPermitted => Errno::PERM,
            Self::NoEntry => Errno::NOENT,
            Self::Access => Errno::ACCESS,
            Self::Busy => Errno::BUSY,
            Self::IsDirectory => Errno::ISDIR,
            Self::Invalid => Errno::INVAL,
            Self::NotSupported => Errno::OPNOTSUPP,
            Self::Range => Errno::RANGE,
            Self::Overflow => Errno::OVERFLOW,
            Self::TimedOut => Errno::TIMEDOUT,
            Self::Kernel(number) => return number,
        };
        errno.raw_os_error()
    }
}

/// The reason why an attribute could not be read or written, as a text of one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AttributeError {
    code: ErrorCode,
    message: String,
}

impl AttributeError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns the error's code, which corresponds to an error number of the kernel.
    pub fn code(&self) -> ErrorCode {
        self.code
    }
}
