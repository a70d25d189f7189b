//! The virtio header of a frame (`struct virtio_net_hdr`, virtio 1.2, 5.1.6), with little-endian
//! numbers. Linux puts a virtio header before packets of TUN and TAP with `IFF_VNET_HDR` (and
//! `TUNSETVNETLE`). With `PACKET_VNET_HDR`, Linux puts a virtio header in the machine's byte order
//! before packets of packet sockets.

use super::{BadOffload, ChecksumState, HEADER_BYTES_MAX, Offload, OffloadKind};
use crate::LinkType;

/// The length of a virtio header in bytes.
pub const VIRTIO_BYTES: usize = 10;

const NEEDS_CSUM: u8 = 1;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// This bit, which is set in addition to the kind, says that the first segment has TCP's CWR flag.
const GSO_ECN: u8 = 0x80;

impl Offload {
    /// Reads the virtio header of `frame`. Returns `None` if the frame needs no offload work.
    ///
    /// # Errors
    /// Returns [`BadOffload`] if the header contradicts the frame. The frame then counts as lost.
    #[inline]
    pub fn from_virtio(header: &[u8; VIRTIO_BYTES], frame: &[u8], link: LinkType) -> Result<Option<Self>, BadOffload> {
        let [flags, gso, ..] = *header;
        if flags & NEEDS_CSUM == 0 && gso & !GSO_ECN == GSO_NONE {
            return Ok(None);
        }
        Self::read_virtio(header, frame, link).map(Some)
    }

    fn read_virtio(header: &[u8; VIRTIO_BYTES], frame: &[u8], link: LinkType) -> Result<Self, BadOffload> {
        let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let (segment_bytes, start, offset) = (field(4), field(6), field(8));
        let is_partial = header[0] & NEEDS_CSUM != 0;
        let (kind, is_v4) = match header[1] & !GSO_ECN {
            GSO_NONE => return Self::single(start, offset, frame),
            GSO_TCPV4 => (OffloadKind::Tcp, Some(true)),
            GSO_TCPV6 => (OffloadKind::Tcp, Some(false)),
            GSO_UDP_L4 => (OffloadKind::Udp, None),
            _ => return Err(BadOffload::Kind),
        };
        let offload = Self::super_frame(kind, segment_bytes, frame, link)?;
        let version = frame[offload.network_at()] >> 4;
        if is_v4.is_some_and(|is_v4| is_v4 != (version == 4)) {
            return Err(BadOffload::Header);
        }
        if !is_partial {
            return Ok(offload);
        }
        let is_there = start == usize::from(offload.transport_at) && start + offset == usize::from(offload.checksum_at);
        if is_there { Ok(Self { checksum: ChecksumState::Partial, ..offload }) } else { Err(BadOffload::Checksum) }
    }

    fn single(start: usize, offset: usize, frame: &[u8]) -> Result<Self, BadOffload> {
        let end = start + offset + 2;
        // The checksum must cover at least one byte before the checksum field. The checksum field
        // must be in the headers.
        if offset == 0 || end > frame.len().min(HEADER_BYTES_MAX) {
            return Err(BadOffload::Checksum);
        }
        Ok(Self {
            kind: OffloadKind::Single,
            checksum: ChecksumState::Partial,
            ecn: false,
            segment_bytes: 0,
            header_bytes: end as u16,
            network_at: 0,
            transport_at: start as u16,
            checksum_at: (start + offset) as u16,
        })
    }

    /// Returns the virtio header, or `None` for a super-frame whose checksum is complete, which no
    /// device accepts. The caller can split a super-frame with a complete checksum, and
    /// [`coalesce`](super::coalesce) its packets.
    #[inline]
    pub fn to_virtio(&self, is_v4: bool) -> Option<[u8; VIRTIO_BYTES]> {
        if self.checksum != ChecksumState::Partial {
            return None;
        }
        let gso = match (self.kind, is_v4) {
            (OffloadKind::Single, _) => GSO_NONE,
            (OffloadKind::Tcp, true) => GSO_TCPV4,
            (OffloadKind::Tcp, false) => GSO_TCPV6,
            (OffloadKind::Udp, _) => GSO_UDP_L4,
        };
        let header_bytes = if self.is_super_frame() { self.header_bytes } else { 0 };
        let fields = [header_bytes, self.segment_bytes, self.transport_at, self.checksum_at - self.transport_at];
        let mut header = [0; VIRTIO_BYTES];
        (header[0], header[1]) = (NEEDS_CSUM, if self.ecn { gso | GSO_ECN } else { gso });
        header[2..].copy_from_slice(fields.map(u16::to_le_bytes).as_flattened());
        Some(header)
    }
}
