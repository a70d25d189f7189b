//! The parsers of this crate as functions of bytes, for the fuzz targets.

use std::path::Path;

use steerage_text::printable;

use crate::error::Error;
use crate::{run_file, usage};

/// Returns the command line arguments of a run file, or the message about a mistake in the file.
///
/// # Errors
/// Returns an error if the file has a mistake.
pub fn run_file(text: &str) -> Result<Vec<String>, String> {
    match run_file::parse(Path::new("run.toml"), text, &[]) {
        Ok(loaded) => Ok(loaded.arguments),
        Err(Error::Usage(error)) => Err(printable(&usage::message(&error)).to_string()),
        Err(error) => Err(printable(&error.to_string()).to_string()),
    }
}
