//! The errors of the native module, and their conversion to Python exceptions.

use std::io;

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use steerage::{BuildError, DeviceError, Snapshot};
use steerage_capture::CaptureError;
use steerage_capture::filter::FilterError;
use steerage_device::OpenError;
use steerage_meter::{ExportError, UnknownColumn};

/// Why a run could not begin, or did not read its source to the end. The message has one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The rest of a source cannot be read. Fields: the message, and the offset of the error.
    #[error("{0}")]
    Read(String, Option<u64>),
    /// The name of a live source is invalid.
    #[error(transparent)]
    Open(OpenError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Column(#[from] UnknownColumn),
    /// The machine has too few CPUs or too little memory for the run.
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Pass(#[from] ExportError),
    #[error("cannot {0}: {1}")]
    System(&'static str, io::Error),
    #[error("{0}")]
    Write(String),
    /// No rule for splitting a capture has this name.
    #[error("together={0:?}: give 'flow', 'hosts', 'source' or 'destination'")]
    Together(String),
    /// The Python object that supplies the data has raised an exception.
    #[error("{0}")]
    Feed(String),
}

impl Failure {
    /// Returns the error that ended a run before the end of its input.
    pub(crate) fn of_run(snapshot: &Snapshot) -> Option<Self> {
        let error = snapshot.queues.iter().find_map(|queue| queue.error.as_ref())?;
        Some(Self::Read(error.message.clone(), error.offset))
    }

    pub(crate) fn exception(&self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        let made = py.import("steerage._errors").and_then(|errors| match self {
            Self::Device(error) => errors.getattr("CaptureError")?.call1((text, &error.device, error.offset)),
            Self::Read(message, offset) => {
                let path = message.split_once(": cannot ").map(|(path, _)| path.to_owned());
                errors.getattr("CaptureError")?.call1((text, path, offset))
            }
            Self::Filter(_) => errors.getattr("FilterError")?.call1((text,)),
            Self::Column(_) | Self::Open(_) | Self::Together(_) => {
                Ok(PyValueError::new_err(text).into_value(py).into_bound(py).into_any())
            }
            _ => errors.getattr("SteerageError")?.call1((text,)),
        });
        made.map_or_else(|error| error, PyErr::from_value)
    }
}

pub(crate) fn is_interrupt(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyKeyboardInterrupt>(py)
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Device(error) => Self::Device(error),
            other => Self::Open(other),
        }
    }
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        match error {
            CaptureError::Device(error) => Self::Device(error),
            CaptureError::Filter(error) => Self::Filter(error),
        }
    }
}
