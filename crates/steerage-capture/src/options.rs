use std::path::Path;

use steerage::DeviceError;

use super::{Capture, Pace};
use crate::filter::FilterError;

/// The reason why a capture cannot be opened.
///
/// ```
/// use steerage_capture::{CaptureError, CaptureOptions};
///
/// let error = CaptureOptions::new().open(&["no/such/file.pcap"]).unwrap_err();
/// assert!(matches!(error, CaptureError::Device(_)));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A file does not exist, cannot be read, or is not a capture.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The filter cannot be compiled.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Options for reading capture files: the pace and the filter.
///
/// ```
/// use steerage_capture::{CaptureOptions, Pace};
///
/// // The numbers that `tcpdump -ddd ip` prints. An expression is compiled when the files are opened.
/// let options = CaptureOptions::new().pace(Pace::RECORDED).filter("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0");
/// assert!(options.open(&["no/such/file.pcap"]).is_err());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    pace: Option<Pace>,
    filter: Option<String>,
}

impl CaptureOptions {
    /// Reads all packets, as fast as the handlers process them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the pace, as for [`Capture::paced`].
    #[must_use]
    pub fn pace(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// Sets the filter, as for [`Capture::filtered`].
    #[must_use]
    pub fn filter(self, text: impl Into<String>) -> Self {
        Self { filter: Some(text.into()), ..self }
    }

    /// Opens files that are read one after another.
    ///
    /// # Errors
    /// Fails in the same cases as [`Capture::open_all`] and [`Capture::filtered`].
    pub fn open(&self, paths: &[impl AsRef<Path>]) -> Result<Capture, CaptureError> {
        let capture = Capture::open_all(paths)?;
        let capture = match &self.filter {
            Some(text) => capture.filtered(text)?,
            None => capture,
        };
        Ok(match self.pace {
            Some(pace) => capture.paced(pace),
            None => capture,
        })
    }
}
