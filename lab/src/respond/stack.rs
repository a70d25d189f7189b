//! Connects the responder with smoltcp. Each CPU has one smoltcp interface. Each connection has its
//! own socket set with one socket, because smoltcp searches a socket set from its beginning for
//! each packet. The interface stores no state of connections, so connections can move to another
//! CPU.
//!
//! smoltcp handles only IP packets. The caller writes the link addresses. The caller also writes
//! the TCP checksums, because they include the sequence number, which the caller shifts (see
//! [`Connection`]).
//!
//! [`Connection`]: super::connection::Connection

use std::net::IpAddr;

use smoltcp::iface::{Config as InterfaceConfig, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use steerage::Timestamp;
use steerage::flow::wire::{IpHeader, ipv4, ipv6, protocol, tcp};

use super::config::Config;
use super::packet::Key;

/// The maximum number of segments in reply to one segment: as many Ethernet segments as the largest
/// buffer fills, plus one. Further replies follow with the next received segment or tick (timer
/// call).
const REPLIES_MAX: usize = 48;

#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    at: usize,
    room: usize,
}

impl Replies {
    /// Reserves `at` bytes for a link header in front of each of at most `room` replies.
    pub(super) fn begin(&mut self, at: usize, room: usize) {
        self.bytes.clear();
        self.ends.clear();
        (self.at, self.room) = (at, room.min(REPLIES_MAX));
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn frame(&mut self, nth: usize) -> &mut [u8] {
        let start = nth.checked_sub(1).map_or(0, |before| self.ends[before]);
        &mut self.bytes[start..self.ends[nth]]
    }
}

/// The device of a smoltcp interface during one poll: at most one packet in, and replies out.
struct Wire<'a> {
    input: Option<&'a [u8]>,
    replies: &'a mut Replies,
    mtu: usize,
}

struct Incoming<'a>(&'a [u8]);
struct Outgoing<'a>(&'a mut Replies);

impl RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let start = self.0.bytes.len() + self.0.at;
        self.0.bytes.resize(start + len, 0);
        self.0.ends.push(start + len);
        f(&mut self.0.bytes[start..])
    }
}

impl Device for Wire<'_> {
    type RxToken<'t>
        = Incoming<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Outgoing<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        Some((Incoming(self.input.take()?), Outgoing(self.replies)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_>> {
        (self.replies.len() < self.replies.room).then_some(Outgoing(self.replies))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::ignored();
        checksum.ipv4 = Checksum::Tx;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities.checksum = checksum;
        capabilities
    }
}

pub(super) struct Stack {
    interface: Interface,
    mtu: usize,
    pub(super) replies: Replies,
    segment: Vec<u8>,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stack")
    }
}

/// smoltcp measures time in microseconds.
fn instant(now: Timestamp) -> Instant {
    Instant::from_micros((now.as_nanos() / 1000) as i64)
}

impl Stack {
    pub(super) fn new(config: &Config) -> Self {
        let mut replies = Replies::default();
        let mut wire = Wire { input: None, replies: &mut replies, mtu: config.mtu };
        let mut interface = Interface::new(InterfaceConfig::new(HardwareAddress::Ip), &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            for address in &config.addresses {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                // Cannot fail: `Config::new` limits the number of addresses.
                let _ = addresses.push(IpCidr::new((*address).into(), bits));
            }
        });
        Self { interface, mtu: config.mtu, replies, segment: Vec::new() }
    }

    /// Stores a changed copy of an IP packet for [`put_in`](Self::put_in).
    pub(super) fn take_up(&mut self, packet: &[u8], change: impl FnOnce(&mut [u8])) {
        self.segment.clear();
        self.segment.extend_from_slice(packet);
        change(&mut self.segment);
    }

    /// Rebuilds the peer's SYN, and stores it for [`put_in`](Self::put_in).
    pub(super) fn take_up_syn(&mut self, key: &Key, ours: IpAddr, sequence: u32, mss: u16, window: u16) {
        let mss = [2, 4, mss.to_be_bytes()[0], mss.to_be_bytes()[1]];
        self.take_up_header(key, ours, (sequence, 0), (tcp::SYN, window), &mss);
    }

    /// Stores a segment for [`put_in`](Self::put_in) that acknowledges bytes that were never sent.
    /// The socket replies with a challenge ACK, at most once per second (RFC 5961, 5.2 and 7).
    pub(super) fn take_up_unacceptable(&mut self, key: &Key, ours: IpAddr, acknowledged: u32) {
        self.take_up_header(key, ours, (0, acknowledged), (tcp::ACK, 0), &[]);
    }

    fn take_up_header(
        &mut self,
        key: &Key,
        ours: IpAddr,
        (sequence, acknowledged): (u32, u32),
        (flags, window): (u16, u16),
        options: &[u8],
    ) {
        let segment = &mut self.segment;
        segment.clear();
        let bytes = tcp::BYTES + options.len();
        let ip = IpHeader::new(key.peer(), ours, protocol::TCP);
        segment.resize(ip.bytes(), 0);
        ip.write(segment, bytes).expect("both ends have addresses of one version");
        for port in [key.remote_port, key.local_port] {
            segment.extend_from_slice(&port.to_be_bytes());
        }
        segment.extend_from_slice(&sequence.to_be_bytes());
        segment.extend_from_slice(&acknowledged.to_be_bytes());
        segment.extend_from_slice(&((bytes as u16 / 4) << 12 | flags).to_be_bytes());
        segment.extend_from_slice(&window.to_be_bytes());
        segment.extend_from_slice(&[0; 4]);
        segment.extend_from_slice(options);
    }

    pub(super) fn put_in(&mut self, sockets: &mut SocketSet<'static>, now: Timestamp) {
        let mut wire = Wire { input: Some(&self.segment), replies: &mut self.replies, mtu: self.mtu };
        let _: PollIngressSingleResult = self.interface.poll_ingress_single(instant(now), &mut wire, sockets);
    }

    pub(super) fn take_out(&mut self, sockets: &mut SocketSet<'static>, now: Timestamp) {
        let mut wire = Wire { input: None, replies: &mut self.replies, mtu: self.mtu };
        while self.interface.poll_egress(instant(now), &mut wire, sockets) == PollResult::SocketStateChanged {}
    }

    pub(super) fn due(&mut self, sockets: &SocketSet<'static>, now: Timestamp) -> Option<Timestamp> {
        let at = self.interface.poll_at(instant(now), sockets)?;
        Some(Timestamp::from_nanos((at.total_micros().max(0) as u64).saturating_mul(1000)))
    }
}

pub(super) fn headers(is_v4: bool) -> usize {
    tcp::BYTES + if is_v4 { ipv4::BYTES } else { ipv6::BYTES }
}
