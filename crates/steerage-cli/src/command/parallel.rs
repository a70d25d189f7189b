//! `steerage parallel`: runs a program on all CPUs, each copy with whole flows.
//!
//! | file | content |
//! |---|---|
//! | `watch` | observes the jobs until all have ended |
//! | `job` | the process of a job, from its start until it is reaped |
//! | `feed` | how packets get to a job: a pipe, a file or an interface |
//! | `inherited` | a pipe or a file without a name, which a job inherits |
//! | `brake` | pauses reading while the jobs have enough input |
//! | `merge`, `sink` | merge the output of all jobs |
//! | `kind`, `lines`, `header`, `elements`, `times` | the kinds of output, and how each is cut |
//! | `spool` | output that waits for its turn |
//! | `results` | the directories of `--results` |
//! | `summary` | the results of the jobs, and whether splitting paid |
//! | `console`, `template` | standard error; the command of each job |

mod brake;
mod console;
mod elements;
mod feed;
mod header;
mod inherited;
mod job;
mod kind;
mod lines;
mod merge;
mod results;
mod sink;
mod spool;
mod summary;
mod template;
mod times;
mod watch;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use steerage::flow::FlowHasher;
use steerage::{Output, Snapshot};
use steerage_apps::parallel::{HandedOn, SplitOptions};
use steerage_capture::{LinksSeen, Stream, StreamFormat, StreamOptions, link_name, strip_tunnels};
use steerage_device::drain::Downstream;
use steerage_device::is_synthetic;

use crate::args::{FormatArg, Order, ParallelArgs, RunArgs};
use crate::error::{EndingError, Error, JobsError};
use crate::instance::{self, InputEnd, OpenedInputs, SendOptions};
use crate::report::{EndedBy, Printer};
use crate::run::{self, RunOptions, StopHook};
use crate::sandbox::{Needs, SandboxProfile};
use crate::units::counted;
use brake::Brake;
use console::Console;
use inherited::temporary_directory;
use job::{Job, Outputs};
use merge::{From, Merge, MergeOptions, Source};
use results::Results;
use sink::Stopped;
use summary::{JobSummary, Lost, Summary};
use template::{Template, Via};
use watch::{Jobs, Watch};

/// The total number of bytes that may wait for all jobs: 4 MiB for each of 32 jobs.
const BUFFERS_BYTES: usize = 128 << 20;
const BUFFER_BYTES_MAX: usize = 8 << 20;
const BUFFER_BYTES_MIN: usize = 1 << 20;

pub(crate) fn run(args: &ParallelArgs, verbose: bool) -> Result<(), Error> {
    run_jobs(args, verbose).map_err(|error| match error {
        Error::Jobs(error) => Error::Jobs(error),
        other => JobsError::Other(Box::new(other)).into(),
    })
}

/// Checks the command line without opening a device or starting a job.
pub(crate) fn check(args: &ParallelArgs) -> Result<(), Error> {
    let _ = template(args)?;
    instance::check(&run_args(args)?).map(drop)
}

fn template(args: &ParallelArgs) -> Result<Template, JobsError> {
    Template::new(&args.command).ok_or_else(|| {
        JobsError::Wrong("a command has one of {fifo}, {file} and {tap}: leave the others out".to_owned())
    })
}

fn run_jobs(args: &ParallelArgs, verbose: bool) -> Result<(), Error> {
    let template = template(args)?;
    let count = args.jobs.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
    let run = run_args(args)?;
    let started = Instant::now();
    let cpu_before = job::own_cpu();
    let end_now = Arc::new(AtomicBool::new(false));
    let jobs: Arc<OnceLock<Arc<Jobs>>> = Arc::default();
    let hasher = match instance::hasher(&run.steering.hash)? {
        Some(hasher) => hasher,
        None => FlowHasher::keyed(&instance::random_key()?),
    };
    let split = SplitOptions::new(count, args.split.key, hasher, run.steering.hash.layers());
    let to_jobs = ToJobs { jobs: Arc::clone(&jobs), handed_on: split.handed_on(), brake: Brake::new(buffer(count)) };
    let mut sources = Vec::new();
    let outputs = |inputs: &OpenedInputs| -> Result<Vec<Output>, Error> {
        let (all, outputs, open) = start_jobs(args, (&template, count), inputs, &end_now)?;
        sources = open;
        // This function is called only once.
        let _ = jobs.set(all);
        Ok(outputs)
    };
    let input_end = InputEnd { now: Arc::clone(&end_now), downstream: Box::new(to_jobs) };
    let sending = SendOptions { listens: true, rate: None, coalesce: false, outputs, input_end: Some(input_end) };
    let make = |_| Ok(move |_cpu| split.split());
    let order = args.output.order();
    let files = spool_files(count, order, args.output.results.is_some() || args.output.no_merge)?;
    let header = args.output.header.or_else(|| tshark_header(&args.command));
    let merge = MergeOptions { tag: args.output.tag, order, files, header };
    let (instance, services) = instance::sending(&run, Needs::of(SandboxProfile::Parallel), sending, make)?;
    let Some(jobs) = jobs.get().cloned() else { return Err(JobsError::Wrong("there are no jobs".to_owned()).into()) };
    let console = Console::new(args.output.quiet);

    let mut options = RunOptions::new(&run, verbose, services);
    let stopper = options.stopper.clone();
    options.printer = Printer::new(&run.report, true);
    options.live_table = false;
    let asked = Arc::clone(&jobs);
    options.on_stop = Some(StopHook::new(move |by| {
        asked.stop(by == EndedBy::Signal);
        // If the input can wait, the run ends when the jobs have read all of their packets. If the
        // input cannot wait, the run ends at once.
        !asked.can_wait
    }));
    let watch = Watch { jobs: &jobs, console: &console, stopper, capture: options.capture.clone() };
    let (ended, (merged, merge_cpu)) = thread::scope(|scope| {
        let merge = Merge::new(sources, merge, &console, &jobs.last_lines);
        let merging = scope.spawn(|| (merge.run(|| jobs.stop(true)), job::thread_cpu()));
        let watching = scope.spawn(|| watch.run());
        let ended = run::to_end(instance, &options);
        let ended = ended.and_then(|ended| jobs.start_all().map(|()| ended));
        jobs.complete();
        jobs.end_streams();
        if ended.is_err() {
            jobs.stop(true);
        }
        let merged = merging.join().unwrap_or((Ok(()), Duration::ZERO));
        let _ = watching.join();
        (ended, merged)
    });
    let ended = ended?;

    let snapshot = ended.report.snapshot();
    let nobody_reads = matches!(merged, Err(Stopped::NobodyReads | Stopped::Unmergeable { .. }));
    let summaries = summaries(&jobs, snapshot, nobody_reads, &console);
    let not_written = jobs.not_written(&jobs.lock(), snapshot);
    let split_cpu = job::own_cpu().saturating_sub(cpu_before + merge_cpu);
    let filtered = ended.report.document.capture.as_ref().map_or(0, |capture| capture.filtered);
    let summary = Summary::new(summaries, snapshot, started.elapsed(), (split_cpu, merge_cpu)).filtered(filtered);
    let text = if args.output.json { summary.json().map_err(EndingError::Report)? } else { summary.text() };
    if args.output.json || !args.output.quiet {
        // A failed write means that standard error is closed.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    match merged {
        Err(Stopped::Failed(error)) => return Err(JobsError::Merge(error).into()),
        Err(Stopped::NotKept(error)) => {
            return Err(JobsError::NotKept { directory: temporary_directory(), error }.into());
        }
        Err(Stopped::Unmergeable { job, why }) => return Err(JobsError::Unmergeable { job, why }.into()),
        Err(Stopped::NobodyReads) | Ok(()) => {}
    }
    if !ended.outcome.failed.is_empty() {
        return Err(EndingError::Panicked(ended.outcome.failed).into());
    }
    if let Some(error) = ended.report.input_error() {
        return Err(EndingError::Device(error.message.clone()).into());
    }
    if let (Some(first), Some(other), true) = (jobs.seen.first(), jobs.seen.other(), jobs.one_link) {
        let names = [first, other].map(|link| link_name(link).into_owned());
        let [first, other] = names;
        return Err(JobsError::SeveralLinks { first, other }.into());
    }
    if let Some(error) = not_written {
        return Err(error.into());
    }
    match summary.failed {
        0 => Ok(()),
        failed => Err(JobsError::Failed { failed, jobs: count as u64 }.into()),
    }
}

/// A file for the output of each job that has to wait. The sandbox allows no new files later. Output
/// of which nobody knows yet whether it has to wait gets files if there is room for them.
fn spool_files(jobs: usize, order: Order, is_unmerged: bool) -> Result<Vec<File>, JobsError> {
    if is_unmerged || jobs == 1 {
        return Ok(Vec::new());
    }
    let files: Result<Vec<File>, JobsError> = (0..jobs).map(|_| inherited::temporary_file()).collect();
    if order == Order::Any { Ok(files.unwrap_or_default()) } else { files }
}

/// The number of header lines that tshark was asked for by `-E header=y`.
fn tshark_header(command: &[OsString]) -> Option<usize> {
    let has = |text: &[u8]| command.iter().any(|word| word.as_bytes().windows(text.len()).any(|part| part == text));
    (has(b"tshark") && has(b"header=y")).then_some(1)
}

/// The summary of each job. Reports jobs that exited with 0 and did not get all of their packets.
fn summaries(jobs: &Jobs, snapshot: &Snapshot, nobody_reads: bool, console: &Console) -> Vec<JobSummary> {
    let all = jobs.lock();
    let of_job = |(nth, job): (usize, &Job)| {
        let lost = Lost::of_output(snapshot, nth);
        // If the output has no reader any more, an incomplete job does not matter.
        let incomplete = jobs.incomplete(job, &lost).filter(|_| !nobody_reads);
        let by_pipe = nobody_reads && job.ended.is_some_and(|ended| ended.is_by_pipe());
        let failed = incomplete.is_some() || (!job.has_succeeded() && !by_pipe);
        JobSummary::of(job, (snapshot, nth, lost), jobs.last_line(job), (incomplete, failed))
    };
    let summaries: Vec<JobSummary> = all.iter().enumerate().map(of_job).collect();
    for job in &summaries {
        // The end of any other job has been reported.
        if let Some(why) = job.incomplete.as_ref().filter(|_| job.exit_status == Some(0)) {
            let last = job.last_stderr_line.as_ref().map(|line| format!("; its last line: {line}")).unwrap_or_default();
            let missing = counted(job.lost.total(), "packet");
            console.line(&format!("job {} exited with 0, but did not get {missing}: {why}{last}", job.job));
        }
    }
    summaries
}

struct ToJobs {
    jobs: Arc<OnceLock<Arc<Jobs>>>,
    handed_on: Arc<HandedOn>,
    brake: Brake,
}

impl Downstream for ToJobs {
    fn may_end(&self, handed_over: u64) -> bool {
        let Some(jobs) = self.jobs.get().filter(|_| self.handed_on.packets() >= handed_over) else { return false };
        jobs.end_streams();
        jobs.have_read_all()
    }

    fn pause(&self) -> Option<Duration> {
        self.brake.pause(self.jobs.get()?.streams.iter().map(Stream::waiting))
    }
}

fn buffer(jobs: usize) -> usize {
    (BUFFERS_BYTES / jobs).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
}

/// Creates the feed of each job. Starts the jobs that can read their input while it arrives.
#[expect(clippy::type_complexity, reason = "three lists, one of each for a job")]
fn start_jobs(
    args: &ParallelArgs,
    (template, count): (&Template, usize),
    inputs: &OpenedInputs,
    end_now: &Arc<AtomicBool>,
) -> Result<(Arc<Jobs>, Vec<Output>, Vec<Source>), Error> {
    if template.via == Via::Tap && inputs.capture.is_some() && args.pace.is_none() {
        let why = "{tap} is for live input: a program sees only what comes after it has opened its interface";
        return Err(JobsError::Wrong(format!("{why}; for files use - or {{fifo}}, or --pace")).into());
    }
    let as_input = || match &inputs.capture {
        Some(info) => info.format().unwrap_or(StreamFormat::PcapNanos),
        None => StreamFormat::PcapNanos,
    };
    let format = match args.split.format {
        None => as_input(),
        Some(FormatArg::Pcap) => StreamFormat::Pcap,
        Some(FormatArg::PcapNs) => StreamFormat::PcapNanos,
        Some(FormatArg::Pcapng) => as_input().in_pcapng(),
    };
    let seen = Arc::new(LinksSeen::new(None));
    let mut options = StreamOptions::new(format).links(&seen).buffer(buffer(count)).patient();
    if args.split.strip_tunnels {
        options = options.unwrapped_by(strip_tunnels);
    }
    let mut jobs = Jobs::new(args.jobs.job_timeout, Arc::clone(end_now), seen, !format.takes_several_links());
    jobs.can_wait = inputs.can_wait;
    let results = args.output.results.as_deref().map(Results::open).transpose()?;
    let (mut all, mut outputs, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=count {
        let (output, feed) = feed::feed(template.via, number, options.clone())?;
        let words = template.words(number, count, &feed.place);
        let written = match &results {
            Some(results) => Outputs::Files(results.job(number)?),
            None => collected(number - 1, args.output.no_merge, &mut sources)?,
        };
        outputs.push(output);
        jobs.streams.extend(feed.stream.clone());
        let mut job = Job::new(number, words, feed, written);
        // A job that reads a file starts when the file is complete. The sandbox allows no new
        // processes by then, so the process is created now and waits. All other jobs start now,
        // which closes their ends of the pipes in this process.
        match template.via {
            Via::File => job.prepare(count)?,
            _ => job.start(count)?,
        }
        all.push(job);
    }
    jobs.add(all);
    Ok((Arc::new(jobs), outputs, sources))
}

fn collected(job: usize, no_merge: bool, sources: &mut Vec<Source>) -> Result<Outputs, Error> {
    let mut pipe = |from| -> Result<std::process::Stdio, Error> {
        let (reader, writer) = io::pipe().map_err(JobsError::Pipe)?;
        sources.push(Source { job, from, pipe: File::from(OwnedFd::from(reader)) });
        Ok(writer.into())
    };
    let stdout = if no_merge { None } else { Some(pipe(From::Stdout)?) };
    Ok(Outputs::Collected { stdout, stderr: pipe(From::Stderr)? })
}

/// The options of the instance. A single CPU reads and splits, so all packets stay in order,
/// whatever `--key` keeps together.
fn run_args(args: &ParallelArgs) -> Result<RunArgs, Error> {
    let mut run = RunArgs::of_no_options().map_err(Error::Usage)?;
    run.devices.clone_from(&args.inputs);
    run.pace = args.pace;
    run.live = args.live.clone();
    run.steering.hash = args.hash.clone();
    run.steering.memory = args.memory.clone();
    run.stop = args.stop.clone();
    run.report.quiet = args.output.quiet;
    run.report.json = args.output.json;
    // A virtual CPU is a thread that the scheduler can move to any CPU that the jobs leave idle.
    run.cpus.virtual_cpus = Some(1);
    // With a single CPU, the policy has nothing to decide, so use a policy that needs no
    // measurements.
    run.cpus.policy = "hash".to_owned();
    run.sandbox = args.sandbox.clone();
    if args.inputs.iter().any(|input| is_synthetic(input)) {
        run.report.quiet = true;
    }
    Ok(run)
}
