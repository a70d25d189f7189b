//! Merges packets into super-frames by the rules of Linux GRO (`tcp_gro_receive`,
//! `udp_gro_receive_segment`), but only if splitting the super-frame restores exactly the packets
//! that were merged.

use super::layout::{self, Layout};
use super::{ChecksumState, HEADER_BYTES_MAX, Offload, OffloadKind};
use crate::LinkType;
use crate::wire::checksum::{finish, fold, pseudo_sum, sum};
use crate::wire::tcp::{CWR, FIN, PSH, RST, SYN, URG};
use crate::wire::{be16, be32, ipv4, ipv6, protocol, put, tcp, udp};

/// The maximum number of flows whose packets are merged at the same time, as in Linux
/// (`MAX_GRO_SKBS`).
pub const RUNS_MAX: usize = 8;

/// The maximum number of packets that one call of [`coalesce`] reads, and that one super-frame
/// contains, as in Linux (`UDP_GRO_CNT_MAX`).
pub const MERGED_MAX: usize = 64;

const PACKET_BYTES_MAX: usize = 65_535;

/// A result of [`coalesce`]: a super-frame of several packets, or one unchanged packet.
#[derive(Debug)]
pub struct Merged<'m> {
    /// One bit for each merged packet, by its position in the batch.
    pub members: u64,
    /// The headers and the offload of the super-frame, or `None` for a single packet.
    pub frame: Option<(&'m [u8], Offload)>,
    /// True if the packet is an IPv4 packet.
    pub is_v4: bool,
}

impl Merged<'_> {
    /// Returns the positions of the merged packets in the batch, in order.
    pub fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.members;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(next)
        })
    }

    fn one(nth: usize) -> Self {
        Self { members: 1 << nth, frame: None, is_v4: false }
    }
}

/// The fields in which packets that are merged may differ, each with its offset in the header and
/// its length, in ascending order: lengths, IP identification and checksums, and TCP's sequence
/// number and flags.
const CHANGES_V4: &[(usize, usize)] = &[(2, 4), (ipv4::CHECKSUM_AT, 2)];
const CHANGES_V6: &[(usize, usize)] = &[(4, 2)];
const CHANGES_TCP: &[(usize, usize)] = &[(4, 4), (tcp::FLAGS_AT + 1, 1), (tcp::CHECKSUM_AT, 2)];
const CHANGES_UDP: &[(usize, usize)] = &[(udp::LENGTH_AT, 4)];

/// Returns true if two headers differ outside of the fields that may differ.
fn differs(one: &[u8], other: &[u8], layout: &Layout) -> bool {
    let network = if layout.is_v4 { CHANGES_V4 } else { CHANGES_V6 };
    let transport = if layout.protocol == protocol::TCP { CHANGES_TCP } else { CHANGES_UDP };
    let mut from = 0;
    for (header, changes) in [(layout.network_at, network), (layout.transport_at, transport)] {
        for (at, len) in changes {
            if one[from..header + at] != other[from..header + at] {
                return true;
            }
            from = header + at + len;
        }
    }
    one[from..] != other[from..]
}

#[derive(Clone, Copy)]
struct Candidate<'p> {
    packet: &'p [u8],
    offload: Option<Offload>,
    layout: Layout,
}

impl<'p> Candidate<'p> {
    fn header(&self) -> &'p [u8] {
        &self.packet[..self.layout.payload_at]
    }

    fn payload_bytes(&self) -> usize {
        self.packet.len() - self.layout.payload_at
    }

    fn transport(&self) -> &'p [u8] {
        &self.packet[self.layout.transport_at..]
    }

    fn tcp_flags(&self) -> u16 {
        if self.layout.protocol == protocol::TCP { be16(self.transport(), tcp::FLAGS_AT) & tcp::FLAGS } else { 0 }
    }

    fn can_merge(&self) -> bool {
        let is_plain = if self.layout.protocol == protocol::TCP {
            self.tcp_flags() & (CWR | URG | SYN | RST) == 0
        } else {
            usize::from(be16(self.transport(), udp::LENGTH_AT)) == self.transport().len()
                && be16(self.transport(), udp::CHECKSUM_AT) != 0
        };
        let is_v6_plain = self.layout.is_v4 || self.layout.transport_at - self.layout.network_at == ipv6::BYTES;
        is_plain && is_v6_plain && self.payload_bytes() > 0
    }

    /// Returns true if splitting a super-frame restores the checksums of this packet. A wrong
    /// checksum must stay wrong, so that the receiver detects the damage. In one's complement, 0
    /// equals 0xffff. [`Segments`](super::Segments) writes 0 in IPv4 and 0xffff in TCP and UDP, so
    /// a packet with 0xffff in IPv4, or with 0 in TCP or UDP, is not merged. A partial checksum
    /// counts as correct if completing it gives the correct value.
    fn is_sound(&self) -> bool {
        let network = &self.packet[self.layout.network_at..self.layout.transport_at];
        if self.layout.is_v4 && (finish(sum(network, 0)) != 0 || be16(network, ipv4::CHECKSUM_AT) == 0xffff) {
            return false;
        }
        let transport = self.transport();
        let pseudo = pseudo_sum(network, self.layout.is_v4, self.layout.protocol, transport.len());
        let checksum = be16(transport, self.layout.checksum_at());
        let Some(offload) = self.offload else { return checksum != 0 && finish(sum(transport, pseudo)) == 0 };
        offload.leaves_checksum_of(&self.layout) && fold(pseudo) % 0xffff == checksum % 0xffff
    }

    fn identification(&self) -> u16 {
        if self.layout.is_v4 { be16(self.packet, self.layout.network_at + 4) } else { 0 }
    }

    fn shares_flow(&self, other: &Self) -> bool {
        let ports = |of: &Self| be32(of.transport(), 0);
        let addresses = |of: &Self| -> &'p [u8] {
            let network = &of.packet[of.layout.network_at..];
            if of.layout.is_v4 { &network[ipv4::ADDRESSES] } else { &network[ipv6::ADDRESSES] }
        };
        self.layout.protocol == other.layout.protocol
            && self.layout.is_v4 == other.layout.is_v4
            && ports(self) == ports(other)
            && addresses(self) == addresses(other)
    }
}

struct Run<'p> {
    first: Candidate<'p>,
    last: Candidate<'p>,
    members: u64,
    count: u32,
    payload_bytes: usize,
    fixed: Option<bool>,
    closed: bool,
    sound: Option<bool>,
}

impl<'p> Run<'p> {
    fn new(first: Candidate<'p>, nth: usize) -> Self {
        let closed = !first.can_merge() || first.tcp_flags() & (FIN | PSH) != 0;
        let payload_bytes = first.payload_bytes();
        Self { first, last: first, members: 1 << nth, count: 1, payload_bytes, fixed: None, closed, sound: None }
    }

    fn join(&mut self, next: Candidate<'p>, nth: usize) -> bool {
        if self.closed || !next.can_merge() || next.layout != self.first.layout {
            return false;
        }
        let (size, bytes) = (self.first.payload_bytes(), next.payload_bytes());
        let packet_bytes = self.first.packet.len() - self.first.layout.network_at - size + self.payload_bytes + bytes;
        if bytes > size || packet_bytes > PACKET_BYTES_MAX || self.count as usize >= MERGED_MAX {
            return false;
        }
        let Some(fixed) = self.numbered(&next) else { return false };
        let is_tcp = next.layout.protocol == protocol::TCP;
        let expected = || be32(self.first.transport(), 4).wrapping_add(self.payload_bytes as u32);
        let ends = next.tcp_flags() & (FIN | PSH);
        if is_tcp && (be32(next.transport(), 4) != expected() || next.tcp_flags() & !ends != self.first.tcp_flags()) {
            return false;
        }
        if differs(self.first.header(), next.header(), &next.layout) {
            return false;
        }
        if !*self.sound.get_or_insert_with(|| self.first.is_sound()) || !next.is_sound() {
            return false;
        }
        (self.last, self.fixed) = (next, fixed);
        self.members |= 1 << nth;
        self.count += 1;
        self.payload_bytes += bytes;
        self.closed = bytes < size || ends != 0;
        true
    }

    /// The second packet of a super-frame decides whether the IP identification of all later
    /// packets must stay the same or count up.
    fn numbered(&self, next: &Candidate<'_>) -> Option<Option<bool>> {
        if !next.layout.is_v4 {
            return Some(None);
        }
        let (before, number) = (self.last.identification(), next.identification());
        let counts = number == before.wrapping_add(1);
        let is_atomic = be16(next.packet, next.layout.network_at + 6) & ipv4::DONT_FRAGMENT != 0;
        let stays = number == before && is_atomic;
        match self.fixed {
            None => (counts || stays).then_some(Some(stays)),
            Some(fixed) => (if fixed { stays } else { counts }).then_some(Some(fixed)),
        }
    }

    fn emit(&self, emit: &mut impl FnMut(Merged<'_>)) {
        let layout = &self.first.layout;
        if self.count == 1 {
            return emit(Merged { members: self.members, frame: None, is_v4: layout.is_v4 });
        }
        let mut header = [0; HEADER_BYTES_MAX];
        let header = &mut header[..layout.payload_at];
        header.copy_from_slice(self.first.header());
        let bytes = layout.payload_at - layout.transport_at + self.payload_bytes;
        let packet_bytes = layout.transport_at - layout.network_at + bytes;
        if layout.is_v4 {
            put(header, layout.network_at + 2, (packet_bytes as u16).to_be_bytes());
            put(header, layout.network_at + ipv4::CHECKSUM_AT, [0; 2]);
            let checksum = finish(sum(&header[layout.network_at..layout.transport_at], 0));
            put(header, layout.network_at + ipv4::CHECKSUM_AT, checksum.to_be_bytes());
        } else {
            put(header, layout.network_at + 4, ((packet_bytes - ipv6::BYTES) as u16).to_be_bytes());
        }
        let kind = if layout.protocol == protocol::TCP {
            let at = layout.transport_at + tcp::FLAGS_AT;
            let word = be16(header, at) | self.last.tcp_flags() & (FIN | PSH);
            put(header, at, word.to_be_bytes());
            OffloadKind::Tcp
        } else {
            put(header, layout.transport_at + 4, (bytes as u16).to_be_bytes());
            OffloadKind::Udp
        };
        let pseudo = fold(pseudo_sum(&header[layout.network_at..], layout.is_v4, layout.protocol, bytes));
        put(header, layout.transport_at + layout.checksum_at(), pseudo.to_be_bytes());
        let offload = Offload::of_layout(kind, self.first.payload_bytes() as u16, layout, header);
        let offload = Offload { checksum: ChecksumState::Partial, ..offload };
        emit(Merged { members: self.members, frame: Some((header, offload)), is_v4: layout.is_v4 });
    }
}

/// Merges consecutive packets of each flow, and passes each super-frame or single packet to `emit`.
/// Reads at most [`MERGED_MAX`] packets. `packets` contains the [`Offload`] of each packet whose
/// checksum may be partial. The packets of each flow stay in order. `None` in `packets` stands for
/// a packet that must be sent unchanged, after all earlier and before all later packets.
///
/// ```
/// use steerage_flow::LinkType;
/// use steerage_flow::offload::{Offload, OffloadKind, Segments, coalesce};
///
/// // Cut a super-frame of three datagrams ...
/// let mut frame = vec![7; 28 + 250];
/// frame[..12].copy_from_slice(&[0x45, 0, 1, 22, 0, 0, 0x40, 0, 64, 17, 0, 0]);
/// let cut = Offload::super_frame(OffloadKind::Udp, 100, &frame, LinkType::RAW)?;
/// let packets: Vec<Vec<u8>> =
///     Segments::of_frame(&cut, &frame).map(|packet| [packet.header(), packet.payload()].concat()).collect();
///
/// // ... and merge it again.
/// let batch: Vec<_> = packets.iter().map(|packet| Some((packet.as_slice(), None))).collect();
/// coalesce(&batch, LinkType::RAW, |merged| {
///     let (header, offload) = merged.frame.expect("all of them");
///     assert_eq!((header.len(), offload.segment_bytes(), merged.positions().count()), (28, 100, 3));
/// });
/// # Ok::<(), steerage_flow::offload::BadOffload>(())
/// ```
pub fn coalesce(packets: &[Option<(&[u8], Option<Offload>)>], link: LinkType, mut emit: impl FnMut(Merged<'_>)) {
    let mut runs: [Option<Run<'_>>; RUNS_MAX] = std::array::from_fn(|_| None);
    for (nth, packet) in packets.iter().take(MERGED_MAX).enumerate() {
        let candidate = packet.and_then(|(packet, offload)| {
            layout::read(packet, link).map(|layout| Candidate { packet, offload, layout })
        });
        let Some(candidate) = candidate else {
            emit_all(&mut runs, &mut emit);
            emit(Merged::one(nth));
            continue;
        };
        let same = runs.iter_mut().find(|run| run.as_ref().is_some_and(|run| run.first.shares_flow(&candidate)));
        if let Some(place) = same {
            if place.as_mut().is_some_and(|run| run.join(candidate, nth)) {
                continue;
            }
            place.iter().for_each(|run| run.emit(&mut emit));
            *place = Some(Run::new(candidate, nth));
            continue;
        }
        if runs.iter().all(Option::is_some) {
            emit_all(&mut runs, &mut emit);
        }
        if let Some(free) = runs.iter_mut().find(|run| run.is_none()) {
            *free = Some(Run::new(candidate, nth));
        }
    }
    emit_all(&mut runs, &mut emit);
}

fn emit_all(runs: &mut [Option<Run<'_>>; RUNS_MAX], emit: &mut impl FnMut(Merged<'_>)) {
    runs.iter_mut().filter_map(Option::take).for_each(|run| run.emit(emit));
}
