//! Writes a frame of a conversation, with its headers and checksums.

use super::super::frame::{
    ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IPV4_BYTES, IPV6_BYTES, PROTOCOL_TCP, PROTOCOL_UDP,
    TCP_BYTES, UDP_BYTES, VLAN_BYTES, checksum, put, sum,
};
use super::data::{Data, site_v4, site_v6};

/// The longest frame in bytes: an MTU of 1500, an Ethernet header and a VLAN tag.
pub(super) const FRAME_BYTES_MAX: usize = 1500 + ETHERNET_BYTES + VLAN_BYTES;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

/// The length of the TCP options in a SYN: MSS, window scale, selective acknowledgements, and
/// padding.
const SYN_OPTIONS: usize = 12;
const WINDOW_SCALE: u8 = 7;
/// The window of a SYN, which is never scaled. The next one is about the same window, scaled.
const WINDOW: u16 = 64_240;
const WINDOW_SCALED: u16 = WINDOW >> WINDOW_SCALE;

/// The hop limits of arriving frames: those of clients, and those of other hosts.
const HOPS_NEAR: u8 = 64;
const HOPS_FAR: u8 = 52;

/// The network through which a frame passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) v6: bool,
    pub(super) vlan: Option<u16>,
}

/// The sender or the receiver of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Host {
    /// A client of the office, by its number.
    Client(u8),
    /// The resolver, behind the router.
    Resolver,
    /// A site, by its number, behind the router.
    Site(u8),
}

impl Host {
    /// The MAC address, which is locally administered. Hosts behind the router have the router's
    /// address.
    fn mac(self) -> [u8; 6] {
        match self {
            Self::Client(number) => [2, 0, 0, 0, 1, number],
            Self::Resolver | Self::Site(_) => [2, 0, 0, 0, 0, 1],
        }
    }

    /// The IPv4 address. The network of a client contains the number of its VLAN.
    fn v4(self, vlan: u8) -> [u8; 4] {
        match self {
            Self::Client(number) => [10, 20, vlan, 10 + number],
            Self::Resolver => [192, 0, 2, 53],
            Self::Site(site) => site_v4(site),
        }
    }

    fn v6(self, vlan: u8) -> [u8; 16] {
        match self {
            Self::Client(number) => [0x20, 0x01, 0x0d, 0xb8, 0, 0x20, 0, vlan, 0, 0, 0, 0, 0, 0, 0, 10 + number],
            Self::Resolver => [0x20, 0x01, 0x0d, 0xb8, 0, 0x53, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x53],
            Self::Site(site) => site_v6(site),
        }
    }

    fn hops(self) -> u8 {
        if matches!(self, Self::Client(_)) { HOPS_NEAR } else { HOPS_FAR }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    Udp,
    Tcp { sequence: u32, acknowledged: u32, flags: u8, mss: u16 },
}

impl Transport {
    fn protocol(self) -> u8 {
        if matches!(self, Self::Udp) { PROTOCOL_UDP } else { PROTOCOL_TCP }
    }

    fn header_bytes(self) -> usize {
        match self {
            Self::Udp => UDP_BYTES,
            Self::Tcp { flags, .. } => TCP_BYTES + if flags & SYN != 0 { SYN_OPTIONS } else { 0 },
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) line: Line,
    /// The sender and its port. The next field is the receiver and its port.
    pub(super) from: (Host, u16),
    pub(super) to: (Host, u16),
    pub(super) transport: Transport,
    pub(super) data: Data,
}

impl Frame {
    /// Writes the frame. Returns its length, which is at most [`FRAME_BYTES_MAX`]. `to` must have
    /// room for that.
    pub(super) fn write(&self, to: &mut [u8]) -> usize {
        let l3 = ETHERNET_BYTES + if self.line.vlan.is_some() { VLAN_BYTES } else { 0 };
        let l4 = l3 + if self.line.v6 { IPV6_BYTES } else { IPV4_BYTES };
        let data = l4 + self.transport.header_bytes();
        let len = data + self.data.len();
        let frame = &mut to[..len];
        frame[..data].fill(0);
        self.data.write(&mut frame[data..]);
        self.write_ethernet(&mut frame[..l3]);
        let addresses = self.write_ip(&mut frame[l3..l4], len - l4);
        let pseudo = addresses + u64::from(self.transport.protocol()) + (len - l4) as u64;
        self.write_transport(&mut frame[l4..], pseudo);
        len
    }

    fn write_ethernet(&self, to: &mut [u8]) {
        put(to, 0, self.to.0.mac());
        put(to, 6, self.from.0.mac());
        if let Some(vlan) = self.line.vlan {
            put(to, 12, ETHERTYPE_VLAN.to_be_bytes());
            put(to, 14, vlan.to_be_bytes());
        }
        let ethertype = if self.line.v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
        put(to, to.len() - 2, ethertype.to_be_bytes());
    }

    /// Writes the IP header. Returns the sum of the addresses for the checksum. `len` is the length
    /// of the data after the header.
    fn write_ip(&self, to: &mut [u8], len: usize) -> u64 {
        let vlan = self.line.vlan.unwrap_or(0) as u8;
        if self.line.v6 {
            to[0] = 0x60;
            put(to, 4, (len as u16).to_be_bytes());
            to[6] = self.transport.protocol();
            to[7] = self.from.0.hops();
            put(to, 8, self.from.0.v6(vlan));
            put(to, 24, self.to.0.v6(vlan));
            return sum(&to[8..]);
        }
        to[0] = 0x45;
        put(to, 2, ((to.len() + len) as u16).to_be_bytes());
        // With "don't fragment", all packets may have the same identification (RFC 6864).
        put(to, 6, 0x4000_u16.to_be_bytes());
        to[8] = self.from.0.hops();
        to[9] = self.transport.protocol();
        put(to, 12, self.from.0.v4(vlan));
        put(to, 16, self.to.0.v4(vlan));
        put(to, 10, checksum(sum(to)).to_be_bytes());
        sum(&to[12..])
    }

    /// Writes the transport header to `to`, which contains the data already. `pseudo` is the sum of
    /// the pseudo header.
    fn write_transport(&self, to: &mut [u8], pseudo: u64) {
        put(to, 0, self.from.1.to_be_bytes());
        put(to, 2, self.to.1.to_be_bytes());
        match self.transport {
            Transport::Udp => {
                put(to, 4, (to.len() as u16).to_be_bytes());
                // 0 means "no checksum" in UDP (RFC 768), so the equivalent value is sent instead.
                let sum = match checksum(pseudo + sum(to)) {
                    0 => 0xffff,
                    other => other,
                };
                put(to, 6, sum.to_be_bytes());
            }
            Transport::Tcp { sequence, acknowledged, flags, mss } => {
                put(to, 4, sequence.to_be_bytes());
                put(to, 8, acknowledged.to_be_bytes());
                to[12] = (self.transport.header_bytes() as u8 / 4) << 4;
                to[13] = flags;
                put(to, 14, WINDOW_SCALED.to_be_bytes());
                if flags & SYN != 0 {
                    put(to, 14, WINDOW.to_be_bytes());
                    let [high, low] = mss.to_be_bytes();
                    put(to, TCP_BYTES, [2, 4, high, low, 1, 3, 3, WINDOW_SCALE, 1, 1, 4, 2]);
                }
                put(to, 16, checksum(pseudo + sum(to)).to_be_bytes());
            }
        }
    }
}
