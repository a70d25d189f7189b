use std::io::{self, Write};

use crate::error::{EndingError, Error};

/// Prints to standard output. If the reader has closed the pipe, as `head` does, that is not an
/// error.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<(), Error> {
    print_while_read(bytes).map(drop)
}

/// Prints to standard output. Returns false if the reader has closed the pipe.
pub(crate) fn print_while_read(bytes: impl AsRef<[u8]>) -> Result<bool, Error> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true).map_err(|error| EndingError::Report(error).into()),
    }
}
