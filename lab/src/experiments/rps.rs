//! Throughput with and without steering, by work per packet and number of CPUs, and the effect of
//! steering on delay.

use std::thread;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use steerage::{Balance, Builder, CpuId, CpuMask, Hash, Instance, Snapshot};

use crate::benchmark::{Benchmark, Description, Settings};
use crate::error::BenchError;
use crate::histogram::Histogram;
use crate::load::{Paced, SpinHandler, spin_rounds};
use crate::measurement::Measurement;
use crate::published::{RPS, RPS_LIGHT_LOAD};
use crate::report::ChartKind;

const DESCRIPTION: Description = Description {
    name: "rps",
    title: "Receive packet steering: with and without, by work per packet",
    question: "One queue brings more packets of 64 bytes in 65,536 flows than anybody can handle. How many are handled a second \
               where the CPU that receives does all the work, where another CPU does it, where all do, and where balance \
               decides? From how much work per packet on does steering pay?",
    published: Some(&RPS),
    x: "work, ns per packet",
    rounds: 5,
};

const DELAY: Description = Description {
    name: "delay",
    title: "Delay with steering and without, at a part of the load",
    question: "Packets that take 500 ns each come at a steady rate: 1 %, 10 %, 50 % and 150 % of what one CPU can do. How old are they \
               when their turn comes, and how many CPUs are busy? A packet for another CPU that sleeps also waits until that CPU \
               is awake. Above 100 % one CPU cannot keep up.",
    published: Some(&RPS_LIGHT_LOAD),
    x: "load, % of one CPU",
    rounds: 3,
};

const CPUS: Description = Description {
    name: "rps-cpus",
    title: "Receive packet steering: speed-up by number of CPUs",
    question: "Packets that take 500 ns each come faster than the CPUs can handle them. The mask has 1 CPU, the one that receives, then 2, \
               4 and so on up to all CPUs. How many times as many packets are handled as without steering, and how much CPU time \
               does it take? With 1 CPU in the mask there is nothing to gain, so that point shows how exact the others are. The \
               published points are requests and responses by the kernel's stack, on machines of 8 and 16 CPUs.",
    published: Some(&RPS),
    x: "CPUs in the mask",
    rounds: 5,
};

/// The work per packet, in nanoseconds.
const COSTS: [u32; 8] = [0, 20, 50, 100, 200, 500, 1000, 2000];

/// The work per packet in the measurement of delays.
const DELAY_COST: Duration = Duration::from_nanos(500);

/// The work per packet in the measurement of speed-up by number of CPUs: as much as a small server
/// needs.
const SPEED_UP_COST: Duration = Duration::from_nanos(500);

/// The offered loads, in percent of the load that one CPU can handle.
const LOADS: [u32; 4] = [1, 10, 50, 150];

/// How packets are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The receiving CPU handles all packets.
    Inline,
    /// The receiving CPU only collects packets, and one other CPU handles them.
    Worker,
    /// All CPUs handle packets, by hash.
    Hash,
    /// The `balance` policy decides by load.
    Balance,
}

const INLINE: &str = "no steering";
const WORKER: &str = "one other CPU";
const ALL: &str = "all CPUs, hash";
const BALANCE: &str = "balance";
const HASH: &str = "hash";

/// One run on some of the CPUs.
struct Run {
    way: Way,
    cpus: Vec<usize>,
    warm_up: Duration,
    measured: Duration,
}

/// The result of one run.
struct Measured {
    per_second: f64,
    /// The busy time of all CPUs per packet, in nanoseconds.
    busy: f64,
    /// CPU seconds per second.
    cpus: f64,
    delays: Histogram,
}

impl Run {
    fn new(way: Way, cpus: usize, settings: &Settings) -> Self {
        let cpus = settings.cpus[..cpus.min(settings.cpus.len())].to_vec();
        let warm_up = settings.warm_up_of(way == Way::Balance);
        Self { way, cpus, warm_up, measured: settings.measured }
    }

    fn takes(&self) -> Duration {
        self.warm_up + self.measured
    }

    /// Runs packets that each take this much work, at this rate per second. Without a rate, packets
    /// arrive as fast as the path takes them.
    fn once(&self, work: Duration, per_second: Option<f64>) -> Result<Measured, BenchError> {
        let cpus: CpuMask = self.cpus.iter().map(|cpu| CpuId(*cpu as u16)).collect();
        let rx = CpuId(self.cpus[0] as u16);
        let mask = match self.way {
            Way::Inline => CpuMask::new(),
            Way::Worker => self.cpus[1..2].iter().map(|cpu| CpuId(*cpu as u16)).collect(),
            Way::Hash | Way::Balance => cpus.clone(),
        };
        let builder = Builder::new().cpus(cpus).rps_cpus(mask).input_on(Paced::input(per_second), &[rx], None);
        let builder = if self.way == Way::Balance { builder.policy(Balance::new()) } else { builder.policy(Hash) };
        let (rounds, records_delays) = (spin_rounds(work), per_second.is_some());
        let running = builder.build(move |_| SpinHandler::new(rounds, records_delays)).and_then(Instance::start)?;
        let handle = running.handle();
        thread::sleep(self.warm_up);
        let (before, cpu_before) = (handle.snapshot(), cpu_time()?);
        thread::sleep(self.measured);
        let (after, cpu_after) = (handle.snapshot(), cpu_time()?);
        handle.stop();
        let outcome = running.join();
        if !outcome.failed.is_empty() {
            return Err(BenchError::Panicked);
        }
        let mut delays = Histogram::new();
        outcome.reports.iter().for_each(|(_, report)| delays.merge(report));
        let seconds = (after.elapsed - before.elapsed).as_secs_f64();
        let delivered = (after.delivered() - before.delivered()) as f64;
        let busy = busy(&after).saturating_sub(busy(&before));
        Ok(Measured {
            per_second: delivered / seconds,
            busy: busy.as_nanos() as f64 / delivered.max(1.0),
            cpus: cpu_after.saturating_sub(cpu_before).as_secs_f64() / seconds,
            delays,
        })
    }
}

fn busy(snapshot: &Snapshot) -> Duration {
    snapshot.cpus.iter().map(|cpu| cpu.busy).sum()
}

fn cpu_time() -> Result<Duration, BenchError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|error| BenchError::set_up("the CPU time used", error))?;
    Ok(Duration::from_micros((usage.user_time() + usage.system_time()).num_microseconds() as u64))
}

/// The numbers of CPUs: 2, 4, and all of them.
fn counts(cpus: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = [2, 4].into_iter().filter(|count| *count < cpus).collect();
    counts.push(cpus.max(2));
    counts
}

/// All ways with their names and the number of CPUs that each uses.
fn ways(cpus: usize) -> Vec<(String, Way, usize)> {
    let counts = counts(cpus);
    let mut ways = vec![(INLINE.to_owned(), Way::Inline, 1), (WORKER.to_owned(), Way::Worker, 2)];
    for count in counts {
        let of = |name: &str| if count < cpus { format!("{name}, {count} CPUs") } else { name.to_owned() };
        let hash = if count < cpus { format!("{count} CPUs, hash") } else { ALL.to_owned() };
        ways.extend([(hash, Way::Hash, count), (of(BALANCE), Way::Balance, count)]);
    }
    ways
}

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    vec![throughput(settings), by_cpus(settings)]
}

/// The numbers of CPUs in the mask: powers of two, and all CPUs.
fn mask_sizes(cpus: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(1), |size| Some(size * 2));
    doubled.take_while(|size| *size < cpus).chain([cpus]).collect()
}

fn by_cpus(settings: &Settings) -> Benchmark {
    let all = settings.cpus.len();
    let mut benchmark = Benchmark::new(CPUS, settings)
        .on_this_machine(&format!("This machine has {all} for it."))
        .metric("mpps", "handled", "Mpps", true)
        .metric("cpus", "CPU time", "CPUs", false)
        .metric("busy_ns", "all CPUs, busy", "ns a packet", false)
        .compare(BALANCE, INLINE)
        .beside(&RPS)
        .compare(HASH, INLINE)
        .chart(ChartKind::Ratio, "mpps", "Speed-up over no steering, by number of CPUs")
        .chart(ChartKind::Lines, "mpps", "Packets handled, by number of CPUs")
        .chart(ChartKind::Lines, "cpus", "CPU time, by number of CPUs");
    for size in settings.points(&mask_sizes(all)) {
        for (name, way, cpus) in [(INLINE, Way::Inline, 1), (HASH, Way::Hash, size), (BALANCE, Way::Balance, size)] {
            let run = Run::new(way, cpus, settings);
            benchmark.takes(run.takes());
            benchmark.case(name, Some(size as f64), cpus, move || {
                let measured = run.once(SPEED_UP_COST, None)?;
                let measurement = Measurement::of("mpps", measured.per_second / 1e6);
                Ok(measurement.and("cpus", measured.cpus).and("busy_ns", measured.busy))
            });
        }
    }
    benchmark
}

fn throughput(settings: &Settings) -> Benchmark {
    let mut benchmark = Benchmark::new(DESCRIPTION, settings)
        .metric("mpps", "handled", "Mpps", true)
        .metric("busy_ns", "all CPUs, busy", "ns a packet", false)
        .chart(ChartKind::Lines, "mpps", "Packets handled, by work per packet")
        .chart(ChartKind::Ratio, "mpps", "Gain of steering, by work per packet");
    let ways = ways(settings.cpus.len());
    // `balance` with all CPUs is the last one, so its comparison comes first. Other results and
    // those of peers are stated in terms of it.
    for (name, ..) in ways[1..].iter().rev() {
        benchmark = benchmark.compare(name, INLINE);
    }
    benchmark = benchmark.compare(BALANCE, WORKER).compare(BALANCE, ALL);
    for cost in settings.points(&COSTS) {
        for (name, way, cpus) in &ways {
            let run = Run::new(*way, *cpus, settings);
            benchmark.takes(run.takes());
            benchmark.case(name, Some(f64::from(cost)), *cpus, move || {
                let measured = run.once(Duration::from_nanos(cost.into()), None)?;
                Ok(Measurement::of("mpps", measured.per_second / 1e6).and("busy_ns", measured.busy))
            });
        }
    }
    benchmark
}

pub(super) fn delay(settings: &Settings) -> Vec<Benchmark> {
    let mut benchmark = Benchmark::new(DELAY, settings)
        .metric("p50_us", "median delay", "us", false)
        .metric("p99_us", "delay, 99 of 100", "us", false)
        .metric("p999_us", "delay, 999 of 1000", "us", false)
        .metric("cpus", "CPU time", "CPUs", false)
        .metric("mpps", "handled", "Mpps", true)
        .compare(BALANCE, INLINE)
        .compare_by("p99_us", BALANCE, INLINE)
        .compare_by("p999_us", BALANCE, INLINE)
        .compare(ALL, INLINE)
        .compare(WORKER, INLINE)
        .chart(ChartKind::Bars, "p99_us", "Delay of 99 of 100 packets")
        .chart(ChartKind::Bars, "cpus", "CPU time")
        .chart(ChartKind::Distribution, "", "Delay");
    let all = settings.cpus.len().max(2);
    for load in settings.points(&LOADS) {
        let ways =
            [(INLINE, Way::Inline, 1), (WORKER, Way::Worker, 2), (ALL, Way::Hash, all), (BALANCE, Way::Balance, all)];
        for (name, way, cpus) in ways {
            let run = Run::new(way, cpus, settings);
            // One CPU can handle a packet in the time that its work takes. The overhead is small
            // compared with that.
            let per_second = 1e9 / DELAY_COST.as_nanos() as f64 * f64::from(load) / 100.0;
            benchmark.takes(run.takes());
            benchmark.case(name, Some(f64::from(load)), cpus, move || {
                let measured = run.once(DELAY_COST, Some(per_second))?;
                let micros = |permille| measured.delays.permille(permille) as f64 / 1e3;
                let measurement = Measurement::of("p50_us", micros(500)).and("p99_us", micros(990));
                let measurement = measurement.and("p999_us", micros(999));
                let measurement = measurement.and("cpus", measured.cpus).and("mpps", measured.per_second / 1e6);
                Ok(Measurement { latencies: measured.delays.latencies(), ..measurement })
            });
        }
    }
    vec![benchmark]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::run;

    #[test]
    fn cpus_are_doubled_up_to_all() {
        assert_eq!([1, 2, 3, 4, 64].map(counts), [vec![2], vec![2], vec![2, 3], vec![2, 4], vec![2, 4, 64]]);
        let names: Vec<String> = ways(8).into_iter().map(|(name, ..)| name).collect();
        let small = ["2 CPUs, hash", "balance, 2 CPUs", "4 CPUs, hash", "balance, 4 CPUs"];
        assert_eq!(names, [&[INLINE, WORKER][..], &small, &[ALL, BALANCE]].concat());
        assert_eq!(ways(2).len(), 4);
    }

    #[test]
    fn masks_grow_to_all_cpus() {
        assert_eq!(
            [1, 2, 3, 8, 12].map(mask_sizes),
            [vec![1], vec![1, 2], vec![1, 2, 3], vec![1, 2, 4, 8], vec![1, 2, 4, 8, 12]]
        );
        let quick = Settings { ends_only: false, ..Settings::quick((0..12).collect()) };
        let benchmark = by_cpus(&quick);
        for series in [INLINE, HASH, BALANCE] {
            let xs = benchmark.cases.iter().filter(|case| case.series == series).filter_map(|case| case.x);
            assert!(xs.eq([1.0, 2.0, 4.0, 8.0, 12.0]), "{series}");
        }
    }

    #[test]
    fn the_speed_up_stands_beside_the_published_ones() {
        let experiment = run(by_cpus(&Settings::quick(vec![0])), |_| true);
        assert!(experiment.skipped.is_empty(), "{:?}", experiment.skipped);
        let series: Vec<&str> = experiment.samples.iter().map(|sample| sample.series.as_str()).collect();
        assert_eq!(series, [INLINE, HASH, BALANCE]);
        for sample in &experiment.samples {
            // A run this short may have had no CPU time.
            let measured = ["mpps", "cpus", "busy_ns"].map(|metric| sample.values[metric]);
            assert!(sample.x == Some(1.0) && measured.iter().all(|value| *value >= 0.0), "{sample:?}");
        }
        let published: Vec<_> = experiment.compared[0].published.iter().map(|one| (one.x, one.ratio)).collect();
        assert_eq!(published, [(Some(8.0), 311.0 / 108.0), (Some(16.0), 404.0 / 156.0), (Some(16.0), 854.0 / 567.0)]);
        assert!(experiment.charts.iter().any(|chart| chart.kind == ChartKind::Ratio && chart.metric == "mpps"));
    }
}
