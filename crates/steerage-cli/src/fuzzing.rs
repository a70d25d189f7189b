//! The parsers of this crate, for fuzz targets.

use std::path::Path;

use steerage_text::printable;

use crate::error::Error;
use crate::{run_file, usage};

/// Returns the command line arguments to which a run file is converted.
///
/// Returns the error message about a mistake in the run file.
pub fn run_file(text: &str) -> Result<Vec<String>, String> {
    match run_file::parse(Path::new("run.toml"), text, &[]) {
        Ok(loaded) => Ok(loaded.arguments),
        Err(Error::Usage(error)) => Err(printable(&usage::message(&error))),
        Err(error) => Err(printable(&error.to_string())),
    }
}
