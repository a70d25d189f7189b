use std::fmt;
use std::net::IpAddr;

use steerage::flow::wire::checksum::{finish, finish_transport};
use steerage::flow::wire::{FrameBuilder, be16, ethernet, ethertype, ipv4, ipv6, port, protocol, put, tcp, udp, vlan};
use steerage::testing::SplitMix64;

/// The first four bytes of the data in every synthetic frame: `STRG`.
pub const MAGIC: u32 = u32::from_be_bytes(*b"STRG");

const PAYLOAD_BYTES: usize = 4 + 4 + 8;

/// The bytes that are written for each frame: enough for the headers and data of `tcp6`.
const HEAD_BYTES: usize = 96;

/// The bytes that are written for each frame if its headers and data fit into one cache line, so
/// that the CPU loads no second line.
const LINE_BYTES: usize = 64;

const VLAN_ID: u16 = 100;
const NET_FROM_V4: u32 = u32::from_be_bytes([10, 0, 0, 0]);
/// The IPv4 destination address, from the range for benchmarks (RFC 2544).
const TO_V4: [u8; 4] = [198, 18, 0, 1];
/// The network of the IPv6 source addresses, from the range for documentation (RFC 3849).
const NET_FROM_V6: [u16; 8] = [0x2001, 0xdb8, 0, 1, 0, 0, 0, 0];
const TO_V6: [u16; 8] = [0x2001, 0xdb8, 0, 2, 0, 0, 0, 1];

/// A kind of flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv6.
    Udp6,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 in VLAN 100 (802.1Q).
    Vlan,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Udp4, Self::Tcp4, Self::Udp6, Self::Tcp6, Self::Vlan];

    /// The kind's name in the option `mix`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp4 => "udp4",
            Self::Tcp4 => "tcp4",
            Self::Udp6 => "udp6",
            Self::Tcp6 => "tcp6",
            Self::Vlan => "vlan",
        }
    }

    /// The length of the shortest frame of this kind, in bytes: the headers, the flow number and
    /// the frame number.
    pub fn frame_bytes_min(self) -> usize {
        self.payload_at() + PAYLOAD_BYTES
    }

    fn head_bytes(self) -> usize {
        if self.frame_bytes_min() <= LINE_BYTES { LINE_BYTES } else { HEAD_BYTES }
    }

    fn is_v6(self) -> bool {
        matches!(self, Self::Udp6 | Self::Tcp6)
    }

    fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Tcp6)
    }

    fn l3_at(self) -> usize {
        ethernet::BYTES + if self == Self::Vlan { vlan::BYTES } else { 0 }
    }

    fn l4_at(self) -> usize {
        self.l3_at() + if self.is_v6() { ipv6::BYTES } else { ipv4::BYTES }
    }

    /// In the built frame, the source port and the variable part of the source address are 0.
    fn frame(self) -> FrameBuilder {
        let (from, to) = if self.is_v6() {
            (IpAddr::from(NET_FROM_V6), IpAddr::from(TO_V6))
        } else {
            (IpAddr::from([0; 4]), IpAddr::from(TO_V4))
        };
        match self {
            Self::Tcp4 | Self::Tcp6 => {
                FrameBuilder::tcp((from, 0), (to, port::DISCARD)).flags(tcp::PSH | tcp::ACK).acknowledgement(1)
            }
            Self::Udp4 | Self::Udp6 => FrameBuilder::udp((from, 0), (to, port::DISCARD)),
            Self::Vlan => FrameBuilder::udp((from, 0), (to, port::DISCARD)).vlan(VLAN_ID),
        }
    }

    fn payload_at(self) -> usize {
        self.l4_at() + if self.is_tcp() { tcp::BYTES } else { udp::BYTES }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the flow of a synthetic frame, and the frame's number within the flow. Returns `None` if
/// the frame is not synthetic, or was cut before the end of its flow number and frame number.
///
/// ```
/// use steerage_device::synthetic::parse_payload;
///
/// assert!(parse_payload(&[0; 4]).is_none());
/// ```
pub fn parse_payload(frame: &[u8]) -> Option<(u32, u64)> {
    let u16_at = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let tag = if u16_at(ethernet::TYPE_AT)? == ethertype::VLAN { vlan::BYTES } else { 0 };
    let l3_at = ethernet::BYTES + tag;
    let (l4_at, protocol) = match u16_at(l3_at - 2)? {
        ethertype::IPV4 => (l3_at + ipv4::BYTES, *frame.get(l3_at + ipv4::PROTOCOL_AT)?),
        ethertype::IPV6 => (l3_at + ipv6::BYTES, *frame.get(l3_at + ipv6::PROTOCOL_AT)?),
        _ => return None,
    };
    let payload_at = match protocol {
        protocol::TCP => l4_at + tcp::BYTES,
        protocol::UDP => l4_at + udp::BYTES,
        _ => return None,
    };
    let payload: &[u8; PAYLOAD_BYTES] = frame.get(payload_at..)?.first_chunk()?;
    let magic = u32::from_be_bytes(*payload.first_chunk()?);
    let flow = u32::from_be_bytes(*payload[4..].first_chunk()?);
    let number = u64::from_be_bytes(*payload[8..].first_chunk()?);
    (magic == MAGIC).then_some((flow, number))
}

/// Permutes 24 bits by the seed, so that no two flows have the same address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    mask: u32,
}

impl Places {
    const BITS: u32 = 24;
    const ALL: u32 = (1 << Self::BITS) - 1;

    pub(super) fn new(seed: u64) -> Self {
        Self { mask: SplitMix64::mix(seed) as u32 & Self::ALL }
    }

    /// Returns the variable part of the source address, and the source port. Each step is
    /// reversible (multiply by an odd factor, or shift by half and xor), so addresses differ.
    #[inline(always)]
    fn of(self, flow: u32) -> (u32, u16) {
        let mut x = flow ^ self.mask;
        x = x.wrapping_mul(0x9E_3779) & Self::ALL;
        x ^= x >> (Self::BITS / 2);
        x = x.wrapping_mul(0x85_EBCB) & Self::ALL;
        x ^= x >> (Self::BITS / 2);
        (x, 0x8000 | (x.wrapping_mul(0x9E37_79B1) >> 17) as u16)
    }
}

/// The bytes that all frames of a kind of flow share, and their partial checksums.
#[derive(Debug)]
pub(super) struct Template {
    kind: Kind,
    /// A whole frame, padded to at least [`HEAD_BYTES`] bytes.
    bytes: Box<[u8]>,
    len: usize,
    /// Partial checksums of the constant bytes of the IPv4 header, and of the transport part.
    l3_sum: u64,
    l4_sum: u64,
}

impl Template {
    pub(super) fn new(kind: Kind, size: usize) -> Self {
        let len = size.max(kind.frame_bytes_min());
        let mut payload: Vec<u8> = (kind.payload_at()..len).map(|i| i as u8).collect();
        payload[..PAYLOAD_BYTES].fill(0);
        put(&mut payload, 0, MAGIC.to_be_bytes());
        let mut bytes = kind.frame().frame(&payload);
        bytes.resize(len.max(HEAD_BYTES), 0);
        // The partial checksum is the one's complement of the checksum in the header.
        let sum_at = |at: usize| u64::from(!be16(&bytes, at));
        let l4_checksum_at = if kind.is_tcp() { tcp::CHECKSUM_AT } else { udp::CHECKSUM_AT };
        let (l3_sum, l4_sum) = (sum_at(kind.l3_at() + ipv4::CHECKSUM_AT), sum_at(kind.l4_at() + l4_checksum_at));
        Self { kind, bytes: bytes.into(), len, l3_sum, l4_sum }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn room(&self) -> usize {
        self.len.max(self.kind.head_bytes())
    }

    /// Writes the frame `number` of `flow`. `None` if `to` is shorter than [`room`](Self::room).
    #[inline(always)]
    pub(super) fn write(&self, to: &mut [u8], places: Places, flow: u32, number: u64) -> Option<()> {
        const L3: usize = ethernet::BYTES;
        const TAGGED: usize = ethernet::BYTES + vlan::BYTES;
        // In each arm of this `match`, the fields have constant positions, so the code only stores
        // values.
        match self.kind {
            Kind::Udp4 => self.write_as::<LINE_BYTES, L3, false, false>(to, places, flow, number),
            Kind::Vlan => self.write_as::<LINE_BYTES, TAGGED, false, false>(to, places, flow, number),
            Kind::Tcp4 => self.write_as::<HEAD_BYTES, L3, false, true>(to, places, flow, number),
            Kind::Udp6 => self.write_as::<HEAD_BYTES, L3, true, false>(to, places, flow, number),
            Kind::Tcp6 => self.write_as::<HEAD_BYTES, L3, true, true>(to, places, flow, number),
        }
    }

    #[inline(always)]
    fn write_as<const HEAD: usize, const L3: usize, const V6: bool, const TCP: bool>(
        &self,
        to: &mut [u8],
        places: Places,
        flow: u32,
        number: u64,
    ) -> Option<()> {
        let l4 = L3 + if V6 { ipv6::BYTES } else { ipv4::BYTES };
        let payload = l4 + if TCP { tcp::BYTES } else { udp::BYTES };
        let (place, port) = places.of(flow);
        let from = if V6 { place } else { NET_FROM_V4 | place };

        let (head, tail) = to.split_first_chunk_mut::<HEAD>()?;
        let (head_template, tail_template) = self.bytes.split_first_chunk::<HEAD>()?;
        *head = *head_template;
        if self.len > HEAD {
            let tail_bytes = self.len - HEAD;
            tail.get_mut(..tail_bytes)?.copy_from_slice(tail_template.get(..tail_bytes)?);
        }

        put(head, L3 + if V6 { 20 } else { 12 }, from.to_be_bytes());
        if !V6 {
            put(head, L3 + ipv4::CHECKSUM_AT, finish(self.l3_sum + u64::from(from)).to_be_bytes());
        }
        put(head, l4, port.to_be_bytes());
        put(head, payload + 4, flow.to_be_bytes());
        put(head, payload + 8, number.to_be_bytes());
        let numbers = u64::from(flow) + (number >> 32) + (number & 0xffff_ffff);
        let mut l4_sum = self.l4_sum + u64::from(from) + u64::from(port) + numbers;
        if TCP {
            let sequence = (number as u32).wrapping_mul((self.len - payload) as u32).wrapping_add(1);
            put(head, l4 + 4, sequence.to_be_bytes());
            l4_sum += u64::from(sequence);
            put(head, l4 + tcp::CHECKSUM_AT, finish(l4_sum).to_be_bytes());
        } else {
            put(head, l4 + udp::CHECKSUM_AT, finish_transport(l4_sum).to_be_bytes());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_have_places_of_their_own() {
        for seed in [0, 1, u64::MAX] {
            let places = Places::new(seed);
            let mut seen = vec![false; 1 << Places::BITS];
            for flow in 0..1 << Places::BITS {
                let (place, port) = places.of(flow);
                assert!(!std::mem::replace(&mut seen[place as usize], true), "flow {flow}, seed {seed}");
                assert!(port >= 0x8000);
            }
        }
    }

    #[test]
    fn heads_hold_all_that_changes() {
        for kind in Kind::ALL {
            assert!(kind.frame_bytes_min() <= kind.head_bytes(), "{kind}");
            assert_eq!(kind.head_bytes() == LINE_BYTES, matches!(kind, Kind::Udp4 | Kind::Vlan), "{kind}");
        }
    }

    #[test]
    fn short_room_and_cut_frames_are_refused() {
        let template = Template::new(Kind::Tcp6, 64);
        let mut frame = vec![0; template.room()];
        assert!(template.write(&mut frame[..95], Places::new(1), 3, 4).is_none());
        assert!(template.write(&mut frame, Places::new(1), 3, 4).is_some());
        assert_eq!(parse_payload(&frame), Some((3, 4)));
        assert!((0..Kind::Tcp6.frame_bytes_min()).all(|len| parse_payload(&frame[..len]).is_none()));
    }
}
