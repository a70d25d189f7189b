use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use steerage_capture::{CaptureInfo, Stream};
use steerage_text::{counted, size, time};

use super::console::Console;
use super::job::{Ended, Job, Killed};
use super::jobs::Jobs;

const LOOK: Duration = Duration::from_millis(20);
const DRAW: Duration = Duration::from_millis(500);
/// After this time, a message names each job that reads nothing although packets wait for it.
const NAMED_AFTER: Duration = Duration::from_secs(30);
/// The longest wait for the last line of standard error of a job that has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// After an interrupt, jobs may run for this long after the end of their input. A job that still
/// runs after this time gets SIGTERM, and SIGKILL after twice this time.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Watch<'a> {
    pub(super) jobs: &'a Jobs,
    pub(super) console: &'a Console,
    /// Stops the run, even if the run has not started yet.
    pub(super) stop: &'a (dyn Fn() + Sync),
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
            if all_have_ended && self.jobs.is_complete.load(Ordering::Relaxed) {
                break;
            }
            let asked = *self.jobs.asked();
            let several_links = self.jobs.several_links().is_some();
            let started = self.jobs.lock().iter().any(|job| job.started.is_some());
            if (all_have_ended && started) || (asked.end.is_some() && self.jobs.have_read_all()) || several_links {
                let goes_on = |stream: &Stream| !stream.input_has_ended();
                if all_have_ended && asked.end.is_none() && self.jobs.streams().iter().any(goes_on) {
                    self.jobs.outlived.store(true, Ordering::Relaxed);
                }
                self.jobs.end_now.store(true, Ordering::Relaxed);
                if !std::mem::replace(&mut stopped, true) {
                    (self.stop)();
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
            thread::sleep(LOOK);
        }
        self.console.progress("");
        self.jobs.end_now.store(true, Ordering::Relaxed);
        (self.stop)();
    }

    fn look(&self, now: Instant, passed: Duration) -> bool {
        let mut jobs = self.jobs.lock();
        for job in jobs.iter_mut() {
            job.reap();
            if job.is_running() {
                self.look_at(job, now, passed);
            }
            // A child process of the job may keep the pipe of the job's last output open.
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
            // A job that reads nothing gets SIGTERM first, and SIGKILL if it still reads nothing
            // after the same timeout.
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
        if ended.has_succeeded() {
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
