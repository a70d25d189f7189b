//! Reads the output of the jobs, and passes the output to the [`Sink`], which merges it.
//!
//! A single thread reads from all jobs. If the reader of standard output is slow, this thread
//! waits, the jobs' pipes fill up, and the jobs and the reading of an input file wait too.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::console::Console;
use super::lines::{Lines, Tag};
use super::options::Order;
use super::sink::{Sink, Stopped};

const READ_BYTES: usize = 64 << 10;

/// The time to wait before the output of the jobs is read again. A job writes 4 KiB at a time, and
/// waking the merging thread for each write would take longer than reading the data.
const LINGER: Duration = Duration::from_millis(4);

/// After a read of this many bytes, the merging thread reads again without a pause, because the job
/// would soon have to wait for room in its pipe.
const MUCH_BYTES: usize = 24 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Stdout,
    Stderr,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) job: usize,
    pub(super) from: From,
    pub(super) pipe: File,
}

#[derive(Debug)]
pub(super) struct MergeOptions {
    pub(super) tag: bool,
    pub(super) order: Order,
    pub(super) files: Vec<File>,
    /// The header lines at the start of each job's output, which the merged output has only once.
    pub(super) header: Option<usize>,
}

pub(super) type LastLines = Arc<Mutex<Vec<Heard>>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    pub(super) last_line: String,
    pub(super) all: bool,
}

struct Open {
    source: Source,
    lines: Lines,
    tag: Tag,
}

pub(super) struct Merge<'a> {
    open: Vec<Open>,
    to: Sink,
    console: &'a Console,
    last_lines: LastLines,
    bytes: Vec<u8>,
    in_a_hurry: bool,
}

impl<'a> Merge<'a> {
    pub(super) fn new(
        sources: Vec<Source>,
        options: MergeOptions,
        console: &'a Console,
        last_lines: &LastLines,
    ) -> Self {
        let tag = |job: usize| Tag::of(options.tag.then_some(job + 1));
        let open = |source: Source| Open { lines: Lines::default(), tag: tag(source.job), source };
        let open: Vec<_> = sources.into_iter().map(open).collect();
        let jobs = open.iter().map(|open| open.source.job + 1).max().unwrap_or(0);
        let to = Sink::new(jobs, options.order, options.tag, options.header, options.files);
        let bytes = vec![0; READ_BYTES];
        Self { open, to, console, last_lines: Arc::clone(last_lines), bytes, in_a_hurry: false }
    }

    /// Merges the outputs until all jobs have closed them. After a failed write to standard output,
    /// `run` closes the pipes of the jobs' standard output, and calls `on_failure`.
    pub(super) fn run(mut self, on_failure: impl Fn()) -> Result<(), Stopped> {
        let mut result = Ok(());
        // The job whose current line is too long for memory, and is therefore written in pieces.
        let mut holder = None;
        while !self.open.is_empty() {
            let mut ready = self.ready(holder);
            if !std::mem::take(&mut self.in_a_hurry) {
                thread::sleep(LINGER);
                ready = self.ready(holder);
            }
            for at in ready.into_iter().rev() {
                // Since the call of `ready`, a job may have begun a line that is too long for
                // memory.
                if !may_read(&self.open[at], holder) {
                    continue;
                }
                let Err(stopped) = self.read(at, &mut holder) else { continue };
                if result.is_ok() {
                    result = Err(stopped);
                }
                holder = None;
                self.open.retain(|open| open.source.from == From::Stderr);
                on_failure();
                break;
            }
        }
        result?;
        let (to, console) = (self.to, self.console);
        let notes = console.beside(|| to.finish())?;
        notes.iter().for_each(|note| console.line(note));
        Ok(())
    }

    fn ready(&self, holder: Option<usize>) -> Vec<usize> {
        let may = |open: &&Open| may_read(open, holder);
        let mut fds: Vec<_> =
            self.open.iter().filter(may).map(|open| PollFd::new(open.source.pipe.as_fd(), PollFlags::POLLIN)).collect();
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            return Vec::new();
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let places = self.open.iter().enumerate().filter(|(_, open)| may(open)).map(|(at, _)| at);
        places.zip(ready).filter(|(_, ready)| *ready).map(|(at, _)| at).collect()
    }

    fn read(&mut self, at: usize, holder: &mut Option<usize>) -> Result<(), Stopped> {
        let open = &mut self.open[at];
        let (job, from) = (open.source.job, open.source.from);
        let got = match open.source.pipe.read(&mut self.bytes) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            // A pipe that cannot be read counts as closed.
            Err(_) => 0,
        };
        self.in_a_hurry |= got >= MUCH_BYTES;
        if from == From::Stdout {
            let (to, bytes) = (&mut self.to, &self.bytes[..got]);
            let within =
                self.console.beside(|| if got > 0 { to.take(job, bytes) } else { to.end(job).map(|()| false) })?;
            *holder = within.then_some(job);
        } else {
            let (mut lines, mut out) = (Vec::new(), Vec::new());
            match got {
                0 => open.lines.end(true, &mut lines),
                _ => drop(open.lines.take(&self.bytes[..got], &mut lines)),
            }
            open.tag.add(&lines, &mut out);
            if !out.is_empty() {
                self.console.pass_on(&out);
            }
            let heard = Heard { last_line: open.lines.last(), all: got == 0 };
            if let Some(of_job) = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner).get_mut(job) {
                *of_job = heard;
            }
        }
        if got == 0 {
            self.open.swap_remove(at);
        }
        Ok(())
    }
}

/// Returns false if the output `open` must wait while a long line of another job (`holder`) is
/// written in pieces.
fn may_read(open: &Open, holder: Option<usize>) -> bool {
    open.source.from == From::Stderr || holder.is_none_or(|job| job == open.source.job)
}
