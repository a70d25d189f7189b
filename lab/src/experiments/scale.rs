//! Runs steerage's real receive path on up to 1,024 simulated CPUs: see docs/scale.md.

mod seeds;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage_sim::{Arrivals, Flows, ScaleRun, Scaled, Steering, Work};

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;

const CPUS: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Traffic that is not uniform takes longer to simulate, and is simulated only with these numbers
/// of CPUs.
const CPUS_OF_TRAFFIC: [usize; 4] = [4, 16, 64, 256];

const QUEUES: [usize; 5] = [1, 4, 16, 64, 256];

/// With more CPUs, runs with overloaded receiving CPUs would take many minutes to simulate.
const CPUS_OF_QUEUES: usize = 256;

/// In nanoseconds per packet.
const WORKS: [f64; 7] = [100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0];

/// In nanoseconds per packet.
const WORK: f64 = 1000.0;

/// The mean load: the work's share of all CPUs' time. If a hash spreads 65,536 flows over 1,024
/// CPUs, the busiest CPU gets 1.4 times the mean load, so a mean load of 0.7 nearly fills this CPU.
const LOAD: f64 = 0.7;

const FLOWS: usize = 65_536;

/// The number of packets per CPU in a run without `balance`. The first half of the run is the
/// warm-up, in which the rings of overloaded queues fill.
const PACKETS_PER_CPU: f64 = 800.0;
const PACKETS_MIN: f64 = 40_000.0;

/// In a smoke test, the length of a run is divided by this number.
const QUICK: u32 = 20;

/// The work per packet in a run with `balance`, in nanoseconds, already multiplied by
/// [`ScaleRun::stretch`]. With 20,000 ns of work per packet, a full batch takes 1.3 ms. A CPU
/// handles a full backlog in less than 20 ms, the time limit of a bucket's move. (With 40,000 ns of
/// work and more than 256 CPUs, the policy would observe too few packets.)
const STRETCHED_WORK: f64 = 20_000.0;
const STRETCHED_BACKLOG: usize = 500;

/// The warm-up of `balance`. Like [`LEARNS_OF_MANY`] and [`MEASURES`], it depends on time constants
/// of the library, so it is not multiplied by [`ScaleRun::stretch`].
const LEARNS: Duration = Duration::from_millis(800);
/// The warm-up if many CPUs join: `balance` adds CPUs in steps, which take longer with more
/// buckets.
const LEARNS_OF_MANY: Duration = Duration::from_millis(2000);
const MANY: usize = 256;
const MEASURES: Duration = Duration::from_millis(100);

const BACKLOG: usize = 1000;

/// The real time that the simulator takes for a packet, for a ring and for a hand-over, in
/// nanoseconds, only to estimate the remaining time.
const PACKET_TAKES: f64 = 1500.0;
const RING_TAKES: f64 = 2000.0;
const HANDS_OVER: f64 = 20.0;

/// A quarter of the CPUs receive, as in Herbert's measurement with 4 queues and 16 CPUs.
const CPUS_PER_QUEUE: usize = 4;

const QUEUES_MAX: usize = 256;

const WAYS: [(&str, Steering); 3] =
    [("none", Steering::None), ("hash", Steering::Hash), ("balance", Steering::Balance)];

/// The largest flow's share of a queue's packets.
const ELEPHANT: f64 = 0.05;

#[derive(Clone, Copy)]
struct Point {
    cpus: usize,
    queues: usize,
    steering: Steering,
    kind: Flows,
    bursts: bool,
    work: f64,
}

impl Point {
    fn new(cpus: usize, steering: Steering) -> Self {
        Self { cpus, queues: quarter(cpus), steering, kind: Flows::Uniform, bursts: false, work: WORK }
    }

    fn run(self, settings: &Settings) -> ScaleRun {
        let Self { cpus, queues, steering, kind, bursts, work } = self;
        let per_second = LOAD * cpus as f64 / work * 1e9;
        let is_learned = steering == Steering::Balance;
        let stretch = if is_learned { (STRETCHED_WORK / work).max(1.0) } else { 1.0 };
        let packets = (cpus as f64 * PACKETS_PER_CPU).max(PACKETS_MIN);
        let short = short(settings);
        let time = Duration::from_secs_f64(packets / per_second) / short;
        let learns = if queues < quarter(cpus) || cpus > MANY { LEARNS_OF_MANY } else { LEARNS };
        // At the start, all CPUs sleep, and the receiving CPUs wake the others.
        let wakes = Duration::from_nanos((2.0 * settings.simulation.profile.wake) as u64) * (cpus / queues) as u32;
        let (warm_up, measured) = match is_learned {
            true => ((learns / short).div_f64(stretch), (MEASURES / short).div_f64(stretch)),
            false => (wakes.max(time / 2), wakes.max(time / 2)),
        };
        ScaleRun {
            profile: settings.simulation.profile.clone(),
            machine: settings.simulation.machine.clone(),
            cpus,
            receivers: cpus,
            arrivals: Arrivals {
                queues,
                flows: FLOWS,
                kind,
                bursts: bursts.then_some(settings.simulation.machine.bursts),
                per_second,
                seed: settings.simulation.seed,
            },
            steering,
            work: Work::Fixed(work),
            warm_up,
            measured,
            stretch,
            backlog: if is_learned { STRETCHED_BACKLOG } else { BACKLOG },
        }
    }
}

fn short(settings: &Settings) -> u32 {
    if settings.ends_only { QUICK } else { 1 }
}

fn quarter(cpus: usize) -> usize {
    (cpus / CPUS_PER_QUEUE).clamp(1, QUEUES_MAX)
}

fn measure(run: &ScaleRun) -> Result<Measurement, LabError> {
    let scaled = run.once()?;
    let micros = |permille| scaled.wait(permille) / 1e3;
    let Scaled { per_second, lost, busiest, cpus, memory, reordered, control_per_second, .. } = scaled;
    Ok(Measurement::of("mpps", per_second / 1e6)
        .and("lost_percent", 100.0 * lost)
        // The load meter counts the whole time of a batch when the batch begins.
        .and("busiest_percent", (100.0 * busiest).min(100.0))
        .and("cpus", cpus)
        .and("p50_us", micros(500))
        .and("p999_us", micros(999))
        .and("memory_mib", memory as f64 / f64::from(1 << 20))
        .and("reordered", reordered as f64)
        .and("control_per_s", control_per_second))
}

fn experiment(name: &'static str, settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new(name, 1, settings);
    experiment.simulated(&settings.simulation);
    experiment
}

/// Several experiments can share a run and its measurement.
type Known = (ScaleRun, Arc<Mutex<Option<Measurement>>>);

struct Planner<'a> {
    settings: &'a Settings,
    known: Vec<Known>,
}

impl Planner<'_> {
    fn add(&mut self, experiment: &mut Experiment, series: String, x: usize, point: Point) {
        let most = self.settings.simulation.machine.cpus();
        if point.cpus > most {
            return experiment.skip(format!("{series}: {} CPUs, and the machine has {most}", point.cpus));
        }
        let run = point.run(self.settings);
        let known = self.known.iter().find(|(known, _)| *known == run).map(|(_, measured)| Arc::clone(measured));
        experiment.takes(if known.is_some() { Duration::ZERO } else { estimate(&run) });
        let measured = known.unwrap_or_else(|| {
            self.known.push((run.clone(), Arc::default()));
            Arc::clone(&self.known[self.known.len() - 1].1)
        });
        experiment.case(series, Some(x as f64), 1, move || {
            let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
            if measured.is_none() {
                *measured = Some(measure(&run)?);
            }
            Ok(measured.clone().unwrap_or_default())
        });
    }

    fn by_cpus(&mut self) -> Experiment {
        let mut experiment = experiment("scale", self.settings);
        for cpus in self.settings.points(&CPUS[..if self.settings.ends_only { 5 } else { CPUS.len() }]) {
            for (name, steering) in WAYS {
                let point = Point::new(cpus, steering);
                self.add(&mut experiment, format!("{name}, 1 queue"), cpus, Point { queues: 1, ..point });
                self.add(&mut experiment, format!("{name}, a queue for 4 CPUs"), cpus, point);
            }
        }
        experiment
    }

    fn by_queues(&mut self) -> Experiment {
        let mut experiment = experiment("scale-queues", self.settings);
        let cpus = if self.settings.ends_only { 8 } else { CPUS_OF_QUEUES };
        for queues in self.settings.points(&QUEUES[..if self.settings.ends_only { 2 } else { QUEUES.len() }]) {
            for (name, steering) in WAYS {
                let point = Point { queues, ..Point::new(cpus, steering) };
                self.add(&mut experiment, name.to_owned(), queues, point);
            }
        }
        experiment
    }

    fn by_traffic(&mut self) -> Experiment {
        let mut experiment = experiment("scale-traffic", self.settings);
        let kinds = [
            ("Zipf", Flows::Zipf(1.0), false),
            ("elephants", Flows::Elephant(ELEPHANT), false),
            ("bursts", Flows::Uniform, true),
        ];
        let all = CPUS_OF_TRAFFIC.len();
        for cpus in self.settings.points(&CPUS_OF_TRAFFIC[..if self.settings.ends_only { 2 } else { all }]) {
            for (kind_name, kind, bursts) in kinds {
                for (name, steering) in &WAYS[1..] {
                    let point = Point { kind, bursts, ..Point::new(cpus, *steering) };
                    self.add(&mut experiment, format!("{name}, {kind_name}"), cpus, point);
                }
            }
        }
        experiment
    }

    fn by_work(&mut self) -> Experiment {
        let mut experiment = experiment("scale-work", self.settings);
        let cpus = if self.settings.ends_only { 4 } else { 64 };
        for work in self.settings.points(&WORKS) {
            for (name, steering) in WAYS {
                let point = Point { work, ..Point::new(cpus, steering) };
                self.add(&mut experiment, name.to_owned(), work as usize, point);
            }
        }
        experiment
    }
}

/// Frames that a full queue loses take almost no time to simulate.
fn estimate(run: &ScaleRun) -> Duration {
    let (Work::Fixed(work) | Work::Exponential(work)) = run.work;
    let of_a_queue = if run.steering == Steering::None { work } else { HANDS_OVER };
    let per_second = run.arrivals.per_second.min(run.arrivals.queues as f64 / of_a_queue * 1e9);
    let packets = per_second * (run.warm_up + run.measured).as_secs_f64();
    Duration::from_nanos((packets * PACKET_TAKES + (run.cpus * run.arrivals.queues) as f64 * RING_TAKES) as u64)
}

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    let mut planner = Planner { settings, known: Vec::new() };
    vec![planner.by_cpus(), planner.by_queues(), planner.by_traffic(), planner.by_work(), seeds::plan(settings)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three runs are part of two experiments each: 256 CPUs and 64 queues, 256 CPUs and 1 queue,
    /// 64 CPUs and 1,000 ns.
    #[test]
    fn equal_runs_run_once() {
        let planned = plan(&Settings::new(vec![0]));
        let free = |experiment: &Experiment| experiment.cases.iter().filter(|case| case.takes.is_zero()).count();
        // Runs with up to 7 CPUs have one queue.
        assert_eq!(planned.iter().map(free).collect::<Vec<_>>(), [9, 6, 0, 3, 0]);
    }
}
