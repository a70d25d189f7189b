//! The common properties of devices: a name, which may change, and errors.

use std::fmt;
use std::io;

pub use steerage_ledger::DeviceName;

/// An error of a device, in one line that says what to do.
#[non_exhaustive]
pub struct DeviceError {
    /// The device's name as the user gave it.
    pub device: String,
    /// The operation that failed: completes the sentence "cannot ...".
    pub operation: &'static str,
    /// The error of the kernel, or of the input's format.
    pub cause: io::Error,
    /// The offset in the input at which it happened, in bytes.
    pub offset: Option<u64>,
    /// Advice on how to solve the problem: a clause, or an empty string.
    pub advice: &'static str,
}

impl DeviceError {
    /// An error on `device` while trying to `operation`.
    pub fn new(device: impl Into<String>, operation: &'static str, cause: io::Error) -> Self {
        Self { device: device.into(), operation, cause, offset: None, advice: "" }
    }

    /// Adds the offset at which it happened.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Adds what the user can do about it.
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

/// Prints the same text as `Display`, because Rust prints the `Debug` form of an error that `main` returns.
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
