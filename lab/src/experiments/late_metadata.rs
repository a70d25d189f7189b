//! Compares metadata that is made when a page is posted with metadata that is made when a packet is
//! handled, as `build_skb` and as steerage make it, on one CPU as published and on two CPUs. Further
//! cases copy small frames out of the ring's pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;
use crate::nic::{Metadata, NicOptions};
use crate::runs::{CpuPair, run, run_alone, run_alone_at_rate};

const FRAME_BYTES: [u32; 5] = [64, 256, 512, 1024, 1514];

/// The published rate, from which the search for the rate that a CPU keeps up with begins.
const PUBLISHED_RATE: f64 = 1_488_137.0;

/// The highest rate of the search, at which no CPU keeps up.
const RATE_MAX: f64 = 512.0 * PUBLISHED_RATE;

/// The published losses, in percent: as good as nothing, and the loss with early metadata.
const NONE_LOST: f64 = 0.1;
const MUCH_LOST: f64 = 15.0;

/// The number of halvings of the search: the rate is exact to within 2 %.
const HALVINGS: usize = 6;

/// The number of runs at each rate. The run with the least loss counts, because other programs can
/// only add losses.
const TRIES: usize = 3;

/// An estimate of the time per frame, in nanoseconds.
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

/// Frames of 64 bytes arrive at a fixed rate, at which early metadata loses as much as published.
/// The rate is found anew in each round, because the speed of a virtual machine changes.
fn loss(settings: &Settings, name: &'static str, cpus: usize) -> Experiment {
    let mut experiment = Experiment::new(name, 5, settings);
    let time = settings.measured / 8;
    experiment.takes(2 * time * (HALVINGS * TRIES) as u32);
    let rate_of_early = Arc::new(Mutex::new(None));
    for (name, metadata) in WHEN {
        let (on, rate_of_early) = (settings.pair(), Arc::clone(&rate_of_early));
        let run = AtRate { on, cpus, metadata, time };
        experiment.case(name, None, cpus, move || {
            let capacity = highest_rate(NONE_LOST, |rate| run.once(rate))?;
            if metadata == Metadata::Early {
                let much = highest_rate(MUCH_LOST, |rate| run.once(rate))?;
                *rate_of_early.lock().unwrap_or_else(PoisonError::into_inner) = Some(much);
            }
            let known = *rate_of_early.lock().unwrap_or_else(PoisonError::into_inner);
            let rate = known.ok_or_else(|| LabError::set_up("the rate", "early metadata was not measured"))?;
            let there = run.once(rate)?;
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

#[derive(Clone, Copy, Debug)]
struct Loss {
    lost_percent: f64,
    /// The part of the time in which the receiving CPU worked.
    cpu_percent: f64,
}

impl AtRate {
    /// The run with the least loss at this rate.
    fn once(&self, rate: f64) -> Result<Loss, LabError> {
        let mut least: Option<Loss> = None;
        for _ in 0..TRIES {
            let run = self.one_try(rate)?;
            least = least.filter(|least| least.lost_percent <= run.lost_percent).or(Some(run));
            if run.lost_percent < NONE_LOST {
                break;
            }
        }
        Ok(least.expect("at least one try"))
    }

    fn one_try(&self, rate: f64) -> Result<Loss, LabError> {
        let frames = (self.time.as_secs_f64() * rate) as u64;
        // A card that moderates its interrupts shows many frames at once to the one CPU.
        let at_once = if self.cpus == 1 { POLL_BUDGET } else { 1 };
        let nic = NicOptions { frame_bytes: 64, frames, metadata: self.metadata, rate: Some(rate as u64), at_once };
        let (input, make) = nic.input();
        let times = match self.cpus {
            1 => run_alone_at_rate(self.on.receive, Builder::new(), input, frames, make)?.0,
            _ => run(self.on, Builder::new(), input, frames, 1, make)?,
        };
        let lost_percent = 100.0 * (1.0 - times.delivered as f64 / frames as f64);
        Ok(Loss { lost_percent, cpu_percent: 100.0 * times.receive / times.whole })
    }
}

/// The highest rate at which at most this part is lost.
fn highest_rate(most_lost: f64, at: impl Fn(f64) -> Result<Loss, LabError>) -> Result<f64, LabError> {
    let keeps_up = |rate| at(rate).map(|loss| loss.lost_percent <= most_lost);
    let (mut low, mut high) = (0.0, PUBLISHED_RATE);
    while high < RATE_MAX && keeps_up(high)? {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if keeps_up(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_between_its_doubles() {
        let at = |capacity: f64| {
            move |rate: f64| Ok(Loss { lost_percent: 100.0 * (1.0 - (capacity / rate).min(1.0)), cpu_percent: 0.0 })
        };
        for capacity in [1.6e6, 30e6, 200e6] {
            let found = highest_rate(NONE_LOST, at(capacity)).unwrap();
            assert!((found / capacity - 1.0).abs() < 0.02, "{found} for {capacity}");
            let found = highest_rate(MUCH_LOST, at(capacity)).unwrap();
            assert!((found / capacity * 0.85 - 1.0).abs() < 0.02, "{found} for {capacity}");
        }
    }
}
