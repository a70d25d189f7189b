//! `steerage-lab`: repeats the published experiments, and prints one JSON line for each run.
//!
//! ```sh
//! cargo run --release -p steerage-lab -- rps > rps.jsonl && python3 lab/page.py rps.jsonl
//! ```
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use steerage_lab::error::LabError;
use steerage_lab::experiment::{self, Settings};
use steerage_lab::host::{self, HostArgs};
use steerage_lab::predict::{self, PredictArgs};
use steerage_lab::rr::{self, Load};
use steerage_lab::simulation::Simulation;
use steerage_lab::{experiments, runner};

/// Repeat the published experiments; print one JSON line for each run
///
/// Cases run in turn, A B C A B C, so that changes of the machine's speed affect all cases.
/// `python3 lab/page.py` merges the lines of several runs, compares the series and draws them. No
/// other program should run at the same time.
#[derive(Debug, Parser)]
#[command(name = "steerage-lab", args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// Experiments to run, in this order; rr and rps-tun need root and `ip`
    #[arg(value_name = "EXPERIMENT", required = true, value_parser = PossibleValuesParser::new(["all"].into_iter().chain(experiments::groups()).chain(experiments::others())))]
    experiments: Vec<String>,

    /// CPUs to use; the first CPU receives [default: all CPUs that this process may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,

    /// Number of runs of each case, in turn [default: 3 to 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// Approximate length of each run in seconds [default: 0.5; rr: 2]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Test that the experiments work on this machine: one round, too short for valid figures
    #[arg(long)]
    quick: bool,

    /// File with the costs of the receive path for simulated experiments [default:
    /// lab/scale/zen5.toml]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// File that describes the machine of simulated experiments [default: lab/scale/server.toml]
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Seed of simulated experiments
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Connections of rr [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    connections: Option<u16>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reply to packets as a host with its own addresses, until standard input ends
    Respond(HostArgs),
    /// Measure the rate of requests and responses with a server
    Load(LoadArgs),
    /// Measure the costs of the receive path on this machine; print a profile for simulated
    /// experiments
    Profile(ProfileArgs),
    /// Compare runs of the experiment rps on two CPUs with the simulation
    Predict(PredictArgs),
}

#[derive(Debug, Args)]
struct LoadArgs {
    /// Address and port of the server
    #[arg(value_name = "TARGET")]
    target: SocketAddr,
    /// Connections at a time
    #[arg(short = 'C', long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    request: u32,
    /// Bytes of a response
    #[arg(long, value_name = "BYTES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    response: u32,
    /// Use UDP, with one datagram for each request and each response
    #[arg(long)]
    udp: bool,
    /// Threads; each has a share of the connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Length of the measurement
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Time before the measurement begins
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
}

#[derive(Debug, Args)]
struct ProfileArgs {
    /// CPUs: the first one receives; the nearest and the farthest other one are measured [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Test that the command works on this machine: runs too short for valid figures
    #[arg(long)]
    quick: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let within = |time: &Duration| (experiment::SECONDS_MIN..=experiment::SECONDS_MAX).contains(time);
    time.filter(within).ok_or_else(|| "write a time from 0.001 to 3600 seconds".to_owned())
}

fn run(args: Arguments) -> Result<(), LabError> {
    match args.command {
        Some(Command::Respond(host)) => return host::run(&host),
        Some(Command::Load(load)) => return measure(&load),
        Some(Command::Profile(args)) => {
            let cpus = experiment::cpus(args.cpus.as_deref())?;
            let settings = if args.quick { Settings::quick(cpus) } else { Settings::new(cpus) };
            return predict::run_profile(&settings, &mut io::stdout().lock());
        }
        Some(Command::Predict(args)) => return predict::run_predict(&args, &mut io::stdout().lock()),
        None => {}
    }
    let cpus = experiment::cpus(args.cpus.as_deref())?;
    let settings = if args.quick { Settings::quick(cpus) } else { Settings::new(cpus) };
    let settings = Settings {
        rounds: args.rounds.map(usize::from).or(settings.rounds),
        measured: args.seconds.unwrap_or(settings.measured),
        rr_measured: args.seconds.unwrap_or(settings.rr_measured),
        simulation: Simulation::read(args.profile.as_deref(), args.machine.as_deref(), args.seed)?,
        connections: args.connections.map_or(settings.connections, usize::from),
        ..settings
    };
    let mut named: Vec<&str> = Vec::new();
    for name in &args.experiments {
        let measuring = experiments::measuring().filter(|_| name == "all");
        let alone = Some(name.as_str()).filter(|name| *name != "all");
        for name in measuring.map(|name| -> &str { name }).chain(alone) {
            if !named.contains(&name) {
                named.push(name);
            }
        }
    }
    let planned = named.iter().flat_map(|name| experiments::plan(name, &settings)).collect();
    runner::run_all(planned, &mut io::stdout().lock())
}

fn measure(args: &LoadArgs) -> Result<(), LabError> {
    let load = Load {
        target: args.target,
        udp: args.udp,
        connections: args.connections.into(),
        threads: args.threads.into(),
        request: args.request as usize,
        response: args.response as usize,
        warm_up: args.warm_up,
        measured: args.seconds,
    };
    let measured = rr::measure(&load)?;
    let series = args.target.to_string();
    runner::write_line(
        &runner::Line::of("load", &series, None, 0, None, &measured.measurement()),
        &mut io::stdout().lock(),
    )
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "steerage-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
