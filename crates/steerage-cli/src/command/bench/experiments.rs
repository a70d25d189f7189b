//! The experiments: from the command line to a report.

use std::env;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use steerage::CpuMask;
use steerage_bench::experiments::{Plan, Settings, conduct, names, plans};
use steerage_bench::report::{Experiment, Machine, Report, SCHEMA};

use crate::args::{ExperimentArgs, RrArgs};
use crate::bench::beside_kernel::{self, Shape};
use crate::bench::progress::Line;
use crate::command::bench_report;
use crate::error::Error;
use crate::machine;
use crate::signals::{self, Asked};

/// How much longer than others requests and responses are measured: connections are made first, and CPUs are shared.
const RR_LONGER: u32 = 4;

/// Runs those of one name, or `all`.
pub(super) fn run(name: &str, args: &ExperimentArgs) -> Result<(), Error> {
    let settings = settings(args)?;
    let wanted = names().filter(|known| name == "all" || name == *known);
    let mut all: Vec<Plan> = wanted.flat_map(|name| plans(name, &settings)).collect();
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
        all.push(beside_kernel::plan(&settings, shape));
    }
    report(all, args, &settings)
}

/// Runs the kernel beside respond.
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
    report(vec![beside_kernel::plan(&settings, shape)], &args.experiment, &settings)
}

fn settings(args: &ExperimentArgs) -> Result<Settings, Error> {
    let cpus = cpus(args)?;
    let settings = if args.quick { Settings::quick(cpus) } else { Settings::new(cpus) };
    let measured = args.seconds.unwrap_or(settings.measured);
    Ok(Settings { rounds: args.rounds.or(settings.rounds), measured, ..settings })
}

/// The CPUs to use: the first receives, and the others follow in the order in which they would join it.
fn cpus(args: &ExperimentArgs) -> Result<Vec<usize>, Error> {
    let option = "--cpus";
    let mask = match &args.cpus {
        None => machine::usable_cpus()?,
        Some(text) => {
            let nr = machine::nr_cpu_ids();
            CpuMask::parse_list(text, nr).map_err(|error| Error::Mask { option, error })?
        }
    };
    machine::check_online(&mask)?;
    let topology = machine::at_start();
    if let Some(cpu) = mask.iter().find(|cpu| !topology.allowed().contains(*cpu)) {
        let allowed = topology.allowed();
        return Err(Error::Bench(format!("--cpus: this process may not use CPU {cpu}: choose from {allowed}")));
    }
    let first = mask.first().ok_or(Error::NoCpu { option })?;
    let order = [first].into_iter().chain(topology.joining_order(first, &mask));
    Ok(order.map(|cpu| usize::from(cpu.0)).collect())
}

/// Runs them, and shows what came of it.
fn report(plans: Vec<Plan>, args: &ExperimentArgs, settings: &Settings) -> Result<(), Error> {
    let (start, started) = (Instant::now(), SystemTime::now());
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    let listen = move |asked| {
        if asked == Asked::Stop {
            // Relaxed: nothing else is told by it.
            stopping.store(true, Ordering::Relaxed);
        }
        true
    };
    signals::catch()?.listen(listen)?;
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
        ..here()
    };
    let report = Report { schema: SCHEMA, machine, experiments };
    bench_report::show(&report, args.html.as_deref(), args.json)
}

/// Runs all, or until it is not to go on; one run at least.
fn all(plans: Vec<Plan>, goes_on: impl Fn() -> bool) -> Vec<Experiment> {
    let line = Line::new();
    let mut later: Duration = plans.iter().map(Plan::estimate).sum();
    let mut experiments = Vec::with_capacity(plans.len());
    let mut measured = false;
    for plan in plans {
        later = later.saturating_sub(plan.estimate());
        experiments.push(conduct(plan, |progress| {
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

/// The machine that we run on, and the command.
fn here() -> Machine {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (cpu, virtual_machine) = cpuinfo(&text("/proc/cpuinfo"));
    let kernel = text("/proc/sys/kernel/osrelease").trim().to_owned();
    let command = env::args().skip(1).fold("steerage".to_owned(), |all, word| all + " " + &quoted(word));
    Machine {
        cpu,
        kernel,
        virtual_machine,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command,
        ..Machine::default()
    }
}

/// A word as a shell reads it.
fn quoted(word: String) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./,:=@+%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// The processor's name, and whether a hypervisor is below, as proc_cpuinfo(5) tells of x86; elsewhere the architecture.
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

    #[test]
    fn the_command_can_be_given_again() {
        assert_eq!(quoted("--cpus=0-1,3".to_owned()), "--cpus=0-1,3");
        assert_eq!(quoted("a b".to_owned()), "'a b'");
        assert_eq!(quoted("it's".to_owned()), r"'it'\''s'");
        assert_eq!(quoted(String::new()), "''");
    }
}
