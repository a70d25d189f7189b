//! `steerage parallel` runs a copy of a program (a job) on every CPU. Each job gets all packets of
//! its flows. The crate steerage-parallel starts the jobs, splits the packets, and merges the
//! output. This file provides the options, devices, sandbox, signals and reports.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use steerage::Output;
use steerage_device::is_synthetic;
use steerage_parallel::{Collect, Finished, InputInfo, Options, Parallel};

use crate::args::{ExecWhenReadyArgs, ParallelArgs, RunArgs};
use crate::error::{EndingError, Error, JobsError};
use crate::instance::{self, InputEnd, OpenedInputs, SendOptions};
use crate::report::{EndedBy, Printer};
use crate::run::{self, RunOptions, StopHook};
use crate::sandbox::{Needs, SandboxProfile};
use crate::terminal::can_redraw;

pub(crate) fn run(args: &ParallelArgs, verbose: bool) -> Result<(), Error> {
    run_jobs(args, verbose).map_err(|error| match error {
        Error::Jobs(error) => Error::Jobs(error),
        other => JobsError::Other(Box::new(other)).into(),
    })
}

/// Checks the command line without opening a device or starting a job.
pub(crate) fn check(args: &ParallelArgs) -> Result<(), Error> {
    Parallel::check(&options(args))?;
    instance::check(&run_args(args)?).map(drop)
}

/// Waits until the file of a job is complete, and then executes the job's program in this process.
/// `parallel` itself cannot start the job, because it is already in its sandbox.
pub(crate) fn exec_when_ready(args: &ExecWhenReadyArgs) -> Result<(), Error> {
    Ok(steerage_parallel::start_when_ready(&args.command)?)
}

fn run_jobs(args: &ParallelArgs, verbose: bool) -> Result<(), Error> {
    let run = run_args(args)?;
    let mut parallel = Parallel::new(options(args))?;
    let hasher = instance::own_hasher(&run.steering.hash)?;
    let split = parallel.split(hasher, run.steering.hash.layers());
    let input_end = InputEnd { now: parallel.end_now(), downstream: parallel.downstream(&split) };
    let stopper = parallel.stopper();
    let outputs = |inputs: &OpenedInputs| -> Result<Vec<Output>, Error> {
        let OpenedInputs { capture, can_wait, .. } = inputs;
        let input = InputInfo { capture: capture.clone(), can_wait: *can_wait, is_paced: args.pace.is_some() };
        Ok(parallel.start(input)?)
    };
    let sending = SendOptions { listens: true, rate: None, coalesce: false, outputs, input_end: Some(input_end) };
    let make = |_| Ok(move |_cpu| split.split());
    let (instance, services) = instance::sending(&run, Needs::of(SandboxProfile::Parallel), sending, make)?;

    let mut options = RunOptions::new(&run, verbose, services);
    options.printer = Printer::new(&run.report, true);
    options.live_table = false;
    options.on_stop = Some(StopHook::new(move |by| stopper.stop(by == EndedBy::Signal)));
    let stop = || options.stopper.stop();
    let (ended, attended) = parallel.attend(&stop, || run::to_end(instance, &options))?;

    let Finished { summary, merged, jobs, .. } = attended.finish(ended.report.snapshot());
    if args.output.json || !args.output.quiet {
        let text = match args.output.json {
            true => serde_json::to_string(&summary).map_err(|error| EndingError::Report(error.into()))? + "\n",
            false => summary.to_string(),
        };
        // Writing fails only if standard error is closed.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
    ended.report.end_page();
    merged?;
    if !ended.outcome.failed.is_empty() {
        return Err(EndingError::Panicked(ended.outcome.failed).into());
    }
    if let Some(error) = ended.report.input_error() {
        return Err(EndingError::Device(error.message.clone()).into());
    }
    Ok(jobs?)
}

fn options(args: &ParallelArgs) -> Options {
    let count = args.jobs.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
    let output = &args.output;
    Options {
        together: args.split.key,
        format: args.split.format.unwrap_or_default(),
        strip_tunnels: args.split.strip_tunnels,
        job_timeout: args.jobs.job_timeout,
        collect: match &output.results {
            Some(directory) => Collect::Results(directory.clone()),
            None if output.no_merge => Collect::Unmerged,
            None => Collect::Merged { order: output.order(), tag: output.tag, header: output.header },
        },
        draws_progress: !output.quiet && can_redraw(),
        waiting_process: Some(waiting_process),
        ..Options::new(count, &args.command)
    }
}

fn waiting_process(program: &OsStr) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("steerage-job").arg("exec-when-ready").arg("--").arg(program);
    command
}

/// Returns the options of a run in which a single CPU splits the packets. All packets stay in
/// order, whatever `--key` is.
fn run_args(args: &ParallelArgs) -> Result<RunArgs, Error> {
    let mut run = RunArgs::of_no_options().map_err(Error::Usage)?;
    run.devices.clone_from(&args.inputs);
    run.pace = args.pace;
    run.live = args.live.clone();
    run.steering.hash = args.hash.clone();
    run.steering.memory = args.memory.clone();
    run.stop = args.stop.clone();
    run.web = args.web.clone();
    run.report.quiet = args.output.quiet;
    run.report.json = args.output.json;
    // The scheduler can move this thread to any CPU that the jobs leave idle.
    run.cpus.virtual_cpus = Some(1);
    // With a single CPU, the policy has nothing to decide. The policy `hash` needs no measurements.
    run.cpus.policy = "hash".to_owned();
    run.sandbox = args.sandbox.clone();
    if args.inputs.iter().any(|input| is_synthetic(input)) {
        run.report.quiet = true;
    }
    Ok(run)
}
