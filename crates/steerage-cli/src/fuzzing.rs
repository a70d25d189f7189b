//! Functions that pass bytes to the parsers of this crate. The fuzz targets call these functions.

use std::path::Path;

use steerage_text::printable;

use crate::error::Error;
use crate::{run_file, usage};

/// Returns the command line arguments to which a run file is converted.
///
/// # Errors
/// Returns the message about a mistake if the run file has one.
pub fn run_file(text: &str) -> Result<Vec<String>, String> {
    match run_file::parse(Path::new("run.toml"), text, &[]) {
        Ok(loaded) => Ok(loaded.arguments),
        Err(Error::Usage(error)) => Err(printable(&usage::message(&error)).to_string()),
        Err(error) => Err(printable(&error.to_string()).to_string()),
    }
}
