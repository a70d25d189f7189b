//! Watches the jobs from their start to their end, and acts if a job reads nothing or ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use steerage::Snapshot;
use steerage::stats::DropReason;
use steerage_capture::{CaptureInfo, LinksSeen, Stream, StreamFailure};

use super::console::Console;
use super::inherited::temporary_directory;
use super::job::{Ended, Job, Killed};
use super::merge::{Heard, LastLines};
use super::summary::Lost;
use super::template::Via;
use crate::error::{Error, JobsError};
use crate::run::Stopper;
use crate::units::{counted, size, time};

const LOOK: Duration = Duration::from_millis(20);
const DRAW: Duration = Duration::from_millis(500);
/// After this time without reading, a message names the job.
const NAMED_AFTER: Duration = Duration::from_secs(30);
/// How long to wait for the last line of a job that has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// After an interrupt, the time that jobs may run after the end of their input. After `GRACE` the
/// jobs get SIGTERM, and after `GRACE` again, SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    end: Option<Instant>,
    hurry: bool,
}

#[derive(Debug)]
pub(super) struct Jobs {
    jobs: Mutex<Vec<Job>>,
    /// The streams of all jobs, for the packet CPU, which must not wait for the lock.
    pub(super) streams: Vec<Stream>,
    asked: Mutex<Asked>,
    /// Set when no further packet will be read. Inputs that can wait check this flag.
    pub(super) end_now: Arc<AtomicBool>,
    complete: AtomicBool,
    pub(super) timeout: Option<Duration>,
    pub(super) one_link: bool,
    pub(super) can_wait: bool,
    pub(super) seen: Arc<LinksSeen>,
    pub(super) last_lines: LastLines,
    outlived: AtomicBool,
}

impl Jobs {
    pub(super) fn new(
        timeout: Option<Duration>,
        end_now: Arc<AtomicBool>,
        seen: Arc<LinksSeen>,
        one_link: bool,
    ) -> Self {
        let (jobs, streams, asked, complete, last_lines, outlived) = Default::default();
        let can_wait = true;
        Self { jobs, streams, asked, end_now, complete, timeout, one_link, can_wait, seen, last_lines, outlived }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, jobs: Vec<Job>) {
        *self.last_lines.lock().unwrap_or_else(PoisonError::into_inner) = vec![Heard::default(); jobs.len()];
        *self.lock() = jobs;
    }

    /// Starts all jobs that have not been started. A job with an incomplete file is not started.
    pub(super) fn start_all(&self) -> Result<(), Error> {
        let mut jobs = self.lock();
        let count = jobs.len();
        let is_complete = |job: &&mut Job| job.feed.failure().is_none();
        let started = jobs.iter_mut().filter(is_complete).try_for_each(|job| job.start(count));
        self.complete.store(true, Ordering::Relaxed);
        started
    }

    /// Declares that no further job will be started. The processes of jobs that were not started
    /// end.
    pub(super) fn complete(&self) {
        self.lock().iter_mut().for_each(Job::give_up_start);
        self.complete.store(true, Ordering::Relaxed);
    }

    /// Ends the input early. If `hurry` is set, jobs that run for too long are killed.
    pub(super) fn stop(&self, hurry: bool) {
        {
            let mut asked = self.asked();
            asked.end.get_or_insert_with(Instant::now);
            asked.hurry |= hurry;
        }
        self.end_now.store(true, Ordering::Relaxed);
        self.end_streams();
    }

    pub(super) fn end_streams(&self) {
        self.lock().iter().filter_map(|job| job.feed.stream.as_ref()).for_each(|stream| stream.end());
    }

    pub(super) fn have_read_all(&self) -> bool {
        self.lock().iter().filter_map(|job| job.feed.stream.as_ref()).all(|stream| stream.has_ended())
    }

    /// The reason for which a job did not get all of its packets. `None` if the job got all of its
    /// packets. A live input that is too fast for a job is not a reason, and neither is a requested
    /// end of the run.
    pub(super) fn incomplete(&self, job: &Job, lost: &Lost) -> Option<String> {
        let was_asked = self.asked().end.is_some();
        let outlived = self.outlived.load(Ordering::Relaxed) && job.feed.via != Via::File;
        match job.feed.failure() {
            // This process ended the job, because the user ended the run.
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
            DropReason::TxFull => !self.can_wait || was_asked,
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

    pub(super) fn not_written(&self, jobs: &[Job], snapshot: &Snapshot) -> Option<JobsError> {
        let why = |job: &Job| job.feed.failure().filter(|failure| *failure != StreamFailure::ReaderGone);
        let failed: Vec<_> = jobs.iter().enumerate().filter_map(|(nth, job)| Some((nth, job, why(job)?))).collect();
        let (_, first, cause) = failed.first()?;
        Some(JobsError::NotWritten {
            directory: (first.feed.via == Via::File).then(temporary_directory),
            cause: cause.to_string(),
            jobs: failed.len() as u64,
            packets: failed.iter().map(|(nth, ..)| Lost::of_output(snapshot, *nth).total()).sum(),
        })
    }

    pub(super) fn last_line(&self, job: &Job) -> Option<String> {
        Some(self.heard(job).last_line).filter(|line| !line.is_empty()).or_else(|| job.last_line_of_file())
    }

    fn heard(&self, job: &Job) -> Heard {
        let heard = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(job.number - 1).cloned().unwrap_or_default()
    }
}

pub(super) struct Watch<'a> {
    pub(super) jobs: &'a Jobs,
    pub(super) console: &'a Console,
    pub(super) stopper: Stopper,
    pub(super) capture: Option<Arc<CaptureInfo>>,
}

impl Watch<'_> {
    pub(super) fn run(self) {
        let start = Instant::now();
        let (mut last, mut drawn) = (start, start);
        let (mut termed, mut stopped) = (None, false);
        loop {
            let now = Instant::now();
            let all_have_ended = self.look(now, now - last);
            last = now;
            if all_have_ended && self.jobs.complete.load(Ordering::Relaxed) {
                break;
            }
            let asked = *self.jobs.asked();
            let other_link = self.jobs.one_link && self.jobs.seen.other().is_some();
            let started = self.jobs.lock().iter().any(|job| job.started.is_some());
            if (all_have_ended && started) || (asked.end.is_some() && self.jobs.have_read_all()) || other_link {
                let goes_on = |stream: &Stream| !stream.input_has_ended();
                if all_have_ended && asked.end.is_none() && self.jobs.streams.iter().any(goes_on) {
                    self.jobs.outlived.store(true, Ordering::Relaxed);
                }
                // No job is left to read packets.
                self.jobs.end_now.store(true, Ordering::Relaxed);
                if !std::mem::replace(&mut stopped, true) {
                    self.stopper.stop();
                }
            }
            if asked.hurry && asked.end.is_some_and(|end| now - end > GRACE) {
                let since = *termed.get_or_insert(now);
                self.kill(if now - since > GRACE { Signal::SIGKILL } else { Signal::SIGTERM }, now == since);
            }
            if self.console.shows_progress() && now - drawn >= DRAW {
                drawn = now;
                self.console.progress(&self.progress(now - start));
            }
            std::thread::sleep(LOOK);
        }
        self.console.progress("");
        self.jobs.end_now.store(true, Ordering::Relaxed);
        self.stopper.stop();
    }

    /// Checks each job. Returns true if all started jobs have ended.
    fn look(&self, now: Instant, passed: Duration) -> bool {
        let mut jobs = self.jobs.lock();
        for job in jobs.iter_mut() {
            job.reap();
            if job.is_running() {
                self.look_at(job, now, passed);
            }
            // The job's last output may still be in its pipe. A child process that the job left
            // behind may keep the pipe open.
            let late = |at| now.saturating_duration_since(at) > LAST_WORDS;
            let ended = job.ended.filter(|ended| !job.watched.said && (self.jobs.heard(job).all || late(ended.at)));
            if let Some(ended) = ended {
                job.watched.said = true;
                self.say_how_it_ended(job, &ended);
            }
        }
        jobs.iter().all(|job| job.watched.said || job.started.is_none())
    }

    fn look_at(&self, job: &mut Job, now: Instant, passed: Duration) {
        let Some(stream) = job.feed.stream.as_ref().filter(|stream| !stream.has_ended()) else { return };
        let (written, unread) = stream.written();
        let watched = &mut job.watched;
        let read = written - (unread as u64).min(written);
        watched.fed += passed;
        if unread == 0 {
            watched.waited += passed;
        }
        if read != watched.read || unread == 0 {
            (watched.read, watched.since) = (read, Some(now));
        }
        let idle = now - *watched.since.get_or_insert(now);
        if idle >= NAMED_AFTER && !std::mem::replace(&mut watched.named, true) {
            let text = format!("job {} has read nothing for {}", job.number, time(NAMED_AFTER));
            let more = if self.jobs.timeout.is_some() { "" } else { "; --job-timeout kills such a job" };
            self.console.line(&format!("{text}{more}"));
        }
        if self.jobs.timeout.is_some_and(|timeout| idle >= timeout) {
            // SIGTERM comes first. If the job reads nothing for the same time again, SIGKILL
            // follows.
            let first = watched.killed.is_none();
            watched.killed = Some(Killed::Timeout);
            watched.since = Some(now);
            job.signal(if first { Signal::SIGTERM } else { Signal::SIGKILL });
        }
    }

    fn kill(&self, signal: Signal, first: bool) {
        let mut jobs = self.jobs.lock();
        for job in jobs.iter_mut().filter(|job| job.is_running()) {
            job.watched.killed = Some(Killed::Interrupt);
            if first || signal == Signal::SIGKILL {
                job.signal(signal);
            }
        }
    }

    fn say_how_it_ended(&self, job: &Job, ended: &Ended) {
        if ended.status.success() {
            return;
        }
        let why = match job.watched.killed {
            Some(Killed::Timeout) => ", killed because it read nothing (--job-timeout)",
            Some(Killed::Interrupt) => ", because it went on after the end of its input",
            None => "",
        };
        let last = self.jobs.last_line(job).map(|line| format!("; its last line: {line}")).unwrap_or_default();
        self.console.line(&format!("job {} {}{why}{last}", job.number, ended.what()));
    }

    fn progress(&self, elapsed: Duration) -> String {
        let running = self.jobs.lock().iter().filter(|job| job.is_running()).count() as u64;
        let jobs = counted(running, "job");
        let Some(info) = &self.capture else { return format!("{} {jobs}", time(elapsed)) };
        let read = info.bytes_read();
        match info.bytes_total().filter(|total| *total > 0 && read > 0) {
            Some(total) if read < total => {
                let left = elapsed.mul_f64((total - read) as f64 / read as f64);
                let percent = 100 * read / total;
                format!("{percent} % of {}  {} left  {jobs}", size(total), time(left))
            }
            Some(total) => format!("all {} read  {}  {jobs}", size(total), time(elapsed)),
            None => format!("{} read  {}  {jobs}", size(read), time(elapsed)),
        }
    }
}
