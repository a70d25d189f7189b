//! The process that `parallel` starts for a job that reads a file. The process becomes the job's
//! program when the file is complete, because `parallel` is then in its sandbox and cannot start
//! programs.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::args::ExecWhenReadyArgs;
use crate::error::{Error, JobsError};
use crate::terminal::shell_word;

/// Waits for a byte on standard input, and becomes the program. If the input ends without a byte,
/// the process exits.
pub(crate) fn run(args: &ExecWhenReadyArgs) -> Result<(), Error> {
    let mut ready = [0];
    let Ok(1) = io::stdin().lock().read(&mut ready) else { return Ok(()) };
    let [program, words @ ..] = args.command.as_slice() else { return Ok(()) };
    let error = Command::new(program).args(words).stdin(Stdio::null()).exec();
    Err(JobsError::Start { program: shell_word(&program.to_string_lossy()), error }.into())
}
