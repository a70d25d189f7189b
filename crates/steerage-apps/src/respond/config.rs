//! What a responder is to be.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::Ipv4Net;

use crate::addresses::{Mac, broadcast_of, is_of_a_host};

/// The most addresses: so many an interface of smoltcp is built for.
pub const ADDRESSES_MAX: usize = 8;

/// The port of the echo service: RFC 862.
pub const ECHO_PORT: u16 = 7;

/// How many connections there may be, unless it is said: a quarter of the ports of one peer, and 272 MiB.
pub const CONNECTIONS_DEFAULT: usize = 16_384;

/// How long a peer may say nothing, unless it is said. An idle connection costs memory and little else.
pub const IDLE_DEFAULT: Duration = Duration::from_secs(300);

/// Each connection's buffer in each direction: five segments of Ethernet, so that a peer whose acknowledgements are for every
/// second segment does not stand still.
pub const BUFFER_DEFAULT: usize = 8 * 1024;

/// The most memory that a connection takes besides its two buffers: its socket, and its entries in tables and timers.
pub(super) const CONNECTION_OVERHEAD_BYTES: usize = 2048;

/// The least: two segments.
pub const BUFFER_MIN: usize = 3 * 1024;

/// The most: windows are not scaled, since a cookie has no room to note by how much.
pub const BUFFER_MAX: usize = u16::MAX as usize;

/// The least MTU: RFC 8200, 5.
const MTU_MIN: usize = 1280;

/// What is served at a port by TCP.
/// [`Responding`](super::Responding) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// All comes back.
    Echo,
    /// For each `request` bytes `response` bytes, 0 to 250 again and again: netperf's TCP_RR.
    RequestResponse {
        /// At least 1.
        request: usize,
        /// None at all, or more.
        response: usize,
    },
}

/// What a responder is to be.
/// [`Responding`](super::Responding) has an example.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses that it answers for, which are nobody else's.
    pub(super) addresses: Vec<IpAddr>,
    /// The broadcast addresses of the link's networks.
    pub(super) broadcasts: Vec<Ipv4Addr>,
    pub(super) mac: Mac,
    pub(super) mtu: usize,
    /// Ports of the echo service, of TCP and UDP.
    pub(super) echo: Vec<u16>,
    pub(super) services: Vec<(u16, Service)>,
    pub(super) connections_max: usize,
    pub(super) idle: Duration,
    pub(super) buffer: usize,
    pub(super) verifies: bool,
}

/// What cannot be: a line that says so.
/// [`Responding`](super::Responding) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// One that answers for `addresses` at the link address `mac`, on a link that carries IP packets of up to `mtu` bytes. It
    /// serves echo at port [`ECHO_PORT`] unless [`echo`](Self::echo) says otherwise.
    ///
    /// # Errors
    /// For no address, more than [`ADDRESSES_MAX`], one that is there twice or that no host can have, a link address of a
    /// group, and an MTU that IPv6 does not allow.
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
            // A TCP segment's length has 16 bits, and more than jumbo frames nobody sends.
            mtu: mtu.min(9216),
            echo,
            services,
            connections_max: CONNECTIONS_DEFAULT,
            idle: IDLE_DEFAULT,
            buffer: BUFFER_DEFAULT,
            verifies: true,
        })
    }

    /// The link's networks. What comes from the broadcast address of one of them is not answered: nobody has it (RFC 1122,
    /// 3.2.1.3), and the answer would go to everybody.
    #[must_use]
    pub fn networks(mut self, networks: &[Ipv4Net]) -> Self {
        self.broadcasts.extend(networks.iter().filter_map(|network| broadcast_of(*network)));
        self
    }

    /// Serves echo at these ports, by TCP and UDP.
    #[must_use]
    pub fn echo(mut self, ports: &[u16]) -> Self {
        self.services.retain(|(_, service)| *service != Service::Echo);
        self.services.extend(ports.iter().map(|port| (*port, Service::Echo)));
        self.echo = ports.to_vec();
        self
    }

    /// Answers requests of `request` bytes by responses of `response` bytes at `port`.
    ///
    /// # Errors
    /// For requests of no byte, port 0, and a port that is served already.
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

    /// At most so many connections at a time, of all CPUs; what would be one more is reset.
    #[must_use]
    pub fn connections_max(mut self, most: usize) -> Self {
        self.connections_max = most.max(1);
        self
    }

    /// A peer of which nothing was heard for so long has its connection reset.
    #[must_use]
    pub fn idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// Each connection's buffer in each direction, in bytes: [`BUFFER_MIN`] to [`BUFFER_MAX`].
    #[must_use]
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.buffer = bytes.clamp(BUFFER_MIN, BUFFER_MAX);
        self
    }

    /// Whether checksums of what comes are looked at. They have to be, but where it is known that they are left out, as at the
    /// other end of a veth.
    #[must_use]
    pub fn verifies(mut self, yes: bool) -> Self {
        self.verifies = yes;
        self
    }

    /// How many connections there can be.
    pub fn connections_most(&self) -> usize {
        self.connections_max
    }

    /// Bytes that one connection takes at most, and so all of them times [`connections_max`](Self::connections_max).
    pub fn connection_bytes(&self) -> usize {
        2 * self.buffer + CONNECTION_OVERHEAD_BYTES
    }

    /// The most bytes that connections take together.
    pub fn memory_max(&self) -> usize {
        self.connections_max.saturating_mul(self.connection_bytes())
    }

    /// Which of the addresses it is.
    #[inline]
    pub(super) fn local(&self, address: IpAddr) -> Option<u8> {
        self.addresses.iter().position(|ours| *ours == address).map(|nth| nth as u8)
    }

    #[inline]
    pub(super) fn service(&self, port: u16) -> Option<Service> {
        self.services.iter().find(|(served, _)| *served == port).map(|(_, service)| *service)
    }
}
