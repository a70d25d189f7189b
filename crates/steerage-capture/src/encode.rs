//! The capture formats that steerage writes, in the machine's byte order: pcap and pcapng
//! (draft-ietf-opsawg-pcapng).

use std::collections::BTreeMap;

use steerage::{LinkType, WallTime};

use super::PACKET_BYTES_MAX;

const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const IF_TSRESOL: u16 = 9;
/// The resolution of times: 10 to the power of -9 seconds. The default of pcapng is 10 to the power
/// of -6 seconds.
const NANOSECONDS: u8 = 9;

/// The bytes of an enhanced packet block's header: type, length, interface, time in two halves, and
/// the packet's two lengths.
const PACKET_HEAD: usize = 28;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

/// The bytes of a pcap record's header: seconds, parts of a second, and the packet's two lengths.
const RECORD_HEAD: usize = 16;

/// The format of a written capture.
///
/// ```
/// use steerage_capture::StreamFormat;
///
/// assert!(StreamFormat::Pcapng.takes_several_links());
/// assert!(!StreamFormat::Pcap.takes_several_links());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StreamFormat {
    /// pcap with microseconds, which every program can read.
    Pcap,
    /// pcap with nanoseconds.
    PcapNanos,
    /// pcapng with microseconds. Packets with more precise times get an interface with nanoseconds.
    PcapngMicros,
    /// pcapng with nanoseconds.
    Pcapng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interface {
    pub(super) link: LinkType,
    pub(super) has_nanos: bool,
}

/// The complete packets in a file that may be cut off. `len` is the position after the last
/// complete packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) len: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PacketHead {
    pub(super) interface: (u32, Interface),
    /// The packet's time in nanoseconds since 1970.
    pub(super) nanos: u64,
    pub(super) captured: usize,
    pub(super) wire: usize,
}

impl StreamFormat {
    /// Returns true if a file of this format can have packets of several link types.
    pub fn takes_several_links(self) -> bool {
        matches!(self, Self::PcapngMicros | Self::Pcapng)
    }

    fn has_nanos(self) -> bool {
        matches!(self, Self::PcapNanos | Self::Pcapng)
    }

    /// Returns the pcapng format with the same precision of time as this format.
    ///
    /// ```
    /// use steerage_capture::StreamFormat;
    ///
    /// assert_eq!(StreamFormat::Pcap.in_pcapng(), StreamFormat::PcapngMicros);
    /// ```
    #[must_use]
    pub fn in_pcapng(self) -> Self {
        if self.has_nanos() { Self::Pcapng } else { Self::PcapngMicros }
    }

    /// Returns the simplest format that can represent the packets of both formats.
    pub(super) fn or(self, other: Self) -> Self {
        match (self.has_nanos() || other.has_nanos(), self.takes_several_links() || other.takes_several_links()) {
            (false, false) => Self::Pcap,
            (true, false) => Self::PcapNanos,
            (false, true) => Self::PcapngMicros,
            (true, true) => Self::Pcapng,
        }
    }

    /// Returns the pcapng interface to which a packet with this link type and time belongs.
    #[inline]
    pub(super) fn interface(self, link: LinkType, nanos: u64) -> Interface {
        let needs_nanos = self == Self::PcapngMicros && nanos % 1000 != 0;
        Interface { link, has_nanos: self.has_nanos() || needs_nanos }
    }

    pub(super) fn file_head(self) -> Vec<u8> {
        if self.takes_several_links() { section() } else { Vec::new() }
    }

    pub(super) fn interface_head(self, interface: Interface) -> Vec<u8> {
        match self {
            Self::Pcap => pcap_head(MAGIC_MICROSECONDS, interface.link),
            Self::PcapNanos => pcap_head(MAGIC_NANOSECONDS, interface.link),
            Self::PcapngMicros | Self::Pcapng => described(interface),
        }
    }

    #[inline]
    pub(super) fn packet_len(self, captured: usize) -> usize {
        if self.takes_several_links() { PACKET_HEAD + 4 + captured.next_multiple_of(4) } else { RECORD_HEAD + captured }
    }

    /// Returns false if the format cannot represent this time: pcap ends in 2106.
    #[inline]
    pub(super) fn holds(self, nanos: u64) -> bool {
        self.takes_several_links() || nanos < (u32::MAX as u64 + 1) * NANOS_PER_SECOND
    }

    /// Appends a packet whose time the format [`holds`](Self::holds).
    #[inline]
    pub(super) fn packet<'p>(self, to: &mut Vec<u8>, head: PacketHead, parts: impl Iterator<Item = &'p [u8]>) {
        let PacketHead { interface, nanos, captured, wire } = head;
        let (captured_word, wire) = (captured as u32, wire as u32);
        let (number, Interface { has_nanos, .. }) = interface;
        to.reserve(self.packet_len(captured));
        if self.takes_several_links() {
            let padded = captured.next_multiple_of(4);
            let len = self.packet_len(captured) as u32;
            let ticks = if has_nanos { nanos } else { nanos / 1000 };
            extend(to, [PACKET, len, number, (ticks >> 32) as u32, ticks as u32, captured_word, wire]);
            parts.for_each(|part| to.extend_from_slice(part));
            to.resize(to.len() + padded - captured, 0);
            to.extend_from_slice(&len.to_ne_bytes());
            return;
        }
        let (seconds, rest) = ((nanos / NANOS_PER_SECOND) as u32, (nanos % NANOS_PER_SECOND) as u32);
        let rest = if has_nanos { rest } else { rest / 1000 };
        extend(to, [seconds, rest, captured_word, wire]);
        parts.for_each(|part| to.extend_from_slice(part));
    }

    /// Finds the complete packets in `written`: bytes that this module wrote, and that may be cut
    /// off at any position. A pcapng file may have other blocks between the packets.
    pub(super) fn whole(self, written: &[u8]) -> Whole {
        let word = |at: usize| written.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let mut whole = Whole::default();
        loop {
            let (packets, bytes, len) = if self.takes_several_links() {
                let (Some(kind), Some(len)) = (word(whole.len), word(whole.len + 4)) else { return whole };
                let captured = word(whole.len + PACKET_HEAD - 8).unwrap_or(0);
                if kind == PACKET { (1, captured, len as usize) } else { (0, 0, len as usize) }
            } else {
                let Some(captured) = word(whole.len + 8) else { return whole };
                (1, captured, RECORD_HEAD + captured as usize)
            };
            if len == 0 || whole.len + len > written.len() {
                return whole;
            }
            whole =
                Whole { packets: whole.packets + packets, bytes: whole.bytes + u64::from(bytes), len: whole.len + len };
        }
    }
}

/// Writes packets as pcapng with nanoseconds to memory.
///
/// ```
/// use steerage::{LinkType, WallTime};
/// use steerage_capture::PcapngEncoder;
///
/// let (mut encoder, mut capture) = (PcapngEncoder::default(), Vec::new());
/// encoder.begin(&mut capture);
/// encoder.packet(&mut capture, LinkType::ETHERNET, WallTime::from_nanos(0), 60, &[0; 60]);
/// assert_eq!(capture[..4], 0x0a0d_0d0a_u32.to_ne_bytes());
/// ```
#[derive(Clone, Debug, Default)]
pub struct PcapngEncoder {
    interfaces: BTreeMap<LinkType, u32>,
}

impl PcapngEncoder {
    const FORMAT: StreamFormat = StreamFormat::Pcapng;

    /// Appends the header of the file. Call `begin` once, before the first packet.
    pub fn begin(&mut self, to: &mut Vec<u8>) {
        to.extend_from_slice(&Self::FORMAT.file_head());
    }

    /// Appends a packet of `wire_len` bytes, of which `data` was captured. Before the first packet
    /// of a link type, this function also appends the header of an interface.
    pub fn packet(&mut self, to: &mut Vec<u8>, link: LinkType, time: WallTime, wire_len: u32, data: &[u8]) {
        let nanos = time.as_nanos();
        let interface = Self::FORMAT.interface(link, nanos);
        let next = self.interfaces.len() as u32;
        let number = *self.interfaces.entry(link).or_insert_with(|| {
            to.extend_from_slice(&Self::FORMAT.interface_head(interface));
            next
        });
        let wire = (wire_len as usize).max(data.len());
        let head = PacketHead { interface: (number, interface), nanos, captured: data.len(), wire };
        Self::FORMAT.packet(to, head, std::iter::once(data));
    }
}

fn extend<const N: usize>(to: &mut Vec<u8>, words: [u32; N]) {
    words.iter().for_each(|word| to.extend_from_slice(&word.to_ne_bytes()));
}

/// Returns the header of a pcap file: magic number, version 2.4, two unused fields, maximum packet
/// length, and link type.
fn pcap_head(magic: u32, link: LinkType) -> Vec<u8> {
    let version = [2_u16, 4].map(u16::to_ne_bytes).concat();
    let rest = [0, 0, PACKET_BYTES_MAX as u32, u32::from(link.0)].map(u32::to_ne_bytes).concat();
    [&magic.to_ne_bytes()[..], &version, &rest].concat()
}

fn block(kind: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = (12 + body.len() as u32).to_ne_bytes();
    [&kind.to_ne_bytes()[..], &len, &body, &len].concat()
}

fn section() -> Vec<u8> {
    let (version, unknown_length) = ([1_u16, 0].map(u16::to_ne_bytes).concat(), (-1_i64).to_ne_bytes());
    block(SECTION, &[&BYTE_ORDER.to_ne_bytes(), &version, &unknown_length])
}

fn described(interface: Interface) -> Vec<u8> {
    let no_snap_length = 0_u32.to_ne_bytes();
    let resolution = [&IF_TSRESOL.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &[NANOSECONDS, 0, 0, 0]].concat();
    let end_of_options = [0; 4];
    let (resolution, end_of_options) =
        if interface.has_nanos { (&resolution[..], &end_of_options[..]) } else { (&[][..], &[][..]) };
    block(INTERFACE, &[&interface.link.0.to_ne_bytes(), &[0; 2], &no_snap_length, resolution, end_of_options])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [StreamFormat; 4] =
        [StreamFormat::Pcap, StreamFormat::PcapNanos, StreamFormat::PcapngMicros, StreamFormat::Pcapng];

    #[test]
    fn whole_packets_are_counted_wherever_it_is_cut() {
        for format in ALL {
            let (mut written, mut ends) = (Vec::new(), vec![0]);
            for len in [60_usize, 0, 1, 1500] {
                let interface = (0, format.interface(LinkType::ETHERNET, 1));
                let head = PacketHead { interface, nanos: 1, captured: len, wire: 2000 };
                format.packet(&mut written, head, [&vec![7; len][..]].into_iter());
                ends.push(written.len());
            }
            for cut in 0..=written.len() {
                let whole = format.whole(&written[..cut]);
                let packets = ends.iter().filter(|end| **end > 0 && **end <= cut).count();
                assert_eq!((whole.packets as usize, whole.len), (packets, ends[packets]), "{format:?} cut at {cut}");
            }
            assert_eq!(format.whole(&written).bytes, 1561);
        }
    }

    #[test]
    fn pcap_ends_in_2106() {
        let last = (u64::from(u32::MAX) + 1) * NANOS_PER_SECOND - 1;
        assert_eq!(ALL.map(|format| format.holds(last)), [true; 4]);
        assert_eq!(ALL.map(|format| format.holds(last + 1)), [false, false, true, true]);
    }

    #[test]
    fn a_format_for_both_holds_what_each_holds() {
        use StreamFormat::{Pcap, PcapNanos, Pcapng, PcapngMicros};
        assert_eq!(Pcap.or(Pcap), Pcap);
        assert_eq!(PcapNanos.or(Pcap), PcapNanos);
        assert_eq!((PcapngMicros.or(Pcap), PcapngMicros.or(PcapNanos)), (PcapngMicros, Pcapng));
        assert_eq!((Pcapng.or(Pcap), PcapNanos.in_pcapng()), (Pcapng, Pcapng));
    }
}
