//! Finds the peer of a packet. The number of the peer is the flow key, so that one CPU handles all
//! packets of a peer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use ip_network_table::IpNetworkTable;
use steerage::FlowKey;
use steerage::flow::wire::{be16, ipv4, ipv6, protocol, udp};
use steerage::flow::{FlowHasher, HashKey, bucket_of};

use crate::config::PeerConfig;

/// The number of a peer: the position of the peer in the configuration file.
pub(crate) type PeerId = usize;

/// The number of handshake messages per second that are answered without a cookie. The rate limiter
/// counts each message up to three times: when the flow key is computed, in the handler, and in the
/// peer's tunnel.
const HANDSHAKES_PER_SECOND: u64 = 3 * 100;

/// The interface and all peers, as configured. All CPUs share one `Network`, and no CPU changes it.
pub(crate) struct Network {
    private_key: StaticSecret,
    public_key: PublicKey,
    pub(crate) port: u16,
    pub(crate) peers: Vec<PeerConfig>,
    by_key: HashMap<[u8; 32], PeerId>,
    /// Maps the session index in a peer's messages to the peer. The map's keys are session indices
    /// without the lowest 8 bits. The lowest 8 bits of an index count the sessions of a peer.
    by_index: HashMap<u32, PeerId>,
    indices: Vec<u32>,
    by_bucket: HashMap<u16, Vec<PeerId>>,
    allowed: IpNetworkTable<PeerId>,
    pub(crate) limiter: Arc<RateLimiter>,
    /// The flow hasher of the run. This flow hasher computes each peer's bucket (the group of flows
    /// that moves between CPUs) in advance.
    pub(crate) hasher: FlowHasher,
}

/// The result of the search for the sender of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Peer(PeerId),
    /// Too many handshakes arrive, so the gateway must send a cookie reply. The value is the length
    /// of the cookie reply in bytes.
    Unproven(usize),
    Unknown,
}

impl Network {
    pub(crate) fn new(private_key: StaticSecret, port: u16, peers: Vec<PeerConfig>) -> std::io::Result<Self> {
        let public_key = PublicKey::from(&private_key);
        let hasher = FlowHasher::keyed(&HashKey::random()?);
        // If session indices were not random, the gateway could mistake datagrams of a nested
        // WireGuard tunnel for its own messages.
        let mut by_index = HashMap::new();
        let mut indices = Vec::new();
        while indices.len() < peers.len() {
            let index = fastrand::u32(..1 << 24);
            if let Entry::Vacant(free) = by_index.entry(index) {
                free.insert(indices.len());
                indices.push(index);
            }
        }
        let mut by_bucket = HashMap::<_, Vec<_>>::new();
        let mut allowed = IpNetworkTable::new();
        for (id, peer) in peers.iter().enumerate() {
            by_bucket.entry(bucket_of(hasher.hash(&flow_key(id)))).or_default().push(id);
            for prefix in &peer.allowed_ips {
                allowed.insert(*prefix, id);
            }
        }
        Ok(Self {
            limiter: Arc::new(RateLimiter::new(&public_key, HANDSHAKES_PER_SECOND)),
            by_key: peers.iter().enumerate().map(|(id, peer)| (peer.public_key, id)).collect(),
            private_key,
            public_key,
            port,
            peers,
            by_index,
            indices,
            by_bucket,
            allowed,
            hasher,
        })
    }

    /// Returns the flow key of a frame: the number of its peer. The receiving CPU calls `flow_key`
    /// for each frame.
    ///
    /// The first message of a handshake names its sender only in encrypted form. To learn the
    /// sender, the receiving CPU has to do one of the handshake's five Diffie-Hellman operations.
    /// This Diffie-Hellman operation took 82 us on a busy machine (the command `memory` prints the
    /// time). The rate limiter bounds the number of first messages that are decrypted.
    pub(crate) fn flow_key(&self, frame: &[u8]) -> Option<FlowKey> {
        let peer = match (newborn(frame), datagram(frame)) {
            (Some(peer), _) => Some(peer),
            (_, Some((from, to_port, message))) if to_port == self.port => {
                match self.sender(from.ip(), message, &mut [0; COOKIE_BYTES]) {
                    Sender::Peer(peer) => Some(peer),
                    // This packet from the inner network looks like a message to the gateway, but
                    // is not one.
                    _ => self.routed_to(frame),
                }
            }
            _ => self.routed_to(frame),
        };
        peer.map(flow_key)
    }

    /// Returns the peer to which a packet from the inner network is routed. Among all allowed
    /// prefixes that contain the packet's destination, the longest one determines the peer.
    pub(crate) fn routed_to(&self, packet: &[u8]) -> Option<PeerId> {
        Some(*self.allowed.longest_match(Tunn::dst_address(packet)?)?.1)
    }

    /// Returns true if this peer may send packets from this address.
    pub(crate) fn may_send_from(&self, peer: PeerId, source: IpAddr) -> bool {
        self.allowed.longest_match(source).is_some_and(|(_, owner)| *owner == peer)
    }

    /// Returns the peer that a message from the outer network names as its sender. The sender is
    /// not authenticated yet. The first message of a handshake proves only that its sender knows
    /// the gateway's public key. Other messages prove nothing.
    pub(crate) fn sender(&self, from: IpAddr, message: &[u8], cookie: &mut [u8]) -> Sender {
        let indexed = |index: u32| self.by_index.get(&(index >> 8)).copied();
        let found = match Tunn::parse_incoming_packet(message) {
            Ok(Packet::PacketData(data)) => indexed(data.receiver_idx),
            Ok(Packet::HandshakeResponse(response)) => indexed(response.receiver_idx),
            Ok(Packet::PacketCookieReply(reply)) => indexed(reply.receiver_idx),
            Ok(Packet::HandshakeInit(_)) => match self.limiter.verify_packet(Some(from), message, cookie) {
                Ok(Packet::HandshakeInit(first)) => {
                    let opened = parse_handshake_anon(&self.private_key, &self.public_key, &first);
                    opened.ok().and_then(|opened| self.by_key.get(&opened.peer_static_public).copied())
                }
                Err(TunnResult::WriteToNetwork(cookie)) => return Sender::Unproven(cookie.len()),
                _ => None,
            },
            Err(_) => None,
        };
        found.map_or(Sender::Unknown, Sender::Peer)
    }

    /// Returns the peers whose packets are in this bucket.
    pub(crate) fn in_bucket(&self, bucket: u16) -> &[PeerId] {
        self.by_bucket.get(&bucket).map_or(&[], Vec::as_slice)
    }

    /// Makes a tunnel to a peer, without a session.
    pub(crate) fn tunnel(&self, id: PeerId) -> Tunn {
        let peer = &self.peers[id];
        let limiter = Some(Arc::clone(&self.limiter));
        Tunn::new(
            self.private_key.clone(),
            peer.public_key(),
            peer.preshared_key,
            peer.keepalive,
            self.indices[id],
            limiter,
        )
    }
}

/// The length of a cookie reply.
pub(crate) const COOKIE_BYTES: usize = 64;

fn flow_key(peer: PeerId) -> FlowKey {
    FlowKey::from_bytes(&(peer as u32).to_be_bytes())
}

/// Makes a frame that no network can deliver, because it has no IP version. When the CPU that has
/// the peer's bucket receives the frame, the CPU creates the peer's state.
pub(crate) fn birth(peer: PeerId) -> [u8; 8] {
    (peer as u64).to_be_bytes()
}

/// Returns the peer of a frame that [`birth`] made, and `None` for other frames.
pub(crate) fn newborn(frame: &[u8]) -> Option<PeerId> {
    Some(u64::from_be_bytes(frame.try_into().ok()?) as PeerId).filter(|_| frame[0] == 0)
}

/// Returns the source, the destination port and the payload of a UDP packet.
pub(crate) fn datagram(packet: &[u8]) -> Option<(SocketAddr, u16, &[u8])> {
    let (source, datagram): (IpAddr, _) = match packet.first()? >> 4 {
        4 if packet.len() >= ipv4::BYTES && packet[ipv4::PROTOCOL_AT] == protocol::UDP => {
            let header_bytes = usize::from(packet[0] & 0xf) * 4;
            (Ipv4Addr::from(<[u8; 4]>::try_from(&packet[12..16]).ok()?).into(), packet.get(header_bytes..)?)
        }
        6 if packet.len() >= ipv6::BYTES && packet[ipv6::PROTOCOL_AT] == protocol::UDP => {
            (Ipv6Addr::from(<[u8; 16]>::try_from(&packet[8..24]).ok()?).into(), &packet[ipv6::BYTES..])
        }
        _ => return None,
    };
    let (header, payload) = datagram.split_at_checked(udp::BYTES)?;
    Some((SocketAddr::new(source, be16(header, 0)), be16(header, 2), payload))
}
