//! The JSON report of an instance (docs/report.md), as far as the screen shows it. Unknown keys are
//! skipped, and keys that an older program does not have get default values.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::terminal::printable;

/// Counts of packets or buckets, by reason or cause.
pub(super) type ByName = BTreeMap<String, u64>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Snapshot {
    pub(super) version: String,
    /// When the run began. A different time means a different run.
    pub(super) started: String,
    /// The seconds since the run began.
    pub(super) seconds: f64,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) delivered: u64,
    pub(super) dropped: ByName,
    pub(super) in_flight: u64,
    pub(super) reordered: Option<u64>,
    pub(super) queues: Vec<Queue>,
    pub(super) cpus: Vec<Cpu>,
    pub(super) outputs: Vec<Output>,
    pub(super) flows: Option<Flows>,
    pub(super) moves: Moves,
    pub(super) memory: Memory,
    pub(super) steering: Vec<Steering>,
    /// The parts that this user may not see.
    pub(super) withheld: Vec<String>,
}

impl Snapshot {
    /// The longest measured distance between CPUs of a steering group, in nanoseconds: from the receiver to the CPU
    /// that joined last or is next.
    pub(super) fn apart_ns(&self) -> Option<u64> {
        self.steering.iter().filter_map(|group| group.apart_ns).max()
    }
}

/// A steering group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Steering {
    apart_ns: Option<u64>,
    pub(super) reason: Option<String>,
    /// The value of each regime, with the current one first.
    pub(super) regimes: Vec<Regime>,
}

/// The value of a regime.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Regime {
    pub(super) regime: String,
    pub(super) cpus: usize,
    /// The value in packets per second.
    pub(super) rate: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Queue {
    pub(super) device: String,
    pub(super) queue: u64,
    pub(super) cpu: u16,
    pub(super) hash: String,
    pub(super) received: u64,
    pub(super) dropped: ByName,
    pub(super) rps_cpus_list: String,
    pub(super) pool: Pool,
}

impl Queue {
    /// The name on the screen: short enough for the columns beside it.
    pub(super) fn name(&self) -> String {
        format!("{} rx-{}", shortened(&self.device, DEVICE_CHARS), self.queue)
    }
}

/// The most characters of a device's name that are shown. Names of interfaces have at most 15.
const DEVICE_CHARS: usize = 16;

/// A device's name, shortened and without control characters.
pub(super) fn shortened(name: &str, chars: usize) -> String {
    let name = printable(name);
    if name.chars().count() <= chars {
        return name;
    }
    name.chars().take(chars.saturating_sub(2)).chain("..".chars()).collect()
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pool {
    pub(super) alloc_fast: u64,
    pub(super) alloc_slow: u64,
    pub(super) alloc_empty: u64,
}

impl Pool {
    /// The number of pages that were asked for.
    pub(super) fn wanted(&self) -> u64 {
        self.alloc_fast + self.alloc_slow + self.alloc_empty
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Cpu {
    pub(super) cpu: u16,
    pub(super) processed: u64,
    pub(super) inline: u64,
    pub(super) dropped: ByName,
    pub(super) busy_seconds: f64,
    pub(super) backlog: u64,
    pub(super) wakes_received: u64,
    pub(super) panics: u64,
    pub(super) deaths: u64,
    /// How long the CPU's packet function has been running without returning. It is 0 if the
    /// function is not running.
    pub(super) handler_seconds: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Output {
    pub(super) device: String,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) dropped: ByName,
    pub(super) held: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flows {
    pub(super) active: u64,
    pub(super) total: u64,
    pub(super) evicted: u64,
    pub(super) lost: u64,
    pub(super) top: Option<Vec<Flow>>,
}

/// An active flow, with its counts at the last scan.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flow {
    kind: String,
    source: Option<String>,
    source_port: Option<u16>,
    destination: Option<String>,
    destination_port: Option<u16>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) packets_back: u64,
    pub(super) bytes_back: u64,
}

impl Flow {
    /// `udp 10.0.0.1:5 > 10.0.0.2:80`.
    pub(super) fn name(&self) -> String {
        let end = |address: &Option<String>, port: Option<u16>| match (address.as_deref().unwrap_or("?"), port) {
            (address, None) => address.to_owned(),
            (address, Some(port)) if address.contains(':') => format!("[{address}]:{port}"),
            (address, Some(port)) => format!("{address}:{port}"),
        };
        let ends = [end(&self.source, self.source_port), end(&self.destination, self.destination_port)];
        format!("{} {} > {}", self.kind, ends[0], ends[1])
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Moves {
    pub(super) buckets: u64,
    pub(super) by_cause: ByName,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) pages: u64,
    pub(super) pages_free: u64,
}
