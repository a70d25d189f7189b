//! Metadata made early and late, and small frames copied out of the ring's pages.

use std::time::Duration;

use steerage::Builder;

use crate::benchmark::{Benchmark, Description, Settings};
use crate::measurement::Measurement;
use crate::nic::{Metadata, NicOptions};
use crate::report::ChartKind;
use crate::runs::run;

const DESCRIPTION: Description = Description {
    name: "late-metadata",
    title: "Metadata made late: throughput by frame size",
    question: "A device with a ring of 4,096 posted pages writes each frame whole; one CPU receives, another reads the header and the \
               metadata. Early: 192 bytes of metadata are cleared when a page is posted and filled in when its frame has come. \
               Late: they are made by the CPU that handles the packet. Copied: late, and the frame is copied out of the ring's page.",
    published: "Eric Dumazet, \"net: introduce build_skb()\" (netdev, 2011; Linux 3.3): sk_buffs made when the frame has come, \
                no longer when the ring is filled: some 15 % more packets.",
    x: "frame, bytes",
    rounds: 5,
};

const LOSS: Description = Description {
    name: "late-metadata-loss",
    title: "Metadata made late: loss at a fixed rate",
    question: "The same device, and frames of 64 bytes that come at a rate whether its ring has room or not. How many are lost?",
    published: "The same: losses of about 15 % at a fixed rate came down to less than 0.1 %.",
    x: "offered, Mpps",
    rounds: 5,
};

const FRAME_BYTES: [u32; 5] = [64, 256, 512, 1024, 1514];

/// Of small frames, in millions a second: from what early metadata keeps up with far away to what late does not near.
const RATES: [u32; 8] = [4, 6, 8, 12, 16, 20, 25, 30];

/// What a frame takes, about.
const NANOS: f64 = 100.0;

const LATE: &str = "late";
const EARLY: &str = "early";
const COPIED: &str = "late, copied";

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    vec![by_size(settings), loss(settings)]
}

fn by_size(settings: &Settings) -> Benchmark {
    let mut benchmark = Benchmark::new(DESCRIPTION, settings)
        .metric("mpps", "handled", "Mpps", true)
        .metric("receive_ns", "receiving CPU", "ns a packet", false)
        .metric("work_ns", "worker", "ns a packet", false)
        .compare(LATE, EARLY)
        .compare(COPIED, LATE)
        .chart(ChartKind::Bars, "mpps", "Packets handled, by frame size")
        .chart(ChartKind::Bars, "receive_ns", "What a packet costs the receiving CPU");
    for bytes in settings.points(&FRAME_BYTES) {
        for (name, metadata, copies) in
            [(EARLY, Metadata::Early, false), (LATE, Metadata::Late, false), (COPIED, Metadata::Late, true)]
        {
            let (frames, frame_bytes) = (settings.frames(NANOS), bytes as usize);
            let nic = NicOptions { frame_bytes, frames, metadata, rate: None };
            let on = settings.pair();
            benchmark.case(name, Some(bytes.into()), 2, move || {
                let (input, make) = nic.input();
                let builder = Builder::new().copybreak(if copies { frame_bytes } else { 0 });
                Ok(run(on, builder, input, frames, 1, make)?.of_all(frames)?.measurement())
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
            let nic = NicOptions { frame_bytes: 64, frames, metadata, rate: Some(rate) };
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
