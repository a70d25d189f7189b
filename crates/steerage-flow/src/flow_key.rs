//! A flow key has two 64-bit words (a "short" key) or five (a "long" key), as native integers. The
//! table shows the bit fields of each word with their widths in bits, the most significant bits
//! first:
//!
//! ```text
//! short     word 0 (bits 63..0)                 word 1
//! v4        0:16  source:32  source port:16     0:8  protocol:8  destination:32  destination port:16
//! link      1:8  bytes 0..7 of 14               bytes 7..14, 0:8   (source, destination, EtherType)
//! bytes     2 + length:8  bytes 0..7            bytes 7..15        (0 where there are none)
//!
//! long      words 0, 1   words 2, 3    word 4                                                  tag
//! v6        source       destination   source port:16 destination port:16 0:24 protocol:8      1
//! bytes     bytes 0..16  bytes 16..32  bytes 32..40                                            2 + length
//! ```
//!
//! Keys of different kinds are never equal: short keys of different kinds differ in the top byte of
//! word 0, and long keys in the tag. The tag of a short key is 0. Addresses and bytes are
//! big-endian (first byte in the top bits), because Toeplitz reads its input from the first byte to
//! the last. Each endpoint of an IPv4 key is one number below 2^48, so `min` and `max` sort the two
//! endpoints.

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

pub use parse::ParseFlowKeyError;

use crate::wire::protocol;

/// The number of bytes of a custom key that are hashed, in addition to its length.
const BYTES_MAX: usize = 40;
const SHORT_MAX: usize = 15;

// The top byte of word 0 in a short key states the kind of the key.
const SHORT_V4: u8 = 0;
const SHORT_LINK: u8 = 1;
const SHORT_BYTES: u8 = 2;
pub(crate) const LONG_V6: u64 = 1;
const LONG_BYTES: u64 = 2;
/// SipHash's last word takes at most seven bytes of the message, so the tag of a key has at most
/// seven.
const TAG_END: u64 = 1 << 56;

const ENDPOINT_V4: u64 = (1 << 48) - 1;

/// The key of a flow: addresses, ports and protocol, or up to 40 bytes that the program chooses.
///
/// The source is the sender of the packet. [`both_directions`](FlowKey::both_directions) returns
/// one key for both directions.
///
/// The constructors are inlined, so that the compiler keeps the two words of an IPv4 key in
/// registers and removes the other three words.
///
/// ```
/// use std::net::SocketAddr;
/// use steerage_flow::{FlowKey, protocol};
///
/// let (client, server): (SocketAddr, SocketAddr) = ("10.0.0.1:40000".parse()?, "10.0.0.2:80".parse()?);
/// let request = FlowKey::between(client, server, protocol::TCP).expect("both are IPv4");
/// assert_eq!((request.source(), request.destination()), (Some(client), Some(server)));
/// assert_eq!(request.protocol(), Some(protocol::TCP));
///
/// let answer: FlowKey = "tcp 10.0.0.2:80 > 10.0.0.1:40000".parse()?;
/// assert_eq!(answer, request.reversed());
/// assert_ne!(answer, request);
/// assert_eq!(answer.both_directions(), request.both_directions());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    words: [u64; 5],
    tag: u64,
}

impl FlowKey {
    /// Creates the key of an IPv4 flow. Pass 0 as both ports for a protocol without ports, or for a
    /// key that ignores ports.
    #[must_use]
    #[inline(always)]
    pub const fn v4(source: SocketAddrV4, destination: SocketAddrV4, protocol: u8) -> FlowKey {
        FlowKey::v4_bits(v4_end(source), v4_end(destination), protocol)
    }

    /// Creates the key of an IPv6 flow, without the scope identifier and without the flow label,
    /// which senders may change (RFC 6437).
    #[must_use]
    #[inline(always)]
    pub const fn v6(source: SocketAddrV6, destination: SocketAddrV6, protocol: u8) -> FlowKey {
        FlowKey::v6_bits(v6_end(source), v6_end(destination), protocol)
    }

    /// Creates the key of an IP flow. Returns `None` if the endpoints have different IP versions.
    #[must_use]
    pub const fn between(source: SocketAddr, destination: SocketAddr, protocol: u8) -> Option<FlowKey> {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some(FlowKey::v4(source, destination, protocol)),
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => Some(FlowKey::v6(source, destination, protocol)),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) const fn v4_bits(source: (u32, u16), destination: (u32, u16), protocol: u8) -> FlowKey {
        let source = (source.0 as u64) << 16 | source.1 as u64;
        let destination = (destination.0 as u64) << 16 | destination.1 as u64;
        FlowKey::short((SHORT_V4 as u64) << 56 | source, (protocol as u64) << 48 | destination)
    }

    #[inline(always)]
    pub(crate) const fn v6_bits(source: (u128, u16), destination: (u128, u16), protocol: u8) -> FlowKey {
        let last = (source.1 as u64) << 48 | (destination.1 as u64) << 32 | protocol as u64;
        let (s, d) = (source.0, destination.0);
        FlowKey { words: [(s >> 64) as u64, s as u64, (d >> 64) as u64, d as u64, last], tag: LONG_V6 }
    }

    /// Creates the key of a frame without an IP header. Addresses have the byte order of
    /// transmission.
    #[must_use]
    #[inline(always)]
    pub const fn link(source: [u8; 6], destination: [u8; 6], ethertype: u16) -> FlowKey {
        let [a, b, c, d, e, f] = source;
        let [g, h, i, j, k, l] = destination;
        let [m, n] = ethertype.to_be_bytes();
        FlowKey::short(
            u64::from_be_bytes([SHORT_LINK, a, b, c, d, e, f, g]),
            u64::from_be_bytes([h, i, j, k, l, m, n, 0]),
        )
    }

    /// Creates a custom key, for example from a QUIC connection identifier. Bytes after the 40th
    /// are ignored, but keys of different lengths are always different.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> FlowKey {
        if bytes.len() <= SHORT_MAX {
            let mut padded = [0; 1 + SHORT_MAX];
            padded[0] = SHORT_BYTES + bytes.len() as u8;
            padded[1..1 + bytes.len()].copy_from_slice(bytes);
            let both = u128::from_be_bytes(padded);
            return FlowKey::short((both >> 64) as u64, both as u64);
        }
        let mut words = [0; 5];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_be_bytes(padded);
        }
        FlowKey { words, tag: (LONG_BYTES + bytes.len() as u64).min(TAG_END - 1) }
    }

    #[inline(always)]
    const fn short(a: u64, b: u64) -> FlowKey {
        FlowKey { words: [a, b, 0, 0, 0], tag: 0 }
    }

    /// Returns the key with its endpoints in ascending order. A custom key is returned unchanged.
    #[must_use]
    #[inline(always)]
    pub const fn both_directions(self) -> FlowKey {
        let [a, b, c, d, e] = self.words;
        if self.is_v4() {
            let (source, destination) = (a, b & ENDPOINT_V4);
            let swap = source > destination;
            let (low, high) = if swap { (destination, source) } else { (source, destination) };
            return FlowKey::short(low, b & !ENDPOINT_V4 | high);
        }
        if self.is_short() {
            let (a, b) = link_both_directions(a, b);
            return FlowKey::short(a, b);
        }
        if self.tag != LONG_V6 {
            return self;
        }
        let source = (a as u128) << 64 | b as u128;
        let destination = (c as u128) << 64 | d as u128;
        let (source_port, destination_port) = ((e >> 48) as u16, (e >> 32) as u16);
        // This code has no `&&` and no `if`, because the compiler would create branches that the
        // CPU cannot predict: the direction of a packet is random.
        let swap = (source > destination) | ((source == destination) & (source_port > destination_port));
        let mask = (swap as u64).wrapping_neg();
        let (high, low) = ((a ^ c) & mask, (b ^ d) & mask);
        let ports = ((source_port ^ destination_port) as u64) & mask;
        FlowKey { words: [a ^ high, b ^ low, c ^ high, d ^ low, e ^ (ports << 48 | ports << 32)], tag: LONG_V6 }
    }

    /// Returns the key of the opposite direction. A custom key is returned unchanged.
    #[must_use]
    pub const fn reversed(self) -> FlowKey {
        match self.parts() {
            FlowParts::V4 { source, destination, protocol } => FlowKey::v4(destination, source, protocol),
            FlowParts::V6 { source, destination, protocol } => FlowKey::v6(destination, source, protocol),
            FlowParts::Link { source, destination, ethertype } => FlowKey::link(destination, source, ethertype),
            FlowParts::Bytes { .. } => self,
        }
    }

    /// Returns the key with both ports set to 0. A key without IP addresses is returned unchanged.
    #[must_use]
    pub const fn without_ports(self) -> FlowKey {
        let [a, b, c, d, e] = self.words;
        if self.is_v4() {
            return FlowKey::short(a & !0xffff, b & !0xffff);
        }
        if self.is_v6() {
            return FlowKey { words: [a, b, c, d, e & 0xff], tag: self.tag };
        }
        self
    }

    /// Returns the sender's address and port, if this is an IP key. The port is 0 if the protocol
    /// has no ports, and in the key of a fragment that is not the first of its datagram.
    #[must_use]
    pub const fn source(&self) -> Option<SocketAddr> {
        match self.parts() {
            FlowParts::V4 { source, .. } => Some(SocketAddr::V4(source)),
            FlowParts::V6 { source, .. } => Some(SocketAddr::V6(source)),
            _ => None,
        }
    }

    /// Returns the receiver's address and port, if this is an IP key.
    #[must_use]
    pub const fn destination(&self) -> Option<SocketAddr> {
        match self.parts() {
            FlowParts::V4 { destination, .. } => Some(SocketAddr::V4(destination)),
            FlowParts::V6 { destination, .. } => Some(SocketAddr::V6(destination)),
            _ => None,
        }
    }

    /// Returns the protocol number, or `None` for a link or custom key.
    #[must_use]
    pub const fn protocol(&self) -> Option<u8> {
        let [_, b, _, _, e] = self.words;
        if self.is_v4() {
            return Some((b >> 48) as u8);
        }
        if self.is_v6() { Some(e as u8) } else { None }
    }

    /// Returns a copy of the key, made word by word (64 bits), so that the compiler can keep keys
    /// in registers. Call `by_words` on a key that a function returns without being inlined, if the
    /// caller creates most of its keys inline. Without `by_words`, the compiler creates the
    /// caller's keys in memory, a load of two words waits for both stores, and hashing an IPv6 key
    /// with AES takes 57 clock ticks instead of 21.
    #[must_use]
    #[inline(always)]
    pub const fn by_words(self) -> FlowKey {
        let FlowKey { words: [a, b, c, d, e], tag } = self;
        FlowKey { words: [a, b, c, d, e], tag }
    }

    /// Returns the addresses and ports, or the bytes, from which the key was created.
    #[must_use]
    pub const fn parts(&self) -> FlowParts {
        let [a, b, c, d, e] = self.words;
        if self.is_v4() {
            return FlowParts::V4 {
                source: SocketAddrV4::new(Ipv4Addr::from_bits((a >> 16) as u32), a as u16),
                destination: SocketAddrV4::new(Ipv4Addr::from_bits((b >> 16) as u32), b as u16),
                protocol: (b >> 48) as u8,
            };
        }
        if self.tag == LONG_V6 {
            return FlowParts::V6 {
                source: v6_socket(a, b, e >> 48),
                destination: v6_socket(c, d, e >> 32),
                protocol: e as u8,
            };
        }
        let bytes = self.big_endian_bytes();
        if !self.is_short() {
            return FlowParts::Bytes { bytes, len: (self.tag - LONG_BYTES) as usize };
        }
        let kind = (a >> 56) as u8;
        if kind == SHORT_LINK {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, ..] = bytes;
            return FlowParts::Link {
                source: [a, b, c, d, e, f],
                destination: [g, h, i, j, k, l],
                ethertype: u16::from_be_bytes([m, n]),
            };
        }
        FlowParts::Bytes { bytes, len: (kind - SHORT_BYTES) as usize }
    }

    const fn big_endian_bytes(&self) -> [u8; BYTES_MAX] {
        let blocks = self.big_endian_words();
        let mut bytes = [0; BYTES_MAX];
        let mut block = 0;
        // Copies whole words, because copying single bytes is much slower.
        while block < blocks.len() {
            let word = blocks[block].to_be_bytes();
            let mut i = 0;
            while i < 8 {
                bytes[8 * block + i] = word[i];
                i += 1;
            }
            block += 1;
        }
        bytes
    }

    /// Returns the words of a link, IPv6 or custom key, without the top byte of a short key, which
    /// is the kind of the key.
    #[inline(always)]
    pub(crate) const fn big_endian_words(&self) -> [u64; 5] {
        let [a, b, c, d, e] = self.words;
        if self.is_short() { [a << 8 | b >> 56, b << 8, 0, 0, 0] } else { [a, b, c, d, e] }
    }

    #[inline(always)]
    pub(crate) const fn words(&self) -> &[u64; 5] {
        &self.words
    }

    #[inline(always)]
    pub(crate) const fn tag(&self) -> u64 {
        self.tag
    }

    #[inline(always)]
    pub(crate) const fn is_short(&self) -> bool {
        self.tag == 0
    }

    #[inline(always)]
    pub(crate) const fn is_v4(&self) -> bool {
        self.is_short() && self.words[0] >> 56 == SHORT_V4 as u64
    }

    #[inline(always)]
    pub(crate) const fn is_v6(&self) -> bool {
        self.tag == LONG_V6
    }
}

const fn v4_end(end: SocketAddrV4) -> (u32, u16) {
    (end.ip().to_bits(), end.port())
}

const fn v6_end(end: SocketAddrV6) -> (u128, u16) {
    (end.ip().to_bits(), end.port())
}

const fn v6_socket(high: u64, low: u64, port: u64) -> SocketAddrV6 {
    SocketAddrV6::new(Ipv6Addr::from_bits((high as u128) << 64 | low as u128), port as u16, 0, 0)
}

/// The key's words are separate parameters: if the parameter were a reference to the key, the
/// compiler would have to store the key in memory.
#[cold]
#[inline(never)]
const fn link_both_directions(a: u64, b: u64) -> (u64, u64) {
    if (a >> 56) as u8 != SHORT_LINK {
        return (a, b);
    }
    // Numbers of 48 bits. The EtherType and a zero byte are the last 24 bits of the key.
    let (source, destination) = (a << 8 >> 16, a << 56 >> 16 | b >> 24);
    if source <= destination {
        return (a, b);
    }
    ((SHORT_LINK as u64) << 56 | destination << 8 | source >> 40, source << 24 | b & 0xff_ffff)
}

/// The parts of a [`FlowKey`]. To read an IP key, [`FlowKey::source`], [`FlowKey::destination`] and
/// [`FlowKey::protocol`] are simpler than matching its parts.
///
/// ```
/// use steerage_flow::{FlowKey, FlowParts};
///
/// let key: FlowKey = "udp [fd00::1]:5 > [fd00::2]:53".parse()?;
/// match key.parts() {
///     FlowParts::V6 { destination, .. } => assert_eq!(destination, "[fd00::2]:53".parse()?),
///     other => panic!("{other:?} is not IPv6"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FlowParts {
    /// The parts of a key from [`FlowKey::v4`].
    V4 {
        /// The sender's address and port.
        source: SocketAddrV4,
        /// The receiver's address and port.
        destination: SocketAddrV4,
        /// The protocol number.
        protocol: u8,
    },
    /// The parts of a key from [`FlowKey::v6`].
    V6 {
        /// The sender's address and port. The flow label and the scope identifier are 0.
        source: SocketAddrV6,
        /// The receiver's address and port.
        destination: SocketAddrV6,
        /// The protocol number of the header that follows all extension headers.
        protocol: u8,
    },
    /// The parts of a key from [`FlowKey::link`].
    Link {
        /// The sender's link address.
        source: [u8; 6],
        /// The receiver's link address.
        destination: [u8; 6],
        /// The EtherType of the frame's payload.
        ethertype: u16,
    },
    /// A key that [`FlowKey::from_bytes`] created.
    Bytes {
        /// The first 40 bytes of the key, padded with zeros.
        bytes: [u8; 40],
        /// The number of bytes that were passed to [`FlowKey::from_bytes`].
        len: usize,
    },
}

/// Prints the usual notation of a flow: `tcp 10.0.0.1:5 > 10.0.0.2:80`, `icmp6 fd00::1 > fd00::2`,
/// `link 02:00:00:00:00:01 > 02:00:00:00:00:02 0x0806`, `bytes c0ffee`. Two ports of 0 are omitted
/// from the text.
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            FlowParts::V4 { source, destination, protocol } => fmt_ip(f, protocol, source.into(), destination.into()),
            FlowParts::V6 { source, destination, protocol } => fmt_ip(f, protocol, source.into(), destination.into()),
            FlowParts::Link { source: [a, b, c, d, e, g], destination, ethertype } => {
                write!(f, "link {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} > ")?;
                let [a, b, c, d, e, g] = destination;
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} {ethertype:#06x}")
            }
            FlowParts::Bytes { bytes, len } => {
                f.write_str("bytes ")?;
                bytes.iter().take(len).try_for_each(|byte| write!(f, "{byte:02x}"))?;
                if len > BYTES_MAX { write!(f, ".. of {len}") } else { Ok(()) }
            }
        }
    }
}

fn fmt_ip(f: &mut fmt::Formatter<'_>, protocol: u8, source: SocketAddr, destination: SocketAddr) -> fmt::Result {
    match protocol::name(protocol) {
        Some(name) => write!(f, "{name} ")?,
        None => write!(f, "protocol-{protocol} ")?,
    }
    match (source.port(), destination.port()) {
        (0, 0) => write!(f, "{} > {}", source.ip(), destination.ip()),
        _ => write!(f, "{source} > {destination}"),
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowKey({self})")
    }
}
