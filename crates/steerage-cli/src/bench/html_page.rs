//! Writes the HTML page of a report.

use std::path::Path;

use steerage_guard::file::{self, Readers};

use crate::error::Error;

/// Writes the page to a temporary file, and renames it to `path` when it is complete. If that fails, an old file stays
/// as it was. A pipe or a device is written to directly.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    file::write(path, text.as_bytes(), Readers::All).map_err(|cause| {
        Error::Bench(format!("--html {}: cannot write it: {cause}; name another file", path.display()))
    })
}
