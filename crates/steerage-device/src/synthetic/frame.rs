//! Generates the frames. Each kind of flow has a template, and only a few fields change.

use std::fmt;

/// The first bytes of the data of every synthetic frame: `STRG`.
pub const MAGIC: u32 = u32::from_be_bytes(*b"STRG");

/// The magic number, the flow, and the number within the flow.
const PAYLOAD_BYTES: usize = 4 + 4 + 8;

/// The bytes that are written for any frame, no matter how long it is: all headers and numbers of
/// the longest kind, `tcp6`.
const HEAD_BYTES: usize = 96;

/// Like [`HEAD_BYTES`], but for kinds that fit into one cache line. So the next line need not be
/// fetched.
const LINE_BYTES: usize = 64;

pub(super) const ETHERNET_BYTES: usize = 14;
pub(super) const VLAN_BYTES: usize = 4;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;
pub(super) const TCP_BYTES: usize = 20;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ETHERTYPE_VLAN: u16 = 0x8100;
pub(super) const PROTOCOL_TCP: u8 = 6;
pub(super) const PROTOCOL_UDP: u8 = 17;

/// Locally administered addresses (the second bit of the first byte).
const MAC_TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
const MAC_FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];
const VLAN_ID: u16 = 100;
const NET_FROM_V4: u32 = u32::from_be_bytes([10, 0, 0, 0]);
/// An address for benchmarks (RFC 2544).
const TO_V4: [u8; 4] = [198, 18, 0, 1];
/// A network for documentation (RFC 3849).
const NET_FROM_V6: [u16; 8] = [0x2001, 0xdb8, 0, 1, 0, 0, 0, 0];
const TO_V6: [u16; 8] = [0x2001, 0xdb8, 0, 2, 0, 0, 0, 1];
/// The discard port (RFC 863).
const PORT_DISCARD: u16 = 9;

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

    /// The shortest frame of this kind, in bytes: its headers and the numbers after them.
    pub fn frame_bytes_min(self) -> usize {
        self.payload_at() + PAYLOAD_BYTES
    }

    /// The number of bytes that are written for any frame of this kind, no matter how long it is.
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
        ETHERNET_BYTES + if self == Self::Vlan { VLAN_BYTES } else { 0 }
    }

    fn l4_at(self) -> usize {
        self.l3_at() + if self.is_v6() { IPV6_BYTES } else { IPV4_BYTES }
    }

    fn payload_at(self) -> usize {
        self.l4_at() + if self.is_tcp() { TCP_BYTES } else { UDP_BYTES }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The flow and the number within the flow of a synthetic frame. `None` if the frame is not
/// synthetic, or is cut before the end of its numbers.
///
/// ```
/// use steerage_device::synthetic::parse_payload;
///
/// assert!(parse_payload(&[0; 4]).is_none());
/// ```
pub fn parse_payload(frame: &[u8]) -> Option<(u32, u64)> {
    let u16_at = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let tag = if u16_at(12)? == ETHERTYPE_VLAN { VLAN_BYTES } else { 0 };
    let l3_at = ETHERNET_BYTES + tag;
    let (l4_at, protocol) = match u16_at(l3_at - 2)? {
        ETHERTYPE_IPV4 => (l3_at + IPV4_BYTES, *frame.get(l3_at + 9)?),
        ETHERTYPE_IPV6 => (l3_at + IPV6_BYTES, *frame.get(l3_at + 6)?),
        _ => return None,
    };
    let payload_at = match protocol {
        PROTOCOL_TCP => l4_at + TCP_BYTES,
        PROTOCOL_UDP => l4_at + UDP_BYTES,
        _ => return None,
    };
    let payload: &[u8; PAYLOAD_BYTES] = frame.get(payload_at..)?.first_chunk()?;
    let magic = u32::from_be_bytes(*payload.first_chunk()?);
    let flow = u32::from_be_bytes(*payload[4..].first_chunk()?);
    let number = u64::from_be_bytes(*payload[8..].first_chunk()?);
    (magic == MAGIC).then_some((flow, number))
}

/// Derives the addresses of flows from the seed by a permutation of 24 bits, so that no two flows
/// have the same address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    mask: u32,
}

impl Places {
    const BITS: u32 = 24;
    const ALL: u32 = (1 << Self::BITS) - 1;

    pub(super) fn new(seed: u64) -> Self {
        Self { mask: super::sample::mix(seed) as u32 & Self::ALL }
    }

    /// The address part and the port of a flow. Each step is reversible (multiplication by an odd
    /// factor, or a shift by half and xor), so different flows get different addresses.
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

/// A frame of one kind, with all bytes that its frames share, and the checksum sums of these bytes.
#[derive(Debug)]
pub(super) struct Template {
    kind: Kind,
    /// The whole frame, or [`HEAD_BYTES`] bytes if the frame is shorter.
    bytes: Box<[u8]>,
    len: usize,
    /// The sums of the constant bytes: over the IPv4 header, and over the TCP or UDP part with its
    /// pseudo header.
    l3_sum: u64,
    l4_sum: u64,
}

impl Template {
    pub(super) fn new(kind: Kind, size: usize) -> Self {
        let len = size.max(kind.frame_bytes_min());
        let mut bytes: Vec<u8> = (0..len.max(HEAD_BYTES)).map(|i| if i < len { i as u8 } else { 0 }).collect();
        bytes[..kind.frame_bytes_min()].fill(0);
        write_ethernet(&mut bytes, kind);
        if kind.is_v6() {
            write_ipv6(&mut bytes[kind.l3_at()..], len - kind.l4_at(), kind);
        } else {
            write_ipv4(&mut bytes[kind.l3_at()..], len - kind.l3_at(), kind);
        }
        write_l4(&mut bytes[kind.l4_at()..], len - kind.l4_at(), kind);
        put(&mut bytes, kind.payload_at(), MAGIC.to_be_bytes());

        let addresses = if kind.is_v6() { 8..40 } else { 12..20 };
        let l3 = &bytes[kind.l3_at()..kind.l4_at()];
        let protocol = if kind.is_tcp() { PROTOCOL_TCP } else { PROTOCOL_UDP };
        let pseudo = sum(&l3[addresses]) + u64::from(protocol) + (len - kind.l4_at()) as u64;
        let (l3_sum, l4_sum) = (sum(l3), pseudo + sum(&bytes[kind.l4_at()..len]));
        Self { kind, bytes: bytes.into(), len, l3_sum, l4_sum }
    }

    /// The length of the frames in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many bytes [`write`](Self::write) needs: the length of the frame, or the bytes that are
    /// written for any frame if that is more.
    pub(super) fn room(&self) -> usize {
        self.len.max(self.kind.head_bytes())
    }

    /// Writes frame `number` of `flow` to the start of `to`. `None` if `to` is shorter than
    /// [`room`](Self::room).
    #[inline(always)]
    pub(super) fn write(&self, to: &mut [u8], places: Places, flow: u32, number: u64) -> Option<()> {
        const L3: usize = ETHERNET_BYTES;
        const TAGGED: usize = ETHERNET_BYTES + VLAN_BYTES;
        // The numbers of each kind are constants here, so that each arm only stores values at fixed
        // places.
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
        let l4 = L3 + if V6 { IPV6_BYTES } else { IPV4_BYTES };
        let payload = l4 + if TCP { TCP_BYTES } else { UDP_BYTES };
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
            put(head, L3 + 10, checksum(self.l3_sum + u64::from(from)).to_be_bytes());
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
            put(head, l4 + 16, checksum(l4_sum).to_be_bytes());
        } else {
            // 0 means "no checksum" in UDP (RFC 768), so the equivalent value is sent instead.
            let udp = match checksum(l4_sum) {
                0 => 0xffff,
                other => other,
            };
            put(head, l4 + 6, udp.to_be_bytes());
        }
        Some(())
    }
}

fn write_ethernet(bytes: &mut [u8], kind: Kind) {
    put(bytes, 0, MAC_TO);
    put(bytes, 6, MAC_FROM);
    if kind == Kind::Vlan {
        put(bytes, 12, ETHERTYPE_VLAN.to_be_bytes());
        put(bytes, 14, VLAN_ID.to_be_bytes());
    }
    let ethertype = if kind.is_v6() { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    put(bytes, kind.l3_at() - 2, ethertype.to_be_bytes());
}

/// `bytes` starts at the header. `len` is the length of header and data. Source and checksum stay
/// 0.
fn write_ipv4(bytes: &mut [u8], len: usize, kind: Kind) {
    bytes[0] = 0x45;
    put(bytes, 2, (len as u16).to_be_bytes());
    // With "don't fragment", all packets may have the same identification (RFC 6864).
    put(bytes, 6, 0x4000u16.to_be_bytes());
    bytes[8] = 64;
    bytes[9] = if kind.is_tcp() { PROTOCOL_TCP } else { PROTOCOL_UDP };
    put(bytes, 16, TO_V4);
}

/// `bytes` starts at the header. `len` is the length of the data alone. The last 4 bytes of the
/// source stay 0.
fn write_ipv6(bytes: &mut [u8], len: usize, kind: Kind) {
    bytes[0] = 0x60;
    put(bytes, 4, (len as u16).to_be_bytes());
    bytes[6] = if kind.is_tcp() { PROTOCOL_TCP } else { PROTOCOL_UDP };
    bytes[7] = 64;
    for i in 0..8 {
        put(bytes, 8 + 2 * i, NET_FROM_V6[i].to_be_bytes());
        put(bytes, 24 + 2 * i, TO_V6[i].to_be_bytes());
    }
}

/// `bytes` starts at the header. `len` is the length of header and data. The source port, the
/// checksum and the TCP sequence number stay 0.
fn write_l4(bytes: &mut [u8], len: usize, kind: Kind) {
    put(bytes, 2, PORT_DISCARD.to_be_bytes());
    if kind.is_tcp() {
        put(bytes, 8, 1u32.to_be_bytes());
        bytes[12] = (TCP_BYTES as u8 / 4) << 4;
        bytes[13] = 0x18; // PSH and ACK
        put(bytes, 14, u16::MAX.to_be_bytes());
    } else {
        put(bytes, 4, (len as u16).to_be_bytes());
    }
}

#[inline(always)]
pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// The sum of the 16-bit words of `bytes`. The last word is padded with zero if necessary (RFC
/// 1071).
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    bytes.chunks(2).map(word).sum()
}

/// The Internet checksum of a sum (RFC 1071). The sum may contain whole 32-bit words, because
/// `2^16` equals 1 in this arithmetic.
#[inline(always)]
pub(super) fn checksum(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(sum as u16)
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
            // `write` has these lengths as constants.
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
