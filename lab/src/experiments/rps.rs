//! Throughput and packet delay with and without steering, by work per packet and number of CPUs.

mod tun;

use std::thread;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use steerage::{Balance, Builder, CpuId, CpuMask, Hash, Input, Instance, Snapshot};

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::histogram::Histogram;
use crate::load::{Paced, SpinHandler, spin_rounds};
use crate::measurement::Measurement;

/// The work of the handler, in nanoseconds per packet.
const COSTS: [u32; 8] = [0, 20, 50, 100, 200, 500, 1000, 2000];

const DELAY_COST: Duration = Duration::from_nanos(500);

/// The work per packet, about that of a small server program.
const SPEED_UP_COST: Duration = Duration::from_nanos(500);

/// Packet rates in percent of the highest rate that one CPU can handle.
const LOADS: [u32; 4] = [1, 10, 50, 150];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Inline,
    /// The receiving CPU only collects packets, and one other CPU handles them.
    Worker,
    /// Each packet's hash selects one of all CPUs, including the receiving CPU.
    Hash,
    /// The `balance` policy chooses CPUs by load.
    Balance,
}

const INLINE: &str = "no steering";
const WORKER: &str = "one other CPU";
const ALL: &str = "all CPUs, hash";
const BALANCE: &str = "balance";
const HASH: &str = "hash";

struct Run {
    way: Way,
    cpus: Vec<usize>,
    /// The number of queues, each of which has its own receiving CPU.
    queues: usize,
    warm_up: Duration,
    measured: Duration,
}

struct Measured {
    per_second: f64,
    /// The busy time of all CPUs per packet, in nanoseconds.
    busy: f64,
    /// The CPU time of all CPUs, in seconds per second of the run.
    cpus: f64,
    delays: Histogram,
}

impl Run {
    fn new(way: Way, cpus: usize, settings: &Settings) -> Self {
        let cpus = settings.cpus[..cpus.min(settings.cpus.len())].to_vec();
        let warm_up = settings.warm_up_of(way == Way::Balance);
        Self { way, cpus, queues: 1, warm_up, measured: settings.measured }
    }

    fn takes(&self) -> Duration {
        self.warm_up + self.measured
    }

    /// Without a rate, packets arrive as fast as the receive path accepts them.
    fn once(&self, work: Duration, per_second: Option<f64>) -> Result<Measured, LabError> {
        self.measure(Paced::input_of_queues(per_second, self.queues), work, per_second.is_some())
    }

    fn measure(&self, input: Input, work: Duration, records_delays: bool) -> Result<Measured, LabError> {
        let cpus: CpuMask = self.cpus.iter().map(|cpu| CpuId(*cpu as u16)).collect();
        let rx: Vec<CpuId> = self.cpus[..self.queues].iter().map(|cpu| CpuId(*cpu as u16)).collect();
        let mask = match self.way {
            Way::Inline => CpuMask::new(),
            Way::Worker => self.cpus[1..2].iter().map(|cpu| CpuId(*cpu as u16)).collect(),
            Way::Hash | Way::Balance => cpus.clone(),
        };
        let builder = Builder::new().cpus(cpus).rps_cpus(mask).input_on(input, &rx, None);
        let builder = if self.way == Way::Balance { builder.policy(Balance::new()) } else { builder.policy(Hash) };
        let rounds = spin_rounds(work);
        let running = builder.build(move |_| SpinHandler::new(rounds, records_delays)).and_then(Instance::start)?;
        let handle = running.handle();
        thread::sleep(self.warm_up);
        let (before, cpu_before) = (handle.snapshot(), cpu_time()?);
        thread::sleep(self.measured);
        let (after, cpu_after) = (handle.snapshot(), cpu_time()?);
        handle.stop();
        let outcome = running.join();
        if !outcome.failed.is_empty() {
            return Err(LabError::Panicked);
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

fn cpu_time() -> Result<Duration, LabError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|error| LabError::set_up("the CPU time used", error))?;
    Ok(Duration::from_micros((usage.user_time() + usage.system_time()).num_microseconds() as u64))
}

fn counts(cpus: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = [2, 4].into_iter().filter(|count| *count < cpus).collect();
    counts.push(cpus.max(2));
    counts
}

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

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    vec![throughput(settings), by_cpus(settings), by_queues(settings), tun::plan(settings)]
}

fn mask_sizes(cpus: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(1), |size| Some(size * 2));
    doubled.take_while(|size| *size < cpus).chain([cpus]).collect()
}

fn by_cpus(settings: &Settings) -> Experiment {
    let all = settings.cpus.len();
    let mut experiment = Experiment::new("rps-cpus", 5, settings);
    for size in settings.points(&mask_sizes(all)) {
        for (name, way, cpus) in [(INLINE, Way::Inline, 1), (HASH, Way::Hash, size), (BALANCE, Way::Balance, size)] {
            let run = Run::new(way, cpus, settings);
            experiment.takes(run.takes());
            experiment.case(name, Some(size as f64), cpus, move || {
                let measured = run.once(SPEED_UP_COST, None)?;
                let measurement = Measurement::of("mpps", measured.per_second / 1e6);
                Ok(measurement.and("cpus", measured.cpus).and("busy_ns", measured.busy))
            });
        }
    }
    experiment
}

/// Returns a quarter of the number of CPUs, as in the published measurement with 4 queues and 16
/// CPUs.
fn fewer_queues(cpus: usize) -> usize {
    (cpus / 4).max(1)
}

/// Returns runs with few queues, with and without steering, and a run with twice as many queues and
/// no steering. Each run comes with its name and its number of CPUs.
fn runs_by_queues(settings: &Settings) -> impl Iterator<Item = (&'static str, usize, Run)> + '_ {
    let all = settings.cpus.len();
    let fewer = fewer_queues(all);
    let ways = [
        ("fewer queues, no steering", Way::Inline, fewer),
        ("more queues, no steering", Way::Inline, 2 * fewer),
        ("fewer queues, hash", Way::Hash, fewer),
        ("fewer queues, balance", Way::Balance, fewer),
    ];
    ways.into_iter().map(move |(name, way, queues)| {
        let cpus = if way == Way::Inline { queues } else { all.max(2) };
        (name, cpus, Run { queues, ..Run::new(way, cpus, settings) })
    })
}

fn by_queues(settings: &Settings) -> Experiment {
    let (all, mut experiment) = (settings.cpus.len(), Experiment::new("rps-queues", 5, settings));
    for (name, cpus, run) in runs_by_queues(settings) {
        experiment.takes(run.takes());
        experiment.case(name, Some(all as f64), cpus, move || {
            let measured = run.once(SPEED_UP_COST, None)?;
            Ok(Measurement::of("mpps", measured.per_second / 1e6).and("cpus", measured.cpus))
        });
    }
    experiment
}

fn throughput(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("rps", 5, settings);
    let ways = ways(settings.cpus.len());
    for cost in settings.points(&COSTS) {
        for (name, way, cpus) in &ways {
            let run = Run::new(*way, *cpus, settings);
            experiment.takes(run.takes());
            experiment.case(name, Some(f64::from(cost)), *cpus, move || {
                let measured = run.once(Duration::from_nanos(cost.into()), None)?;
                Ok(Measurement::of("mpps", measured.per_second / 1e6).and("busy_ns", measured.busy))
            });
        }
    }
    experiment
}

pub(super) fn delay(settings: &Settings) -> Vec<Experiment> {
    let mut experiment = Experiment::new("delay", 3, settings);
    let all = settings.cpus.len().max(2);
    for load in settings.points(&LOADS) {
        let ways =
            [(INLINE, Way::Inline, 1), (WORKER, Way::Worker, 2), (ALL, Way::Hash, all), (BALANCE, Way::Balance, all)];
        for (name, way, cpus) in ways {
            let run = Run::new(way, cpus, settings);
            // The overhead of the receive path is ignored, because it is small compared with
            // `DELAY_COST`.
            let per_second = 1e9 / DELAY_COST.as_nanos() as f64 * f64::from(load) / 100.0;
            experiment.takes(run.takes());
            experiment.case(name, Some(f64::from(load)), cpus, move || {
                let measured = run.once(DELAY_COST, Some(per_second))?;
                let micros = |permille| measured.delays.permille(permille) as f64 / 1e3;
                let measurement = Measurement::of("p50_us", micros(500)).and("p99_us", micros(990));
                let measurement = measurement.and("p999_us", micros(999));
                let measurement = measurement.and("cpus", measured.cpus).and("mpps", measured.per_second / 1e6);
                Ok(measurement)
            });
        }
    }
    vec![experiment]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_doubled_up_to_all() {
        assert_eq!([1, 2, 3, 4, 64].map(counts), [vec![2], vec![2], vec![2, 3], vec![2, 4], vec![2, 4, 64]]);
        let names: Vec<String> = ways(8).into_iter().map(|(name, ..)| name).collect();
        let small = ["2 CPUs, hash", "balance, 2 CPUs", "4 CPUs, hash", "balance, 4 CPUs"];
        assert_eq!(names, [&[INLINE, WORKER][..], &small, &[ALL, BALANCE]].concat());
        assert_eq!(ways(2).len(), 4);
    }

    #[test]
    fn as_many_queues_as_published() {
        assert_eq!([1, 2, 4, 8, 16].map(fewer_queues), [1, 1, 1, 2, 4]);
    }

    #[test]
    fn masks_grow_to_all_cpus() {
        assert_eq!(
            [1, 2, 3, 8, 12].map(mask_sizes),
            [vec![1], vec![1, 2], vec![1, 2, 3], vec![1, 2, 4, 8], vec![1, 2, 4, 8, 12]]
        );
        let quick = Settings { ends_only: false, ..Settings::quick((0..12).collect()) };
        let experiment = by_cpus(&quick);
        for series in [INLINE, HASH, BALANCE] {
            let xs = experiment.cases.iter().filter(|case| case.series == series).filter_map(|case| case.x);
            assert!(xs.eq([1.0, 2.0, 4.0, 8.0, 12.0]), "{series}");
        }
    }
}
