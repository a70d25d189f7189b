//! Measures an instance with 1,024 virtual CPUs and 256 queues: its start, memory, snapshots, load
//! checks, idle CPUs and wake-ups. Also measures the speed of the simulator.

use std::thread;
use std::time::{Duration, Instant};

use steerage::threads::{CpuPart, Machine, Softnet, Stepped};
use steerage::{Batch, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Instance};
use steerage_sim::{Arrivals, Flows, Profile, ScaleRun, Steering, Work};

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;

const CPUS: usize = 1024;
const QUEUES: usize = 256;

/// CPUs and queues in a smoke test.
const QUICK: (usize, usize) = (16, 4);

/// The memory limit of an instance, which docs/memory.md states as the default.
const MEMORY_MAX: usize = 2 << 30;

/// The number of rounds in which each queue hands over five packets to each of 1,024 CPUs.
/// `IDLE_ROUNDS` is smaller than 1,024, because a CPU may ignore a ring after 1,024 empty rounds.
const ROUNDS_OF_QUEUES: usize = 80;
const IDLE_ROUNDS: u32 = 500;

/// The number of packets in the simulated run. `SIMULATED_WORK`: nanoseconds of work per packet.
const SIMULATED: f64 = 1e6;
const SIMULATED_CPUS: usize = 64;
const SIMULATED_WORK: f64 = 1000.0;

/// The maximum time until all CPUs have applied a new mask.
const FOLLOW_MAX: Duration = Duration::from_secs(60);

struct Nothing;

impl Handler for Nothing {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn finish(self, _: &mut Cpu) {}
}

fn arrivals(queues: usize) -> Arrivals {
    Arrivals { queues, flows: 65_536, kind: Flows::Uniform, bursts: None, per_second: 1e6, seed: 1 }
}

fn build(cpus: usize, queues: usize) -> Result<Instance<Nothing>, LabError> {
    let builder = Builder::new().virtual_cpus(cpus).policy(Hash).memory_max(MEMORY_MAX);
    Ok(builder.input(arrivals(queues).open(1.0).0).build(|_| Nothing)?)
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn start(cpus: usize, queues: usize) -> Result<Measurement, LabError> {
    let began = Instant::now();
    let instance = build(cpus, queues)?;
    let built = millis(began);
    let handle = instance.handle();
    let first = handle.snapshot();
    let began = Instant::now();
    let snapshot = handle.snapshot();
    let read = millis(began);
    drop(first);
    Ok(Measurement::of("build_ms", built)
        .and("snapshot_ms", read)
        .and("memory_mib", snapshot.memory.bytes() as f64 / f64::from(1 << 20)))
}

/// Changes the mask, waits until all CPUs have applied it, and wakes all CPUs to end the run.
fn follow(cpus: usize) -> Result<Measurement, LabError> {
    let began = Instant::now();
    let running = build(cpus, 1)?.start()?;
    let started = millis(began);
    let handle = running.handle();
    // The CPUs fall asleep in this time.
    thread::sleep(Duration::from_millis(200));
    let half: CpuMask = (0..cpus as u16 / 2).map(CpuId).collect();
    let began = Instant::now();
    handle.set_rps_cpus(&half).map_err(|error| LabError::set_up("another mask", error))?;
    if !handle.wait_settled(FOLLOW_MAX) {
        return Err(LabError::set_up("a settled map", "the CPUs did not follow a change of the mask"));
    }
    let followed = millis(began);
    let began = Instant::now();
    handle.stop();
    running.join();
    Ok(Measurement::of("start_ms", started).and("follow_ms", followed).and("stop_ms", millis(began)))
}

/// Measures an idle CPU's round, and the CPU's check (`arm`) before it sleeps. The rings were used
/// before, and are empty.
fn idle(cpus: usize, queues: usize) -> Result<Measurement, LabError> {
    let input = Arrivals { per_second: 1e10, ..arrivals(queues) }.open(1.0).0;
    let owners: Vec<CpuId> = (0..queues as u16).map(CpuId).collect();
    let builder = Builder::new().virtual_cpus(cpus).policy(Hash).memory_max(MEMORY_MAX);
    let (parts, _handle) = builder.input_on(input, &owners, None).build(|_| Nothing)?.split();
    let mut all: Vec<Softnet<Nothing, Machine>> = parts.into_iter().map(CpuPart::enter_machine).collect();
    for _ in 0..ROUNDS_OF_QUEUES {
        all.iter_mut().for_each(|cpu| _ = cpu.step());
    }
    let Some(cpu) = all.last_mut() else { return Ok(Measurement::default()) };
    while cpu.step() == Stepped::Worked {}
    let began = Instant::now();
    (0..IDLE_ROUNDS).for_each(|_| _ = cpu.step());
    let round = began.elapsed() / IDLE_ROUNDS;
    let began = Instant::now();
    (0..IDLE_ROUNDS).for_each(|_| _ = cpu.arm());
    let arm = began.elapsed() / IDLE_ROUNDS;
    Ok(Measurement::of("idle_round_ns", round.as_nanos() as f64).and("sleep_ns", arm.as_nanos() as f64))
}

fn simulate(settings: &Settings) -> Result<Measurement, LabError> {
    let per_second = 0.7 * SIMULATED_CPUS as f64 / SIMULATED_WORK * 1e9;
    let packets = if settings.ends_only { SIMULATED / 1e3 } else { SIMULATED };
    let run = ScaleRun {
        profile: settings.simulation.profile.clone(),
        machine: settings.simulation.machine.clone(),
        cpus: SIMULATED_CPUS,
        receivers: SIMULATED_CPUS,
        arrivals: Arrivals { per_second, ..arrivals(SIMULATED_CPUS / 4) },
        steering: Steering::Hash,
        work: Work::Fixed(SIMULATED_WORK),
        warm_up: Duration::ZERO,
        measured: Duration::from_secs_f64(packets / per_second),
        stretch: 1.0,
        backlog: steerage::limits::BACKLOG_DEFAULT,
    };
    let began = Instant::now();
    run.once()?;
    Ok(Measurement::of("simulated_s", began.elapsed().as_secs_f64()))
}

/// Measures the longest and the median load check of `balance` on all CPUs.
fn plan_checks(cpus: usize, queues: usize, settings: &Settings) -> Result<Measurement, LabError> {
    let machine = steerage_sim::Machine::of_one_cache(cpus);
    let run = ScaleRun {
        profile: Profile::free(),
        machine,
        cpus,
        receivers: cpus,
        arrivals: Arrivals { per_second: 0.7 * cpus as f64 * 1e4, ..arrivals(queues) },
        steering: Steering::Balance,
        // The work per packet is so long that a run of half a second has few packets.
        work: Work::Fixed(1e5),
        warm_up: settings.measured / 5,
        measured: settings.measured / 5,
        stretch: 1.0,
        backlog: steerage::limits::BACKLOG_DEFAULT,
    };
    let checks = run.once()?.control_ms;
    let at = |part: usize| checks.get(checks.len() * part / 100).copied().unwrap_or(0.0);
    let longest = checks.last().copied().unwrap_or(0.0);
    Ok(Measurement::of("check_ms", at(50)).and("longest_check_ms", longest))
}

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    let (cpus, queues) = if settings.ends_only { QUICK } else { (CPUS, QUEUES) };
    let mut experiment = Experiment::new("limits", 3, settings);
    experiment.case(format!("{CPUS} CPUs, {QUEUES} queues: start"), None, 1, move || start(cpus, queues));
    experiment.case(format!("{CPUS} CPUs: all follow a change"), None, 1, move || follow(cpus));
    experiment.case(format!("{CPUS} CPUs, {QUEUES} queues: an idle CPU"), None, 1, move || idle(cpus, queues));
    let of_simulation = settings.clone();
    experiment
        .case(format!("{SIMULATED_CPUS} CPUs: a million simulated packets"), None, 1, move || simulate(&of_simulation));
    let settings = settings.clone();
    experiment.case(format!("{CPUS} CPUs, {QUEUES} queues: load checks"), None, 1, move || {
        plan_checks(cpus, queues, &settings)
    });
    vec![experiment]
}
