//! A process that waits until its gate (a pipe) is opened, and then executes a job's program.
//!
//! A job that reads its packets from a file must not start before the file is complete, but a
//! sandbox then no longer allows this program to start other programs. The process that waits at
//! the gate is already started before this program enters the sandbox.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use steerage_text::shell_word;

use super::error::Error;

/// The byte that opens the gate when it is written to the waiting process's standard input.
pub(super) const OPEN: &[u8] = b"\n";

/// Waits for a byte on standard input, and then executes `command` in this process. The command of
/// a [`WaitingProcess`](crate::WaitingProcess) must call this function.
///
/// Returns `Ok` if standard input ends without a byte, because the job is no longer needed, or if
/// `command` is empty.
///
/// # Errors
/// Returns [`Error::Start`] if the program cannot be started.
pub fn start_when_ready(command: &[OsString]) -> Result<(), Error> {
    let mut ready = [0];
    let Ok(1) = io::stdin().lock().read(&mut ready) else { return Ok(()) };
    let [program, words @ ..] = command else { return Ok(()) };
    let error = Command::new(program).args(words).stdin(Stdio::null()).exec();
    Err(Error::Start { program: shell_word(&program.to_string_lossy()), error })
}
