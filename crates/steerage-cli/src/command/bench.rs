//! `steerage bench`: measures, and tells.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

use crate::args::{Bench, BenchArgs, RrArgs};
use crate::bench::rr::{self, Measured};
use crate::error::Error;
use crate::report::units::grouped;

/// Measures what is asked for.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Error> {
    match &args.what {
        Bench::Report(args) => super::bench_report::run(args),
        Bench::Rr(args) => {
            let measured = rr::measure(args)?;
            super::print(if args.json { rr_json(args, &measured) } else { rr_text(args, &measured) }.as_bytes())
        }
    }
}

fn per_second(measured: &Measured) -> f64 {
    measured.latency.count() as f64 / measured.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn rr_text(args: &RrArgs, measured: &Measured) -> String {
    let protocol = if args.udp { "UDP" } else { "TCP" };
    let latency = &measured.latency;
    let micros = |nanos: u64| format!("{:.1}", Duration::from_nanos(nanos).as_secs_f64() * 1e6);
    let mut text = format!(
        "{}  {} {protocol} connections, {} bytes / {} bytes  measured for {:.1} s\n\n",
        args.target,
        grouped(args.connections as u64),
        grouped(args.request as u64),
        grouped(args.response as u64),
        measured.elapsed.as_secs_f64()
    );
    let rate = grouped(per_second(measured).round() as u64);
    let _ = writeln!(text, "rate        {rate} transactions/s, {} in all", grouped(latency.count()));
    let [p50, p90, p99, p999] = [500, 900, 990, 999].map(|permille| micros(latency.permille(permille)));
    let (mean, max) = (micros(latency.mean()), micros(latency.max()));
    let _ = writeln!(text, "latency     p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}  mean {mean}  max {max} us");
    let machine = measured.machine_cpus.map_or(String::new(), |cpus| format!(", the whole machine {cpus:.2}"));
    let _ = writeln!(text, "cpus        this process {:.2}{machine}", measured.process_cpus);
    if measured.lost > 0 {
        let _ = writeln!(text, "lost        {} datagrams, sent again", grouped(measured.lost));
    }
    if measured.broken > 0 {
        let why = measured.first_error.as_deref().unwrap_or("unknown");
        let _ = writeln!(text, "broken      {} connections, the first: {why}", grouped(measured.broken));
    }
    text
}

fn rr_json(args: &RrArgs, measured: &Measured) -> String {
    let latency = &measured.latency;
    let value = json!({
        "schema": 1,
        "type": "bench_rr",
        "version": env!("CARGO_PKG_VERSION"),
        "target": args.target.to_string(),
        "protocol": if args.udp { "udp" } else { "tcp" },
        "connections": args.connections,
        "request": args.request,
        "response": args.response,
        "seconds": measured.elapsed.as_secs_f64(),
        "transactions": latency.count(),
        "per_second": per_second(measured),
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
