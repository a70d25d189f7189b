//! A waiting process. A waiting process waits until this program opens the gate, a pipe. Then the
//! waiting process executes the program of a job.
//!
//! A job that reads its packets from a file must not start before the file is complete. But when
//! the file is complete, a sandbox no longer allows this program to start other programs. Therefore
//! the waiting process is started before this program enters the sandbox, and its gate is opened
//! later.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use steerage_text::shell_word;

use super::error::Error;

/// The bytes that open the gate. To open the gate of the waiting process, this program writes these
/// bytes to that process's standard input.
pub(super) const OPEN: &[u8] = b"\n";

/// Waits for a byte on standard input, and then executes `command` in this process. The program
/// that the command of a [`WaitingProcess`](crate::WaitingProcess) starts must call this function.
///
/// Returns `Ok` if the standard input ends without a byte, which means that the job is no longer
/// needed. `start_when_ready` also returns `Ok` if `command` is empty.
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
