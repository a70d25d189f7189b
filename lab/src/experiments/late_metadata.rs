//! Metadata made early and late, on one CPU as published and on two, and small frames copied out of the ring's pages.

use std::time::Duration;

use steerage::{Builder, limits::POLL_BUDGET};

use crate::benchmark::{Benchmark, Description, Settings};
use crate::measurement::Measurement;
use crate::nic::{Metadata, NicOptions};
use crate::published::BUILD_SKB;
use crate::report::ChartKind;
use crate::runs::{run, run_alone, run_alone_at_rate};

const DESCRIPTION: Description = Description {
    name: "late-metadata",
    title: "Metadata made late: throughput by frame size",
    question: "A device with a ring of 4,096 posted pages writes each frame whole; one CPU receives, another reads the header and the \
               metadata. Early: 192 bytes of metadata are cleared when a page is posted and filled in when its frame has come. \
               Late: it is made by the CPU that handles the packet. Copied: late, and the frame is copied out of the ring's page. One \
               CPU: the published shape, in which the CPU that receives also drops the packets.",
    published: Some(&BUILD_SKB),
    x: "frame, bytes",
    rounds: 5,
};

const LOSS: Description = Description {
    name: "late-metadata-loss",
    title: "Metadata made late: loss at a fixed rate",
    question: "The same device, and frames of 64 bytes that come at a rate whether its ring has room or not. How many are lost?",
    published: Some(&BUILD_SKB),
    x: "offered, Mpps",
    rounds: 5,
};

const DROP: Description = Description {
    name: "late-metadata-drop",
    title: "Metadata made late: one CPU receives and drops",
    question: "The published shape: frames of 64 bytes come at a rate into a ring of 4,096 pages, and one CPU receives them, reads header \
               and metadata, and drops them. How many are lost, and how busy is that CPU? The first point is the published rate. \
               As from a card that moderates its interrupts, frames come at least 64 at a time. CPU use is the part of the time in \
               which the CPU worked; the rest is its headroom. The CPU also writes the frames, which a card would do by itself.",
    published: Some(&BUILD_SKB),
    x: "offered, Mpps",
    rounds: 5,
};

const FRAME_BYTES: [u32; 5] = [64, 256, 512, 1024, 1514];

/// Rates of small frames, in millions per second. Early metadata keeps up with the lowest even if
/// the CPUs are far apart, and late metadata does not keep up with the highest even if they are
/// near.
const RATES: [u32; 8] = [4, 6, 8, 12, 16, 20, 25, 30];

/// Rates of frames that one CPU receives and drops, in millions per second. The lowest is the
/// published one, and late metadata does not keep up with the highest.
const DROP_RATES: [f64; 8] = [1.488_137, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0];

/// An estimate of the time per frame, in nanoseconds.
const NANOS: f64 = 100.0;

const LATE: &str = "late";
const EARLY: &str = "early";
const COPIED: &str = "late, copied";
const LATE_ALONE: &str = "late, one CPU";
const EARLY_ALONE: &str = "early, one CPU";

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    vec![by_size(settings), loss(settings), drop_on_one_cpu(settings)]
}

fn by_size(settings: &Settings) -> Benchmark {
    let mut benchmark = Benchmark::new(DESCRIPTION, settings)
        .metric("mpps", "handled", "Mpps", true)
        .metric("receive_ns", "receiving CPU", "ns a packet", false)
        .metric("work_ns", "worker", "ns a packet", false)
        .compare(LATE, EARLY)
        .compare(COPIED, LATE)
        .compare(LATE_ALONE, EARLY_ALONE)
        .beside(&BUILD_SKB)
        .chart(ChartKind::Bars, "mpps", "Packets handled, by frame size")
        .chart(ChartKind::Bars, "receive_ns", "Cost of a packet on the receiving CPU");
    for bytes in settings.points(&FRAME_BYTES) {
        for (name, metadata, copies) in
            [(EARLY, Metadata::Early, false), (LATE, Metadata::Late, false), (COPIED, Metadata::Late, true)]
        {
            let (frames, frame_bytes) = (settings.frames(NANOS), bytes as usize);
            let nic = NicOptions { frame_bytes, frames, metadata, rate: None, at_once: 1 };
            let on = settings.pair();
            benchmark.case(name, Some(bytes.into()), 2, move || {
                let (input, make) = nic.input();
                let builder = Builder::new().copybreak(if copies { frame_bytes } else { 0 });
                Ok(run(on, builder, input, frames, 1, make)?.of_all(frames)?.measurement())
            });
        }
        for (name, metadata) in [(EARLY_ALONE, Metadata::Early), (LATE_ALONE, Metadata::Late)] {
            let (frames, on) = (settings.frames(NANOS), settings.pair().receive);
            let nic = NicOptions { frame_bytes: bytes as usize, frames, metadata, rate: None, at_once: 1 };
            benchmark.case(name, Some(bytes.into()), 1, move || {
                let (input, make) = nic.input();
                Ok(run_alone(on, Builder::new(), input, frames, make)?.0.measurement())
            });
        }
    }
    benchmark
}

fn drop_on_one_cpu(settings: &Settings) -> Benchmark {
    let mut benchmark = Benchmark::new(DROP, settings)
        .metric("lost_percent", "lost", "%", false)
        .metric("cpu_percent", "CPU use", "%", false)
        .metric("mpps", "handled", "Mpps", true)
        .metric("receive_ns", "the CPU", "ns a packet", false)
        .compare_by("cpu_percent", LATE, EARLY)
        .compare_by("mpps", LATE, EARLY)
        .beside(&BUILD_SKB)
        .chart(ChartKind::Lines, "lost_percent", "Packets lost, by offered rate")
        .chart(ChartKind::Lines, "cpu_percent", "CPU use, by offered rate")
        .chart(ChartKind::Lines, "mpps", "Packets handled, by offered rate");
    let time = settings.measured / 2;
    benchmark.takes(time);
    for millions in settings.points(&DROP_RATES) {
        for (name, metadata) in [(EARLY, Metadata::Early), (LATE, Metadata::Late)] {
            let on = settings.pair().receive;
            let rate = (millions * 1e6) as u64;
            let frames = frames_in(time, rate);
            let nic = NicOptions { frame_bytes: 64, frames, metadata, rate: Some(rate), at_once: POLL_BUDGET };
            benchmark.case(name, Some(millions), 1, move || {
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
    benchmark
}

fn loss(settings: &Settings) -> Benchmark {
    let mut benchmark = Benchmark::new(LOSS, settings)
        .metric("lost_percent", "lost", "%", false)
        .metric("mpps", "handled", "Mpps", true)
        .compare(LATE, EARLY)
        .chart(ChartKind::Lines, "lost_percent", "Packets lost, by offered rate")
        .chart(ChartKind::Lines, "mpps", "Packets handled, by offered rate");
    // Long enough for the ring to overflow many times.
    let time = settings.measured / 2;
    benchmark.takes(time);
    for millions in settings.points(&RATES) {
        for (name, metadata) in [(EARLY, Metadata::Early), (LATE, Metadata::Late)] {
            let on = settings.pair();
            let rate = 1_000_000 * u64::from(millions);
            let frames = frames_in(time, rate);
            let nic = NicOptions { frame_bytes: 64, frames, metadata, rate: Some(rate), at_once: 1 };
            benchmark.case(name, Some(millions.into()), 2, move || {
                let (input, make) = nic.input();
                let times = run(on, Builder::new(), input, frames, 1, make)?;
                let lost = 100.0 * (1.0 - times.delivered as f64 / frames as f64);
                let handled = 1e3 / times.whole * times.delivered as f64 / frames as f64;
                Ok(Measurement::of("lost_percent", lost).and("mpps", handled))
            });
        }
    }
    benchmark
}

fn frames_in(time: Duration, rate: u64) -> u64 {
    (time.as_secs_f64() * rate as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::run;

    #[test]
    fn one_cpu_receives_and_drops_at_the_published_rate_and_above() {
        let [_, _, drop] = &mut benchmarks(&Settings::quick(vec![0]))[..] else { panic!("three parts") };
        let drop = std::mem::replace(drop, Benchmark::new(DROP, &Settings::quick(vec![0])));
        let experiment = run(drop, |_| true);
        assert!(experiment.skipped.is_empty(), "{:?}", experiment.skipped);
        let points: Vec<_> = experiment.samples.iter().map(|sample| (sample.series.as_str(), sample.x)).collect();
        let (first, last) = (Some(1.488_137), Some(60.0));
        assert_eq!(points, [(EARLY, first), (LATE, first), (EARLY, last), (LATE, last)]);
        for sample in &experiment.samples {
            let (offered, values) = (sample.x.unwrap(), &sample.values);
            // Frames are not handled before they arrive.
            assert!(values["mpps"] > 0.0 && values["mpps"] <= offered * 1.001, "{sample:?}");
            assert!((0.0..100.0).contains(&values["lost_percent"]), "{sample:?}");
            assert!(values["cpu_percent"] > 0.0 && values["cpu_percent"] <= 100.0, "{sample:?}");
            assert!(values["receive_ns"] > 0.0, "{sample:?}");
        }
    }

    #[test]
    fn one_cpu_is_compared_by_frame_size_too() {
        let quick = Settings { ends_only: false, ..Settings::quick(vec![0]) };
        let experiment = run(by_size(&quick), |_| true);
        for series in [EARLY_ALONE, LATE_ALONE] {
            let sizes =
                experiment.samples.iter().filter(|sample| sample.series == series).filter_map(|sample| sample.x);
            assert!(sizes.eq(FRAME_BYTES.map(f64::from)), "{series}");
        }
        let pair = experiment.compared.iter().find(|pair| pair.of == LATE_ALONE).unwrap();
        assert_eq!((pair.over.as_str(), pair.published[0].ratio), (EARLY_ALONE, 1.15));
        assert!(experiment.published.contains("1,488,137") && experiment.published.contains("80 % of the CPU"));
    }
}
