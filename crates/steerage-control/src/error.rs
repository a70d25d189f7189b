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
    fn name_and_number(self) -> (&'static str, i32) {
        let (name, errno) = match self {
            Self::NotPermitted => ("EPERM", Errno::PERM),
            Self::NoEntry => ("ENOENT", Errno::NOENT),
            Self::Access => ("EACCES", Errno::ACCESS),
            Self::Busy => ("EBUSY", Errno::BUSY),
            Self::IsDirectory => ("EISDIR", Errno::ISDIR),
            Self::Invalid => ("EINVAL", Errno::INVAL),
            Self::NotSupported => ("EOPNOTSUPP", Errno::OPNOTSUPP),
            Self::Range => ("ERANGE", Errno::RANGE),
            Self::Overflow => ("EOVERFLOW", Errno::OVERFLOW),
            Self::TimedOut => ("ETIMEDOUT", Errno::TIMEDOUT),
            Self::Kernel(number) => {
                let named = [Self::Invalid, Self::NoEntry, Self::Access, Self::NotSupported];
                let same = named.into_iter().find(|code| code.number() == number);
                return (same.map_or("EIO", Self::name), number);
            }
        };
        (name, errno.raw_os_error())
    }

    /// Returns the name of the error number, such as `EINVAL`, or `EIO` for error numbers that are
    /// not listed here.
    pub fn name(self) -> &'static str {
        self.name_and_number().0
    }

    /// Returns the error number, as in errno(3).
    pub fn number(self) -> i32 {
        self.name_and_number().1
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
    pub(crate) fn invalid(why: impl ToString) -> Self {
        Self::new(ErrorCode::Invalid, why.to_string())
    }

    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns the code of the error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_kernel_is_passed_on() {
        let of = |number| (ErrorCode::Kernel(number).name(), ErrorCode::Kernel(number).number());
        let invalid = Errno::INVAL.raw_os_error();
        assert_eq!(of(invalid), ("EINVAL", invalid));
        assert_eq!([-1, 0, 5, 4096, i32::MAX].map(of), [-1, 0, 5, 4096, i32::MAX].map(|number| ("EIO", number)));
    }
}
