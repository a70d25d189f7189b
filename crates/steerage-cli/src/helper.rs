//! Helper processes that keep the privileges of a run, to undo the run's changes to the kernel when
//! the run ends.
//!
//! A run drops its capabilities before it handles packets, so the run itself cannot undo its
//! changes to the kernel. A helper process handles no packets. If the run is killed, the helper
//! process notices the end of the run, because the helper's standard input ends.

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
    /// Starts a helper process: this program with the hidden command `command`. In the list of
    /// processes, the helper process is called `name`.
    pub(crate) fn start(name: &str, command: &str, args: impl Iterator<Item = String>) -> Result<Self, Error> {
        let failed = |error| Error::System { operation: "start a helper process", error };
        let mut process = Command::new("/proc/self/exe");
        process.arg0(name).arg(command).args(args);
        // The helper process gets its own process group, so that Ctrl-C sends it no signal.
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = program::start(&mut process).map_err(failed)?;
        let (Some(input), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self { input: Some(Arc::new(input.into())), lines: BufReader::new(says), reports: child.stderr.take() })
    }

    /// Returns the next line that the helper process writes. The line is empty if the helper
    /// process has ended.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        // A read error is ignored: if no line can be read, the line stays empty.
        let _ = self.lines.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Returns the pipe to the helper process. No clone of the pipe to the helper process may
    /// outlive the run, because the helper process ends when the pipe is closed.
    pub(crate) fn input(&self) -> Option<&Arc<OwnedFd>> {
        self.input.as_ref()
    }

    /// Returns the pipe with the lines that the helper process [reports](report). Only the first
    /// call returns the pipe.
    pub(crate) fn reports(&mut self) -> Option<ChildStderr> {
        self.reports.take()
    }

    /// Makes the helper process end, and returns the last line that it writes. The method does not
    /// wait for the end of the helper process, because the sandbox does not allow such a wait.
    pub(crate) fn last_line(&mut self) -> String {
        self.input = None;
        self.next_line()
    }
}

/// Blocks all signals in a helper process. A service manager sends a signal to all processes of a
/// service. A signal of the service manager must end only the run, and the helper process ends
/// after the run.
pub(crate) fn outlive_signals() -> Result<(), Error> {
    SigSet::all().thread_block().map_err(|error| Error::System { operation: "block signals", error: error.into() })
}

/// Writes a line that the run reads. A write error is ignored, because it means that the run has
/// ended. When the run has ended, the standard input of the helper process ends too.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Writes a line for the thread that reads the [reports](Helper::reports) of this process. Reports
/// go to standard error, which the helper process does not need for other output.
pub(crate) fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Waits for lines that the run writes to standard input. Returns `None` if the run has ended. The
/// function reads without a buffer, so that standard input stays readable if there are further
/// lines.
pub(crate) fn next_lines() -> Option<String> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let mut bytes = [0; 4096];
    match input.read(&mut bytes) {
        Ok(count @ 1..) => Some(String::from_utf8_lossy(&bytes[..count]).into_owned()),
        _ => None,
    }
}

/// Waits until the run ends, which closes standard input.
pub(crate) fn wait_for_end() {
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
