//! Processes that keep the privileges to undo a change of the kernel at the end of a run.
//!
//! A run drops its capabilities before it handles packets, so it cannot undo such a change. A helper
//! process handles no packets, and notices by the end of its standard input if the run is killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::SigSet;
use steerage_guard::program;

use crate::error::Error;

/// A running helper process.
#[derive(Debug)]
pub(crate) struct Helper {
    input: Option<Arc<OwnedFd>>,
    lines: BufReader<ChildStdout>,
    reports: Option<ChildStderr>,
}

impl Helper {
    /// Starts the hidden command `command`, whose process is listed as `name`.
    pub(crate) fn start(name: &str, command: &str, args: impl Iterator<Item = String>) -> Result<Self, Error> {
        let failed = |error| Error::System { operation: "start a helper process", error };
        let mut process = Command::new("/proc/self/exe");
        process.arg0(name).arg(command).args(args);
        // In a process group of its own, the process does not receive the signal of Ctrl-C.
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = program::start(&mut process).map_err(failed)?;
        let (Some(input), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self { input: Some(Arc::new(input.into())), lines: BufReader::new(says), reports: child.stderr.take() })
    }

    /// The next line of the process. The line is empty if the process has ended.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        // If nothing can be read, the line stays empty.
        let _ = self.lines.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// The pipe to the process. A clone of it should not outlive the run, because the process ends when
    /// the pipe is closed.
    pub(crate) fn input(&self) -> Option<&Arc<OwnedFd>> {
        self.input.as_ref()
    }

    /// The pipe with the lines that the process [reports](report). Only the first call returns it.
    pub(crate) fn reports(&mut self) -> Option<ChildStderr> {
        self.reports.take()
    }

    /// Lets the process end, and returns its last line. The sandbox does not allow waiting for the
    /// process itself.
    pub(crate) fn last_line(&mut self) -> String {
        self.input = None;
        self.next_line()
    }
}

/// Blocks the signals of a helper process. A service manager signals all processes of a service. The
/// run ends by its signal, and the helper process afterwards.
pub(crate) fn outlive_signals() -> Result<(), Error> {
    SigSet::all().thread_block().map_err(|error| Error::System { operation: "block signals", error: error.into() })
}

/// Writes a line to the run. If that fails, the run has ended, and so does standard input.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Writes a line for whoever reads the reports of this process. They use standard error, because the
/// process has no other use for it.
pub(crate) fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Waits for lines of the run. Returns `None` if the run has ended. Reads no more than there is, so that
/// standard input is readable if there are further lines.
pub(crate) fn next_lines() -> Option<String> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let mut bytes = [0; 4096];
    match input.read(&mut bytes) {
        Ok(count @ 1..) => Some(String::from_utf8_lossy(&bytes[..count]).into_owned()),
        _ => None,
    }
}

/// Waits until the run ends.
pub(crate) fn wait_for_end() {
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
