//! [`FrameHeader`]: the data that a device records about a frame, directly before the frame.

/// The [`BYTES`](Self::BYTES) bytes before a frame, written by a device, in the headroom of the
/// page or in place of the record header of a capture file. A bit of the frame's slot shows that
/// the header exists. The header is not copied to the rings between CPUs, but lies in the cache
/// line of the frame's first bytes, or in the one before. Any 16 bytes are a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The receive time in nanoseconds since 1970-01-01 00:00 UTC, or [`NO_TIME`](Self::NO_TIME).
    pub nanos: u64,
    /// The length of the frame on the wire, in bytes. A capture file may contain fewer bytes of a
    /// packet than the wire carried.
    pub wire_len: u32,
    /// The kind of header with which the frame begins, as a link type in tcpdump's numbering.
    pub link: u16,
    /// The number of the device's interface that received the frame.
    pub interface: u16,
}

impl FrameHeader {
    /// The size of this header in memory, in bytes.
    pub const BYTES: usize = 16;

    /// The size in bytes of an optional record before this header, for unusual frames.
    pub const EXTRA_BYTES: usize = 16;

    /// This value of `link` means that only the frame's slot has the link type.
    pub const LINK_IN_SLOT: u16 = u16::MAX;

    /// The value of `nanos` if the frame's time is unknown.
    pub const NO_TIME: u64 = u64::MAX;

    /// Creates a header from a record of a capture file, with [`LINK_IN_SLOT`](Self::LINK_IN_SLOT)
    /// as the link type.
    #[inline(always)]
    pub fn of_record((seconds, fraction, fraction_nanos): (u32, u32, u64), (captured, original): (u32, u32)) -> Self {
        Self {
            // No overflow: 2^32 seconds in nanoseconds are a quarter of the 64-bit range.
            nanos: u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * fraction_nanos,
            // Some capture programs write 0 as the original length.
            wire_len: original.max(captured),
            link: Self::LINK_IN_SLOT,
            interface: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn of_whole(len: usize) -> Self {
        Self { nanos: Self::NO_TIME, wire_len: len as u32, link: Self::LINK_IN_SLOT, interface: 0 }
    }

    /// Returns the header that the frame has after its last `bytes` bytes were cut off.
    #[must_use]
    pub fn shorter(self, bytes: usize) -> Self {
        Self { wire_len: self.wire_len.saturating_sub(bytes as u32), ..self }
    }

    /// Returns the header as the bytes that are stored in memory.
    #[inline(always)]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        Self::bytes_of(self.to_words())
    }

    #[inline(always)]
    pub(crate) fn to_words(self) -> [u64; 2] {
        let small = u64::from(self.wire_len) | u64::from(self.link) << 32 | u64::from(self.interface) << 48;
        [self.nanos, small]
    }

    #[inline(always)]
    pub(crate) fn bytes_of([nanos, small]: [u64; 2]) -> [u8; Self::BYTES] {
        (u128::from(nanos) | u128::from(small) << 64).to_le_bytes()
    }

    /// Reads a header from memory. Any 16 bytes are a valid header.
    #[inline(always)]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self {
            nanos: all as u64,
            wire_len: (all >> 64) as u32,
            link: (all >> 96) as u16,
            interface: (all >> 112) as u16,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Blocks, Completion, Memory, Region};

    const HEADER: FrameHeader =
        FrameHeader { nanos: 0x0102_0304_0506_0708, wire_len: 0x090a_0b0c, link: 101, interface: 65_535 };

    #[test]
    fn a_header_reads_as_it_was_written() {
        assert_eq!(FrameHeader::from_bytes(HEADER.to_bytes()), HEADER);
    }

    #[test]
    fn a_header_is_read_from_a_page_and_from_a_block() {
        let (region, mut pages) = Region::map(1, 128).unwrap();
        let (mut blocks, claim) = Blocks::map(2, 128).unwrap();
        let memory = Memory::new(region.clone(), Some(blocks.region().clone()));
        let mut page = pages.pop().unwrap();
        region.page_mut(&mut page)[16..32].copy_from_slice(&HEADER.to_bytes());
        let frame = Completion::new(page, 32, 64);
        assert_eq!(memory.header_of(&frame), None);
        assert_eq!(memory.header_of(&frame.with_header()), Some(HEADER));

        let mut tail = blocks.tail(&claim, 1).unwrap();
        tail.bytes()[..16].copy_from_slice(&HEADER.to_bytes());
        let frame = tail.lend(16, 112).unwrap().with_header();
        assert_eq!(memory.header_of(&frame), Some(HEADER));
        blocks.recycle(frame).unwrap();
    }

    #[test]
    fn a_header_outside_of_its_page_is_none() {
        let (mut blocks, claim) = Blocks::map(2, 64).unwrap();
        let memory = Memory::new(Region::map(1, 64).unwrap().0, Some(blocks.region().clone()));
        for offset in 0..16 {
            let frame = blocks.lend(&claim, 1, offset, 8).unwrap().with_header();
            assert_eq!(memory.header_of(&frame), None);
            blocks.recycle(frame).unwrap();
        }
        let (region, mut pages) = Region::map(1, 64).unwrap();
        let other = Completion::new(pages.pop().unwrap(), usize::MAX, 8).with_header();
        assert_eq!(Memory::new(region, None).header_of(&other), None);
        assert_eq!(memory.header_of(&other), None);
    }
}
