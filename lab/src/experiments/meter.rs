//! The cost of metering the flows of a capture, compared with counting packets only and with a
//! plain loop.

use std::io::Cursor;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use steerage::{Balance, Builder, CpuId, CpuMask, Hash, Instance};
use steerage_apps::Count;
use steerage_capture::Capture;
use steerage_meter::{MeterOptions, Metered, Metering};

use crate::capture::{RepeatedCapture, capture, count_by_flow, flows_in};
use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;
use crate::placement::pin;
use crate::runs::{none_lost, run_alone};

const FLOWS: [u32; 2] = [1024, 65_536];

/// An estimate of the time per packet, in nanoseconds.
const NANOS: f64 = 250.0;

/// The longest capture, which is 152 MB. Longer runs read the capture several times.
const PACKETS_MAX: u64 = 2_000_000;

const ONE: &str = "steerage, 1 CPU";
const TWO: &str = "steerage, 2 CPUs";
const HASHED: &str = "2 CPUs, by hash";
const COUNT: &str = "only counted, 1 CPU";
const LOOP: &str = "plain loop, 1 thread";

struct Traffic {
    flows: u32,
    packets: u32,
    made: OnceLock<(Arc<[u8]>, u64)>,
}

impl Traffic {
    fn get(&self) -> (Arc<[u8]>, u64) {
        let make = || (capture(self.packets, self.flows).into(), flows_in(self.packets, self.flows));
        let (file, flows) = self.made.get_or_init(make);
        (Arc::clone(file), *flows)
    }
}

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    let mut experiment = Experiment::new("meter", 5, settings);
    let on = settings.pair();
    for flows in FLOWS {
        let packets = settings.frames(NANOS).min(PACKETS_MAX) as u32;
        let traffic = Arc::new(Traffic { flows, packets, made: OnceLock::new() });
        let of = || (Arc::clone(&traffic), Some(f64::from(flows)));
        let both = vec![on.receive, on.work];
        for (name, cpus, balances) in [(ONE, vec![on.receive], false), (TWO, both.clone(), true), (HASHED, both, false)]
        {
            let warm_up = settings.warm_up_of(balances);
            let run = Run { cpus, balances, warm_up, measured: settings.measured };
            experiment.takes(warm_up + settings.measured);
            let (traffic, x) = of();
            experiment.case(name, x, run.cpus.len(), move || run.once(&traffic));
        }
        let (traffic, x) = of();
        experiment.case(COUNT, x, 1, move || {
            let input = Capture::from_reader("bench", Cursor::new(traffic.get().0)).into_input();
            let packets = u64::from(traffic.packets);
            let (times, _) = run_alone(on.receive, Builder::new(), input, packets, Count::default)?;
            Ok(Measurement::of("mpps", 1e3 / times.whole))
        });
        let (traffic, x) = of();
        experiment.case(LOOP, x, 1, move || {
            pin(on.receive)?;
            let (file, expected) = traffic.get();
            let start = Instant::now();
            let (packets, flows) = count_by_flow(&file);
            let time = start.elapsed();
            none_lost(packets, traffic.packets.into())?;
            each_is_one(flows, expected)?;
            Ok(Measurement::of("mpps", packets as f64 / time.as_secs_f64() / 1e6))
        });
    }
    vec![experiment]
}

fn each_is_one(seen: u64, expected: u64) -> Result<(), LabError> {
    if seen == expected { Ok(()) } else { Err(LabError::Wrong { what: "flows", seen, expected }) }
}

struct Run {
    cpus: Vec<usize>,
    balances: bool,
    warm_up: Duration,
    measured: Duration,
}

impl Run {
    fn once(&self, traffic: &Traffic) -> Result<Measurement, LabError> {
        let (file, expected) = traffic.get();
        // A flow may last for any number of repetitions, so no record is cut.
        let metering = Metering::new(MeterOptions { active: Duration::MAX, ..MeterOptions::default() }, None);
        let input = Capture::from_reader("bench", RepeatedCapture::of(file, traffic.packets)).into_input();
        let mask: CpuMask = self.cpus.iter().map(|cpu| CpuId(*cpu as u16)).collect();
        let builder = Builder::new().cpus(mask.clone()).rps_cpus(mask);
        let builder = if self.balances { builder.policy(Balance::new()) } else { builder.policy(Hash) };
        let builder = builder.input_on(input, &[CpuId(self.cpus[0] as u16)], None);
        let running = builder.build(move |_| metering.meter()).and_then(Instance::start)?;
        let handle = running.handle();
        thread::sleep(self.warm_up);
        let before = handle.snapshot();
        thread::sleep(self.measured);
        let after = handle.snapshot();
        handle.stop();
        let outcome = running.join();
        if !outcome.failed.is_empty() {
            return Err(LabError::Panicked);
        }
        let delivered = after.delivered() - before.delivered();
        if after.delivered() >= u64::from(traffic.packets) {
            let (metered, _) = Metered::of(outcome.reports.into_iter().map(|(_, report)| report), 1);
            each_is_one(metered.total, expected)?;
        }
        Ok(Measurement::of("mpps", delivered as f64 / (after.elapsed - before.elapsed).as_secs_f64() / 1e6))
    }
}
