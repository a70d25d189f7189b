//! The jobs of a run, which four threads share: the packet CPU, the thread that watches the jobs,
//! the thread that merges their output, and the thread that waits for the end of the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use steerage::Snapshot;
use steerage::stats::DropReason;
use steerage_capture::{LinksSeen, Stream, StreamFailure, link_name};

use super::error::Error;
use super::job::{Job, Killed};
use super::merge::{Heard, LastLines};
use super::summary::Lost;
use super::template::Via;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) end: Option<Instant>,
    pub(super) hurry: bool,
}

#[derive(Debug)]
pub(super) struct Input {
    /// The streams to the jobs. The packet CPU uses `streams`, because it must not wait for the
    /// lock of `Jobs::jobs`.
    pub(super) streams: Vec<Stream>,
    /// The link types of the packets so far, and whether the jobs' capture format supports only one
    /// link type.
    pub(super) seen: Arc<LinksSeen>,
    pub(super) has_one_link: bool,
    /// True if all inputs can wait without losing packets, as a file can.
    pub(super) can_wait: bool,
}

#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: Mutex<Vec<Job>>,
    input: OnceLock<Input>,
    asked: Mutex<Asked>,
    /// True if the run must not read any more packets. Inputs that can wait check `end_now`.
    pub(super) end_now: Arc<AtomicBool>,
    pub(super) is_complete: AtomicBool,
    pub(super) timeout: Option<Duration>,
    pub(super) last_lines: LastLines,
    /// True if all jobs ended before the end of their input.
    pub(super) outlived: AtomicBool,
}

impl Jobs {
    /// A job is killed if it reads nothing for `timeout` although packets wait for it.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, ..Self::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, jobs: Vec<Job>, input: Input) {
        *self.last_lines.lock().unwrap_or_else(PoisonError::into_inner) = vec![Heard::default(); jobs.len()];
        *self.lock() = jobs;
        let _ = self.input.set(input);
    }

    /// Starts all jobs that were not started yet, except jobs whose file is incomplete.
    pub(super) fn start_all(&self) -> Result<(), Error> {
        let mut jobs = self.lock();
        let count = jobs.len();
        let is_complete = |job: &&mut Job| job.feed.failure().is_none();
        let started = jobs.iter_mut().filter(is_complete).try_for_each(|job| job.start(count));
        self.is_complete.store(true, Ordering::Relaxed);
        started
    }

    /// Records that no more jobs will be started, and ends the waiting processes of jobs that were
    /// not started.
    pub(super) fn complete(&self) {
        self.lock().iter_mut().for_each(Job::give_up_start);
        self.is_complete.store(true, Ordering::Relaxed);
    }

    /// Ends the input of all jobs. If `hurry` is true, jobs that run for too long after the end of
    /// their input are killed.
    pub(super) fn stop(&self, hurry: bool) {
        {
            let mut asked = self.asked();
            asked.end.get_or_insert_with(Instant::now);
            asked.hurry |= hurry;
        }
        self.end_now.store(true, Ordering::Relaxed);
        self.end_streams();
    }

    pub(super) fn streams(&self) -> &[Stream] {
        self.input.get().map_or(&[], |input| &input.streams)
    }

    pub(super) fn input_can_wait(&self) -> bool {
        self.input.get().is_none_or(|input| input.can_wait)
    }

    pub(super) fn several_links(&self) -> Option<Error> {
        let input = self.input.get().filter(|input| input.has_one_link)?;
        let [first, other] = [input.seen.first()?, input.seen.other()?].map(|link| link_name(link).into_owned());
        Some(Error::SeveralLinks { first, other })
    }

    pub(super) fn end_streams(&self) {
        self.lock().iter().filter_map(|job| job.feed.stream.as_ref()).for_each(|stream| stream.end());
    }

    pub(super) fn have_read_all(&self) -> bool {
        self.lock().iter().filter_map(|job| job.feed.stream.as_ref()).all(|stream| stream.has_ended())
    }

    /// Returns the reason why a job did not get all of its packets, if any. Packets that were lost
    /// because a live input was too fast for the job, or because the user ended the run, do not
    /// count.
    pub(super) fn incomplete(&self, job: &Job, lost: &Lost) -> Option<String> {
        let was_asked = self.asked().end.is_some();
        let outlived = self.outlived.load(Ordering::Relaxed) && job.feed.via != Via::File;
        match job.feed.failure() {
            // This process killed the job after the user had ended the run.
            Some(StreamFailure::ReaderGone) if job.watched.killed == Some(Killed::Interrupt) => return None,
            Some(StreamFailure::ReaderGone) if lost.total() > 0 || outlived => {
                return Some("it ended before the end of its input".to_owned());
            }
            Some(StreamFailure::ReaderGone) | None => {}
            Some(why) => return Some(format!("they could not be written: {why}")),
        }
        if outlived && job.ended.is_some() {
            return Some("it ended before the end of its input".to_owned());
        }
        let excused = |reason| match reason {
            DropReason::TxFull => !self.input_can_wait() || was_asked,
            DropReason::TxRefused => was_asked,
            _ => false,
        };
        let left: Vec<String> = lost
            .iter()
            .filter(|(reason, _)| !excused(*reason))
            .map(|(reason, packets)| format!("{packets} {reason}"))
            .collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    pub(super) fn not_written(&self, jobs: &[Job], snapshot: &Snapshot) -> Option<Error> {
        let why = |job: &Job| job.feed.failure().filter(|failure| *failure != StreamFailure::ReaderGone);
        let failed: Vec<_> = jobs.iter().enumerate().filter_map(|(nth, job)| Some((nth, job, why(job)?))).collect();
        let (_, first, cause) = failed.first()?;
        Some(Error::NotWritten {
            directory: (first.feed.via == Via::File).then(std::env::temp_dir),
            cause: cause.to_string(),
            jobs: failed.len() as u64,
            packets: failed.iter().map(|(nth, ..)| Lost::of_output(snapshot, *nth).total()).sum(),
        })
    }

    pub(super) fn last_line(&self, job: &Job) -> Option<String> {
        Some(self.heard(job).last_line).filter(|line| !line.is_empty()).or_else(|| job.last_line_of_file())
    }

    pub(super) fn heard(&self, job: &Job) -> Heard {
        let heard = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(job.number - 1).cloned().unwrap_or_default()
    }
}
