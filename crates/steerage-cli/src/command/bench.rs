//! `steerage bench`: runs experiments, or a load against a server.

mod experiments;

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use crate::args::{Bench, BenchArgs, RrArgs};
use crate::bench::rr::{self, Load, Measured};
use crate::error::Error;
use crate::sandbox::{self, Confined, Needs};
use crate::stdout;
use crate::units::{counted, grouped};

/// How long a load is measured by default, and how long it runs before that.
const SECONDS: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);

/// Runs the benchmark of the command line.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Error> {
    match &args.what {
        Bench::All(args) => experiments::run("all", args),
        Bench::Rps(args) => experiments::run("rps", args),
        Bench::Delay(args) => experiments::run("delay", args),
        Bench::Handoff(args) => experiments::run("handoff", args),
        Bench::LateMetadata(args) => experiments::run("late-metadata", args),
        Bench::PageCache(args) => experiments::run("page-cache", args),
        Bench::Path(args) => experiments::path(args),
        Bench::Hash(args) => experiments::run("hash", args),
        Bench::Meter(args) => experiments::run("meter", args),
        Bench::Report(args) => super::bench_report::run(args),
        Bench::Rr(args) => match args.target {
            Some(target) => load(args, target),
            None => experiments::rr(args),
        },
    }
}

fn load(args: &RrArgs, target: SocketAddr) -> Result<(), Error> {
    let load = Load {
        target,
        udp: args.udp,
        connections: args.connections,
        threads: args.threads,
        request: args.request,
        response: args.response,
        warm_up: args.warm_up.unwrap_or(WARM_UP),
        seconds: args.experiment.seconds.unwrap_or(SECONDS),
    };
    // Connections that break are not made again.
    let needs = Needs::of(Confined::BenchRr).reads("/proc/stat");
    let measured = rr::measure(&load, || sandbox::enter(needs, &args.experiment.sandbox).map(drop))?;
    let text = if args.experiment.json { rr_json(&load, &measured) } else { rr_text(&load, &measured) };
    stdout::print(text.as_bytes())
}

fn rr_text(load: &Load, measured: &Measured) -> String {
    let protocol = if load.udp { "UDP" } else { "TCP" };
    let latency = &measured.latency;
    let micros = |nanos: u64| format!("{:.1}", Duration::from_nanos(nanos).as_secs_f64() * 1e6);
    let mut text = format!(
        "{}  {}, {} / {}  measured for {:.1} s\n\n",
        load.target,
        counted(load.connections as u64, &format!("{protocol} connection")),
        counted(load.request as u64, "byte"),
        counted(load.response as u64, "byte"),
        measured.elapsed.as_secs_f64()
    );
    let rate = grouped(measured.per_second().round() as u64);
    let _ = writeln!(text, "rate        {rate} transactions/s, {} in all", grouped(latency.count()));
    let [p50, p90, p99, p999] = [500, 900, 990, 999].map(|permille| micros(latency.permille(permille)));
    let (mean, max) = (micros(latency.mean()), micros(latency.max()));
    let _ = writeln!(text, "latency     p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}  mean {mean}  max {max} us");
    let machine = measured.machine_cpus.map_or(String::new(), |cpus| format!(", the whole machine {cpus:.2}"));
    let _ = writeln!(text, "cpus        this process {:.2}{machine}", measured.process_cpus);
    if measured.lost > 0 {
        let _ = writeln!(text, "lost        {}, sent again", counted(measured.lost, "datagram"));
    }
    if measured.broken > 0 {
        let why = measured.first_error.as_deref().unwrap_or("unknown");
        let _ = writeln!(text, "broken      {}, the first: {why}", counted(measured.broken, "connection"));
    }
    text
}

fn rr_json(load: &Load, measured: &Measured) -> String {
    let latency = &measured.latency;
    let value = json!({
        "schema": 1,
        "type": "bench_rr",
        "version": env!("CARGO_PKG_VERSION"),
        "target": load.target.to_string(),
        "protocol": if load.udp { "udp" } else { "tcp" },
        "connections": load.connections,
        "request": load.request,
        "response": load.response,
        "seconds": measured.elapsed.as_secs_f64(),
        "transactions": latency.count(),
        "per_second": measured.per_second(),
        "latency_nanos": {
            "p50": latency.permille(500),
            "p90": latency.permille(900),
            "p99": latency.permille(990),
            "p999": latency.permille(999),
            "mean": latency.mean(),
            "max": latency.max(),
        },
        "process_cpus": measured.process_cpus,
        "machine_cpus": measured.machine_cpus,
        "lost": measured.lost,
        "broken": measured.broken,
    });
    format!("{value}\n")
}
