//! A waiting process, which becomes the program of a job when the gate opens.
//!
//! A job that reads a file starts when the file is complete. At that time, a sandbox no longer
//! allows this program to start other programs. The waiting process is therefore started before the
//! sandbox is entered, and its gate is opened later.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use steerage_text::shell_word;

use super::error::Error;

/// The bytes that open the gate, when they are written to the standard input of the waiting
/// process.
pub(super) const OPEN: &[u8] = b"\n";

/// Waits for a byte on standard input, and then becomes the program that `command` begins with. The
/// program that a [`WaitingProcess`](crate::WaitingProcess) starts must call this function.
///
/// Returns `Ok` if the input ends without a byte, because the job is no longer wanted, or if
/// `command` is empty.
///
/// # Errors
/// [`Error::Start`] if the program cannot be started.
pub fn start_when_ready(command: &[OsString]) -> Result<(), Error> {
    let mut ready = [0];
    let Ok(1) = io::stdin().lock().read(&mut ready) else { return Ok(()) };
    let [program, words @ ..] = command else { return Ok(()) };
    let error = Command::new(program).args(words).stdin(Stdio::null()).exec();
    Err(Error::Start { program: shell_word(&program.to_string_lossy()), error })
}
