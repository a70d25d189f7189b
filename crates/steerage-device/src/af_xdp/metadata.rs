//! The metadata that a network card reports about a frame (the flow hash, the time of reception,
//! and the removed VLAN tag), which the XDP program writes in front of the frame.

use steerage::WallTime;
use steerage::device::{Completion, Completions, Filled, FrameHeader, Page};
use steerage::flow::FlowHash;

use crate::vlan_tag;

/// The kernel's functions that an XDP program calls to get the metadata, as numbers in the kernel's
/// type information. `None` for a function that the program does not call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Functions<F = Option<u32>> {
    pub(super) hash: F,
    pub(super) time: F,
    pub(super) tag: F,
}

impl<F: Default + PartialEq> Functions<F> {
    pub(super) fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// The number of bytes of the time, the VLAN tag (its type in network order, then its contents),
/// the hash and the mark. The kernel requires a multiple of 4 bytes, and allows at most 32 bytes.
pub(super) const META_BYTES: usize = 20;
pub(super) const TIME_AT: i16 = 0;
pub(super) const TAG_AT: i16 = 8;
pub(super) const HASH_AT: i16 = 12;
pub(super) const MARK_AT: i16 = 16;

/// The mark at the end of the metadata. The lowest bits of the mark state which metadata the frame
/// has. Posting a page clears an old mark.
pub(super) const MARK: u32 = 0x5e_e2_a6_e0;
pub(super) const HAS_HASH: u32 = 1;
pub(super) const HAS_TIME: u32 = 2;
pub(super) const HAS_TAG: u32 = 4;
const BITS: u32 = HAS_HASH | HAS_TIME | HAS_TAG;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) hash: Option<FlowHash>,
    pub(super) time: Option<WallTime>,
    pub(super) tag: Option<[u8; 4]>,
}

impl Metadata {
    #[inline]
    pub(super) fn before(page: &[u8], offset: usize) -> Self {
        let bytes: Option<&[u8; META_BYTES]> = page.get(..offset).and_then(<[u8]>::last_chunk);
        bytes.map_or_else(Self::default, Self::of_bytes)
    }

    #[inline]
    fn of_bytes(bytes: &[u8; META_BYTES]) -> Self {
        let [time @ .., _, _, _, _, _, _, _, _, _, _, _, _] = *bytes;
        let word = |at: i16| {
            let at = at as usize;
            [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
        };
        let mark = u32::from_ne_bytes(word(MARK_AT));
        if mark & !BITS != MARK {
            return Self::default();
        }
        let has = |bit: u32| mark & bit != 0;
        // The kernel reports the type of a VLAN tag in network order, and the contents in the
        // machine's order.
        let [a, b, c, d] = word(TAG_AT);
        let [c, d] = u16::from_ne_bytes([c, d]).to_be_bytes();
        Self {
            hash: has(HAS_HASH).then(|| FlowHash(u32::from_ne_bytes(word(HASH_AT)))),
            time: has(HAS_TIME).then(|| WallTime::from_nanos(u64::from_ne_bytes(time))),
            tag: has(HAS_TAG).then_some([a, b, c, d]),
        }
    }

    /// Puts the VLAN tag back, and makes the card's time the packet's time. Like `rx_finish`,
    /// returns the page to post instead of the frame's page.
    #[inline]
    pub(super) fn hand_over(self, out: &mut Completions<'_>, mut page: Page, offset: usize, len: usize) -> Page {
        let (offset, len) = self.with_tag(out.page_mut(&mut page), offset, len);
        let Some(time) = self.time else {
            return out.rx_finish(page, offset, Filled::whole(len).with_hash(self.hash));
        };
        let header =
            FrameHeader { nanos: time.as_nanos(), wire_len: len as u32, link: FrameHeader::LINK_IN_SLOT, interface: 0 };
        let before = out.page_mut(&mut page).get_mut(..offset).and_then(<[u8]>::last_chunk_mut);
        before.into_iter().for_each(|before| *before = header.to_bytes());
        let Some(other) = out.take_page() else {
            out.counts.no_page += 1;
            return page;
        };
        let frame = Completion::new(page, offset, len).with_header().with_hash(self.hash.map(|hash| hash.0));
        out.push(frame, len);
        other
    }

    #[inline]
    pub(super) fn with_tag(self, page: &mut [u8], offset: usize, len: usize) -> (usize, usize) {
        match self.tag {
            Some(tag) if vlan_tag::put_back(page, offset, len, tag) => (offset - tag.len(), len + tag.len()),
            _ => (offset, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(mark: u32) -> Vec<u8> {
        let mut page = vec![0xaa; 8];
        page.extend(1_700_000_000_000_000_001_u64.to_ne_bytes());
        page.extend([0x81, 0]);
        page.extend(0x2064_u16.to_ne_bytes());
        page.extend(0x1234_5678_u32.to_ne_bytes());
        page.extend(mark.to_ne_bytes());
        page.extend(1..=20);
        page
    }

    #[test]
    fn metadata_is_what_its_mark_says() {
        let (hash, time) = (Some(FlowHash(0x1234_5678)), Some(WallTime::from_nanos(1_700_000_000_000_000_001)));
        let tag = Some([0x81, 0, 0x20, 0x64]);
        let all = Metadata { hash, time, tag };
        let read = |mark| Metadata::before(&bytes(mark), 28);
        assert_eq!(read(MARK | BITS), all);
        assert_eq!(read(MARK | HAS_TAG), Metadata { tag, ..Metadata::default() });
        assert_eq!(read(MARK | HAS_HASH | HAS_TIME), Metadata { tag: None, ..all });
        for nothing in [read(MARK), read(0), read(!0), Metadata::before(&bytes(MARK | BITS), 19)] {
            assert_eq!(nothing, Metadata::default());
        }
    }

    #[test]
    fn a_tag_returns_to_its_frame() {
        let mut page = bytes(MARK | HAS_TAG);
        let (offset, len) = Metadata::before(&page, 28).with_tag(&mut page, 28, 20);
        assert_eq!((offset, len), (24, 24));
        let expected =
            [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0x20, 0x64][..], &[13, 14, 15, 16, 17, 18, 19, 20]];
        assert_eq!(page[offset..], expected.concat());
    }
}
