//! The jobs of a run. Four threads share the list of jobs: the thread of the packet CPU, the thread
//! that watches the jobs, the thread that merges their output, and the thread that waits for the
//! end of the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use steerage::Snapshot;
use steerage::stats::DropReason;
use steerage_capture::{LinksSeen, Stream, StreamFailure, link_name};

use super::error::Error;
use super::inherited::temporary_directory;
use super::job::{Job, Killed};
use super::merge::{Heard, LastLines};
use super::summary::Lost;
use super::template::Via;

/// The user's request to end the input of the jobs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) end: Option<Instant>,
    pub(super) hurry: bool,
}

/// The input of the jobs. All fields of the jobs' input are known when the jobs are started.
#[derive(Debug)]
pub(super) struct Input {
    /// The packet streams to all jobs. The packet CPU (the CPU that reads the packets) uses this
    /// list of streams, because it must not wait for the lock of the list of jobs.
    pub(super) streams: Vec<Stream>,
    /// The link types of the packets that have been read. `has_one_link` is true if the jobs'
    /// capture format supports only one link type.
    pub(super) seen: Arc<LinksSeen>,
    pub(super) has_one_link: bool,
    /// True if all inputs of the run can wait without losing packets, as a file can.
    pub(super) can_wait: bool,
}

#[derive(Debug)]
pub(super) struct Jobs {
    jobs: Mutex<Vec<Job>>,
    input: OnceLock<Input>,
    asked: Mutex<Asked>,
    /// True if the run must not read any more packets. Inputs that can wait, such as files, check
    /// this flag.
    pub(super) end_now: Arc<AtomicBool>,
    pub(super) is_complete: AtomicBool,
    pub(super) timeout: Option<Duration>,
    pub(super) last_lines: LastLines,
    /// True if all jobs ended before the end of their input.
    pub(super) outlived: AtomicBool,
}

impl Jobs {
    /// Creates an empty list of jobs. A job is killed if it reads nothing for the time `timeout`
    /// although packets wait for it.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        let (jobs, input, asked, end_now, is_complete, last_lines, outlived) = Default::default();
        Self { jobs, input, asked, end_now, is_complete, timeout, last_lines, outlived }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the jobs and their input. `add` may be called only once.
    pub(super) fn add(&self, jobs: Vec<Job>, input: Input) {
        *self.last_lines.lock().unwrap_or_else(PoisonError::into_inner) = vec![Heard::default(); jobs.len()];
        *self.lock() = jobs;
        // `set` fails only if the input was already set, and `add` is called only once.
        let _ = self.input.set(input);
    }

    /// Starts all jobs that have not been started yet, except jobs whose file is incomplete.
    pub(super) fn start_all(&self) -> Result<(), Error> {
        let mut jobs = self.lock();
        let count = jobs.len();
        let is_complete = |job: &&mut Job| job.feed.failure().is_none();
        let started = jobs.iter_mut().filter(is_complete).try_for_each(|job| job.start(count));
        self.is_complete.store(true, Ordering::Relaxed);
        started
    }

    /// Declares that no more jobs will be started. After a call of `complete`, each waiting process
    /// whose job was not started ends.
    pub(super) fn complete(&self) {
        self.lock().iter_mut().for_each(Job::give_up_start);
        self.is_complete.store(true, Ordering::Relaxed);
    }

    /// Ends the input of the jobs early. If `hurry` is true, jobs that continue to run for too long
    /// after the end of their input are killed.
    pub(super) fn stop(&self, hurry: bool) {
        {
            let mut asked = self.asked();
            asked.end.get_or_insert_with(Instant::now);
            asked.hurry |= hurry;
        }
        self.end_now.store(true, Ordering::Relaxed);
        self.end_streams();
    }

    /// Returns the packet streams to all jobs. The list is empty until the jobs are added.
    pub(super) fn streams(&self) -> &[Stream] {
        self.input.get().map_or(&[], |input| &input.streams)
    }

    /// Returns true if all inputs of the run can wait without losing packets.
    pub(super) fn input_can_wait(&self) -> bool {
        self.input.get().is_none_or(|input| input.can_wait)
    }

    /// Returns an error if the packets have several link types, but the jobs' capture format
    /// supports only one link type.
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

    /// Returns the reason why a job did not get all of its packets, or `None` if the job got all
    /// packets. Two kinds of lost packets do not count: packets of a live input that was too fast
    /// for the job, and packets that were lost because the user ended the run.
    pub(super) fn incomplete(&self, job: &Job, lost: &Lost) -> Option<String> {
        let was_asked = self.asked().end.is_some();
        let outlived = self.outlived.load(Ordering::Relaxed) && job.feed.via != Via::File;
        match job.feed.failure() {
            // No error has ended the job. The end of the job is not an error, because this process
            // ended the job after the user ended the run.
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
            directory: (first.feed.via == Via::File).then(temporary_directory),
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
