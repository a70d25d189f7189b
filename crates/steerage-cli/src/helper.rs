//! Helper processes that undo a run's changes to the kernel when the run ends. The run itself drops
//! its capabilities before it handles packets. If the run is killed, the standard input of the
//! helper process ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;

use nix::sys::signal::SigSet;
use steerage_guard::program;

use crate::error::Error;

#[derive(Debug)]
pub(crate) struct Helper {
    input: Option<Arc<OwnedFd>>,
    lines: BufReader<ChildStdout>,
    reports: Option<ChildStderr>,
}

impl Helper {
    /// Starts this program with the hidden command `command`. In the list of processes, the helper
    /// is called `name`.
    pub(crate) fn start(name: &str, command: &str, args: impl Iterator<Item = String>) -> Result<Self, Error> {
        let failed = |error| Error::System { operation: "start a helper process", error };
        let mut process = Command::new("/proc/self/exe");
        process.arg0(name).arg(command).args(args);
        // In a separate process group, the helper gets no signal from Ctrl-C.
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = program::start(&mut process).map_err(failed)?;
        let (Some(input), Some(says)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Self { input: Some(Arc::new(input.into())), lines: BufReader::new(says), reports: child.stderr.take() })
    }

    /// Returns the next line from the helper process, or an empty line if the process has ended.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.lines.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Returns the pipe to the helper process. No clone of the pipe's descriptor may outlive the
    /// run, because the helper process ends when the pipe is closed.
    pub(crate) fn input(&self) -> Option<&Arc<OwnedFd>> {
        self.input.as_ref()
    }

    /// Returns the pipe with the helper's [reports](report), at the first call only.
    pub(crate) fn reports(&mut self) -> Option<ChildStderr> {
        self.reports.take()
    }

    /// Makes the helper process end, and returns its last line. The sandbox does not allow waiting
    /// for the end of a child process.
    pub(crate) fn last_line(&mut self) -> String {
        self.input = None;
        self.next_line()
    }
}

/// Blocks all signals in a helper process. A service manager signals all processes of a service,
/// but the helper process must end after the run.
pub(crate) fn outlive_signals() -> Result<(), Error> {
    SigSet::all().thread_block().map_err(|error| Error::System { operation: "block signals", error: error.into() })
}

/// Writes a line from the helper process to the run. A write fails only if the run has ended, and
/// then the helper's standard input ends, too.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Writes a line of the helper's [reports](Helper::reports), to standard error.
pub(crate) fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Waits for lines from the run. Returns `None` if the run has ended. Reads without a buffer, so
/// that standard input stays readable if there are further lines.
pub(crate) fn next_lines() -> Option<String> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let mut bytes = [0; 4096];
    match input.read(&mut bytes) {
        Ok(count @ 1..) => Some(String::from_utf8_lossy(&bytes[..count]).into_owned()),
        _ => None,
    }
}

/// Waits until the run ends, which closes the standard input of the helper process.
pub(crate) fn wait_for_end() {
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
