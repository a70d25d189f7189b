use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use steerage_guard::program;
use steerage_text::shell_word;

use super::error::Error;
use super::feed::Feed;
use super::gate::OPEN;
use super::inherited::{self, Inherited};
use super::lines::last_line;
use super::options::WaitingProcess;
use super::results::JobResults;

/// The last line of a job's standard error is searched for in this many bytes at the end of the
/// file.
const TAIL_BYTES: u64 = 4096;

const SIGPIPE: i32 = Signal::SIGPIPE as i32;

#[derive(Debug)]
pub(super) enum Outputs {
    /// The outputs are pipes, from which [`Merge`](super::merge::Merge) reads.
    Collected { stdout: Option<Stdio>, stderr: Stdio },
    /// The outputs are files in the directory in which the job runs.
    Files(JobResults),
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) number: usize,
    words: Vec<OsString>,
    pub(super) feed: Feed,
    outputs: Option<Outputs>,
    /// The file of the job's standard error, if any. The job and this process share the file
    /// position. This process reads the file only by `read_at`, which leaves the position at which
    /// the job writes unchanged.
    stderr_file: Option<File>,
    child: Option<Child>,
    /// A pipe to the waiting process, which executes the job's program when it reads a byte.
    gate: Option<File>,
    pub(super) started: Option<Instant>,
    pub(super) ended: Option<Ended>,
    pub(super) watched: Watched,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// The exit status. `None` if this process ignores SIGCHLD, because the kernel then reaps the
    /// job itself.
    pub(super) status: Option<ExitStatus>,
    pub(super) at: Instant,
    pub(super) cpu: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    pub(super) read: u64,
    pub(super) since: Option<Instant>,
    pub(super) waited: Duration,
    pub(super) fed: Duration,
    pub(super) named: bool,
    pub(super) said: bool,
    pub(super) killed: Option<Killed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Killed {
    Timeout,
    Interrupt,
}

impl Job {
    pub(super) fn new(number: usize, words: Vec<OsString>, feed: Feed, outputs: Outputs) -> Self {
        let (stderr_file, child, gate, started, ended, watched) = Default::default();
        Self { number, words, feed, outputs: Some(outputs), stderr_file, child, gate, started, ended, watched }
    }

    pub(super) fn start(&mut self, jobs: usize) -> Result<(), Error> {
        if let Some(mut gate) = self.gate.take() {
            // If the write fails, the waiting process has ended, as its exit status shows.
            let _ = gate.write_all(OPEN);
            self.started = Some(Instant::now());
            return Ok(());
        }
        let Some(outputs) = self.outputs.take() else { return Ok(()) };
        let program = self.program();
        let stdin = std::mem::replace(&mut self.feed.stdin, Stdio::null());
        let child = self.spawn(Command::new(&program), stdin, jobs, outputs)?;
        (self.child, self.started) = (Some(child), Some(Instant::now()));
        Ok(())
    }

    /// Starts a process that executes the job's program when [`start`](Self::start) is called.
    pub(super) fn prepare(&mut self, jobs: usize, process: WaitingProcess) -> Result<(), Error> {
        let Some(outputs) = self.outputs.take() else { return Ok(()) };
        let program = self.program();
        find(&program).map_err(|error| Error::Start { program: shell_word(&program.to_string_lossy()), error })?;
        let (reader, writer) = inherited::pipe()?;
        self.child = Some(self.spawn(process(&program), reader.into(), jobs, outputs)?);
        self.gate = Some(writer.into());
        Ok(())
    }

    pub(super) fn give_up_start(&mut self) {
        self.gate = None;
    }

    fn program(&self) -> OsString {
        let program = self.words.first().cloned().unwrap_or_default();
        // A relative path of a program is made absolute, because the job may run in another
        // directory.
        match Path::new(&program).components().count() {
            0 | 1 => program,
            _ => std::path::absolute(&program).map_or(program, PathBuf::into_os_string),
        }
    }

    fn spawn(&mut self, mut command: Command, stdin: Stdio, jobs: usize, outputs: Outputs) -> Result<Child, Error> {
        command.args(self.words.iter().skip(1));
        command.env("STEERAGE_JOB", self.number.to_string()).env("STEERAGE_JOBS", jobs.to_string());
        command.stdin(stdin);
        let mut directory = None;
        match outputs {
            Outputs::Collected { stdout, stderr } => {
                command.stdout(stdout.unwrap_or_else(Stdio::inherit)).stderr(stderr);
            }
            Outputs::Files(JobResults { directory: of_job, stdout, stderr }) => {
                self.stderr_file = Some(stderr.try_clone().map_err(Error::Pipe)?);
                command.stdout(stdout).stderr(stderr).current_dir(of_job.through());
                // The directory stays open until the new process has made it its working directory.
                directory = Some(of_job);
            }
        }
        // In its own process group, the job does not receive the SIGINT of Ctrl-C.
        let failed = |error| {
            let program = self.words.first().map(|word| shell_word(&word.to_string_lossy())).unwrap_or_default();
            Error::Start { program, error }
        };
        // The descriptor is closed after the start of the job, so that the next job does not
        // inherit it.
        let _inherited = self.feed.inherited.take().map(Inherited::opened_for_programs).transpose().map_err(failed)?;
        let spawned = program::start(command.process_group(0)).map_err(failed);
        drop(directory);
        spawned
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.ended.is_some_and(|ended| ended.has_succeeded())
    }

    pub(super) fn is_running(&self) -> bool {
        self.started.is_some() && self.child.is_some() && self.ended.is_none()
    }

    pub(super) fn reap(&mut self) {
        if !self.is_running() {
            return;
        }
        let Some(child) = self.child.as_mut() else { return };
        let pid = rustix::process::Pid::from_child(child);
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let (status, cpu) = match waitid(WaitId::Pid(pid), how) {
            Ok(Some(_)) => {
                // Only one process is reaped at a time, so the CPU time of the children increases
                // only by that of this process.
                let before = cpu_of(UsageWho::RUSAGE_CHILDREN);
                let Ok(Some(status)) = child.try_wait() else { return };
                (Some(status), cpu_of(UsageWho::RUSAGE_CHILDREN).saturating_sub(before))
            }
            Err(Errno::CHILD) => (None, Duration::ZERO),
            _ => return,
        };
        self.ended = Some(Ended { status, at: Instant::now(), cpu });
        self.feed.end();
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(child) = self.child.as_ref().filter(|_| self.is_running()) {
            // The process has not been reaped yet, so its process ID is still valid.
            let _ = killpg(Pid::from_raw(child.id() as i32), signal);
        }
    }

    pub(super) fn last_line_of_file(&self) -> Option<String> {
        let file = self.stderr_file.as_ref()?;
        let from = file.metadata().ok()?.len().saturating_sub(TAIL_BYTES);
        let mut text = [0; TAIL_BYTES as usize];
        let len = file.read_at(&mut text, from).ok()?;
        last_line(&text[..len]).map(|line| String::from_utf8_lossy(line).trim().to_owned())
    }
}

/// A `Job` is dropped before the job has ended if the run could not begin, or if the job's file is
/// incomplete.
impl Drop for Job {
    fn drop(&mut self) {
        if let Some(child) = self.child.as_mut().filter(|_| self.ended.is_none()) {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

impl Ended {
    pub(super) fn what(&self) -> String {
        match (self.code(), self.signal()) {
            (Some(code), _) => format!("exited with {code}"),
            (None, Some(signal)) => format!("was killed by {signal}"),
            (None, None) => "ended, and nobody knows how, because this process ignores SIGCHLD: start it by `env \
                             --default-signal=CHLD`"
                .to_owned(),
        }
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    pub(super) fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// Returns true if SIGPIPE ended the job or a child of its shell, because the reader of
    /// standard output has exited.
    pub(super) fn is_by_pipe(&self) -> bool {
        self.status.is_some_and(|status| status.signal() == Some(SIGPIPE)) || self.code() == Some(128 + SIGPIPE)
    }

    pub(super) fn signal(&self) -> Option<&'static str> {
        self.status?.signal().map(|number| Signal::try_from(number).map_or("an unknown signal", Signal::as_str))
    }
}

fn find(program: &OsStr) -> io::Result<()> {
    let path = Path::new(program);
    let may_start = |path: &Path| -> io::Result<()> {
        if path.is_dir() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return may_start(path);
    }
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|directory| may_start(&directory.join(path)))
        .reduce(|one, other| if one.is_ok() { one } else { other });
    found.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
}

pub(super) fn cpu_of(who: UsageWho) -> Duration {
    let time = |time: TimeVal| {
        Duration::from_secs(time.tv_sec().max(0) as u64) + Duration::from_micros(time.tv_usec().max(0) as u64)
    };
    getrusage(who).map_or(Duration::ZERO, |usage| time(usage.user_time()) + time(usage.system_time()))
}
