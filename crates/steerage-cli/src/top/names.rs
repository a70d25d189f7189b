//! Names on the screen: short enough that the other columns fit.

use serde::Deserialize;
use steerage::stats::QueueSnapshot;

use crate::terminal::printable;

/// The maximum number of characters of a device's name that are shown. Names of interfaces have at
/// most 15.
const DEVICE_CHARS: usize = 16;

/// The name of a queue.
pub(super) fn queue(queue: &QueueSnapshot) -> String {
    format!("{} rx-{}", shortened(&queue.device, DEVICE_CHARS), queue.queue)
}

/// A device's name, shortened and without control characters.
pub(super) fn shortened(name: &str, chars: usize) -> String {
    let name = printable(name);
    if name.chars().count() <= chars {
        return name;
    }
    name.chars().take(chars.saturating_sub(2)).chain("..".chars()).collect()
}

/// The columns of an active flow that the screen shows.
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
