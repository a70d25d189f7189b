//! Makes traffic of eight peers in memory, to measure the gateway.
//!
//! Each packet has a number, and the output checks that the numbers of each peer's packets only
//! increase.

use std::array;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use steerage::LinkType;
use steerage::device::{Capabilities, Completions, DeviceError, Outgoing, Polled, RxQueue, Sent, TxQueue};
use steerage::flow::even_share;
use steerage::flow::wire::{IpHeader, ipv4, protocol};

use crate::FRAME_BYTES;
use crate::config::PeerConfig;
use crate::gateway::{Peer, put_headers};
use crate::network::Network;

pub(crate) const PEERS: usize = 8;

/// The length of each packet. An IP packet with a full TCP segment has this length in a tunnel.
const PACKET_BYTES: usize = 1420;

/// The number of bytes at the end of a packet that contain the packet's number.
const NUMBER_BYTES: usize = 4;

/// The work that the gateway does with the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Seal,
    Open,
}

/// A network of peers, in which each peer has a session.
pub(crate) struct Connected {
    pub(crate) network: Arc<Network>,
    pub(crate) ours: [Peer; PEERS],
    pub(crate) theirs: [Tunn; PEERS],
}

/// The number of peers that the first of two CPUs handles, if each CPU has half of the buckets
/// (groups of flows). The first CPU also receives the packets, which takes a fifth of that CPU's
/// time. Therefore the first CPU gets fewer peers than the second CPU.
const OF_FIRST: usize = 3;

/// Connects the peers with the gateway. Each peer has a bucket (a group of flows) of its own,
/// because a policy moves whole buckets.
pub(crate) fn connect() -> Result<Connected, Box<dyn Error>> {
    let secret = || StaticSecret::from(array::from_fn(|_| fastrand::u8(..)));
    let (our_key, their_keys) = (secret(), array::from_fn::<_, PEERS, _>(|_| secret()));
    let peers = their_keys
        .each_ref()
        .map(|key| PeerConfig { public_key: PublicKey::from(key).to_bytes(), ..PeerConfig::default() });
    let mut peers = peers.to_vec();
    for (id, peer) in peers.iter_mut().enumerate() {
        peer.endpoint = Some(([192, 0, 2, id as u8], 51820).into());
        peer.allowed_ips.push(ip_network::IpNetwork::new_truncate([10, 0, 0, id as u8], 32)?);
    }
    let network = loop {
        let network = Network::new(our_key.clone(), 51820, peers.clone())?;
        let of_first = (0..4096).filter(|bucket| even_share(*bucket, 2) == 0);
        let of_first: usize = of_first.map(|bucket| network.in_bucket(bucket).len()).sum();
        if of_first == OF_FIRST && (0..4096).all(|bucket| network.in_bucket(bucket).len() < 2) {
            break Arc::new(network);
        }
    };
    let public_key = PublicKey::from(&our_key);
    let mut theirs = their_keys.map(|key| Tunn::new(key, public_key, None, None, 1, None));
    let mut ours = array::from_fn(|id| Peer::new(&network, id));
    for (our, their) in ours.iter_mut().zip(&mut theirs) {
        our.shake_hands(their).ok_or("the handshake failed")?;
    }
    Ok(Connected { network, ours, theirs })
}

impl Peer {
    /// Gives both sides a session. The tunnel `other` sends the first message of the handshake.
    fn shake_hands(&mut self, other: &mut Tunn) -> Option<()> {
        let (mut there, mut back) = ([0; 256], [0; 256]);
        let TunnResult::WriteToNetwork(first) = other.format_handshake_initiation(&mut there, false) else {
            return None;
        };
        let TunnResult::WriteToNetwork(answer) = self.tunnel.decapsulate(None, first, &mut back) else { return None };
        let mut there = [0; 256];
        let TunnResult::WriteToNetwork(keepalive) = other.decapsulate(None, answer, &mut there) else { return None };
        matches!(self.tunnel.decapsulate(None, keepalive, &mut [0; 256]), TunnResult::Done).then_some(())
    }
}

/// Packets or messages of the same length, stored one after another.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    pub(crate) bytes: Vec<u8>,
    pub(crate) each: usize,
}

/// Makes the packet with this number. Both the source and the destination of the packet are the
/// peer's inner address.
pub(crate) fn packet(number: usize) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    let peer = [10, 0, 0, (number % PEERS) as u8];
    IpHeader::new(peer, peer, protocol::UDP).write(&mut packet, PACKET_BYTES - ipv4::BYTES).expect("IPv4");
    packet[PACKET_BYTES - NUMBER_BYTES..].copy_from_slice(&(number as u32).to_be_bytes());
    packet
}

/// Makes the packets of the peers as a TUN delivers them.
pub(crate) fn plain(packets: usize) -> Frames {
    Frames { bytes: (0..packets).flat_map(packet).collect(), each: PACKET_BYTES }
}

/// Makes the messages of the peers as a socket receives them.
pub(crate) fn sealed(theirs: &mut [Tunn; PEERS], packets: usize) -> Frames {
    let each = 28 + PACKET_BYTES + 32; // The headers of IP and UDP, and those of a message with its tag.
    let mut bytes = vec![0; packets * each];
    for (number, frame) in bytes.chunks_exact_mut(each).enumerate() {
        let sealed = theirs[number % PEERS].encapsulate(&packet(number), &mut frame[28..]);
        let is_whole = matches!(&sealed, TunnResult::WriteToNetwork(message) if message.len() == each - 28);
        assert!(is_whole, "a packet was not sealed");
        put_headers(frame, 40000, ([192, 0, 2, 1], 51820).into());
    }
    Frames { bytes, each }
}

/// An input device that delivers frames from memory. Like a capture file, the device loses no
/// packets while it waits until the CPUs have time.
pub(crate) struct Recorded {
    frames: Frames,
    /// The number of bytes that steerage has received so far.
    next: usize,
    /// The position, in bytes, of the first packet that belongs to the measurement.
    begin: usize,
    began: Arc<OnceLock<Instant>>,
}

impl Recorded {
    /// Makes a device. When only the last `measured` packets remain to be delivered, the device
    /// stores the time in `began`.
    pub(crate) fn new(frames: Frames, measured: usize, began: Arc<OnceLock<Instant>>) -> Self {
        let begin = frames.bytes.len().saturating_sub(measured * frames.each);
        Self { frames, next: 0, begin, began }
    }
}

impl RxQueue for Recorded {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(LinkType::RAW);
        if self.next >= self.begin {
            self.began.get_or_init(Instant::now);
        }
        for _ in 0..budget {
            let Some(frame) = self.frames.bytes.get(self.next..self.next + self.frames.each) else {
                return Ok(Polled::Ended);
            };
            if !out.copy_in(frame) {
                break; // No page is free now.
            }
            self.next += self.frames.each;
        }
        Ok(Polled::More)
    }
}

/// Checks the order of each peer's packets.
pub(crate) struct Checked {
    work: Work,
    /// For each peer, the number of the latest packet plus one.
    latest: [AtomicU32; PEERS],
}

pub(crate) struct Check(pub(crate) Arc<Checked>);

impl Checked {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, latest: array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// Returns the peer and the number of a packet. If the gateway encrypts, the packet's number is
    /// WireGuard's message counter.
    fn number(&self, frame: &[u8]) -> Option<(usize, u32)> {
        let at = |at: usize| frame.get(at..)?.first_chunk::<4>().copied();
        match self.work {
            Work::Open => Some((usize::from(at(12)?[3]), u32::from_be_bytes(at(PACKET_BYTES - NUMBER_BYTES)?))),
            Work::Seal => Some((usize::from(at(16)?[3]), u32::from_le_bytes(at(28 + 8)?))),
        }
    }
}

impl TxQueue for Check {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let frame = packet.received().data;
            if let Some((peer, number)) = self.0.number(frame) {
                // The memory order `Relaxed` suffices, because the move of a bucket makes the
                // values that the old CPU stored visible to the new CPU.
                let latest = self.0.latest[peer].swap(number + 1, Ordering::Relaxed);
                if latest > number {
                    return Err(DeviceError::new(
                        "check",
                        "keep the order",
                        std::io::Error::other("a packet overtook"),
                    ));
                }
            }
            sent.packets += 1;
            sent.bytes += frame.len() as u64;
        }
        Ok(sent)
    }
}
