//! A page that is written at the end of a long run: whole, or not at all.

use std::path::Path;

use steerage_file::Readers;

use crate::error::Error;

/// Writes it beside `path`, and gives it the name once it is whole. What stood there until then stays if that fails. A pipe or
/// a device is written to.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    steerage_file::write(path, text.as_bytes(), Readers::All).map_err(|cause| {
        Error::Bench(format!("--html {}: cannot write it: {cause}; name another file", path.display()))
    })
}
