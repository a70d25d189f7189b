//! A process that waits until it may become the program of a job.
//!
//! A job that reads a file starts when the file is complete. A process in a sandbox cannot start
//! programs at that time, so it starts this process before, and opens its gate later.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use steerage_text::shell_word;

use super::error::Error;

/// What is written to the standard input of the process to open the gate.
pub(super) const OPEN: &[u8] = b"\n";

/// Waits for a byte on standard input, and becomes the program that `command` begins with. A program
/// that a [`WaitingProcess`](crate::WaitingProcess) starts calls this function.
///
/// Returns `Ok` if the input ends without a byte, because the job is not wanted any more, or if
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
