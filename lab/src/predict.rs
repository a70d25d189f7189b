//! Compares two real CPUs with the simulation of two CPUs, and measures the costs that the
//! simulation uses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use steerage::policy::{RegimeKind, Workers, predict};
use steerage::{Batch, Builder, Cpu, Handler};
use steerage_mem::park::{self, Bell};
use steerage_sim::{Arrivals, Flows, Machine, Profile, ScaleRun, Steering, Work};

use crate::error::LabError;
use crate::experiment::Settings;
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::placement::{pin, probe};
use crate::runs::{CpuPair, ReadsHeaders, run, run_alone};
use crate::simulation::Simulation;

/// The minimum work per packet, in nanoseconds, for which predictions stay within the allowed
/// error. If a packet takes less work, a CPU overlaps the work on several packets, and two CPUs
/// overlap differently than one.
pub const WORK_MIN: f64 = 50.0;

/// The maximum relative error of a prediction.
pub const OFF_MAX: f64 = 0.1;

/// The maximum relative error of a prediction for `balance`. The prediction assumes the best
/// distribution of the packets over the CPUs. With far CPUs and little work per packet, `balance`
/// does not find the best distribution.
pub const BEST_OFF_MAX: f64 = 0.15;

/// Two CPUs are far if a cache line takes more than this many nanoseconds between them, as in
/// lab/page.py.
const FAR_NANOS: f64 = 100.0;

/// The number of measurements of each cost, of which the median counts.
const ROUNDS: usize = 9;

/// The pause before each wake-up, in which the CPU that will be woken becomes idle.
const SLEEP: Duration = Duration::from_millis(2);

/// The options of `predict`.
#[derive(Clone, Debug, Args)]
pub struct PredictArgs {
    /// Files with output lines of the experiment rps
    #[arg(value_name = "RUNS", required = true)]
    pub runs: Vec<PathBuf>,
    /// File with the costs of the receive path on the machine of the runs [default:
    /// lab/scale/zen5.toml]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Write the measured medians to this file, in the format of the tables of lab/results
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
}

/// Packet rates on two CPUs, in millions of packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The experiment's work per packet in nanoseconds.
    pub work: f64,
    /// The rate if one CPU does everything.
    pub none: f64,
    /// The rate if one CPU receives, and the other CPU works.
    pub other: f64,
    /// The rate if each of the two CPUs handles the packets of half of the hash values.
    pub hash: f64,
    /// The rate with the policy `balance`.
    pub balance: f64,
}

impl Rates {
    /// Returns the rates that the simulation predicts from `none`, the measured rate of one CPU.
    /// The work per packet is computed from the time per packet at the rate `none`, because a CPU
    /// overlaps the work on several packets. For `balance`, the predicted rate is the highest that
    /// the policy's model gives for any regime.
    ///
    /// # Errors
    /// Returns an error if a simulated instance cannot be built.
    pub fn predicted(&self, profile: &Profile, is_far: bool) -> Result<Self, LabError> {
        let work = (1e3 / self.none - profile.receive).max(0.0);
        let simulated = |steering, cpus| -> Result<f64, LabError> {
            let run = ScaleRun {
                profile: profile.clone(),
                machine: if is_far { Machine::of_two_far() } else { Machine::of_one_cache(2) },
                cpus,
                receivers: 1,
                arrivals: Arrivals {
                    queues: 1,
                    flows: FLOWS as usize,
                    kind: Flows::Uniform,
                    bursts: None,
                    per_second: f64::INFINITY,
                    seed: 1,
                },
                steering,
                work: Work::Fixed(work),
                // At the measured rate of one CPU, the warm-up has 10,000 packets, and the measured
                // time has 40,000.
                warm_up: Duration::from_nanos((1e7 / self.none) as u64),
                measured: Duration::from_nanos((4e7 / self.none) as u64),
                stretch: 1.0,
                backlog: steerage::limits::BACKLOG_DEFAULT,
            };
            Ok(run.once()?.per_second / 1e6)
        };
        let workers = [Workers { capacity: 1.0, class: usize::from(is_far), share: None }];
        let costs = profile.path().with_work(work);
        let ways =
            [(RegimeKind::Inline, &workers[..0]), (RegimeKind::Collector, &workers), (RegimeKind::Spread, &workers)];
        let best = ways.map(|(kind, workers)| predict(&costs, kind, 1.0, workers).packets_per_second());
        Ok(Self {
            work: self.work,
            none: simulated(Steering::None, 1)?,
            other: simulated(Steering::Collectors, 2)?,
            hash: simulated(Steering::Hash, 2)?,
            balance: best.into_iter().fold(0.0, f64::max) / 1e6,
        })
    }

    /// Returns the four rates of `self` (`none`, `other`, `hash` and `balance`) divided by those of
    /// `other`.
    pub fn over(&self, other: &Self) -> [f64; 4] {
        [self.none / other.none, self.other / other.other, self.hash / other.hash, self.balance / other.balance]
    }
}

/// Compares the runs with the simulation, and prints a table.
///
/// # Errors
/// Returns an error if there are no runs, or if a prediction for work of at least [`WORK_MIN`] is
/// off by more than [`OFF_MAX`] ([`BEST_OFF_MAX`] for `balance`).
pub fn run_predict(args: &PredictArgs, out: &mut impl io::Write) -> Result<(), LabError> {
    let profile = Simulation::read(args.profile.as_deref(), None, 1)?.profile;
    let has_one_distance = profile.line[0] == profile.line[1];
    let measured = measured(&args.runs, has_one_distance)?;
    if let Some(path) = &args.table {
        let row = |(_, rates): &(bool, Rates)| {
            let Rates { work, none, other, hash, balance } = rates;
            format!("{work},{none:.2},{other:.2},{hash:.2},{balance:.2}\n")
        };
        let rows: String = measured.iter().map(row).collect();
        let text = format!("ns,no steering,one other CPU,\"both, hash\",balance\n{rows}");
        fs::write(path, text).map_err(|error| LabError::set_up("the table", format!("{}: {error}", path.display())))?;
    }
    let (mut table, mut worst) = (String::from("predicted / measured, with the costs of "), 0.0_f64);
    let _ = writeln!(
        table,
        "{}:\n{:>6} {:>5}  {:>11} {:>13} {:>10} {:>7}",
        profile.name, "ns", "CPUs", "no steering", "one other CPU", "both, hash", "balance"
    );
    for (is_far, rates) in &measured {
        let ratios = rates.predicted(&profile, *is_far)?.over(rates);
        if rates.work >= WORK_MIN {
            worst = worst.max(off(ratios));
        }
        let [none, other, hash, balance] = ratios;
        let place = match (has_one_distance, is_far) {
            (true, _) => "both",
            (false, true) => "far",
            (false, false) => "near",
        };
        let _ = writeln!(table, "{:>6} {place:>5}  {none:>11.2} {other:>13.2} {hash:>10.2} {balance:>7.2}", rates.work);
    }
    out.write_all(table.as_bytes()).map_err(LabError::Output)?;
    if measured.is_empty() {
        return Err(LabError::Nothing("the files have no complete runs of the experiment rps on two CPUs".to_owned()));
    }
    if worst > 1.0 {
        let why = format!(
            "one is off by {worst:.1} times as much: measure the costs on the same machine (steerage-lab profile)"
        );
        return Err(LabError::set_up("predictions within 10 %, and of balance within 15 %", why));
    }
    Ok(())
}

/// Returns the largest difference of the ratios ([`Rates::over`]) from 1, divided by the allowed
/// error.
pub fn off([none, other, hash, balance]: [f64; 4]) -> f64 {
    let simulated = [none, other, hash].map(|ratio| (ratio - 1.0).abs() / OFF_MAX);
    simulated.into_iter().fold((balance - 1.0).abs() / BEST_OFF_MAX, f64::max)
}

/// Returns the median rates for each distance (near or far) and each work per packet for which all
/// four rates were measured. If the distance of the CPUs matters, runs in which CPUs changed
/// between near and far are left out.
fn measured(files: &[PathBuf], has_one_distance: bool) -> Result<Vec<(bool, Rates)>, LabError> {
    let mut rates: BTreeMap<(bool, u64, String), Vec<f64>> = BTreeMap::new();
    for file in files {
        let name = file.display();
        let text = fs::read_to_string(file).map_err(|error| LabError::set_up("runs", format!("{name}: {error}")))?;
        for line in text.lines() {
            let line: Value =
                serde_json::from_str(line).map_err(|error| LabError::set_up("runs", format!("{name}: {error}")))?;
            let apart = line["apart_ns"].as_array().into_iter().flatten().filter_map(Value::as_f64);
            let far: Vec<bool> = apart.map(|nanos| nanos > FAR_NANOS && !has_one_distance).collect();
            let (Some(series), Some(x), Some(mpps)) =
                (line["series"].as_str(), line["x"].as_f64(), line["values"]["mpps"].as_f64())
            else {
                continue;
            };
            if line["experiment"] == "rps" && far.len() == 2 && far[0] == far[1] {
                rates.entry((far[0], x as u64, series.to_owned())).or_default().push(mpps);
            }
        }
    }
    let keys: std::collections::BTreeSet<(bool, u64)> = rates.keys().map(|(far, work, _)| (*far, *work)).collect();
    let rows = keys.into_iter().filter_map(|(far, work)| {
        let of = |series: &str| rates.get(&(far, work, series.to_owned())).map(|rates| median(rates.clone()));
        let (none, other) = (of("no steering")?, of("one other CPU")?);
        let (hash, balance) = (of("all CPUs, hash")?, of("balance")?);
        Some((far, Rates { work: work as f64, none, other, hash, balance }))
    });
    Ok(rows.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures the costs of the receive path on this machine, and prints a profile. The first CPU
/// receives. The costs per packet are measured with the nearest and with the farthest CPU.
///
/// # Errors
/// Returns an error if there are fewer than two CPUs, or if a run fails.
pub fn run_profile(settings: &Settings, out: &mut impl io::Write) -> Result<(), LabError> {
    let Some((receive, others)) = settings.cpus.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err(LabError::set_up("two CPUs", "a profile needs a CPU that receives and another CPU: see --cpus"));
    };
    let apart = |cpu: &usize| probe(&[*receive, *cpu]);
    let mut distances = others.iter().map(|cpu| Ok((apart(cpu)?, *cpu))).collect::<Result<Vec<_>, LabError>>()?;
    distances.sort_by(|a, b| a.0.total_cmp(&b.0));
    let pair = |(nanos, work): (f64, usize)| {
        Ok::<_, LabError>((nanos, measure_pair(CpuPair { receive: *receive, work }, settings)?))
    };
    let (near_line, near) = pair(distances[0])?;
    let (far_line, far) = if distances.len() > 1 { pair(distances[distances.len() - 1])? } else { (near_line, near) };
    let (wake, woken) = measure_wake(CpuPair { receive: *receive, work: distances[0].1 })?;
    let (receive, reading) = (near.alone, (near.alone_reading - near.alone).max(0.0));
    let hash = (near.ours_many - near.device_many).max(0.0);
    // The costs with two target CPUs, as in a run that spreads packets. With two target CPUs, each
    // list of packets is shorter than with one target CPU, so a worker CPU overlaps the work on
    // fewer packets.
    let give = |pair: &Pair| (pair.two_targets - receive - hash).max(0.0);
    let take = |pair: &Pair| (pair.worker_of_two - reading).max(0.0);
    let text = format!(
        "name = \"{}\"\nreceive = {receive:.1}\nhash = {:.1}\nhand_over = [{:.1}, {:.1}]\ntake_over = [{:.1}, {:.1}]\n\
         round = {ROUND:.1}\nline = [{near_line:.1}, {far_line:.1}]\nwake = {wake:.0}.0\nwoken = {woken:.0}.0\n",
        crate::runner::machine().replace('"', "'"),
        hash,
        give(&near),
        give(&far),
        take(&near),
        take(&far),
    );
    let note = if distances.len() > 1 { "" } else { "# There is one other CPU, so near and far are the same.\n" };
    write!(out, "{note}{text}").map_err(LabError::Output)
}

/// The number of target CPUs, as in the experiment `path`.
const MANY: usize = 16;

/// The time for the two clock readings of a round (pass of a CPU's loop), in nanoseconds.
const ROUND: f64 = 50.0;

/// The costs per packet on one pair of CPUs, in nanoseconds.
#[derive(Clone, Copy)]
struct Pair {
    two_targets: f64,
    /// The receiving CPU's cost with 16 target CPUs and the device's hash. `ours_many`: the
    /// receiving CPU's cost with steerage's own hash.
    device_many: f64,
    ours_many: f64,
    /// The cost on a worker CPU that handles the packets of two target rings.
    worker_of_two: f64,
    /// The cost on one CPU that receives packets and handles them with a function that does
    /// nothing. `alone_reading`: the cost with a function that reads a header.
    alone: f64,
    alone_reading: f64,
}

#[derive(Debug, Default)]
struct Nothing;

impl Handler for Nothing {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn finish(self, _: &mut Cpu) {}
}

fn measure_pair(on: CpuPair, settings: &Settings) -> Result<Pair, LabError> {
    let frames = settings.frames(40.0);
    let device = FrameOptions {
        mix: Mix::Uniform,
        device_hash: true,
        list: steerage::limits::POLL_BUDGET,
        flows: FLOWS,
        frames,
    };
    let ours = FrameOptions { device_hash: false, ..device };
    let [mut two, mut worker_of_two, mut device_many] = [const { Vec::new() }; 3];
    let [mut ours_many, mut alone, mut alone_reading] = [const { Vec::new() }; 3];
    for _ in 0..settings.rounds.unwrap_or(ROUNDS) {
        let to = |options: FrameOptions, targets| {
            run(on, Builder::new(), options.input(), frames, targets, ReadsHeaders::default)
        };
        let times = to(ours, 2)?.of_all(frames)?;
        two.push(times.receive);
        worker_of_two.push(times.work.unwrap_or(0.0));
        device_many.push(to(device, MANY)?.of_all(frames)?.receive);
        ours_many.push(to(ours, MANY)?.of_all(frames)?.receive);
        alone.push(run_alone(on.receive, Builder::new(), device.input(), frames, Nothing::default)?.0.receive);
        let reads = run_alone(on.receive, Builder::new(), device.input(), frames, ReadsHeaders::default)?;
        alone_reading.push(reads.0.receive);
    }
    let [two_targets, worker_of_two, device_many] = [two, worker_of_two, device_many].map(median);
    let [ours_many, alone, alone_reading] = [ours_many, alone, alone_reading].map(median);
    Ok(Pair { two_targets, device_many, ours_many, worker_of_two, alone, alone_reading })
}

/// Measures two times of a wake-up in nanoseconds: how long the waking CPU is busy with it, and how
/// long it takes until the woken CPU runs.
fn measure_wake(on: CpuPair) -> Result<(f64, f64), LabError> {
    let failed = |error: io::Error| LabError::set_up("a bell", error);
    let bell = std::sync::Arc::new(Bell::new().map_err(failed)?);
    let (of_sleeper, (woke, has_woken)) = (std::sync::Arc::clone(&bell), mpsc::channel());
    pin(on.receive)?;
    let sleeper = thread::spawn(move || {
        pin(on.work)?;
        loop {
            park::wait(&of_sleeper, &[], None).map_err(failed)?;
            let now = Instant::now();
            of_sleeper.hush();
            if woke.send(now).is_err() {
                return Ok(());
            }
        }
    });
    let (mut costs, mut delays) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS * ROUNDS {
        thread::sleep(SLEEP);
        let before = Instant::now();
        bell.ring();
        costs.push(before.elapsed().as_nanos() as f64);
        let woken = has_woken.recv().map_err(|_| LabError::Panicked)?;
        delays.push(woken.saturating_duration_since(before).as_nanos() as f64);
    }
    drop(has_woken);
    bell.ring();
    crate::runs::joined(sleeper)?;
    Ok((median(costs), median(delays)))
}
