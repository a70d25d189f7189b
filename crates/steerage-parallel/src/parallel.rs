use std::ffi::OsString;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::UsageWho;
use steerage::flow::{FlowHasher, HashKey, Layers};
use steerage::limits::OUTPUTS_MAX;
use steerage::{Builder, Output, Snapshot};
use steerage_apps::parallel::{HandedOn, SplitOptions};
use steerage_capture::{CaptureInfo, LinksSeen, Stream, StreamFormat, StreamOptions, strip_tunnels};
use steerage_device::Opened;
use steerage_device::drain::{Downstream, Drain};
use steerage_text::counted;

use super::brake::Brake;
use super::console::Console;
use super::error::Error;
use super::feed;
use super::inherited;
use super::job::{self, Job, Outputs};
use super::jobs::{Input, Jobs};
use super::merge::{From, Merge, MergeOptions, Source};
use super::options::{Collect, Format, InputInfo, Options, Order};
use super::results::Results;
use super::sink::Stopped;
use super::summary::{JobSummary, Lost, Summary};
use super::template::{Template, Via};
use super::watch::Watch;

/// The total size of the buffers of all jobs in bytes, such as 4 MiB for each of 32 jobs.
const BUFFERS_BYTES: usize = 128 << 20;
const BUFFER_BYTES_MAX: usize = 8 << 20;
const BUFFER_BYTES_MIN: usize = 1 << 20;

/// Divides the packets of the devices in `opened` among the jobs, and returns when all jobs have
/// ended. If the devices end on their own, as files do, the jobs get all packets of the devices.
///
/// # Errors
/// Returns the errors of the steps of [`Parallel`], and [`Error::Failed`] if a job failed, after
/// the error of each job was printed.
pub fn run(options: Options, opened: Opened) -> Result<Summary, Error> {
    let Opened { inputs, capture, .. } = opened;
    let hasher = FlowHasher::keyed(
        &HashKey::random()
            .map_err(|error| Error::Input(format!("cannot read a hash key from /dev/urandom: {error}")))?,
    );
    let layers = Layers::default();
    let mut parallel = Parallel::new(options)?;
    let split = parallel.split(hasher.clone(), layers);
    let can_wait = inputs.iter().flat_map(|input| &input.queues).all(|queue| queue.capabilities().can_wait);
    let inputs = match can_wait {
        true => Drain::over(inputs, &parallel.end_now(), parallel.downstream(&split)),
        false => inputs,
    };
    let outputs = parallel.start(InputInfo { capture, can_wait, is_paced: false })?;
    let builder = Builder::new().virtual_cpus(1).hash(hasher).layers(layers).always_hash(true);
    let builder = outputs.into_iter().fold(inputs.into_iter().fold(builder, Builder::input), Builder::output);
    let instance = builder.build(move |_cpu| split.split())?;
    let handle = instance.handle();
    let running = || -> Result<_, Error> { Ok(instance.start()?.join()) };
    let (outcome, attended) = parallel.attend(&|| handle.stop(), running)?;
    let Finished { summary, merged, jobs } = attended.finish(&outcome.snapshot);
    merged?;
    if !outcome.failed.is_empty() {
        return Err(Error::Input("the packet function panicked".to_owned()));
    }
    if let Some(error) = outcome.snapshot.queues.iter().find_map(|queue| queue.error.as_ref()) {
        return Err(Error::Input(error.message.clone()));
    }
    jobs.map(|()| summary)
}

/// A run of jobs, for a program that has its own instance and executes the steps one by one:
///
/// 1. [`new`](Self::new) checks the options, and creates files for output that may have to wait.
/// 2. [`split`](Self::split) returns the packet function, which assigns packets to jobs. With
///    [`downstream`](Self::downstream), an input that can wait (such as a file) ends only after the
///    jobs have read all of their packets.
/// 3. [`start`](Self::start) creates the outputs of the instance, and starts the jobs.
/// 4. [`attend`](Self::attend) watches the jobs and merges their output while the instance runs.
///    After the call of `attend`, the run opens no files, and starts a program only for a job that
///    reads a file and has no [waiting process](Options::waiting_process).
/// 5. [`Attended::finish`] creates the summary.
///
/// The source code of [`run()`] shows steps 1 to 5.
#[derive(Debug)]
pub struct Parallel {
    options: Options,
    template: Template,
    jobs: Arc<Jobs>,
    capture: Option<Arc<CaptureInfo>>,
    sources: Vec<Source>,
    /// For each job, a file for output that must wait for the output of other jobs.
    files: Vec<File>,
    began: Began,
}

#[derive(Clone, Copy, Debug)]
struct Began {
    at: Instant,
    cpu: Duration,
}

impl Parallel {
    /// Creates a run with these options. The run has no jobs yet.
    ///
    /// # Errors
    /// Returns [`Error::Wrong`] if the command has more than one kind of placeholder for the
    /// packets. Returns [`Error::Temporary`] if a temporary file cannot be created.
    pub fn new(options: Options) -> Result<Self, Error> {
        let options = Options { jobs: options.jobs.clamp(1, OUTPUTS_MAX), ..options };
        let template = template(&options)?;
        let began = Began { at: Instant::now(), cpu: job::cpu_of(UsageWho::RUSAGE_SELF) };
        let files = spool_files(&options)?;
        let jobs = Arc::new(Jobs::new(options.job_timeout));
        Ok(Self { options, template, jobs, capture: None, sources: Vec::new(), files, began })
    }

    /// Checks the options of a run without creating files.
    ///
    /// # Errors
    /// [`Error::Wrong`] for a wrong command.
    pub fn check(options: &Options) -> Result<(), Error> {
        template(options).map(drop)
    }

    /// Returns the packet function of the instance, which must have exactly one CPU, use [hashes at
    /// arrival](Builder::always_hash), and have this `hasher` and these `layers`.
    pub fn split(&self, hasher: FlowHasher, layers: Layers) -> SplitOptions {
        SplitOptions::new(self.options.jobs, self.options.together, hasher, layers)
    }

    /// Returns the destination of the packets that `split` distributes. A [`Drain`] (a wrapper that
    /// reads inputs to their end) needs the returned destination if its inputs can wait.
    pub fn downstream(&self, split: &SplitOptions) -> Box<dyn Downstream> {
        let brake = Brake::new(buffer(self.options.jobs));
        Box::new(ToJobs { jobs: Arc::clone(&self.jobs), handed_on: split.handed_on(), brake })
    }

    /// Returns a flag that becomes true when a [`Drain`] of inputs must stop reading packets.
    pub fn end_now(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.jobs.end_now)
    }

    /// Returns a [`Stopper`], with which any thread can end the input early.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.jobs))
    }

    /// Creates the outputs of the instance, one for each job, and starts the jobs. A job that reads a
    /// `{file}` starts later, when its file is complete.
    ///
    /// # Errors
    /// Returns an error if a job's process, pipe, file, interface or output cannot be created.
    pub fn start(&mut self, input: InputInfo) -> Result<Vec<Output>, Error> {
        let Options { jobs: count, collect, waiting_process, .. } = &self.options;
        let (count, via) = (*count, self.template.via);
        if via == Via::Tap && input.capture.is_some() && !input.is_paced {
            let why = "{tap} is for live input: a program sees only what comes after it has opened its interface";
            return Err(Error::Wrong(format!("{why}; for files use - or {{fifo}}, or --pace")));
        }
        let format = format(self.options.format, input.capture.as_deref());
        let seen = Arc::<LinksSeen>::default();
        let mut options = StreamOptions::new(format).links(&seen).buffer(buffer(count)).patient();
        if self.options.strip_tunnels {
            options = options.unwrapped_by(strip_tunnels);
        }
        let results = match collect {
            Collect::Results(directory) => Some(Results::open(directory, count)?),
            Collect::Merged { .. } | Collect::Unmerged => None,
        };
        let (mut all, mut outputs, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        for number in 1..=count {
            let (output, feed) = feed::feed(via, number, options.clone())?;
            let words = self.template.words(number, count, &feed.place);
            let written = match &results {
                Some(results) => Outputs::Files(results.job(number)?),
                None => collected(number - 1, *collect == Collect::Unmerged, &mut self.sources)?,
            };
            outputs.push(output);
            streams.extend(feed.stream.clone());
            let mut job = Job::new(number, words, feed, written);
            // All jobs that do not read a file start now, and this process closes its copies of the
            // ends of their pipes.
            match (via, waiting_process) {
                (Via::File, Some(process)) => job.prepare(count, *process)?,
                (Via::File, None) => {}
                _ => job.start(count)?,
            }
            all.push(job);
        }
        let InputInfo { capture, can_wait, .. } = input;
        self.capture = capture;
        self.jobs.add(all, Input { streams, seen, has_one_link: !format.takes_several_links(), can_wait });
        Ok(outputs)
    }

    /// Watches the jobs and merges their output in other threads, while the calling thread calls
    /// `run`, which runs the instance to its end. After `run`, `attend` starts the jobs that read a
    /// file, and waits for all jobs. `stop` must stop the instance, even if it has not started yet.
    ///
    /// # Errors
    /// Returns the error that `run` returned, or [`Error::Start`] if a job's program cannot be
    /// started. All jobs have ended when `attend` returns.
    ///
    /// # Panics
    /// Panics if `run` panics, after all jobs have ended.
    pub fn attend<R, E>(self, stop: &(dyn Fn() + Sync), run: impl FnOnce() -> Result<R, E>) -> Result<(R, Attended), E>
    where
        E: std::convert::From<Error>,
    {
        let Self { options, jobs, capture, sources, files, began, .. } = self;
        let (order, tag, header) = options.collect.merged();
        let header = header.or_else(|| tshark_header(&options.command));
        let merge = MergeOptions { tag, order, files, header };
        let console = Console::new(options.draws_progress);
        let watch = Watch { jobs: &jobs, console: &console, stop, capture: capture.clone() };
        let (ended, (merged, merge_cpu)) = thread::scope(|scope| {
            let merge = Merge::new(sources, merge, &console, &jobs.last_lines);
            let merging = scope.spawn(|| (merge.run(|| jobs.stop(true)), job::cpu_of(UsageWho::RUSAGE_THREAD)));
            let watching = scope.spawn(|| watch.run());
            // If `run` panics, the panic is resumed after the jobs have ended, because the other
            // threads wait for the jobs.
            let ended = catch_unwind(AssertUnwindSafe(run));
            let ended = ended.map(|ended| ended.and_then(|ended| jobs.start_all().map(|()| ended).map_err(E::from)));
            jobs.complete();
            jobs.end_streams();
            if !matches!(ended, Ok(Ok(_))) {
                jobs.stop(true);
            }
            let (merged, watched) = (merging.join(), watching.join());
            watched.unwrap_or_else(|panic| resume_unwind(panic));
            let ended = ended.unwrap_or_else(|panic| resume_unwind(panic));
            (ended, merged.unwrap_or_else(|panic| resume_unwind(panic)))
        });
        Ok((ended?, Attended { jobs, capture, console, merged, merge_cpu, began }))
    }
}

fn template(options: &Options) -> Result<Template, Error> {
    Template::new(&options.command)
        .ok_or_else(|| Error::Wrong("a command has one of {fifo}, {file} and {tap}: leave the others out".to_owned()))
}

/// Creates the files for output before the run enters a sandbox, which allows no new files. With
/// `Order::Any`, a run can continue without these files for output, because a job's output does not
/// always have to wait for that of another job.
fn spool_files(options: &Options) -> Result<Vec<File>, Error> {
    let Collect::Merged { order, .. } = options.collect else { return Ok(Vec::new()) };
    if options.jobs == 1 {
        return Ok(Vec::new());
    }
    let files: Result<Vec<File>, Error> = (0..options.jobs).map(|_| inherited::temporary_file()).collect();
    if order == Order::Any { Ok(files.unwrap_or_default()) } else { files }
}

/// Returns the number of header lines that tshark prints with `-E header=y`. If tshark is only a
/// word of a script, other commands of the script may change its output.
fn tshark_header(command: &[OsString]) -> Option<usize> {
    let (program, arguments) = command.split_first()?;
    let is_tshark = Path::new(program).file_name() == Some("tshark".as_ref());
    (is_tshark && arguments.iter().any(|word| word == "header=y" || word == "-Eheader=y")).then_some(1)
}

fn format(wanted: Format, capture: Option<&CaptureInfo>) -> StreamFormat {
    let as_input = capture.and_then(CaptureInfo::format).unwrap_or(StreamFormat::PcapNanos);
    match wanted {
        Format::AsInput => as_input,
        Format::Pcap => StreamFormat::Pcap,
        Format::PcapNanos => StreamFormat::PcapNanos,
        Format::Pcapng => as_input.in_pcapng(),
    }
}

fn buffer(jobs: usize) -> usize {
    (BUFFERS_BYTES / jobs).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
}

fn collected(job: usize, no_merge: bool, sources: &mut Vec<Source>) -> Result<Outputs, Error> {
    let mut pipe = |from| -> Result<Stdio, Error> {
        let (reader, writer) = inherited::pipe()?;
        sources.push(Source { job, from, pipe: File::from(reader) });
        Ok(writer.into())
    };
    let stdout = if no_merge { None } else { Some(pipe(From::Stdout)?) };
    Ok(Outputs::Collected { stdout, stderr: pipe(From::Stderr)? })
}

struct ToJobs {
    jobs: Arc<Jobs>,
    handed_on: Arc<HandedOn>,
    brake: Brake,
}

impl Downstream for ToJobs {
    fn may_end(&self, handed_over: u64) -> bool {
        if self.handed_on.packets() < handed_over {
            return false;
        }
        self.jobs.end_streams();
        self.jobs.have_read_all()
    }

    fn pause(&self) -> Option<Duration> {
        self.brake.pause(self.jobs.streams().iter().map(Stream::waiting))
    }
}

/// A handle with which a thread can end the input of a run early.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Jobs>);

impl Stopper {
    /// Ends the input of the run. If `hurry` is true, jobs that continue to run for too long after
    /// the end of their input are killed.
    ///
    /// Returns true if the caller must also stop the instance. If the input can wait (as a file
    /// can), the instance ends on its own after the jobs have read all of their packets.
    pub fn stop(&self, hurry: bool) -> bool {
        self.0.stop(hurry);
        !self.0.input_can_wait()
    }
}

/// A run whose jobs have ended.
#[derive(Debug)]
pub struct Attended {
    jobs: Arc<Jobs>,
    capture: Option<Arc<CaptureInfo>>,
    console: Console,
    merged: Result<(), Stopped>,
    merge_cpu: Duration,
    began: Began,
}

/// The result of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// The summary of the run, with the counts of packets and the results of the jobs.
    pub summary: Summary,
    /// An error if the output could not be merged, except if no process reads standard output.
    pub merged: Result<(), Error>,
    /// An error if a job failed or did not get all of its packets. Report an error in `merged` or
    /// of the input first, because it may be the cause of the error in `jobs`.
    pub jobs: Result<(), Error>,
}

impl Attended {
    /// Creates the summary from the instance's counts at its end. Prints a message for each job
    /// that exited with 0 but did not get all of its packets.
    pub fn finish(self, snapshot: &Snapshot) -> Finished {
        let Self { jobs, capture, console, merged, merge_cpu, began } = self;
        let nobody_reads = matches!(merged, Err(Stopped::NobodyReads | Stopped::Unmergeable { .. }));
        let summaries = summaries(&jobs, snapshot, nobody_reads, &console);
        let not_written = jobs.not_written(&jobs.lock(), snapshot);
        let split_cpu = job::cpu_of(UsageWho::RUSAGE_SELF).saturating_sub(began.cpu + merge_cpu);
        let count = summaries.len() as u64;
        let filtered = capture.map_or(0, |capture| capture.filtered());
        let summary = Summary::new(summaries, snapshot, filtered, began.at.elapsed(), (split_cpu, merge_cpu));
        let jobs = match (jobs.several_links().or(not_written), summary.failed) {
            (Some(error), _) => Err(error),
            (None, 0) => Ok(()),
            (None, failed) => Err(Error::Failed { failed, jobs: count }),
        };
        let merged = match merged {
            Ok(()) | Err(Stopped::NobodyReads) => Ok(()),
            Err(Stopped::Failed(error)) => Err(Error::Merge(error)),
            Err(Stopped::NotKept(error)) => Err(Error::NotKept { directory: std::env::temp_dir(), error }),
            Err(Stopped::Unmergeable { job, why }) => Err(Error::Unmergeable { job, why }),
        };
        Finished { summary, merged, jobs }
    }
}

fn summaries(jobs: &Jobs, snapshot: &Snapshot, nobody_reads: bool, console: &Console) -> Vec<JobSummary> {
    let all = jobs.lock();
    let of_job = |(nth, job): (usize, &Job)| {
        let lost = Lost::of_output(snapshot, nth);
        // If no process reads standard output, it does not matter whether a job got all of its
        // packets.
        let incomplete = jobs.incomplete(job, &lost).filter(|_| !nobody_reads);
        let by_pipe = nobody_reads && job.ended.is_some_and(|ended| ended.is_by_pipe());
        let failed = incomplete.is_some() || (!job.has_succeeded() && !by_pipe);
        JobSummary::of(job, (snapshot, nth, lost), jobs.last_line(job), (incomplete, failed))
    };
    let summaries: Vec<JobSummary> = all.iter().enumerate().map(of_job).collect();
    for (job, via) in summaries.iter().zip(all.iter().map(|job| job.feed.via)) {
        // If a job exits with a status other than 0, a message has already reported how the job
        // ended.
        if let Some(why) = job.incomplete.as_ref().filter(|_| job.exit_status == Some(0)) {
            let last = job.last_stderr_line.as_ref().map(|line| format!("; its last line: {line}")).unwrap_or_default();
            let missing = counted(job.lost.total(), "packet");
            // The command may name the capture itself, as in `tshark -r FILE`.
            let advice = match via {
                Via::Stdin if job.packets == 0 => "; let it read standard input (-r -), or write {file}",
                _ => "",
            };
            console.line(&format!("job {} exited with 0, but did not get {missing}: {why}{advice}{last}", job.job));
        }
    }
    summaries
}
