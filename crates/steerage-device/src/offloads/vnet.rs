//! The header that may precede each packet (`IFF_VNET_HDR`): the header of the virtio network
//! device (virtio 1.2, chapter 5.1.6), in little-endian order. The header describes the offloads
//! that a packet still needs: its checksum and its segmentation.
//!
//! For devices without super-frames, steerage makes the kernel complete checksums and segmentation.
//! If the caller opened the file descriptor, packets that were queued before steerage took over may
//! still need offloads. This module completes a queued packet's checksum, and refuses a packet that
//! still needs segmentation.

use steerage::flow::wire::checksum::complete;

/// The checksum over the bytes from `csum_start` on must be completed.
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_ECN: u8 = 0x80;

pub(crate) const HEADER_BYTES_MIN: usize = 10;

/// The maximum length of a header in bytes. The kernel's longest header has 24 bytes.
#[cfg_attr(not(feature = "tap"), allow(dead_code, reason = "for tap alone"))]
pub(crate) const HEADER_BYTES_MAX: usize = 64;

/// `VIRTIO_NET_HDR_GSO_TCPV4` and `VIRTIO_NET_HDR_GSO_TCPV6`.
const GSO_TCP: [u8; 2] = [1, 4];

/// Like [`finish`], but accepts merged TCP segments, which form one long segment with one checksum.
/// Merged UDP datagrams are refused, because they would become one longer datagram.
#[must_use]
pub(crate) fn finish_merged(header: &[u8; HEADER_BYTES_MIN], packet: &mut [u8]) -> bool {
    let mut header = *header;
    if GSO_TCP.contains(&(header[1] & !GSO_ECN)) {
        header[1] = GSO_NONE;
    }
    finish(&header, packet)
}

/// Completes the checksum if necessary. Returns false if an offload cannot be completed.
#[must_use]
pub(crate) fn finish(header: &[u8], packet: &mut [u8]) -> bool {
    let Some([flags, gso, _, _, _, _, start_low, start_high, offset_low, offset_high]) = header.first_chunk() else {
        return false;
    };
    if gso & !GSO_ECN != GSO_NONE {
        return false;
    }
    if flags & NEEDS_CSUM == 0 {
        return true;
    }
    let start = usize::from(u16::from_le_bytes([*start_low, *start_high]));
    let offset = usize::from(u16::from_le_bytes([*offset_low, *offset_high]));
    complete(packet, start, start + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, gso: u8, start: u16, offset: u16) -> Vec<u8> {
        [&[flags, gso, 0, 0, 0, 0][..], &start.to_le_bytes(), &offset.to_le_bytes(), &[0, 0]].concat()
    }

    #[test]
    fn a_checksum_is_finished() {
        // RFC 1071, section 3: 0001 f203 f4f5 f6f7 sum to ddf2, so the checksum is 220d.
        let mut packet = [9, 9, 0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7, 0, 0];
        assert!(finish(&header(NEEDS_CSUM, 0, 2, 8), &mut packet));
        assert_eq!(packet[10..], [0x22, 0x0d]);
        let mut packet = [0, 0, 0, 1, 0xf2];
        assert!(finish(&header(NEEDS_CSUM, GSO_ECN, 0, 0), &mut packet));
        assert_eq!(packet[..2], [0x0d, 0xfe]);
        let mut packet = [0, 0, 0xff, 0xff];
        assert!(finish(&header(NEEDS_CSUM, 0, 0, 0), &mut packet));
        assert_eq!(packet, [0xff; 4]);
    }

    #[test]
    fn what_is_done_already_stays_as_it_is() {
        let mut packet = [1, 2, 3];
        assert!(finish(&header(0, 0, 77, 77), &mut packet));
        assert!(finish(&header(2, 0, 0, 0), &mut packet));
        assert_eq!(packet, [1, 2, 3]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let mut packet = [0; 20];
        for wrong in [header(0, 1, 0, 0), header(NEEDS_CSUM, 4, 0, 0), header(NEEDS_CSUM, 0, 21, 0)] {
            assert!(!finish(&wrong, &mut packet), "{wrong:?}");
        }
        for (gso, whole) in [(1, true), (4 | GSO_ECN, true), (3, false), (5, false)] {
            let header = header(NEEDS_CSUM, gso, 0, 0)[..10].try_into().unwrap();
            assert_eq!(finish_merged(&header, &mut packet), whole, "{gso}");
        }
        for (start, offset) in [(19, 0), (0, 19), (10, 9), (u16::MAX, u16::MAX)] {
            assert!(!finish(&header(NEEDS_CSUM, 0, start, offset), &mut packet), "{start} {offset}");
        }
        assert!(!finish(&[0; 9], &mut packet));
    }
}
