use std::fmt;
use std::io;

/// An error of a device, printed in one line with advice for the user.
///
/// ```
/// # mod steerage { pub use steerage_ledger::DeviceError; }
/// use std::io::{Error, ErrorKind};
/// use steerage::DeviceError;
///
/// let cause = Error::from(ErrorKind::PermissionDenied);
/// let error = DeviceError::new("eth1", "open a packet socket", cause).advise("run it as root");
/// assert_eq!(error.to_string(), "eth1: cannot open a packet socket: permission denied; run it as root");
/// ```
#[non_exhaustive]
pub struct DeviceError {
    /// The name of the device, as the user wrote it.
    pub device: String,
    /// The operation that failed, written so that it can follow the word "cannot".
    pub operation: &'static str,
    /// The error of the kernel, or an error in the input's format.
    pub cause: io::Error,
    /// The byte offset in the input (such as a file) at which the error is.
    pub offset: Option<u64>,
    /// Advice on how to solve the problem: a clause, or an empty string.
    pub advice: &'static str,
}

impl DeviceError {
    /// Creates the error of `device` for an `operation` that failed.
    pub fn new(device: impl Into<String>, operation: &'static str, cause: io::Error) -> Self {
        Self { device: device.into(), operation, cause, offset: None, advice: "" }
    }

    /// Adds to this error the offset in the input at which the error is.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Adds advice for the user.
    #[must_use]
    pub fn advise(mut self, advice: &'static str) -> Self {
        self.advice = advice;
        self
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot {}", self.device, self.operation)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.cause)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// Like `Display`, because Rust prints the `Debug` form of an error that `main` returns.
impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}
