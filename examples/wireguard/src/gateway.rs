//! The packet function of the gateway. The gateway encrypts ("seals") packets for peers, and
//! decrypts ("opens") the messages that peers send.
//!
//! All packets of a peer have the same flow hash, and therefore the same bucket. The CPU that has a
//! peer's bucket also has the state of the peer, which moves with the bucket. Therefore a peer's
//! state needs no lock. On any number of CPUs, the packets of a peer are sent in the order of
//! WireGuard's packet counter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use boringtun::noise::{Tunn, TunnResult};
use steerage::flow::wire::{IpHeader, ipv4, ipv6, protocol, put, udp};
use steerage::{Batch, BucketId, Cpu, Handler, InputId, LinkType, Packet, Timestamp, TxId};

use crate::network::{Network, PeerId, Sender, datagram, newborn};

/// The interval at which the timers of peers are checked, for keepalives, new handshakes and
/// expiry.
const TIMERS_EVERY: Duration = Duration::from_millis(250);

/// The length of the longest headers in front of a WireGuard message: IPv6 and UDP.
const HEADERS_BYTES: usize = ipv6::BYTES + udp::BYTES;

/// The length of the longest WireGuard message: the payload of the longest UDP datagram.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// The state of a peer. When the peer's bucket moves to another CPU, the state of the peer moves
/// too.
pub(crate) struct Peer {
    pub(crate) tunnel: Tunn,
    /// The source address of the last authentic message from the peer.
    endpoint: Option<SocketAddr>,
}

impl Peer {
    /// Makes the state of a peer. The peer has no session yet.
    pub(crate) fn new(network: &Network, id: PeerId) -> Self {
        Self { tunnel: network.tunnel(id), endpoint: network.peers[id].endpoint }
    }
}

/// The IDs of the gateway's input and output devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Devices {
    /// The input that receives packets from the inner network (the TUN). Inputs other than the TUN
    /// receive packets from the outer network.
    pub(crate) inside: InputId,
    pub(crate) to_inside: TxId,
    pub(crate) to_outside: TxId,
}

/// Counts packets and messages by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets from the inner network that were encrypted.
    pub(crate) sealed: u64,
    /// Packets from the outer network that were decrypted.
    pub(crate) opened: u64,
    /// Packets that belong to no peer.
    pub(crate) no_peer: u64,
    /// Packets for a peer whose address is not known yet.
    pub(crate) no_endpoint: u64,
    /// Messages that are not authentic, or that repeat an earlier message.
    pub(crate) refused: u64,
    /// Decrypted packets from an inner address that their peer may not use.
    pub(crate) not_allowed: u64,
    /// Packets that arrived on a CPU that does not have the state of their peer.
    pub(crate) strayed: u64,
    /// Packets that were dropped because the output had no free space.
    pub(crate) no_room: u64,
    /// Packets and messages that arrived as part of a super-frame (merged with other packets), and
    /// that also count by their outcome, such as `sealed` or `opened`.
    pub(crate) merged: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.sealed += other.sealed;
        self.opened += other.opened;
        self.no_peer += other.no_peer;
        self.no_endpoint += other.no_endpoint;
        self.refused += other.refused;
        self.not_allowed += other.not_allowed;
        self.strayed += other.strayed;
        self.no_room += other.no_room;
        self.merged += other.merged;
    }
}

/// The function that makes the state of a peer when a CPU needs this state for the first time.
pub(crate) type MakePeer = Box<dyn FnMut(PeerId) -> Peer + Send>;

/// The packet function of one CPU, with the state of the peers on this CPU.
pub(crate) struct Gateway {
    network: Arc<Network>,
    devices: Devices,
    make: MakePeer,
    /// The state of the peers whose buckets are on this CPU.
    peers: Vec<Option<Box<Peer>>>,
    /// The buffer into which a packet from the inner network is copied, so that it is contiguous.
    plain: Box<[u8]>,
    out: Out,
}

impl Gateway {
    pub(crate) fn new(network: Arc<Network>, devices: Devices, make: MakePeer) -> Self {
        let peers = network.peers.iter().map(|_| None).collect();
        let out = Out {
            devices,
            port: network.port,
            frame: vec![0; HEADERS_BYTES + MESSAGE_BYTES_MAX].into(),
            counts: Counts::default(),
        };
        Self { network, devices, make, peers, plain: vec![0; MESSAGE_BYTES_MAX].into(), out }
    }

    /// Encrypts a packet from the inner network and sends it as a message to its peer.
    fn seal(&mut self, packet: &[u8], bucket: impl FnOnce() -> BucketId, cpu: &mut Cpu) {
        let Some(id) = self.network.routed_to(packet) else { return self.out.counts.no_peer += 1 };
        let Some(peer) = find(&self.network, &mut self.peers, id, bucket, &mut self.make) else {
            return self.out.counts.strayed += 1;
        };
        let Some(to) = peer.endpoint else { return self.out.counts.no_endpoint += 1 };
        self.out.counts.sealed += 1;
        // Without a session, `encapsulate` stores the packet in the peer's tunnel, and returns the
        // first message of a handshake.
        if let TunnResult::WriteToNetwork(message) = peer.tunnel.encapsulate(packet, self.out.message()) {
            let len = message.len();
            self.out.send_outside(len, to, cpu);
        }
    }

    /// Decrypts a message from the outer network and sends the packet to the inner network, or
    /// replies to the message.
    fn open(&mut self, from: SocketAddr, message: &[u8], bucket: impl FnOnce() -> BucketId, cpu: &mut Cpu) {
        let id = match self.network.sender(from.ip(), message, self.out.message()) {
            Sender::Peer(id) => id,
            Sender::Unproven(cookie) => return self.out.send_outside(cookie, from, cpu),
            Sender::Unknown => return self.out.counts.no_peer += 1,
        };
        let Some(peer) = find(&self.network, &mut self.peers, id, bucket, &mut self.make) else {
            return self.out.counts.strayed += 1;
        };
        let mut message = message;
        loop {
            match peer.tunnel.decapsulate(Some(from.ip()), message, self.out.message()) {
                // The gateway sends a cookie reply before it authenticates the message. Therefore a
                // cookie reply does not prove who sent the message.
                TunnResult::WriteToNetwork(cookie) if cookie[0] == COOKIE_REPLY => {
                    let len = cookie.len();
                    return self.out.send_outside(len, from, cpu);
                }
                TunnResult::WriteToNetwork(reply) => {
                    let len = reply.len();
                    self.out.send_outside(len, from, cpu);
                    message = &[]; // More packets may have waited for the session.
                }
                TunnResult::WriteToTunnelV4(packet, source) => {
                    let (len, source) = (packet.len(), IpAddr::V4(source));
                    self.out.send_inside(len, self.network.may_send_from(id, source), cpu);
                    break;
                }
                TunnResult::WriteToTunnelV6(packet, source) => {
                    let (len, source) = (packet.len(), IpAddr::V6(source));
                    self.out.send_inside(len, self.network.may_send_from(id, source), cpu);
                    break;
                }
                TunnResult::Done => break,
                TunnResult::Err(_) => return self.out.counts.refused += 1,
            }
        }
        // The message is authentic, so the peer's new address is the message's source address.
        peer.endpoint = Some(from);
    }

    fn handle_one(&mut self, input: InputId, packet: &[u8], bucket: impl FnOnce() -> BucketId, cpu: &mut Cpu) {
        if input == self.devices.inside {
            self.seal(packet, bucket, cpu);
        } else if let Some(id) = newborn(packet) {
            find(&self.network, &mut self.peers, id, bucket, &mut self.make);
        } else if let Some((from, _, message)) = datagram(packet) {
            self.open(from, message, bucket, cpu);
        }
    }
}

/// The type of a cookie reply, which is the first byte of the message.
const COOKIE_REPLY: u8 = 3;

/// Returns the state of a peer. If this CPU has the peer's bucket (a group of flows) but not the
/// peer's state, the function makes the state. A peer has no state when the gateway starts, or
/// after another CPU has lost the state.
fn find<'p>(
    network: &Network,
    peers: &'p mut [Option<Box<Peer>>],
    id: PeerId,
    bucket: impl FnOnce() -> BucketId,
    make: &mut MakePeer,
) -> Option<&'p mut Peer> {
    let peer = peers.get_mut(id)?;
    if peer.is_none() && network.in_bucket(bucket().bucket).contains(&id) {
        *peer = Some(Box::new(make(id)));
    }
    peer.as_deref_mut()
}

impl Handler for Gateway {
    type Moved = Vec<(PeerId, Box<Peer>)>;
    type Report = Counts;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let input = batch.input();
        for packet in batch.iter_mut() {
            let bucket = |packet: &Packet<'_>| packet.bucket();
            match packet.parts() {
                None => self.handle_one(input, packet.data(), || bucket(&packet), cpu),
                // This packet is a super-frame, or its checksum is incomplete (checksum offload).
                Some(parts) => {
                    let is_merged = packet.offload().is_some_and(|offload| offload.is_super_frame());
                    let mut plain = std::mem::take(&mut self.plain);
                    for part in parts {
                        self.out.counts.merged += u64::from(is_merged);
                        if let Some(len) = part.copy_to(&mut plain) {
                            self.handle_one(input, &plain[..len], || bucket(&packet), cpu);
                        }
                    }
                    self.plain = plain;
                }
            }
        }
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        for peer in self.peers.iter_mut().flatten() {
            if let TunnResult::WriteToNetwork(message) = peer.tunnel.update_timers(self.out.message()) {
                let len = message.len();
                match peer.endpoint {
                    Some(to) => self.out.send_outside(len, to, cpu),
                    None => self.out.counts.no_endpoint += 1,
                }
            }
        }
        Some(cpu.now() + TIMERS_EVERY)
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        let peers = self.network.in_bucket(bucket.bucket).iter();
        let moved: Vec<_> = peers.filter_map(|id| Some((*id, self.peers[*id].take()?))).collect();
        (!moved.is_empty()).then_some(moved)
    }

    fn bucket_arrives(&mut self, _bucket: BucketId, moved: Self::Moved) {
        for (id, peer) in moved {
            self.peers[id] = Some(peer);
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Counts {
        self.out.counts
    }
}

/// The buffer into which the gateway writes messages, and the gateway's counters.
struct Out {
    devices: Devices,
    port: u16,
    /// A buffer with space for the headers, followed by space for a message.
    frame: Box<[u8]>,
    counts: Counts,
}

impl Out {
    /// Returns the part of the buffer after the headers, which is reserved for a message.
    fn message(&mut self) -> &mut [u8] {
        &mut self.frame[HEADERS_BYTES..]
    }

    /// Sends a decrypted packet to the inner network, if the peer may send from the packet's source
    /// address.
    fn send_inside(&mut self, len: usize, may_send: bool, cpu: &mut Cpu) {
        if !may_send {
            return self.counts.not_allowed += 1;
        }
        match cpu.send(self.devices.to_inside, LinkType::RAW, &self.frame[HEADERS_BYTES..][..len]) {
            Ok(()) => self.counts.opened += 1,
            Err(_) => self.counts.no_room += 1,
        }
    }

    /// Sends the message to a peer. `put_headers` writes the addresses, and the kernel fills in the
    /// remaining header fields.
    fn send_outside(&mut self, len: usize, to: SocketAddr, cpu: &mut Cpu) {
        let begin = HEADERS_BYTES - udp::BYTES - if to.is_ipv4() { ipv4::BYTES } else { ipv6::BYTES };
        put_headers(&mut self.frame[begin..HEADERS_BYTES + len], self.port, to);
        if cpu.send(self.devices.to_outside, LinkType::RAW, &self.frame[begin..HEADERS_BYTES + len]).is_err() {
            self.counts.no_room += 1;
        }
    }
}

/// Writes the headers of a datagram in front of its payload. The kernel chooses the source address
/// and computes the UDP checksum.
pub(crate) fn put_headers(frame: &mut [u8], from_port: u16, to: SocketAddr) {
    let nobody: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let ip = IpHeader::new(nobody, to.ip(), protocol::UDP);
    let (header, udp) = frame.split_at_mut(ip.bytes());
    ip.write(header, udp.len()).expect("messages are shorter than packets can be");
    let len = udp.len() as u16;
    for (at, field) in [from_port, to.port(), len, 0].into_iter().enumerate() {
        put(udp, 2 * at, field.to_be_bytes());
    }
}
