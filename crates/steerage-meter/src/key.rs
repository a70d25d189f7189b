//! The key of a flow in the table: five 64-bit words, the same for both directions.

use std::net::{SocketAddrV4, SocketAddrV6};

use steerage::{FlowKey, flow::FlowParts};

use super::code::{Coder, MalformedEdges};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(super) enum Kind {
    V4,
    V6,
    /// The key of frames without IP: MAC addresses and EtherType.
    Link,
    /// The key of MPLS frames without IP: MAC addresses, and the first and the last MPLS label.
    Mpls,
    /// The key of frames of unsupported link types, which form one flow.
    Other,
}

impl Kind {
    const ALL: [Self; 5] = [Self::V4, Self::V6, Self::Link, Self::Mpls, Self::Other];
}

/// The two endpoints of a flow, the lower endpoint first, and what distinguishes flows between
/// them.
///
/// `rest` has, from the top: the port of the first endpoint (16 bits), the port of the second (16),
/// the protocol (8), the [`Kind`] (8) and the mark (16).
///
/// The mark is 0, or a hash of what steering uses in addition to the endpoints. Steering may put
/// flows that differ only in the mark on different CPUs, so the meter keeps them separate as well.
///
/// For IPv4, one word has both addresses, and the other address words are 0. Comparing two IPv4
/// keys takes two words: `rest`, and the word with both addresses.
///
/// In contrast to a [`FlowKey`], a `Key` is one word shorter and is written directly into the
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    /// The upper and the lower half of the first endpoint's IP or MAC address, then those of the
    /// second endpoint's.
    ends: [u64; 4],
    rest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Directed {
    pub(super) key: Key,
    pub(super) turned: bool,
}

/// The seeds of the hash function, which are random in each run, so that attackers cannot choose
/// flows that collide in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds([u64; 4]);

impl Seeds {
    /// The seeds for marks, which are the same in every run, because marks are only compared with
    /// each other.
    const MARKS: Self =
        Self([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89]);

    pub(super) fn by_chance() -> Self {
        use std::hash::BuildHasher;
        let chance = std::hash::RandomState::new();
        Self(std::array::from_fn(|i| chance.hash_one(i)))
    }
}

const MARK_BITS: u64 = 0xffff;
const KIND_SHIFT: u32 = 16;
const KIND_BITS: u64 = 0xff << KIND_SHIFT;

/// The golden ratio's fractional part (Knuth, volume 3, 6.4): odd, with evenly spread bits.
pub(super) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Directed {
    pub(super) fn without_ports(&self) -> Self {
        let (from, to) = self.key.addresses();
        let (from, to) = if self.turned { (to, from) } else { (from, to) };
        match self.key.kind() {
            Kind::V4 => Key::v4((from as u32, 0), (to as u32, 0), self.key.protocol()),
            Kind::V6 => Key::v6((from, 0), (to, 0), self.key.protocol()),
            _ => *self,
        }
    }
}

impl Key {
    #[inline(always)]
    const fn rest(ports: (u16, u16), protocol: u8, kind: Kind, mark: u16) -> u64 {
        (ports.0 as u64) << 48
            | (ports.1 as u64) << 32
            | (protocol as u64) << 24
            | (kind as u64) << KIND_SHIFT
            | mark as u64
    }

    #[inline(always)]
    pub(super) fn v4(from: (u32, u16), to: (u32, u16), protocol: u8) -> Directed {
        let both = |from, to, bits| u64::from(from) << bits | u64::from(to);
        Self::v4_of_words(both(from.0, to.0, 32), both(from.1.into(), to.1.into(), 16) as u32, protocol)
    }

    /// The sender's values are in the upper halves of `addresses` and `ports`.
    #[inline(always)]
    pub(super) fn v4_of_words(addresses: u64, ports: u32, protocol: u8) -> Directed {
        let back = addresses.rotate_left(32);
        let turned = if addresses == back { ports > ports.rotate_left(16) } else { addresses > back };
        // The code has no branch, because the CPU cannot predict a packet's direction.
        let ports = ports.rotate_left(16 * u32::from(turned));
        let rest = u64::from(ports) << 32 | Self::rest((0, 0), protocol, Kind::V4, 0);
        Directed { key: Self { ends: [addresses.min(back), 0, 0, 0], rest }, turned }
    }

    #[inline(always)]
    pub(super) fn v6(from: (u128, u16), to: (u128, u16), protocol: u8) -> Directed {
        Self::ordered(from, to, protocol, Kind::V6)
    }

    #[inline(always)]
    fn ordered(from: (u128, u16), to: (u128, u16), protocol: u8, kind: Kind) -> Directed {
        let turned = from > to;
        let (low, high) = if turned { (to, from) } else { (from, to) };
        let words = |address: u128| [(address >> 64) as u64, address as u64];
        let rest = Self::rest((low.1, high.1), protocol, kind, 0);
        let ([a, b], [c, d]) = (words(low.0), words(high.0));
        Directed { key: Self { ends: [a, b, c, d], rest }, turned }
    }

    pub(super) fn of(key: &FlowKey) -> Directed {
        match key.parts() {
            FlowParts::V4 { source: from, destination: to, protocol } => {
                Self::v4((from.ip().to_bits(), from.port()), (to.ip().to_bits(), to.port()), protocol)
            }
            FlowParts::V6 { source: from, destination: to, protocol } => {
                Self::v6((from.ip().to_bits(), from.port()), (to.ip().to_bits(), to.port()), protocol)
            }
            FlowParts::Link { source, destination, ethertype } => {
                Self::ordered((mac(source), ethertype), (mac(destination), ethertype), 0, Kind::Link)
            }
            _ => Self::other(),
        }
    }

    /// The dissector's key of an MPLS frame without IP has two MAC addresses and two labels of four
    /// bytes. Labels belong to one direction, so the endpoints are never swapped.
    pub(super) fn mpls(key: &FlowKey) -> Directed {
        let FlowParts::Bytes { bytes, len: 20 } = key.parts() else { return Self::other() };
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let rest = Self::rest((0, 0), 0, Kind::Mpls, 0);
        let ends = [&bytes[12..16], &bytes[..6], &bytes[16..20], &bytes[6..12]].map(number);
        Directed { key: Self { ends, rest }, turned: false }
    }

    /// The key of free slots. No packet has this key, because keys of unsupported link types
    /// (`Kind::Other`) have the mark 0.
    pub(super) const VACANT: Self = Self { ends: [0; 4], rest: Self::rest((0, 0), 0, Kind::Other, 1) };

    /// The key of fragments that wait for an earlier part. No packet has this key or
    /// [`VACANT`](Self::VACANT).
    pub(super) const WAITING: Self = Self { ends: [0; 4], rest: Self::rest((0, 0), 0, Kind::Other, 2) };

    pub(super) fn hosts(&self) -> Self {
        Self { rest: self.rest & KIND_BITS, ..*self }
    }

    pub(super) fn other() -> Directed {
        let key = Self { ends: [0; 4], rest: Self::rest((0, 0), 0, Kind::Other, 0) };
        Directed { key, turned: false }
    }

    #[inline(always)]
    pub(super) fn is(&self, other: &Self) -> bool {
        let differs = |nth: usize| self.ends[nth] ^ other.ends[nth];
        if differs(0) | (self.rest ^ other.rest) != 0 {
            return false;
        }
        self.is_v4() || differs(1) | differs(2) | differs(3) == 0
    }

    #[inline(always)]
    fn is_v4(&self) -> bool {
        self.rest & KIND_BITS == (Kind::V4 as u64) << KIND_SHIFT
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::ALL[((self.rest & KIND_BITS) >> KIND_SHIFT) as usize]
    }

    pub(super) fn protocol(&self) -> u8 {
        (self.rest >> 24) as u8
    }

    pub(super) fn ports(&self) -> (u16, u16) {
        ((self.rest >> 48) as u16, (self.rest >> 32) as u16)
    }

    pub(super) fn addresses(&self) -> (u128, u128) {
        let [a, b, c, d] = self.ends;
        if self.is_v4() {
            return (u128::from(a >> 32), u128::from(a as u32));
        }
        let address = |high, low| u128::from(high) << 64 | u128::from(low);
        (address(a, b), address(c, d))
    }

    pub(super) fn flow_key(&self, turned: bool) -> FlowKey {
        let (addresses, ports) = (self.addresses(), self.ports());
        let ends = ((addresses.0, ports.0), (addresses.1, ports.1));
        let (from, to) = if turned { (ends.1, ends.0) } else { ends };
        match self.kind() {
            Kind::V4 => {
                let [from, to] = [from, to].map(|(bits, port)| SocketAddrV4::new((bits as u32).into(), port));
                FlowKey::v4(from, to, self.protocol())
            }
            Kind::V6 => {
                let [from, to] = [from, to].map(|(bits, port)| SocketAddrV6::new(bits.into(), port, 0, 0));
                FlowKey::v6(from, to, self.protocol())
            }
            Kind::Link => FlowKey::link(stations(from.0), stations(to.0), from.1),
            Kind::Mpls => {
                let labels = [(from.0 >> 64) as u32, (to.0 >> 64) as u32].map(u32::to_be_bytes);
                FlowKey::from_bytes(&[&stations(from.0)[..], &stations(to.0), &labels[0], &labels[1]].concat())
            }
            Kind::Other => FlowKey::from_bytes(&[]),
        }
    }

    pub(super) fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        coder.numbers(&mut self.ends)?;
        coder.number(&mut self.rest)?;
        let kind = (self.rest & KIND_BITS) >> KIND_SHIFT;
        if (kind as usize) < Kind::ALL.len() { Ok(()) } else { Err(MalformedEdges) }
    }

    #[must_use]
    pub(super) fn marked(self, other: &FlowKey) -> Self {
        let mark = match other.parts() {
            FlowParts::Bytes { bytes, len } => {
                let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
                let key = Self { ends: [word(0), word(8), word(16), word(24)], rest: word(32) ^ len as u64 };
                key.hash_of_all(&Seeds::MARKS)
            }
            _ => Self::of(other).key.hash(&Seeds::MARKS),
        };
        // The mark must not be 0, which means that there is no mark.
        Self { rest: self.rest & !MARK_BITS | u64::from(mark as u16 | 1), ..self }
    }

    /// Hashes the key by folded multiplication, like wyhash (Wang Yi) and foldhash (Orson Peters).
    #[inline(always)]
    pub(super) fn hash(&self, seeds: &Seeds) -> u32 {
        if self.is_v4() { self.hash_of_two(seeds) } else { self.hash_of_all(seeds) }
    }

    #[inline(always)]
    fn hash_of_two(&self, Seeds([s0, s1, ..]): &Seeds) -> u32 {
        // A second multiplication is necessary: for keys that differ only in a port, some upper
        // bits of the first products are equal.
        (fold(fold(self.ends[0] ^ s0, self.rest ^ s1), SPREAD) >> 32) as u32
    }

    fn hash_of_all(&self, Seeds([s0, s1, s2, s3]): &Seeds) -> u32 {
        let [a, b, c, d] = self.ends;
        let both = fold(b ^ s0, d ^ s1) ^ fold(a ^ s2, c ^ s3).rotate_left(17);
        (fold(fold(both ^ s2, self.rest ^ s3), SPREAD) >> 32) as u32
    }
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn mac(bytes: [u8; 6]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

pub(super) fn stations(number: u128) -> [u8; 6] {
    let bytes = (number as u64).to_be_bytes();
    [bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::HashSet;

    use super::*;

    fn any_flow_key() -> impl Strategy<Value = FlowKey> {
        prop_oneof![
            any::<(SocketAddrV4, SocketAddrV4, u8)>().prop_map(|(from, to, protocol)| FlowKey::v4(from, to, protocol)),
            any::<(SocketAddrV6, SocketAddrV6, u8)>().prop_map(|(from, to, protocol)| FlowKey::v6(from, to, protocol)),
            any::<([u8; 6], [u8; 6], u16)>().prop_map(|(from, to, holds)| FlowKey::link(from, to, holds)),
        ]
    }

    proptest! {
        #[test]
        fn nothing_of_a_flow_is_lost(flow in any_flow_key()) {
            let Directed { key, turned } = Key::of(&flow);
            prop_assert_eq!(key.flow_key(turned), flow);
            let back = key.flow_key(!turned);
            prop_assert_eq!(back.both_directions(), flow.both_directions());
            prop_assert_eq!(Key::of(&back).key, key);
        }

        #[test]
        fn labels_are_kept(bytes in any::<[u8; 20]>()) {
            let flow = FlowKey::from_bytes(&bytes);
            let Directed { key, turned } = Key::mpls(&flow);
            prop_assert_eq!(key.flow_key(turned), flow);
        }

        #[test]
        fn a_mark_tells_apart_and_shows_nothing(flow in any_flow_key(), other in any_flow_key()) {
            let Directed { key, turned } = Key::of(&flow);
            let marked = key.marked(&other);
            prop_assert_ne!(marked, key);
            prop_assert_eq!(marked.marked(&other), marked);
            prop_assert_eq!(marked.flow_key(turned), flow);
        }
    }

    /// If 4,096 random flows are put into 16,384 slots, they occupy 3,624 slots on average, with a
    /// standard deviation of 18.
    #[test]
    fn hashes_spread() {
        for run in 0..200 {
            let seeds = Seeds::by_chance();
            for shift in [0, 4, 16, 28, 32, 36] {
                let v4 = |i: u64| Key::v4(((i << shift >> 16) as u32, (i << shift) as u16), (7, 7), 17).key;
                let v6 = |i: u64| Key::v6(((0xfd00 << 112) | u128::from(i) << shift, 1), (0xfd00 << 112, 7), 6).key;
                for flows in [&v4 as &dyn Fn(u64) -> Key, &v6] {
                    let keys: HashSet<Key> = (0..4096).map(flows).collect();
                    let places: HashSet<u32> = keys.iter().map(|key| key.hash(&seeds) >> 18).collect();
                    assert!(keys.len() < 4096 || places.len() > 3624 - 7 * 18, "{run}, {shift}: {}", places.len());
                }
            }
        }
    }
}
