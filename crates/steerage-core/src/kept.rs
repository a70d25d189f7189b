//! Packets that outlive their batch.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::ids::CpuIndex;
use steerage_flow::{LinkType, WallTime};
use steerage_mem::{FrameHeader, Segments, SegmentsMut};

/// A packet that a handler keeps beyond its batch: owned, writable and `Send`. Its pages return to
/// the pool when the packet is dropped, on any thread.
/// [`Packet::keep`](crate::packet::Packet::keep) creates a kept packet.
///
/// A kept packet dereferences to its bytes, or to the bytes of its first part if it has several
/// [parts](Self::segments).
///
/// ```
/// # mod steerage { pub mod packet { pub use steerage_core::packet::*; } pub use packet::*; }
/// use std::sync::mpsc::SyncSender;
/// use steerage::{Batch, packet::Kept};
///
/// /// Passes packets to another thread. Returns how many of those that were kept it had no room for.
/// fn pass(batch: &mut Batch<'_>, to: &SyncSender<Kept>) -> usize {
///     let kept = batch.iter_mut().filter_map(|packet| packet.keep().ok());
///     kept.filter_map(|kept| to.try_send(kept).err()).count()
/// }
/// ```
pub struct Kept {
    pub(crate) frame: steerage_mem::Kept,
    /// The CPU that kept the packet, and the packet's bucket, if the instance has a
    /// [`Sender`](crate::sender::Sender).
    pub(crate) home: Option<(CpuIndex, u16)>,
}

impl Kept {
    /// The frame's bytes, part by part, without empty parts.
    pub fn segments(&self) -> Segments<'_> {
        self.frame.segments()
    }

    /// Like [`segments`](Self::segments), but writable.
    pub fn segments_mut(&mut self) -> SegmentsMut<'_> {
        self.frame.segments_mut()
    }

    /// The memory that all pages of the packet occupy, in bytes. A program that keeps many packets
    /// can limit their memory by this number.
    pub fn truesize(&self) -> usize {
        self.frame.truesize()
    }

    /// The length of the frame, over all its pages, in bytes.
    pub fn total_len(&self) -> usize {
        self.frame.total_len()
    }

    /// When the frame was received, if the device recorded the time.
    pub fn time(&self) -> Option<WallTime> {
        time_of(&self.frame.header()?)
    }

    /// The frame's length on the wire in bytes. A capture may contain fewer bytes of the frame. If
    /// the device did not record the length, this is the length as received.
    pub fn wire_len(&self) -> usize {
        self.frame.header().map_or_else(|| self.total_len(), |header| header.wire_len as usize)
    }

    /// The type of the frame's first header.
    pub fn link(&self) -> LinkType {
        link_of(self.frame.link(), || self.frame.header())
    }

    /// The number of the device's interface that received the frame, if the device recorded it.
    pub fn interface(&self) -> Option<u16> {
        self.frame.header().map(|header| header.interface)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept packet of {} bytes", self.total_len())
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.frame
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The type of a frame's first header, from the frame's slot or, for rare types, from its header.
#[inline(always)]
pub(crate) fn link_of(code: u8, header: impl FnOnce() -> Option<FrameHeader>) -> LinkType {
    match LinkType::of_code(code) {
        LinkType::UNKNOWN => header().map_or(LinkType::UNKNOWN, |header| LinkType(header.link)),
        read => read,
    }
}

#[inline(always)]
pub(crate) fn time_of(header: &FrameHeader) -> Option<WallTime> {
    (header.nanos != FrameHeader::NO_TIME).then_some(WallTime::from_nanos(header.nanos))
}
