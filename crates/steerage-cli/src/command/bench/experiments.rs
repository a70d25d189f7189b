//! Runs experiments, from the command line to the report.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use steerage::CpuMask;
use steerage_lab::benchmark::{Benchmark, Settings};
use steerage_lab::experiments::{benchmarks, names};
use steerage_lab::report::{Experiment, Machine, Report, SCHEMA};
use steerage_lab::summary::summary;
use steerage_lab::{html, runner};

use crate::args::{ExperimentArgs, PathArgs, RrArgs};
use crate::bench::html_page;
use crate::bench::progress::ProgressLine;
use crate::bench::rr_experiment::{self, Shape};
use crate::command::bench_report;
use crate::error::Error;
use crate::host_cpus;
use crate::sandbox::{self, Confined, Needs};
use crate::signals::{self, SignalRequest};
use crate::stdout;
use crate::terminal::shell_word;

/// How many times longer than others the request-response experiment is measured: it connects first, and its CPUs are
/// shared.
const RR_LONGER: u32 = 4;

/// Runs the experiments called `name`, or all.
pub(super) fn run(name: &str, args: &ExperimentArgs) -> Result<(), Error> {
    let settings = settings(args)?;
    let wanted = names().filter(|known| name == "all" || name == *known);
    let mut all: Vec<Benchmark> = wanted.flat_map(|name| benchmarks(name, &settings)).collect();
    if name == "all" {
        let defaults = if args.quick { 16 } else { 500 };
        let shape = Shape {
            connections: defaults,
            threads: 1,
            request: 1,
            response: 1,
            warm_up: settings.warm_up,
            measured: settings.measured * RR_LONGER,
        };
        all.push(rr_experiment::plan(&settings, shape));
    }
    // The experiment that compares `respond` with the kernel makes network namespaces and starts servers.
    let confined = name != "all";
    report(all, args, &settings, confined)
}

/// Runs the experiment about the receive path, and prints its summary if that is asked for.
pub(super) fn path(args: &PathArgs) -> Result<(), Error> {
    if !args.summary {
        return run("path", &args.experiment);
    }
    let settings = settings(&args.experiment)?;
    measure(benchmarks("path", &settings), &args.experiment, &settings, true, |report| {
        if let Some(page) = &args.experiment.html {
            html_page::write(page, &html::page(report))?;
        }
        let text: String = report.experiments.iter().map(summary).collect();
        stdout::print(text.as_bytes())
    })
}

/// Runs the experiment that compares `respond` with the kernel.
pub(super) fn rr(args: &RrArgs) -> Result<(), Error> {
    let settings = settings(&args.experiment)?;
    let shape = Shape {
        connections: args.connections,
        threads: args.threads,
        request: args.request,
        response: args.response,
        warm_up: args.warm_up.unwrap_or(settings.warm_up),
        measured: args.experiment.seconds.unwrap_or(settings.measured * RR_LONGER),
    };
    report(vec![rr_experiment::plan(&settings, shape)], &args.experiment, &settings, false)
}

fn settings(args: &ExperimentArgs) -> Result<Settings, Error> {
    let cpus = cpus(args)?;
    let settings = if args.quick { Settings::quick(cpus) } else { Settings::new(cpus) };
    let measured = args.seconds.unwrap_or(settings.measured);
    Ok(Settings { rounds: args.rounds.or(settings.rounds), measured, ..settings })
}

/// The CPUs to use. The first receives, and the others follow in the order in which they would be
/// added.
fn cpus(args: &ExperimentArgs) -> Result<Vec<usize>, Error> {
    let option = "--cpus";
    let mask = match &args.cpus {
        None => host_cpus::usable_cpus()?,
        Some(text) => {
            let nr = host_cpus::nr_cpu_ids();
            CpuMask::parse_list(text, nr).map_err(|error| Error::Mask { option, error })?
        }
    };
    host_cpus::require_online(&mask)?;
    let topology = host_cpus::topology();
    if let Some(cpu) = mask.iter().find(|cpu| !topology.allowed().contains(*cpu)) {
        let allowed = topology.allowed();
        return Err(Error::Bench(format!("--cpus: this process may not use CPU {cpu}: choose from {allowed}")));
    }
    let first = mask.first().ok_or(Error::NoCpu { option })?;
    let order = [first].into_iter().chain(topology.joining_order(first, &mask));
    Ok(order.map(|cpu| usize::from(cpu.0)).collect())
}

/// Runs the experiments, in the sandbox if they are `confined`, and shows the report.
fn report(plans: Vec<Benchmark>, args: &ExperimentArgs, settings: &Settings, confined: bool) -> Result<(), Error> {
    let show = |report: &Report| bench_report::show(report, args.html.as_deref(), args.json);
    measure(plans, args, settings, confined, show)
}

/// Runs the experiments, in the sandbox if they are `confined`, and passes the report to `show`.
fn measure(
    plans: Vec<Benchmark>,
    args: &ExperimentArgs,
    settings: &Settings,
    confined: bool,
    show: impl FnOnce(&Report) -> Result<(), Error>,
) -> Result<(), Error> {
    let (start, started) = (Instant::now(), SystemTime::now());
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    let listen = move |asked| {
        if asked == SignalRequest::Stop {
            // Relaxed: no other data depends on it.
            stopping.store(true, Ordering::Relaxed);
        }
        true
    };
    let here = here();
    let signals = signals::install()?;
    // This comes before any thread starts. Threads inherit the sandbox.
    let page: Vec<&Path> = args.html.as_deref().into_iter().collect();
    let enter = || sandbox::enter_writing(Needs::of(Confined::Bench).reads_machine(), &page, &args.sandbox);
    let _kept = confined.then(enter).transpose()?;
    signals.listen(listen)?;
    tracing::info!("measuring; signals are listened to");
    let experiments = all(plans, || !stop.load(Ordering::Relaxed));
    if experiments.iter().all(|experiment| experiment.samples.is_empty()) {
        let why = experiments.iter().flat_map(|experiment| &experiment.skipped).next();
        return Err(Error::Bench(why.map_or_else(|| "nothing could be measured".to_owned(), Clone::clone)));
    }
    let machine = Machine {
        cpus: settings.cpus.len(),
        started: humantime::format_rfc3339_seconds(started).to_string(),
        seconds: start.elapsed().as_secs_f64(),
        ..here
    };
    show(&Report { schema: SCHEMA, machine, experiments })
}

/// Runs the plans until `goes_on` returns false, but at least one run.
fn all(plans: Vec<Benchmark>, goes_on: impl Fn() -> bool) -> Vec<Experiment> {
    let line = ProgressLine::new();
    let mut later: Duration = plans.iter().map(Benchmark::estimate).sum();
    let mut experiments = Vec::with_capacity(plans.len());
    let mut measured = false;
    for plan in plans {
        later = later.saturating_sub(plan.estimate());
        experiments.push(runner::run(plan, |progress| {
            line.show(progress, later);
            let is_first = !std::mem::replace(&mut measured, true);
            is_first || goes_on()
        }));
        if !goes_on() {
            break;
        }
    }
    experiments
}

/// This machine, and the command line.
fn here() -> Machine {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (cpu, virtual_machine) = cpuinfo(&text("/proc/cpuinfo"));
    let kernel = text("/proc/sys/kernel/osrelease").trim().to_owned();
    let command = env::args().skip(1).fold("steerage".to_owned(), |all, word| all + " " + &shell_word(&word));
    Machine {
        cpu,
        kernel,
        virtual_machine,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command,
        ..Machine::default()
    }
}

/// The processor's name, and whether there is a hypervisor, from proc_cpuinfo(5) on x86. Elsewhere the name is the
/// architecture.
fn cpuinfo(text: &str) -> (String, bool) {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key))?;
        Some(line.split_once(':')?.1.trim())
    };
    let name = value("model name").unwrap_or(env::consts::ARCH).to_owned();
    (name, value("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named() {
        let text = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu hypervisor lahf_lm\n\nprocessor\t: 1\n";
        assert_eq!(cpuinfo(text), ("AMD EPYC 9R14".to_owned(), true));
        assert!(!cpuinfo(&text.replace(" hypervisor", "")).1);
        assert_eq!(cpuinfo("processor : 0\nBogoMIPS : 50\n"), (env::consts::ARCH.to_owned(), false));
    }
}
