use std::time::Duration;

use serde::Deserialize;
use steerage::stats::QueueSnapshot;
use steerage_text::printable;

/// The width of a device's name on a narrow screen, in characters. The name of an interface has at
/// most 15 characters.
pub(crate) const DEVICE_CHARS: usize = 16;

pub(crate) fn queue(queue: &QueueSnapshot) -> String {
    queue_within(queue, DEVICE_CHARS)
}

/// Returns the name of a queue, in which the device's name is shortened to `device_chars`
/// characters.
pub(crate) fn queue_within(queue: &QueueSnapshot, device_chars: usize) -> String {
    format!("{} rx-{}", shortened(&queue.device, device_chars), queue.queue)
}

/// Shortens a name to `chars` characters. Also removes control characters.
pub(crate) fn shortened(name: &str, chars: usize) -> String {
    let name = printable(name);
    if name.chars().count() <= chars {
        return name;
    }
    name.chars().take(chars.saturating_sub(2)).chain("..".chars()).collect()
}

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
    pub(crate) fn packets(&self) -> u64 {
        self.packets.saturating_add(self.packets_back)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.saturating_add(self.bytes_back)
    }

    pub(crate) fn duration(&self) -> Duration {
        let times = humantime::parse_rfc3339(&self.id.first).ok().zip(humantime::parse_rfc3339(&self.last).ok());
        times.and_then(|(first, last)| last.duration_since(first).ok()).unwrap_or_default()
    }
}

impl FlowId {
    /// Returns the source and the destination of a flow. Each end of a flow is an address with a
    /// port, such as `10.0.0.1:80` or `[fd00::1]:80`, an address without a port, or `-`.
    pub(crate) fn ends(&self) -> [String; 2] {
        // The port fields of an ICMP flow contain the ICMP identifier.
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
