use rustix::io::Errno;

/// The kind of an error, which corresponds to an error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// `EPERM`: only root and the instance's own user may change values.
    NotPermitted,
    /// `ENOENT`: no such attribute exists.
    NoEntry,
    /// `EACCES`: the attribute cannot be written.
    Access,
    /// `EBUSY`: there are too many requests at a time, or a CPU is busy.
    Busy,
    /// `EISDIR`: the path leads to a directory instead of an attribute.
    IsDirectory,
    /// `EINVAL`: the attribute does not accept this value.
    Invalid,
    /// `EOPNOTSUPP`: a queue of this type does not support the value.
    NotSupported,
    /// `ERANGE`: the CPU list contains a CPU that does not exist.
    Range,
    /// `EOVERFLOW`: the CPU bitmap has more CPUs than the machine.
    Overflow,
    /// `ETIMEDOUT`: the change of an attribute did not take effect in time and was undone.
    TimedOut,
    /// The error number that the kernel returned for one of its own files, such as a file in /sys.
    Kernel(i32),
}

impl ErrorCode {
    /// Returns the name of the error number, such as `EINVAL`, or `EIO` for error numbers that are
    /// not listed here.
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

    /// Returns the error number, as in errno(3).
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

/// Why an attribute could not be read or written: a code and one line of text.
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

    /// Returns the code of the error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }
}
