//! Simulates the machines of published measurements. docs/scale.md lists the published figures.

use std::time::Duration;

use steerage_sim::{Arrivals, Flows, Machine, Profile, ScaleRun, Scaled, Steering, Work};

use super::{BACKLOG, experiment};
use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::measurement::Measurement;

/// The number of request-response streams in Herbert's measurement. Each stream has one request in
/// flight.
const STREAMS: usize = 500;

/// In a smoke test, the length of a run is divided by this number.
const QUICK: u32 = 50;

/// Nanoseconds from a response to the next request, between two machines of 2010 at one switch.
const THERE_AND_BACK: f64 = 50_000.0;

/// The receiving CPU's share of the Linux kernel's work per packet. In Zhang's measurement, one CPU
/// only receives, and the other CPU does 1 / 1.43 of the work per packet.
const RECEIVING: f64 = 1.0 - 1.0 / 1.43;

#[derive(Clone)]
struct With {
    profile: Profile,
    seed: u64,
    /// The length of each run is divided by this number.
    short: u32,
}

/// A machine with request-response streams, and its published figures without RPS.
struct Streams {
    series: &'static str,
    cpus: usize,
    /// The number of queues without RPS, as published. `queues`: the number of queues in the
    /// simulation.
    published_queues: usize,
    queues: usize,
    has_rps: bool,
    /// Transactions per second without RPS. `cpu_share`: the share of the time of all CPUs that
    /// these transactions take.
    per_second: f64,
    cpu_share: f64,
}

const E1000E: Streams = Streams {
    series: "e1000e, 8 CPUs",
    cpus: 8,
    published_queues: 1,
    queues: 1,
    has_rps: false,
    per_second: 108e3,
    cpu_share: 0.33,
};
const FORCEDETH: Streams =
    Streams { series: "forcedeth, 16 CPUs", cpus: 16, per_second: 156e3, cpu_share: 0.15, ..E1000E };
const BNX2X: Streams = Streams {
    series: "bnx2x, 16 CPUs, 4 queues",
    cpus: 16,
    published_queues: 4,
    queues: 4,
    per_second: 567e3,
    cpu_share: 0.61,
    ..E1000E
};

const STREAM_ROWS: [Streams; 7] = [
    E1000E,
    Streams { series: "e1000e, 8 CPUs, RPS", has_rps: true, ..E1000E },
    FORCEDETH,
    Streams { series: "forcedeth, 16 CPUs, RPS", has_rps: true, ..FORCEDETH },
    BNX2X,
    Streams { series: "bnx2x, 16 CPUs, 4 queues, RPS", has_rps: true, ..BNX2X },
    Streams { series: "bnx2x, 16 CPUs, 8 queues", queues: 8, ..BNX2X },
];

impl Streams {
    /// Nanoseconds of a transaction on the receiving CPU, on the handling CPU, and in the program.
    fn costs(&self) -> (f64, f64, f64) {
        let kernel = self.published_queues as f64 / self.per_second * 1e9;
        let all = self.cpu_share * self.cpus as f64 / self.per_second * 1e9;
        (kernel * RECEIVING, kernel * (1.0 - RECEIVING), (all - kernel).max(0.0))
    }

    fn measure(&self, with: &With) -> Result<Measurement, LabError> {
        let With { profile, seed, short } = with;
        let (receive, handle, program) = self.costs();
        // With RPS, the server program runs on the CPU that handles its packets in the kernel.
        let work = if self.has_rps { handle + program } else { handle };
        let run = ScaleRun {
            profile: Profile { receive, hash: 0.0, ..profile.clone() },
            machine: Machine::of_one_cache(self.cpus),
            cpus: self.cpus,
            receivers: self.queues,
            arrivals: Arrivals {
                queues: self.queues,
                flows: STREAMS / self.queues,
                kind: Flows::Streams(THERE_AND_BACK),
                bursts: None,
                per_second: 1.0,
                seed: *seed,
            },
            steering: if self.has_rps { Steering::Collectors } else { Steering::None },
            work: Work::Fixed(work),
            warm_up: Duration::from_millis(50) / *short,
            measured: Duration::from_millis(250) / *short,
            stretch: 1.0,
            backlog: BACKLOG,
        };
        let scaled = run.once()?;
        // Without RPS, the server program runs on CPUs that do not receive.
        let others = (self.cpus - self.queues) as f64 / program * 1e9;
        let per_second = if self.has_rps { scaled.per_second } else { scaled.per_second.min(others) };
        let cpus =
            if self.has_rps { scaled.cpus } else { (scaled.cpus / scaled.per_second + program / 1e9) * per_second };
        let percent = 100.0 * cpus / self.cpus as f64;
        Ok(Measurement::of("kpps", per_second / 1e3).and("cpu_percent", percent))
    }
}

/// Nanoseconds that the Linux kernel takes to forward a packet in Zhang's measurement
/// (lab/notes/published.md).
const FORWARD: f64 = 2500.0;
const ZHANG_CPUS: usize = 16;
const ZHANG_QUEUES: usize = 16;

fn forward(collects: bool, with: &With) -> Result<Scaled, LabError> {
    let With { profile, seed, short } = with;
    // Each package of the machine has one cache. Each CPU of the first package receives from two
    // queues.
    let machine = Machine { packages: 2, ..Machine::of_one_cache(ZHANG_CPUS / 2) };
    let receiving = ZHANG_CPUS / 2;
    let run = ScaleRun {
        profile: Profile { receive: FORWARD * RECEIVING, hash: 0.0, ..profile.clone() },
        machine,
        cpus: if collects { ZHANG_CPUS } else { receiving },
        receivers: receiving,
        arrivals: Arrivals {
            queues: ZHANG_QUEUES,
            flows: super::FLOWS,
            kind: Flows::Uniform,
            bursts: None,
            // Without collectors (CPUs that only receive), the receiving CPUs forward 60 % of the
            // packets that arrive.
            per_second: receiving as f64 / FORWARD * 1e9 / 0.6,
            seed: *seed,
        },
        steering: if collects { Steering::Collectors } else { Steering::None },
        work: Work::Fixed(FORWARD * (1.0 - RECEIVING)),
        warm_up: Duration::from_millis(20) / *short,
        measured: Duration::from_millis(50) / *short,
        stretch: 1.0,
        backlog: BACKLOG,
    };
    Ok(run.once()?)
}

/// The forwarding rate with collectors (CPUs that only receive), as a multiple of the rate without
/// collectors.
fn gain(with: &With) -> Result<Measurement, LabError> {
    let (alone, collected) = (forward(false, with)?, forward(true, with)?);
    Ok(Measurement::of("gain", collected.per_second / alone.per_second)
        .and("kpps", collected.per_second / 1e3)
        .and("cpu_percent", 100.0 * collected.cpus / ZHANG_CPUS as f64))
}

/// Agroskin's machine: with the page cache, receiving 330 Gbit/s in frames of 1,500 bytes takes 56
/// % of its CPUs.
const ENA_CPUS: usize = 96;
const ENA_QUEUES: usize = 128;
const ENA_PER_SECOND: f64 = 330e9 / (1500.0 * 8.0);
const ENA_CPU_SHARE: f64 = 0.56;

fn page_cache(is_on: bool, with: &With) -> Result<Measurement, LabError> {
    let With { profile, seed, short } = with;
    let each = ENA_CPU_SHARE * ENA_CPUS as f64 / ENA_PER_SECOND * 1e9;
    // Without the page cache, two cache lines per page come from far CPUs: one of the page, and one
    // of the shared allocator's list of free pages.
    let page = if is_on { 0.0 } else { 2.0 * profile.line[1] };
    let run = ScaleRun {
        machine: Machine { packages: 2, ..Machine::of_one_cache(ENA_CPUS / 2) },
        cpus: ENA_CPUS,
        receivers: ENA_CPUS,
        arrivals: Arrivals {
            queues: ENA_QUEUES,
            flows: super::FLOWS,
            kind: Flows::Uniform,
            bursts: None,
            per_second: ENA_PER_SECOND,
            seed: *seed,
        },
        steering: Steering::None,
        work: Work::Fixed(each - profile.receive + page),
        warm_up: Duration::from_millis(3) / *short,
        measured: Duration::from_millis(12) / *short,
        stretch: 1.0,
        backlog: BACKLOG,
        profile: profile.clone(),
    };
    let scaled = run.once()?;
    let gbits = scaled.per_second * 1500.0 * 8.0 / 1e9;
    let percent = 100.0 * scaled.cpus / ENA_CPUS as f64;
    Ok(Measurement::of("gbits", gbits).and("cpu_percent", percent).and("kpps", scaled.per_second / 1e3))
}

pub(super) fn plan(settings: &Settings) -> Experiment {
    let mut experiment = experiment("scale-seeds", settings);
    let with = With {
        profile: settings.simulation.profile.clone(),
        seed: settings.simulation.seed,
        short: if settings.ends_only { QUICK } else { 1 },
    };
    for row in STREAM_ROWS {
        let with = with.clone();
        experiment.case(row.series, None, 1, move || row.measure(&with));
    }
    let of_zhang = with.clone();
    experiment.case("16 queues, 8 CPUs collect for 8", None, 1, move || gain(&of_zhang));
    for (series, is_on) in [("128 queues, page cache off", false), ("128 queues, page cache on", true)] {
        let with = with.clone();
        experiment.case(series, None, 1, move || page_cache(is_on, &with));
    }
    experiment
}
