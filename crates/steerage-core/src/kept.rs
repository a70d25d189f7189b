use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::ids::CpuIndex;
use steerage_flow::{LinkType, WallTime};
use steerage_mem::{FrameHeader, Segments, SegmentsMut};

/// A packet that a handler keeps after its batch ([`Packet::keep`](crate::packet::Packet::keep)),
/// owned, writable and `Send`. When it is dropped, on any thread, its pages return to the pool.
///
/// A kept packet dereferences to the bytes of its first [part](Self::segments).
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
    /// The CPU that kept the packet, and the bucket of the packet. `None` if there is no
    /// [`Sender`](crate::sender::Sender).
    pub(crate) home: Option<(CpuIndex, u16)>,
}

impl Kept {
    /// Returns the bytes of the frame, part by part. Empty parts are left out.
    pub fn segments(&self) -> Segments<'_> {
        self.frame.segments()
    }

    /// Like [`segments`](Self::segments), but for writing.
    pub fn segments_mut(&mut self) -> SegmentsMut<'_> {
        self.frame.segments_mut()
    }

    /// Returns the memory of the packet's pages, in bytes, for a program that limits the memory of
    /// kept packets.
    pub fn truesize(&self) -> usize {
        self.frame.truesize()
    }

    /// Returns the total length of the frame, in all of its pages, in bytes.
    pub fn total_len(&self) -> usize {
        self.frame.total_len()
    }

    /// Returns the time at which the device received the frame, if recorded.
    pub fn time(&self) -> Option<WallTime> {
        time_of(&self.frame.header()?)
    }

    /// Returns the length of the frame on the wire, in bytes (a capture file may contain only a
    /// part of the frame), or the received length if the device did not record the wire length.
    pub fn wire_len(&self) -> usize {
        self.frame.header().map_or_else(|| self.total_len(), |header| header.wire_len as usize)
    }

    /// The type of the first header in the frame.
    pub fn link(&self) -> LinkType {
        link_of(self.frame.link(), || self.frame.header())
    }

    /// Returns the number of the device's interface that received the frame, if recorded.
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

/// A common type is stored in the frame's slot, and a rare type in its `FrameHeader`.
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
