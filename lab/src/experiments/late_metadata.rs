//! Compares early with late metadata, on one CPU as published and on two CPUs. Further cases copy
//! small frames out of the ring's pages.

use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};

use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;
use crate::nic::{Metadata, NicOptions};
use crate::runs::{run, run_alone, run_alone_at_rate};

const FRAME_BYTES: [u32; 5] = [64, 256, 512, 1024, 1514];

/// Rates of small frames, in millions per second. Early metadata keeps up with the lowest rate even
/// if the CPUs are far apart. Late metadata does not keep up with the highest rate even if the CPUs
/// are near.
const RATES: [u32; 8] = [4, 6, 8, 12, 16, 20, 25, 30];

/// Rates of frames that one CPU receives and drops, in millions per second. The lowest rate is the
/// published rate, and late metadata does not keep up with the highest rate.
const DROP_RATES: [f64; 8] = [1.488_137, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0];

/// An estimate of the time per frame, in nanoseconds.
const NANOS: f64 = 100.0;

const LATE: &str = "late";
const EARLY: &str = "early";
const COPIED: &str = "late, copied";
const LATE_ALONE: &str = "late, one CPU";
const EARLY_ALONE: &str = "early, one CPU";

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    vec![by_size(settings), loss(settings), drop_on_one_cpu(settings)]
}

fn by_size(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("late-metadata", 5, settings);
    for bytes in settings.points(&FRAME_BYTES) {
        for (name, metadata, copies) in
            [(EARLY, Metadata::Early, false), (LATE, Metadata::Late, false), (COPIED, Metadata::Late, true)]
        {
            let (frames, frame_bytes) = (settings.frames(NANOS), bytes as usize);
            let nic = NicOptions { frame_bytes, frames, metadata, rate: None, at_once: 1 };
            let on = settings.pair();
            experiment.case(name, Some(bytes.into()), 2, move || {
                let (input, make) = nic.input();
                let builder = Builder::new().copybreak(if copies { frame_bytes } else { 0 });
                Ok(run(on, builder, input, frames, 1, make)?.of_all(frames)?.measurement())
            });
        }
        for (name, metadata) in [(EARLY_ALONE, Metadata::Early), (LATE_ALONE, Metadata::Late)] {
            let (frames, on) = (settings.frames(NANOS), settings.pair().receive);
            let nic = NicOptions { frame_bytes: bytes as usize, frames, metadata, rate: None, at_once: 1 };
            experiment.case(name, Some(bytes.into()), 1, move || {
                let (input, make) = nic.input();
                Ok(run_alone(on, Builder::new(), input, frames, make)?.0.measurement())
            });
        }
    }
    experiment
}

fn drop_on_one_cpu(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("late-metadata-drop", 5, settings);
    let time = settings.measured / 2;
    experiment.takes(time);
    for millions in settings.points(&DROP_RATES) {
        for (name, metadata) in [(EARLY, Metadata::Early), (LATE, Metadata::Late)] {
            let on = settings.pair().receive;
            let rate = (millions * 1e6) as u64;
            let frames = frames_in(time, rate);
            let nic = NicOptions { frame_bytes: 64, frames, metadata, rate: Some(rate), at_once: POLL_BUDGET };
            experiment.case(name, Some(millions), 1, move || {
                let (input, make) = nic.input();
                let (times, _) = run_alone_at_rate(on, Builder::new(), input, frames, make)?;
                let part = times.delivered as f64 / frames as f64;
                Ok(Measurement::of("lost_percent", 100.0 * (1.0 - part))
                    .and("cpu_percent", 100.0 * times.receive / times.whole)
                    .and("mpps", 1e3 / times.whole * part)
                    .and("receive_ns", times.receive / part))
            });
        }
    }
    experiment
}

fn loss(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("late-metadata-loss", 5, settings);
    // The time is long enough for the ring to overflow many times.
    let time = settings.measured / 2;
    experiment.takes(time);
    for millions in settings.points(&RATES) {
        for (name, metadata) in [(EARLY, Metadata::Early), (LATE, Metadata::Late)] {
            let on = settings.pair();
            let rate = 1_000_000 * u64::from(millions);
            let frames = frames_in(time, rate);
            let nic = NicOptions { frame_bytes: 64, frames, metadata, rate: Some(rate), at_once: 1 };
            experiment.case(name, Some(millions.into()), 2, move || {
                let (input, make) = nic.input();
                let times = run(on, Builder::new(), input, frames, 1, make)?;
                let lost = 100.0 * (1.0 - times.delivered as f64 / frames as f64);
                let handled = 1e3 / times.whole * times.delivered as f64 / frames as f64;
                Ok(Measurement::of("lost_percent", lost).and("mpps", handled))
            });
        }
    }
    experiment
}

fn frames_in(time: Duration, rate: u64) -> u64 {
    (time.as_secs_f64() * rate as f64) as u64
}
