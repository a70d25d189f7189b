//! Super-frames, and frames with a partial checksum. A super-frame contains several packets,
//! because an offload (TSO, USO, GRO) has merged them or has not split them yet.
//!
//! A super-frame has the headers of its first packet and the payload of all of its packets. A
//! super-frame is steered, queued and handled as one frame, in a fortieth of the time that its
//! packets would take one by one. TUN, TAP, veth, UDP sockets and virtual machines accept whole
//! super-frames.
//!
//! | file | what it holds |
//! |---|---|
//! | this file | [`Offload`]: the work that an offload left undone for a frame |
//! | `virtio` | `struct virtio_net_hdr`, the form that the kernel and virtual machines use |
//! | `segments` | [`Segments`]: iterates over the packets of a frame |
//! | `coalesce` | [`coalesce`]: makes super-frames from packets, by the rules of Linux GRO |
//! | `layout` | the positions of a packet's headers |
//!
//! No function in this module copies a payload or allocates memory.

mod coalesce;
mod layout;
mod segments;
#[cfg(test)]
mod tests;
mod virtio;

use std::fmt;

use crate::LinkType;
use crate::wire::checksum::complete;
use crate::wire::{be16, protocol, tcp};
use layout::Layout;

pub use coalesce::{MERGED_MAX, Merged, RUNS_MAX, coalesce};
pub use segments::{Segment, Segments};
pub use virtio::VIRTIO_BYTES;

/// The maximum length in bytes of a packet's headers, such as Ethernet with two VLAN tags (22),
/// IPv6 (40) with some extension headers, and TCP with all options (60).
pub const HEADER_BYTES_MAX: usize = 192;

/// The maximum number of packets in a super-frame: 64 KiB of payload with 16 bytes in each packet.
/// (At an MTU of 1500, 64 KiB are 45 packets.) Without a maximum, a hostile virtual machine could
/// request 65,536 packets of one byte.
pub const SEGMENTS_MAX: usize = 4096;

/// The kind of packets in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadKind {
    /// One packet whose checksum is not complete.
    Single,
    /// TCP segments (TSO, GRO).
    Tcp,
    /// UDP datagrams of equal size (USO, UDP GRO). The last datagram may be shorter.
    Udp,
}

/// The state of a frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The checksum is complete, as on the wire. (A super-frame's own checksum is not used.)
    Complete,
    /// The checksum field contains only the sum of the pseudo-header.
    Partial,
}

/// The work that an offload left undone: splitting the frame, and completing the checksum.
///
/// ```
/// use steerage_flow::LinkType;
/// use steerage_flow::offload::{ChecksumState, Offload, OffloadKind, Segments};
///
/// // What a UDP socket with UDP_GRO received, with its headers: three datagrams of 100, 100 and 50 bytes.
/// let mut frame = vec![0; 28 + 250];
/// frame[..10].copy_from_slice(&[0x45, 0, 1, 22, 0, 0, 0, 0, 64, 17]);
/// let offload = Offload::super_frame(OffloadKind::Udp, 100, &frame, LinkType::RAW)?;
/// assert_eq!((offload.segment_bytes(), offload.header_bytes()), (100, 28));
/// assert_eq!((offload.packets(frame.len()), offload.wire_bytes(frame.len())), (3, 3 * 28 + 250));
///
/// let lengths: Vec<usize> = Segments::of_frame(&offload, &frame).map(|packet| packet.len()).collect();
/// assert_eq!(lengths, [128, 128, 78]);
/// # Ok::<(), steerage_flow::offload::BadOffload>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    kind: OffloadKind,
    checksum: ChecksumState,
    /// True if only the first packet of a super-frame gets the TCP flag CWR.
    ecn: bool,
    segment_bytes: u16,
    header_bytes: u16,
    network_at: u16,
    transport_at: u16,
    checksum_at: u16,
}

/// The reason why the description of a frame's offload work cannot be correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadOffload {
    /// The checksum field is outside of the frame, or not at the position of a header's checksum.
    Checksum,
    /// The device reports a kind of segmentation that was never enabled.
    Kind,
    /// The headers are cut off, are too long, or do not match the kind of segmentation.
    Header,
    /// The segment size is zero, or the frame has more segments than [`SEGMENTS_MAX`].
    SegmentSize,
}

impl fmt::Display for BadOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checksum => "the checksum to finish is not where the headers have one",
            Self::Kind => "the kind of segmentation is unknown",
            Self::Header => "the headers do not match the kind of segmentation",
            Self::SegmentSize => "the segments have no size or are too many",
        })
    }
}

impl std::error::Error for BadOffload {}

impl Offload {
    /// The length of the result of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 16;

    /// Describes a super-frame with `segment_bytes` bytes of payload in each packet and a complete
    /// checksum, for a device that creates the headers itself.
    ///
    /// # Errors
    /// Returns [`BadOffload`] if a super-frame cannot have these headers.
    pub fn super_frame(
        kind: OffloadKind,
        segment_bytes: usize,
        frame: &[u8],
        link: LinkType,
    ) -> Result<Self, BadOffload> {
        let layout = layout::read(frame, link).ok_or(BadOffload::Header)?;
        let protocol = match kind {
            OffloadKind::Single => return Err(BadOffload::Kind),
            OffloadKind::Tcp => protocol::TCP,
            OffloadKind::Udp => protocol::UDP,
        };
        let payload = frame.len() - layout.payload_at;
        if layout.protocol != protocol || payload == 0 {
            return Err(BadOffload::Header);
        }
        let size = u16::try_from(segment_bytes).ok().filter(|size| *size != 0 && *size != u16::MAX);
        let size = size.ok_or(BadOffload::SegmentSize)?;
        if payload.div_ceil(segment_bytes) > SEGMENTS_MAX {
            return Err(BadOffload::SegmentSize);
        }
        Ok(Self::of_layout(kind, size, &layout, frame))
    }

    fn of_layout(kind: OffloadKind, segment_bytes: u16, layout: &Layout, frame: &[u8]) -> Self {
        Self {
            kind,
            checksum: ChecksumState::Complete,
            ecn: kind == OffloadKind::Tcp && be16(frame, layout.transport_at + tcp::FLAGS_AT) & tcp::CWR != 0,
            segment_bytes,
            header_bytes: layout.payload_at as u16,
            network_at: layout.network_at as u16,
            transport_at: layout.transport_at as u16,
            checksum_at: (layout.transport_at + layout.checksum_at()) as u16,
        }
    }

    fn leaves_checksum_of(&self, layout: &Layout) -> bool {
        !self.is_super_frame()
            && self.checksum == ChecksumState::Partial
            && usize::from(self.transport_at) == layout.transport_at
            && usize::from(self.checksum_at) == layout.transport_at + layout.checksum_at()
    }

    /// Returns the kind of packets in the frame.
    pub fn kind(&self) -> OffloadKind {
        self.kind
    }

    /// Returns true if the frame must be split into packets.
    pub fn is_super_frame(&self) -> bool {
        self.kind != OffloadKind::Single
    }

    /// Returns the state of the frame's transport checksum.
    pub fn checksum(&self) -> ChecksumState {
        self.checksum
    }

    /// Returns the number of payload bytes in each packet except the last, or 0 for a single
    /// packet.
    pub fn segment_bytes(&self) -> usize {
        usize::from(self.segment_bytes)
    }

    /// Returns the length of each packet's headers in bytes, including the link header. For a frame
    /// with a single packet (not a super-frame), returns the offset of the end of the checksum
    /// field.
    pub fn header_bytes(&self) -> usize {
        usize::from(self.header_bytes)
    }

    /// Returns the offset of the IP header, or 0 for a single packet.
    pub fn network_at(&self) -> usize {
        usize::from(self.network_at)
    }

    /// Returns the length of the frame's longest packet without the link header, which can be
    /// compared with an MTU.
    pub fn packet_bytes_max(&self, frame_bytes: usize) -> usize {
        let payload = frame_bytes.saturating_sub(self.header_bytes());
        let most = if self.is_super_frame() { payload.min(self.segment_bytes()) } else { payload };
        (self.header_bytes() - self.network_at()) + most
    }

    /// Returns the number of packets in a frame of `frame_bytes` bytes.
    pub fn packets(&self, frame_bytes: usize) -> usize {
        match self.kind {
            OffloadKind::Single => 1,
            _ => frame_bytes.saturating_sub(self.header_bytes()).div_ceil(self.segment_bytes().max(1)).max(1),
        }
    }

    /// Returns the total length in bytes of the frame's packets with their headers.
    pub fn wire_bytes(&self, frame_bytes: usize) -> usize {
        match self.kind {
            OffloadKind::Single => frame_bytes,
            _ => frame_bytes + (self.packets(frame_bytes) - 1) * self.header_bytes(),
        }
    }

    /// Returns the offload after a link header of `bytes` bytes was added to the frame, or removed
    /// if `bytes` is negative. Returns `None` if the new offsets are impossible.
    #[must_use]
    pub fn shifted(self, bytes: isize) -> Option<Self> {
        let shift = |at: u16| usize::from(at).checked_add_signed(bytes).and_then(|at| u16::try_from(at).ok());
        let shifted = Self {
            header_bytes: shift(self.header_bytes)?,
            network_at: if self.is_super_frame() { shift(self.network_at)? } else { 0 },
            transport_at: shift(self.transport_at)?,
            checksum_at: shift(self.checksum_at)?,
            ..self
        };
        (shifted.header_bytes() <= HEADER_BYTES_MAX).then_some(shifted)
    }

    /// Completes the checksum of a single packet in place.
    pub fn finish(&self, packet: &mut [u8]) {
        if !self.is_super_frame() && self.checksum == ChecksumState::Partial {
            let _ = complete(packet, self.transport_at.into(), self.checksum_at.into());
        }
    }

    /// Returns this offload as 16 bytes that can be stored.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let kind = self.kind as u8;
        let flags = u8::from(self.checksum == ChecksumState::Partial) | u8::from(self.ecn) << 1;
        let mut bytes = [0; Self::BYTES];
        (bytes[0], bytes[1]) = (kind, flags);
        let fields = [self.segment_bytes, self.header_bytes, self.network_at, self.transport_at, self.checksum_at];
        for (to, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes). The header offsets in `bytes` may exceed
    /// the frame's length, so all functions of this module check them.
    #[inline]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let kind = match bytes[0] {
            0 => OffloadKind::Single,
            1 => OffloadKind::Tcp,
            2 => OffloadKind::Udp,
            _ => return None,
        };
        let field = |nth: usize| u16::from_ne_bytes([bytes[2 + 2 * nth], bytes[3 + 2 * nth]]);
        let read = Self {
            kind,
            checksum: if bytes[1] & 1 != 0 { ChecksumState::Partial } else { ChecksumState::Complete },
            ecn: bytes[1] & 2 != 0,
            segment_bytes: field(0),
            header_bytes: field(1),
            network_at: field(2),
            transport_at: field(3),
            checksum_at: field(4),
        };
        let in_order = read.network_at <= read.transport_at
            && read.transport_at < read.checksum_at
            && read.checksum_at.checked_add(2).is_some_and(|end| end <= read.header_bytes);
        let is_sized = (read.kind == OffloadKind::Single) == (read.segment_bytes == 0);
        (in_order && is_sized && read.header_bytes() <= HEADER_BYTES_MAX).then_some(read)
    }
}
