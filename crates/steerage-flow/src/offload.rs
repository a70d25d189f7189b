//! Super-frames: a frame that stands for several packets, because an offload left them in one piece
//! (TSO, USO, GRO). Also packets whose checksum another part of the system must finish.
//!
//! A super-frame has the headers of its first packet and the payload of all packets. It belongs to
//! one flow, so it is steered, queued and handled as one frame, at a fortieth of the cost. It is
//! cut late, on the CPU that handles it, or not at all: TUN, TAP, veth and UDP sockets take
//! super-frames as they are. So do virtual machines.
//!
//! | file | what it holds |
//! |---|---|
//! | here | [`Offload`]: the work that was left to do for a frame |
//! | `virtio` | `struct virtio_net_hdr`, the form that the kernel and virtual machines use |
//! | `segments` | [`Segments`]: iterates over the packets of a frame |
//! | `coalesce` | [`coalesce`]: makes super-frames from packets, by the rules of Linux GRO |
//! | `layout` | the positions of headers |
//!
//! Nothing in this module copies a payload or allocates memory.

mod coalesce;
mod layout;
mod segments;
#[cfg(test)]
mod tests;
mod virtio;

use std::fmt;

use crate::LinkType;
use crate::wire::checksum::{finish_transport, sum};
use crate::wire::{be16, protocol, tcp};
use layout::Layout;

pub use coalesce::{MERGED_MAX, Merged, RUNS_MAX, coalesce};
pub use segments::{Segment, Segments};
pub use virtio::VIRTIO_BYTES;

/// The longest headers of a super-frame, in bytes: Ethernet with two tags (22), IPv6 (40) with some
/// extension headers, TCP with all options (60).
pub const HEADER_BYTES_MAX: usize = 192;

/// The most packets that a frame may stand for. A frame of 64 KiB has 45 packets at an MTU of 1500.
/// It reaches this limit only with 16 bytes per packet. A hostile guest could request 65,536
/// packets of one byte.
pub const SEGMENTS_MAX: usize = 4096;

/// The contents of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadKind {
    /// One packet. Only its checksum was left to do.
    Single,
    /// Segments of TCP (TSO, GRO).
    Tcp,
    /// UDP datagrams of equal size (USO, UDP GRO). The last one may be shorter.
    Udp,
}

/// The state of a frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The checksum is in the packet, as on any wire. In a super-frame it has no use, because each
    /// packet gets its own.
    Complete,
    /// The checksum field holds only the sum of the pseudo-header. The rest must be added.
    Partial,
}

/// The work that an offload left to do for a frame: the size of the packets to cut it into, and the
/// checksum to finish.
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
    /// The congestion window was reduced: TCP's CWR flag, which only the first packet has.
    ecn: bool,
    segment_bytes: u16,
    header_bytes: u16,
    network_at: u16,
    transport_at: u16,
    checksum_at: u16,
}

/// The statement about a frame's offload is impossible.
/// The example of [`Offload`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadOffload {
    /// The stated checksum field lies outside of the frame, or the headers have no checksum at that
    /// position.
    Checksum,
    /// The kind of segmentation was never requested.
    Kind,
    /// The headers do not match the kind, are cut off, or are longer than [`HEADER_BYTES_MAX`].
    Header,
    /// The segments have no size, or there are more than [`SEGMENTS_MAX`].
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
    /// The size of an offload in memory, in bytes.
    pub const BYTES: usize = 16;

    /// A super-frame of this kind, with `segment_bytes` bytes of payload per packet, for a device
    /// that made the headers itself. Its checksum counts as complete.
    ///
    /// # Errors
    /// [`BadOffload`] if the headers are not those of such a super-frame.
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

    /// Whether the frame is a single packet with these headers, whose transport checksum must be
    /// finished.
    fn leaves_checksum_of(&self, layout: &Layout) -> bool {
        !self.is_super_frame()
            && self.checksum == ChecksumState::Partial
            && usize::from(self.transport_at) == layout.transport_at
            && usize::from(self.checksum_at) == layout.transport_at + layout.checksum_at()
    }

    /// The contents of the frame.
    pub fn kind(&self) -> OffloadKind {
        self.kind
    }

    /// Whether the frame must be cut.
    pub fn is_super_frame(&self) -> bool {
        self.kind != OffloadKind::Single
    }

    /// The state of the frame's transport checksum.
    pub fn checksum(&self) -> ChecksumState {
        self.checksum
    }

    /// The number of payload bytes per packet; the last packet may have fewer. 0 if the frame is a
    /// single packet.
    pub fn segment_bytes(&self) -> usize {
        usize::from(self.segment_bytes)
    }

    /// The length of the headers that each packet has, in bytes, including the link header. For a
    /// single packet, the length of the part that ends with the checksum field.
    pub fn header_bytes(&self) -> usize {
        usize::from(self.header_bytes)
    }

    /// The offset of the IP header. 0 for a single packet.
    pub fn network_at(&self) -> usize {
        usize::from(self.network_at)
    }

    /// The length of the frame's longest packet without its link header, which an MTU limits.
    /// `frame_bytes` is the length of the frame.
    pub fn packet_bytes_max(&self, frame_bytes: usize) -> usize {
        let payload = frame_bytes.saturating_sub(self.header_bytes());
        let most = if self.is_super_frame() { payload.min(self.segment_bytes()) } else { payload };
        (self.header_bytes() - self.network_at()) + most
    }

    /// The number of packets that a frame of `frame_bytes` bytes stands for.
    pub fn packets(&self, frame_bytes: usize) -> usize {
        match self.kind {
            OffloadKind::Single => 1,
            _ => frame_bytes.saturating_sub(self.header_bytes()).div_ceil(self.segment_bytes().max(1)).max(1),
        }
    }

    /// The length of all these packets together, each with its headers, in bytes.
    pub fn wire_bytes(&self, frame_bytes: usize) -> usize {
        match self.kind {
            OffloadKind::Single => frame_bytes,
            _ => frame_bytes + (self.packets(frame_bytes) - 1) * self.header_bytes(),
        }
    }

    /// The offload of the same frame after a link header was added or removed. The headers then
    /// begin `bytes` bytes later, or earlier if the number is negative. `None` if no headers can
    /// have these positions.
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

    /// Finishes the checksum of a single packet in place. Does nothing for a super-frame, or if the
    /// checksum is outside of the packet.
    pub fn finish(&self, packet: &mut [u8]) {
        let (start, at) = (usize::from(self.transport_at), usize::from(self.checksum_at));
        if self.is_super_frame() || self.checksum != ChecksumState::Partial {
            return;
        }
        let summed = packet.get(start..).map(|summed| finish_transport(sum(summed, 0)));
        if let (Some(sum), Some(place)) = (summed, packet.get_mut(at..at + 2)) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// The offload in the form in which it is stored in memory.
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

    /// Reads an offload from memory. `None` for bytes that [`to_bytes`](Self::to_bytes) does not
    /// write. A reader must still compare it with the length of the frame, as all functions in this
    /// module do.
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
