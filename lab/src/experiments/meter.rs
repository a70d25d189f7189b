//! The cost of metering the flows of a capture file, of only counting packets, and of a plain loop.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use steerage::{Balance, Builder, CpuId, CpuMask, Handler, Hash, Instance, Outcome};
use steerage_apps::Count;
use steerage_meter::{MeterOptions, Metered, Metering};

use crate::capture::{CaptureFile, FRAME_BYTES, Lengths, capture, count_by_flow, flows_in};
use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;
use crate::placement::pin;
use crate::runs::none_lost;

const FLOWS: [u32; 2] = [1024, 65_536];

/// Short packets show the cost per packet, and packets with the lengths of real traffic also show
/// the cost per byte.
const LENGTHS: [(&str, Lengths); 3] =
    [("meter", Lengths::All(FRAME_BYTES)), ("meter-800", Lengths::All(800)), ("meter-mix", Lengths::Mixed)];

/// Estimated nanoseconds per packet.
const NANOS: f64 = 100.0;

/// The maximum size of the capture file: larger than most CPU caches, but small enough for a
/// temporary directory in memory.
const FILE_BYTES_MAX: usize = 400 << 20;

const ONE: &str = "steerage, 1 CPU";
const TWO: &str = "steerage, 2 CPUs";
const HASHED: &str = "2 CPUs, by hash";
const COUNT: &str = "only counted, 1 CPU";
const LOOP: &str = "plain loop, 1 thread";

struct Traffic {
    flows: u32,
    packets: u32,
    lengths: Lengths,
    made: OnceLock<Result<Made, String>>,
}

struct Made {
    bytes: Vec<u8>,
    file: CaptureFile,
    flows: u64,
}

impl Traffic {
    fn get(&self) -> Result<&Made, LabError> {
        let make = || {
            let bytes = capture(self.packets, self.flows, self.lengths);
            let file = CaptureFile::write(&bytes).map_err(|error| error.to_string())?;
            Ok(Made { bytes, file, flows: flows_in(self.packets, self.flows) })
        };
        self.made.get_or_init(make).as_ref().map_err(|error| LabError::set_up("a capture file", error))
    }
}

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    LENGTHS.into_iter().map(|(name, lengths)| of_length(settings, name, lengths)).collect()
}

fn of_length(settings: &Settings, name: &'static str, lengths: Lengths) -> Experiment {
    let mut experiment = Experiment::new(name, 5, settings);
    let on = settings.pair();
    for flows in FLOWS {
        let most = (FILE_BYTES_MAX / (lengths.mean() + 16)) as u64;
        let packets = settings.frames(NANOS).min(most) as u32;
        experiment.takes(Duration::from_nanos((NANOS * f64::from(packets)) as u64));
        let traffic = Arc::new(Traffic { flows, packets, lengths, made: OnceLock::new() });
        let of = || (Arc::clone(&traffic), Some(f64::from(flows)));
        let both = vec![on.receive, on.work];
        for (name, cpus, balances) in [(ONE, vec![on.receive], true), (TWO, both.clone(), true), (HASHED, both, false)]
        {
            let (traffic, x) = of();
            experiment.case(name, x, cpus.len(), move || metered(&traffic, &cpus, balances));
        }
        let (traffic, x) = of();
        experiment.case(COUNT, x, 1, move || {
            let (measured, _) = read(&traffic, &[on.receive], true, Count::default)?;
            Ok(measured)
        });
        let (traffic, x) = of();
        experiment.case(LOOP, x, 1, move || {
            pin(on.receive)?;
            let made = traffic.get()?;
            let start = Instant::now();
            let (packets, flows) = count_by_flow(&made.bytes);
            let time = start.elapsed();
            none_lost(packets, traffic.packets.into())?;
            each_is_one(flows, made.flows)?;
            Ok(mpps(packets, time))
        });
    }
    experiment
}

fn mpps(packets: u64, time: Duration) -> Measurement {
    Measurement::of("mpps", packets as f64 / time.as_secs_f64() / 1e6)
}

fn each_is_one(seen: u64, expected: u64) -> Result<(), LabError> {
    if seen == expected { Ok(()) } else { Err(LabError::Wrong { what: "flows", seen, expected }) }
}

fn metered(traffic: &Traffic, cpus: &[usize], balances: bool) -> Result<Measurement, LabError> {
    // Packet times advance faster than a real clock, so a shorter timeout would cut flows into
    // several records.
    let metering = Metering::new(MeterOptions { active: Duration::MAX, ..MeterOptions::default() }, None);
    let (measured, outcome) = read(traffic, cpus, balances, move || metering.meter())?;
    let (metered, _) = Metered::of(outcome.reports.into_iter().map(|(_, report)| report), 1);
    each_is_one(metered.total, traffic.get()?.flows)?;
    Ok(measured)
}

/// The measured time includes the start and the end of the instance, as in a user's run.
fn read<H: Handler>(
    traffic: &Traffic,
    cpus: &[usize],
    balances: bool,
    make: impl Fn() -> H + Send + Sync + 'static,
) -> Result<(Measurement, Outcome<H::Report>), LabError> {
    let made = traffic.get()?;
    let input = steerage_capture::open(&made.file.path).map_err(|error| LabError::set_up("the capture", error))?;
    let mask: CpuMask = cpus.iter().map(|cpu| CpuId(*cpu as u16)).collect();
    let builder = Builder::new().cpus(mask.clone()).rps_cpus(mask);
    let builder = if balances { builder.policy(Balance::new()) } else { builder.policy(Hash) };
    let instance = builder.input_on(input, &[CpuId(cpus[0] as u16)], None).build(move |_| make())?;
    let start = Instant::now();
    let running = Instance::start(instance)?;
    let outcome = running.join();
    let time = start.elapsed();
    if !outcome.failed.is_empty() {
        return Err(LabError::Panicked);
    }
    let delivered = outcome.snapshot.delivered();
    none_lost(delivered, traffic.packets.into())?;
    Ok((mpps(delivered, time), outcome))
}
