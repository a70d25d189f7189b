//! The parsers of this crate as functions of bytes, for the fuzz targets.

use std::path::Path;

use crate::error::Error;
use crate::terminal::printable;
use crate::{run_file, usage};

/// The command line arguments that a run file stands for, or the message that says what is wrong
/// with the file.
///
/// # Errors
/// If the file is wrong.
pub fn run_file(text: &str) -> Result<Vec<String>, String> {
    match run_file::parse(Path::new("run.toml"), text, &[]) {
        Ok(loaded) => Ok(loaded.arguments),
        Err(Error::Usage(error)) => Err(printable(&usage::message(&error)).to_string()),
        Err(error) => Err(printable(&error.to_string()).to_string()),
    }
}
