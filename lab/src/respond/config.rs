//! The configuration of a responder.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::Ipv4Net;

use steerage_router::addresses::{Mac, broadcast_of, is_of_a_host};

/// The maximum number of addresses: the limit of smoltcp's interface.
pub const ADDRESSES_MAX: usize = 8;

/// The port of the echo service: RFC 862.
pub use steerage::flow::wire::port::ECHO as ECHO_PORT;

/// The default limit of connections: a quarter of a peer's 65,536 ports. With default buffers,
/// 16,384 connections take up to 288 MiB.
pub const CONNECTIONS_DEFAULT: usize = 16_384;

/// By default, one peer may have 1 / `PEER_PART` of all connections. One peer alone cannot use up
/// all connections, but one load generator can have thousands.
const PEER_PART: usize = 4;

/// The default time without data from the peer after which a connection is reset.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(300);

/// The default buffer size in each direction: five Ethernet segments. With five segments, a
/// transfer does not stall if the peer acknowledges only every second segment.
pub const BUFFER_DEFAULT: usize = 8 * 1024;

/// A connection's maximum memory without buffers: the socket, and entries in tables and timers.
pub(super) const CONNECTION_OVERHEAD_BYTES: usize = 2048;

/// The minimum buffer size: two segments.
pub const BUFFER_MIN: usize = 3 * 1024;

/// The maximum buffer size. A SYN cookie has no space for the scale factor of TCP windows.
pub const BUFFER_MAX: usize = u16::MAX as usize;

/// The minimum MTU: RFC 8200, 5.
const MTU_MIN: usize = 1280;

/// The service at a TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Sends all received bytes back.
    Echo,
    /// Sends `response` bytes for every `request` received bytes, like netperf's TCP_RR. The sent
    /// bytes have the values 0 to 250, repeated.
    RequestResponse {
        /// The length of a request in bytes, at least 1.
        request: usize,
        /// The length of a response in bytes, which may be 0.
        response: usize,
    },
}

/// The configuration of a responder.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's addresses, which no other host may have.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) broadcasts: Vec<Ipv4Addr>,
    pub(super) mac: Mac,
    pub(super) mtu: usize,
    /// The ports of the echo service, for TCP and UDP.
    pub(super) echo: Vec<u16>,
    pub(super) services: Vec<(u16, Service)>,
    pub(super) connections_max: usize,
    pub(super) per_peer_max: Option<usize>,
    pub(super) idle: Duration,
    pub(super) buffer: usize,
    pub(super) verifies: bool,
}

/// An invalid configuration. The message is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Makes the configuration of a responder with the link address `mac`, on a link that carries
    /// IP packets of up to `mtu` bytes. The echo service has the port [`ECHO_PORT`] by default.
    ///
    /// # Errors
    /// Returns an error if `addresses` is empty or has more than [`ADDRESSES_MAX`] entries, if an
    /// address occurs twice or cannot belong to a host, if `mac` is a group address, or if IPv6
    /// does not allow the MTU.
    pub fn new(addresses: Vec<IpAddr>, mac: Mac, mtu: usize) -> Result<Self, ConfigError> {
        let wrong = |what: String| Err(ConfigError(what));
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            return wrong(format!("{} addresses: give 1 to {ADDRESSES_MAX}", addresses.len()));
        }
        for (nth, address) in addresses.iter().enumerate() {
            if addresses[..nth].contains(address) {
                return wrong(format!("{address} is given twice: give each address once"));
            }
            if !is_of_a_host(*address) {
                return wrong(format!("{address} is no address of a host on a link: give one of the link's network"));
            }
        }
        if mac[0] & 1 != 0 {
            return wrong("a link address of a group: clear the lowest bit of its first byte".to_owned());
        }
        if mtu < MTU_MIN {
            return wrong(format!("an MTU of {mtu} bytes: it must be at least {MTU_MIN}"));
        }
        let (echo, services) = (vec![ECHO_PORT], vec![(ECHO_PORT, Service::Echo)]);
        Ok(Self {
            addresses,
            broadcasts: Vec::new(),
            mac,
            // No network has a larger MTU than that of jumbo frames, and a TCP segment's length
            // must fit into 16 bits.
            mtu: mtu.min(9216),
            echo,
            services,
            connections_max: CONNECTIONS_DEFAULT,
            per_peer_max: None,
            idle: IDLE_DEFAULT,
            buffer: BUFFER_DEFAULT,
            verifies: true,
        })
    }

    /// Sets the networks of the link. Packets from broadcast addresses get no reply: no host has
    /// such an address (RFC 1122, 3.2.1.3), and the reply would reach all hosts.
    #[must_use]
    pub fn networks(mut self, networks: &[Ipv4Net]) -> Self {
        self.broadcasts.extend(networks.iter().filter_map(|network| broadcast_of(*network)));
        self
    }

    /// Sets the ports of the echo service, for TCP and UDP.
    #[must_use]
    pub fn echo(mut self, ports: &[u16]) -> Self {
        self.services.retain(|(_, service)| *service != Service::Echo);
        self.services.extend(ports.iter().map(|port| (*port, Service::Echo)));
        self.echo = ports.to_vec();
        self
    }

    /// Replies to requests of `request` bytes with responses of `response` bytes at `port`.
    ///
    /// # Errors
    /// Returns an error if a request has no bytes, or if the port is 0 or already has a service.
    pub fn request_response(mut self, port: u16, request: usize, response: usize) -> Result<Self, ConfigError> {
        if port == 0 || request == 0 {
            return Err(ConfigError("a port and a request are 1 at least".to_owned()));
        }
        if self.service(port).is_some() {
            return Err(ConfigError(format!("port {port} is given twice: each serves one thing")));
        }
        self.services.push((port, Service::RequestResponse { request, response }));
        Ok(self)
    }

    /// Limits the connections of all CPUs together. A connection above the limit is reset.
    #[must_use]
    pub fn connections_max(mut self, most: usize) -> Self {
        self.connections_max = most.max(1);
        self
    }

    /// Limits the connections of one peer (an IPv4 address, or a /64 prefix of IPv6). A connection
    /// above the limit is reset. By default, a peer may have a quarter of all connections.
    #[must_use]
    pub fn per_peer_max(mut self, most: usize) -> Self {
        self.per_peer_max = Some(most.max(1));
        self
    }

    /// Sets the time without packets from the peer after which a connection is reset.
    #[must_use]
    pub fn idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// Sets the buffer size in each direction, in bytes: [`BUFFER_MIN`] to [`BUFFER_MAX`].
    #[must_use]
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.buffer = bytes.clamp(BUFFER_MIN, BUFFER_MAX);
        self
    }

    /// Sets whether the checksums of received packets are verified. Packets from the other end of a
    /// veth have no checksums.
    #[must_use]
    pub fn verifies(mut self, yes: bool) -> Self {
        self.verifies = yes;
        self
    }

    /// Returns the maximum number of connections.
    pub fn connections_most(&self) -> usize {
        self.connections_max
    }

    /// Returns the maximum number of connections of one peer.
    pub fn per_peer_most(&self) -> usize {
        self.per_peer_max.unwrap_or(self.connections_max / PEER_PART).clamp(1, self.connections_max)
    }

    /// Returns the maximum memory of one connection, in bytes.
    pub fn connection_bytes(&self) -> usize {
        2 * self.buffer + CONNECTION_OVERHEAD_BYTES
    }

    /// Returns the maximum memory of all connections together, in bytes.
    pub fn memory_max(&self) -> usize {
        self.connections_max.saturating_mul(self.connection_bytes())
    }

    #[inline]
    pub(super) fn local(&self, address: IpAddr) -> Option<u8> {
        self.addresses.iter().position(|ours| *ours == address).map(|nth| nth as u8)
    }

    #[inline]
    pub(super) fn service(&self, port: u16) -> Option<Service> {
        self.services.iter().find(|(served, _)| *served == port).map(|(_, service)| *service)
    }
}
