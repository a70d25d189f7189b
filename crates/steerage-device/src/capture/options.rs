//! Options for opening capture files.

use super::{Capture, Pace};
use crate::OpenError;

/// Options for reading capture files: the pace and the filter.
///
/// ```
/// use steerage_device::capture::{CaptureOptions, Pace};
///
/// // The numbers that `tcpdump -ddd ip` prints. An expression is compiled when the files are opened.
/// let options = CaptureOptions::new().pace(Pace::RECORDED).filter("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0");
/// let opened = steerage_device::open_all(&["synthetic:packets=10"], &options)?;
/// assert!(opened.capture.is_none(), "there are no files");
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    pace: Option<Pace>,
    filter: Option<String>,
}

impl CaptureOptions {
    /// Reads all packets, as fast as they are handled.
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

    /// Opens files that are read one after the other.
    pub(crate) fn open(&self, paths: &[&str]) -> Result<Capture, OpenError> {
        let capture = Capture::open_all(paths).map_err(OpenError::Device)?;
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
