//! Lists of packets compared with single packets, with a CPU that only collects packets and without
//! one.

use std::sync::Arc;
use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};
use steerage_apps::forward::Fate;

use crate::benchmark::{Benchmark, Description, Settings};
use crate::error::BenchError;
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::measurement::Measurement;
use crate::published::HANDOFF;
use crate::report::ChartKind;
use crate::router::router;
use crate::runs::{CpuPair, ReadsHeaders, none_lost, run, run_alone};

const DESCRIPTION: Description = Description {
    name: "handoff",
    title: "Handing over in lists: a CPU that only collects, and none",
    question: "Packets of 64 bytes are forwarded (1,000 routes behind 16 routers, 65,536 sources, an output that costs nothing), or their \
               headers are looked at and no more. One CPU does all, or one collects and hands over to another, in lists of 1 to 64. \
               What does the list save, and what the collector?",
    published: Some(&HANDOFF),
    x: "list, packets",
    rounds: 5,
};

const LISTS: [u32; 4] = [1, 8, 32, POLL_BUDGET as u32];

/// Estimates of the time per packet and per list, in nanoseconds. They only set the number of
/// frames.
const NANOS: f64 = 60.0;
const NANOS_A_LIST: f64 = 250.0;

/// The work that the handling CPU does for a packet.
#[derive(Clone, Copy, Debug)]
enum Work {
    Forward,
    Look,
}

const WORKS: [(&str, Work); 2] = [("forwarding", Work::Forward), ("headers only", Work::Look)];

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    let mut benchmark = Benchmark::new(DESCRIPTION, settings)
        .metric("mpps", "handled", "Mpps", true)
        .metric("receive_ns", "CPU that receives", "ns a packet", false)
        .metric("work_ns", "CPU that handles", "ns a packet", false)
        .chart(ChartKind::Lines, "mpps", "Packets handled, by length of list")
        .chart(ChartKind::Lines, "receive_ns", "Cost of a packet on the receiving CPU")
        .chart(ChartKind::Ratio, "mpps", "Gain of the collector, by length of list");
    for (work, kind) in WORKS {
        benchmark = benchmark.compare(&format!("{work}, a collector"), &format!("{work}, one CPU"));
        if matches!(kind, Work::Forward) {
            benchmark = benchmark.beside(&HANDOFF);
        }
    }
    let on = settings.pair();
    for list in settings.points(&LISTS) {
        let frames = settings.frames(NANOS + NANOS_A_LIST / f64::from(list));
        for (name, work) in WORKS {
            let alone = move || once(on, work, false, list as usize, frames);
            let collector = move || once(on, work, true, list as usize, frames);
            benchmark.takes(settings.measured + Duration::from_millis(20));
            benchmark.case(format!("{name}, one CPU"), Some(list.into()), 1, alone);
            benchmark.case(format!("{name}, a collector"), Some(list.into()), 2, collector);
        }
    }
    vec![benchmark]
}

fn once(on: CpuPair, work: Work, collects: bool, list: usize, frames: u64) -> Result<Measurement, BenchError> {
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

    #[test]
    fn it_says_why_the_published_gain_is_not_seen() {
        let experiment = &benchmarks(&Settings::quick(vec![0, 1]))[0].experiment;
        assert!(experiment.published.contains("Why 43 % is not seen here"), "{}", experiment.published);
        let beside: Vec<_> = experiment.compared.iter().map(|pair| (pair.of.as_str(), pair.published.len())).collect();
        assert_eq!(beside, [("forwarding, a collector", 1), ("headers only, a collector", 0)]);
        let ratio = &experiment.compared[0].published[0];
        assert_eq!((ratio.x, ratio.ratio), (Some(64.0), 1.43));
    }
}
