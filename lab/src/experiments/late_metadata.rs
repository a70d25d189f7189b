//! Compares metadata made when a page is posted (early) with metadata made when a packet is handled
//! (late, as the kernel's `build_skb` or steerage does). The experiment runs on one CPU, as
//! published, and on two CPUs. Further cases copy frames out of the ring's pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};

use crate::capacity::{Loss, NONE_LOST, SEARCH_RUNS, frames_in, highest_rate, least_loss};
use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;
use crate::nic::{Metadata, NicOptions};
use crate::runs::{CpuPair, run, run_alone, run_alone_at_rate};

const FRAME_BYTES: [u32; 5] = [64, 256, 512, 1024, 1514];

/// The published packet rate, at which the search for the highest rate without loss begins.
const PUBLISHED_RATE: f64 = 1_488_137.0;

/// The published percentage of lost packets with early metadata.
const MUCH_LOST: f64 = 15.0;

/// Estimated nanoseconds per frame.
const NANOS: f64 = 100.0;

const EARLY: &str = "early";
const BUILT: &str = "late, as build_skb";
const LATE: &str = "late";
const COPIED: &str = "late, copied";
const LATE_ALONE: &str = "late, one CPU";
const BUILT_ALONE: &str = "late, as build_skb, one CPU";
const EARLY_ALONE: &str = "early, one CPU";

const WHEN: [(&str, Metadata); 3] = [(EARLY, Metadata::Early), (BUILT, Metadata::Built), (LATE, Metadata::Late)];

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    vec![by_size(settings), loss(settings, "late-metadata-drop", 1), loss(settings, "late-metadata-loss", 2)]
}

fn by_size(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("late-metadata", 5, settings);
    for bytes in settings.points(&FRAME_BYTES) {
        let copied = [(COPIED, Metadata::Late, true)];
        for (name, metadata, copies) in WHEN.map(|(name, metadata)| (name, metadata, false)).into_iter().chain(copied) {
            let (frames, frame_bytes) = (settings.frames(NANOS), bytes as usize);
            let nic = NicOptions { frame_bytes, frames, metadata, rate: None, at_once: 1 };
            let on = settings.pair();
            experiment.case(name, Some(bytes.into()), 2, move || {
                let (input, make) = nic.input();
                let builder = Builder::new().copybreak(if copies { frame_bytes } else { 0 });
                Ok(run(on, builder, input, frames, 1, make)?.of_all(frames)?.measurement())
            });
        }
        for (name, metadata) in
            [(EARLY_ALONE, Metadata::Early), (BUILT_ALONE, Metadata::Built), (LATE_ALONE, Metadata::Late)]
        {
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

/// Frames of 64 bytes arrive at the rate at which early metadata loses the published share of
/// frames. Each round determines the rate again, because the speed of a virtual machine changes.
fn loss(settings: &Settings, name: &'static str, cpus: usize) -> Experiment {
    let mut experiment = Experiment::new(name, 5, settings);
    let time = settings.measured / 8;
    experiment.takes(2 * time * SEARCH_RUNS);
    let rate_of_early = Arc::new(Mutex::new(None));
    for (name, metadata) in WHEN {
        let (on, rate_of_early) = (settings.pair(), Arc::clone(&rate_of_early));
        let run = AtRate { on, cpus, metadata, time };
        experiment.case(name, None, cpus, move || {
            let capacity = highest_rate(NONE_LOST, PUBLISHED_RATE, |rate| run.once(rate))?;
            if metadata == Metadata::Early {
                let much = highest_rate(MUCH_LOST, PUBLISHED_RATE, |rate| run.once(rate))?;
                *rate_of_early.lock().unwrap_or_else(PoisonError::into_inner) = Some(much);
            }
            let known = *rate_of_early.lock().unwrap_or_else(PoisonError::into_inner);
            let rate = known.ok_or_else(|| LabError::set_up("the rate", "early metadata was not measured"))?;
            let there = least_loss(rate, |rate| run.once(rate))?;
            Ok(Measurement::of("capacity_mpps", capacity / 1e6)
                .and("offered_mpps", rate / 1e6)
                .and("lost_percent", there.lost_percent)
                .and("cpu_percent", there.cpu_percent))
        });
    }
    experiment
}

#[derive(Clone, Copy, Debug)]
struct AtRate {
    on: CpuPair,
    cpus: usize,
    metadata: Metadata,
    time: Duration,
}

impl AtRate {
    fn once(&self, rate: f64) -> Result<Loss, LabError> {
        let frames = frames_in(self.time, rate);
        // On one CPU, the device delivers many frames together, as with interrupt moderation.
        let at_once = if self.cpus == 1 { POLL_BUDGET } else { 1 };
        let nic = NicOptions { frame_bytes: 64, frames, metadata: self.metadata, rate: Some(rate as u64), at_once };
        let (input, make) = nic.input();
        let times = match self.cpus {
            1 => run_alone_at_rate(self.on.receive, Builder::new(), input, frames, make)?.0,
            _ => run(self.on, Builder::new(), input, frames, 1, make)?,
        };
        Ok(times.loss(frames))
    }
}
