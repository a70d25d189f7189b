//! Compares hand-overs of lists and of single packets, with and without a collector (a CPU that
//! only receives).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};
use steerage_router::Fate;

use crate::capacity::{NONE_LOST, SEARCH_RUNS, frames_in, highest_rate, least_loss};
use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::measurement::Measurement;
use crate::router::router;
use crate::runs::{CpuPair, ReadsHeaders, Times, none_lost, run, run_alone, run_alone_at_rate};

const LISTS: [u32; 4] = [1, 8, 32, POLL_BUDGET as u32];

/// The estimated time per packet and per list, in nanoseconds, which determines the number of
/// frames in a run.
const NANOS: f64 = 60.0;
const NANOS_A_LIST: f64 = 250.0;

/// The search begins at this rate, in packets per second, which every machine can forward.
const RATE_MIN: f64 = 250_000.0;

/// The percentage of lost packets without a hand-over: in the published measurement, about 60 %
/// were forwarded.
const PUBLISHED_LOSS: f64 = 40.0;

const ONE_CPU: &str = "one CPU";

#[derive(Clone, Copy, Debug)]
enum Work {
    Forward,
    Look,
}

const WORKS: [(&str, Work); 2] = [("forwarding", Work::Forward), ("headers only", Work::Look)];

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    let mut experiment = Experiment::new("handoff", 5, settings);
    let on = settings.pair();
    for list in settings.points(&LISTS) {
        let frames = settings.frames(NANOS + NANOS_A_LIST / f64::from(list));
        for (name, work) in WORKS {
            let alone = move || once(on, work, false, list as usize, frames);
            let collector = move || once(on, work, true, list as usize, frames);
            experiment.takes(settings.measured + Duration::from_millis(20));
            experiment.case(format!("{name}, one CPU"), Some(list.into()), 1, alone);
            experiment.case(format!("{name}, a collector"), Some(list.into()), 2, collector);
        }
    }
    vec![experiment, at_one_rate(settings)]
}

/// The experiment at the load of the published measurement. Each round searches again for the
/// packet rate of which one CPU can forward only 60 %.
fn at_one_rate(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("handoff-rate", 5, settings);
    let (on, time) = (settings.pair(), settings.measured / 8);
    experiment.takes(time * SEARCH_RUNS);
    let rate_of_round = Arc::new(Mutex::new(None));
    for (name, collects, cpus) in [(ONE_CPU, false, 1), ("a collector", true, 2)] {
        let rate_of_round = Arc::clone(&rate_of_round);
        experiment.case(name, None, cpus, move || {
            let run = |rate| {
                let frames = frames_in(time, rate);
                let (times, _) = forward(on, Builder::new(), collects, frames, Some(rate))?;
                Ok(times.loss(frames))
            };
            let capacity = highest_rate(NONE_LOST, RATE_MIN, run)?;
            let mut known = rate_of_round.lock().unwrap_or_else(PoisonError::into_inner);
            if name == ONE_CPU {
                *known = Some(highest_rate(PUBLISHED_LOSS, RATE_MIN, run)?);
            }
            let rate = known.ok_or_else(|| LabError::set_up("the rate", "the run on one CPU failed"))?;
            let there = least_loss(rate, run)?;
            Ok(Measurement::of("capacity_mpps", capacity / 1e6)
                .and("offered_mpps", rate / 1e6)
                .and("lost_percent", there.lost_percent)
                .and("cpu_percent", there.cpu_percent))
        });
    }
    experiment
}

fn once(on: CpuPair, work: Work, collects: bool, list: usize, frames: u64) -> Result<Measurement, LabError> {
    let builder = Builder::new().dev_weight(list);
    let times = match work {
        Work::Look => {
            let options = FrameOptions { mix: Mix::Uniform, device_hash: true, list, flows: FLOWS, frames };
            match collects {
                true => run(on, builder, options.input(), frames, 1, ReadsHeaders::default)?,
                false => run_alone(on.receive, builder, options.input(), frames, ReadsHeaders::default)?.0,
            }
        }
        Work::Forward => {
            let (times, forwarded) = forward(on, builder, collects, frames, None)?;
            none_lost(forwarded, frames)?;
            times
        }
    };
    Ok(times.of_all(frames)?.measurement())
}

fn forward(
    on: CpuPair,
    builder: Builder,
    collects: bool,
    frames: u64,
    rate: Option<f64>,
) -> Result<(Times, u64), LabError> {
    let (forwarding, input, output) = router(frames, rate)?;
    let (builder, ours) = (builder.output(output), Arc::clone(&forwarding));
    let times = match collects {
        true => run(on, builder, input, frames, 1, move || ours.handler())?,
        false => run_alone_at_rate(on.receive, builder, input, frames, move || ours.handler())?.0,
    };
    Ok((times, forwarding.so_far().get(Fate::Forwarded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_all_sources_are_forwarded() {
        let alone = CpuPair { receive: 0, work: 0 };
        let measured = once(alone, Work::Forward, false, POLL_BUDGET, 500_000).unwrap();
        assert!(measured.values["mpps"] > 0.0);
    }
}
