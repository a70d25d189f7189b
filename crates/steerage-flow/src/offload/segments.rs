//! Splits a super-frame like Linux's `tcp_gso_segment` and `__udp_gso_segment`, but allocates no
//! memory.

use super::{ChecksumState, HEADER_BYTES_MAX, Offload, OffloadKind};
use crate::wire::checksum::{finish, finish_transport, fold, pseudo_sum, sum};
use crate::wire::tcp::{CWR, FIN, PSH};
use crate::wire::{be16, be32, ipv4, ipv6, protocol, put, tcp, udp};

/// One packet of a super-frame: new headers, and a payload in the super-frame's memory.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Returns the headers of the packet, beginning with the link header.
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_bytes]
    }

    /// Returns the bytes after the headers.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the length of the packet in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a packet's length, not a collection's")]
    pub fn len(&self) -> usize {
        self.header_bytes + self.payload.len()
    }

    /// Copies the packet to the front of `to`. Returns the packet's length, or `None` if `to` is
    /// too short.
    pub fn copy_to(&self, to: &mut [u8]) -> Option<usize> {
        let (header, rest) = to.split_at_mut_checked(self.header_bytes)?;
        header.copy_from_slice(self.header());
        rest.get_mut(..self.payload.len())?.copy_from_slice(self.payload);
        Some(self.len())
    }
}

/// Iterates over the packets of a super-frame without copying the payload. The iterator `P` returns
/// the pieces of memory in which the payload is stored.
#[derive(Clone, Debug)]
pub struct Segments<'a, P = std::option::IntoIter<&'a [u8]>> {
    offload: Offload,
    header: &'a [u8],
    rest: &'a [u8],
    pieces: P,
    bytes_left: usize,
    nth: usize,
    /// Even a super-frame without payload has one packet.
    more: bool,
    sums: bool,
    is_v4: bool,
    protocol: u8,
}

impl<'a> Segments<'a> {
    /// Iterates over the packets of a frame that is contiguous in memory.
    pub fn of_frame(offload: &Offload, frame: &'a [u8]) -> Self {
        let (header, payload) = frame.split_at(offload.header_bytes().min(frame.len()));
        Self::new(offload, header, payload)
    }

    /// Like [`of_pieces`](Self::of_pieces), for a payload that is contiguous in memory.
    pub fn new(offload: &Offload, header: &'a [u8], payload: &'a [u8]) -> Self {
        Self::of_pieces(offload, header, Some(payload).into_iter())
    }
}

impl<'a, P: Iterator<Item = &'a [u8]> + Clone> Segments<'a, P> {
    /// Iterates over the packets of a frame whose payload is stored in pieces. Each packet's
    /// payload must lie in a single piece. If `header` does not match `offload`, each piece becomes
    /// one packet.
    pub fn of_pieces(offload: &Offload, header: &'a [u8], mut pieces: P) -> Self {
        let mut offload = *offload;
        let version = header.get(offload.network_at()).map_or(0, |first| first >> 4);
        let network_bytes = usize::from(offload.transport_at - offload.network_at);
        let fits = header.len() == offload.header_bytes()
            && match (offload.kind, version) {
                (OffloadKind::Single, _) => true,
                (_, 4) => network_bytes >= 20,
                (_, 6) => network_bytes >= ipv6::BYTES,
                _ => false,
            };
        if !fits {
            offload = Offload { kind: OffloadKind::Single, checksum: ChecksumState::Complete, ..offload };
        }
        let protocol = if offload.kind == OffloadKind::Tcp { protocol::TCP } else { protocol::UDP };
        let bytes_left = pieces.clone().map(<[u8]>::len).sum();
        let rest = pieces.next().unwrap_or_default();
        let is_v4 = version == 4;
        Self { offload, header, rest, pieces, bytes_left, nth: 0, more: true, sums: true, is_v4, protocol }
    }

    /// Copies the super-frame's checksum to each packet instead of computing the right one, for
    /// handlers that only read packets.
    #[must_use]
    pub fn without_checksums(self) -> Self {
        Self { sums: false, ..self }
    }

    fn left(&self) -> usize {
        match self.offload.kind {
            _ if !self.more => 0,
            OffloadKind::Single => 1 + self.pieces.clone().count(),
            _ => self.bytes_left.div_ceil(self.offload.segment_bytes().max(1)).max(1),
        }
    }

    fn finish_header(&self, header: &mut [u8], payload: &[u8], is_last: bool) {
        let offload = &self.offload;
        let (network, transport) = (usize::from(offload.network_at), usize::from(offload.transport_at));
        let bytes = header.len() - transport + payload.len();
        if self.is_v4 {
            put(header, network + 2, ((transport - network + bytes) as u16).to_be_bytes());
            let number = be16(header, network + 4).wrapping_add(self.nth as u16);
            put(header, network + 4, number.to_be_bytes());
            put(header, network + ipv4::CHECKSUM_AT, [0; 2]);
            let checksum = finish(sum(&header[network..transport], 0));
            put(header, network + ipv4::CHECKSUM_AT, checksum.to_be_bytes());
        } else {
            put(header, network + 4, ((transport - network - ipv6::BYTES + bytes) as u16).to_be_bytes());
        }
        let checksum_at = usize::from(offload.checksum_at);
        let is_unsummed = offload.kind == OffloadKind::Udp
            && offload.checksum == ChecksumState::Complete
            && self.is_v4
            && be16(header, checksum_at) == 0;
        if offload.kind == OffloadKind::Tcp {
            let sequence = be32(header, transport + 4).wrapping_add((self.nth * offload.segment_bytes()) as u32);
            header[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
            let first = if self.nth == 0 { !0 } else { !CWR };
            let last = if is_last { !0 } else { !(FIN | PSH) };
            let at = transport + tcp::FLAGS_AT;
            put(header, at, (be16(header, at) & first & last).to_be_bytes());
        } else {
            put(header, transport + udp::LENGTH_AT, (bytes as u16).to_be_bytes());
        }
        if self.sums && !is_unsummed {
            put(header, checksum_at, [0; 2]);
            let pseudo = pseudo_sum(&header[network..], self.is_v4, self.protocol, bytes);
            // The 16-bit sums of header and payload can be added, because the header's length is
            // even.
            let checksum = finish_transport(sum(payload, sum(&header[transport..], pseudo)));
            put(header, checksum_at, checksum.to_be_bytes());
        }
    }

    fn single(&mut self) -> Segment<'a> {
        let mut header = [0; HEADER_BYTES_MAX];
        let header_bytes = self.header.len().min(HEADER_BYTES_MAX);
        header[..header_bytes].copy_from_slice(&self.header[..header_bytes]);
        let (start, at) = (usize::from(self.offload.transport_at), usize::from(self.offload.checksum_at));
        if self.sums && self.offload.checksum == ChecksumState::Partial && at + 2 <= header_bytes {
            let first = sum(&header[start..header_bytes], 0);
            let second = sum(self.rest, 0);
            let is_odd = (header_bytes - start) % 2 == 1;
            let second = if is_odd { u64::from(fold(second).swap_bytes()) } else { second };
            put(&mut header, at, finish_transport(first + second).to_be_bytes());
        }
        Segment { header, header_bytes, payload: self.rest }
    }
}

impl<'a, P: Iterator<Item = &'a [u8]> + Clone> Iterator for Segments<'a, P> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        if !self.more {
            return None;
        }
        if self.offload.kind == OffloadKind::Single {
            let single = self.single();
            let next = self.pieces.next();
            (self.more, self.rest) = (next.is_some(), next.unwrap_or_default());
            return Some(single);
        }
        if self.rest.is_empty() {
            self.rest = self.pieces.next().unwrap_or_default();
        }
        let (payload, rest) = self.rest.split_at(self.offload.segment_bytes().min(self.rest.len()));
        self.bytes_left -= payload.len();
        let is_last = self.bytes_left == 0;
        let (mut header, header_bytes) = ([0; HEADER_BYTES_MAX], self.header.len());
        header[..header_bytes].copy_from_slice(self.header);
        self.finish_header(&mut header[..header_bytes], payload, is_last);
        (self.rest, self.nth, self.more) = (rest, self.nth + 1, !is_last);
        Some(Segment { header, header_bytes, payload })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left(), Some(self.left()))
    }
}

impl<'a, P: Iterator<Item = &'a [u8]> + Clone> ExactSizeIterator for Segments<'a, P> {}
