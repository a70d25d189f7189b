//! Compares lists of packets with single packets, each with and without a CPU that only collects
//! packets.

use std::sync::Arc;
use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};
use steerage_router::Fate;

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::measurement::Measurement;
use crate::router::router;
use crate::runs::{CpuPair, ReadsHeaders, none_lost, run, run_alone};

const LISTS: [u32; 4] = [1, 8, 32, POLL_BUDGET as u32];

/// Estimates of the time per packet and per list in nanoseconds, which only determine the number of
/// frames.
const NANOS: f64 = 60.0;
const NANOS_A_LIST: f64 = 250.0;

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
    vec![experiment]
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
            let (forwarding, input, output) = router(frames)?;
            let (builder, ours) = (builder.output(output), Arc::clone(&forwarding));
            let times = match collects {
                true => run(on, builder, input, frames, 1, move || ours.handler())?,
                false => run_alone(on.receive, builder, input, frames, move || ours.handler())?.0,
            };
            none_lost(forwarding.so_far().get(Fate::Forwarded), frames)?;
            times
        }
    };
    Ok(times.of_all(frames)?.measurement())
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
