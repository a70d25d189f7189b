//! Shortens the names on the screen, so that they fit into their columns.

use std::time::Duration;

use serde::Deserialize;
use steerage::stats::QueueSnapshot;
use steerage_text::printable;

/// The maximum number of characters of a device's name that a narrow screen shows. The name of an
/// interface has at most 15 characters.
pub(crate) const DEVICE_CHARS: usize = 16;

/// Returns the name of a queue for a narrow screen.
pub(crate) fn queue(queue: &QueueSnapshot) -> String {
    queue_within(queue, DEVICE_CHARS)
}

/// Returns the name of a queue, with at most `device_chars` characters of its device's name.
pub(crate) fn queue_within(queue: &QueueSnapshot, device_chars: usize) -> String {
    format!("{} rx-{}", shortened(&queue.device, device_chars), queue.queue)
}

/// Returns a device's name in shortened form, without control characters.
pub(crate) fn shortened(name: &str, chars: usize) -> String {
    let name = printable(name);
    if name.chars().count() <= chars {
        return name;
    }
    name.chars().take(chars.saturating_sub(2)).chain("..".chars()).collect()
}

/// An active flow, with the columns that the screen shows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Flow {
    #[serde(flatten)]
    pub(crate) id: FlowId,
    last: String,
    packets: u64,
    bytes: u64,
    packets_back: u64,
    bytes_back: u64,
}

/// The fields that identify a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(crate) struct FlowId {
    first: String,
    pub(crate) kind: String,
    source: Option<String>,
    source_port: Option<u16>,
    destination: Option<String>,
    destination_port: Option<u16>,
}

impl Flow {
    /// Returns the number of packets of the flow in both directions.
    pub(crate) fn packets(&self) -> u64 {
        self.packets.saturating_add(self.packets_back)
    }

    /// Returns the number of bytes of the flow in both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.saturating_add(self.bytes_back)
    }

    /// Returns the time from the first packet of the flow to its last packet.
    pub(crate) fn duration(&self) -> Duration {
        let times = humantime::parse_rfc3339(&self.id.first).ok().zip(humantime::parse_rfc3339(&self.last).ok());
        times.and_then(|(first, last)| last.duration_since(first).ok()).unwrap_or_default()
    }
}

impl FlowId {
    /// Returns the source and the destination of the flow as text. The text of a source or
    /// destination is an address with a port, such as `10.0.0.1:80` or `[fd00::1]:80`, an address
    /// without a port, or `-`.
    pub(crate) fn ends(&self) -> [String; 2] {
        // The ports of an ICMP flow are not shown, because the port fields contain the ICMP
        // identifier.
        let has_ports = ["tcp", "udp", "sctp"].contains(&&*self.kind);
        let end = |address: &Option<String>, port: Option<u16>| match (
            address.as_deref().unwrap_or("-"),
            port.filter(|_| has_ports),
        ) {
            (address, None) => address.to_owned(),
            (address, Some(port)) if address.contains(':') => format!("[{address}]:{port}"),
            (address, Some(port)) => format!("{address}:{port}"),
        };
        [end(&self.source, self.source_port), end(&self.destination, self.destination_port)]
    }
}
