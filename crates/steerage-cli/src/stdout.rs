//! Writing to standard output.

use std::io::{self, Write};

use crate::error::Error;

/// Writes `bytes` to standard output. A reader that closed the pipe, such as `head`, is not an error.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::Report),
    }
}
