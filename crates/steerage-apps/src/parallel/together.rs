use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use steerage::FlowKey;
use steerage::flow::FlowParts;

/// The rule that decides which packets go to the same job.
///
/// ```
/// use steerage::FlowKey;
/// use steerage_apps::parallel::Together;
///
/// let control: FlowKey = "tcp 10.0.0.1:40000 > 10.0.0.2:21".parse()?;
/// let data: FlowKey = "tcp 10.0.0.2:20 > 10.0.0.1:40001".parse()?;
/// assert_eq!(Together::Hosts.key(control), Together::Hosts.key(data));
/// assert_ne!(Together::Flow.key(control), Together::Flow.key(data));
/// assert_ne!(Together::Source.key(control), Together::Source.key(data));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Together {
    /// All packets of a flow, in both directions.
    #[default]
    Flow,
    /// All flows between two addresses, for protocols with several connections, such as FTP and
    /// SIP.
    Hosts,
    /// All packets from one source address.
    Source,
    /// All packets to one destination address.
    Destination,
}

impl Together {
    /// All choices with their names.
    pub const ALL: [(&str, Self); 4] =
        [("flow", Self::Flow), ("hosts", Self::Hosts), ("source", Self::Source), ("destination", Self::Destination)];

    /// Returns the part of a packet's flow that determines the packet's job. The source of the flow
    /// must be the packet's source, and the destination of the flow the packet's destination.
    #[must_use]
    pub fn key(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::Flow => flow.both_directions(),
            Self::Hosts => hosts(flow, true, true).both_directions(),
            Self::Source => hosts(flow, true, false),
            Self::Destination => hosts(flow, false, true),
        }
    }
}

fn hosts(flow: FlowKey, source: bool, destination: bool) -> FlowKey {
    let (Some(from), Some(to)) = (flow.source(), flow.destination()) else {
        return match flow.parts() {
            FlowParts::Link { source: from, destination: to, .. } => {
                let none = [0; 6];
                FlowKey::link(if source { from } else { none }, if destination { to } else { none }, 0)
            }
            _ => flow,
        };
    };
    let none = match from {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let end = |wanted: bool, end: SocketAddr| SocketAddr::new(if wanted { end.ip() } else { none }, 0);
    FlowKey::between(end(source, from), end(destination, to), 0).unwrap_or(flow)
}

/// The error for a name that is not the name of any [`Together`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write flow, hosts, source or destination")]
pub struct UnknownTogether;

impl FromStr for Together {
    type Err = UnknownTogether;

    fn from_str(text: &str) -> Result<Self, UnknownTogether> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, together)| *together).ok_or(UnknownTogether)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(together: Together, flow: &str) -> FlowKey {
        together.key(flow.parse().unwrap())
    }

    #[test]
    fn what_is_together_has_one_key() {
        let (web, back) = ("tcp 10.0.0.1:40000 > 10.0.0.2:80", "tcp 10.0.0.2:80 > 10.0.0.1:40000");
        let (dns, elsewhere) = ("udp 10.0.0.1:5353 > 10.0.0.2:53", "tcp 10.0.0.1:40000 > 10.0.0.3:80");
        assert_eq!(key(Together::Flow, web), key(Together::Flow, back));
        assert_ne!(key(Together::Flow, web), key(Together::Flow, dns));
        assert_eq!(key(Together::Hosts, web), key(Together::Hosts, dns));
        assert_eq!(key(Together::Hosts, web), key(Together::Hosts, back));
        assert_ne!(key(Together::Hosts, web), key(Together::Hosts, elsewhere));
        assert_eq!(key(Together::Source, web), key(Together::Source, elsewhere));
        assert_ne!(key(Together::Source, web), key(Together::Source, back));
        assert_eq!(key(Together::Destination, web), key(Together::Destination, dns));
        assert_ne!(key(Together::Destination, web), key(Together::Destination, elsewhere));
        let v6 = "tcp [2001:db8::1]:1 > [2001:db8::2]:2";
        assert_eq!(key(Together::Source, v6), key(Together::Source, "udp [2001:db8::1]:9 > [2001:db8::7]:2"));
    }

    #[test]
    fn frames_without_ip_go_by_their_link_addresses() {
        let (one, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let (arp, back) = (FlowKey::link(one, other, 0x806), FlowKey::link(other, one, 0x88cc));
        assert_eq!(Together::Hosts.key(arp), Together::Hosts.key(back));
        assert_ne!(Together::Source.key(arp), Together::Source.key(back));
        assert_eq!(Together::Source.key(arp), Together::Source.key(FlowKey::link(one, [9; 6], 0x806)));
    }
}
