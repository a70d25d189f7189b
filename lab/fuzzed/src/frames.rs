//! Fuzz targets for frames of any link type.

use steerage::LinkType;
use steerage::flow::limits::FLOW_HEADERS_MAX;
use steerage::flow::offload::{MERGED_MAX, Offload, Segments, VIRTIO_BYTES, coalesce};
use steerage::flow::{self, Layers};

/// Input: a link type (two bytes), the layers to dissect (one byte), and a frame.
pub(crate) fn dissect(bytes: &[u8]) {
    let Some(([low, high, layers], frame)) = bytes.split_first_chunk::<3>() else { return };
    let link = LinkType(u16::from_le_bytes([*low, *high]));
    let layers = if layers & 1 == 0 { Layers::Inner } else { Layers::Outer };

    let found = flow::dissect(frame, link, layers);
    assert_eq!(flow::flow_key(frame, link, layers), found.flow());
    assert!(found.headers().len() <= FLOW_HEADERS_MAX);
    assert!(found.headers().all(|header| (header.offset as usize) < frame.len()));
    assert!(found.headers().zip(found.headers().skip(1)).all(|(one, next)| one.offset < next.offset));
    assert!(found.ip.is_none_or(|ip| (ip.offset as usize) < frame.len()));
    assert_eq!(found.is_flow, found.ip.is_some());
    assert!(found.transport_offset.is_none_or(|at| (at as usize) < frame.len()));
    // `fragment` must describe the innermost IP header.
    if let Some(fragment) = found.fragment() {
        assert_eq!(found.ip.map(|ip| ip.offset), Some(fragment.ip_offset));
    }
}

/// Input: a link type (one byte), a `virtio_net_hdr`, and a super-frame to cut and merge.
pub(crate) fn offload(bytes: &[u8]) {
    let Some((link, rest)) = bytes.split_first() else { return };
    let link = if link & 1 == 0 { LinkType::ETHERNET } else { LinkType::RAW };
    let Some((header, frame)) = rest.split_first_chunk::<VIRTIO_BYTES>() else { return };
    let joined =
        |parts: Segments<'_>| -> Vec<Vec<u8>> { parts.map(|part| [part.header(), part.payload()].concat()).collect() };
    let packets = match Offload::from_virtio(header, frame, link) {
        Ok(Some(offload)) => {
            assert_eq!(Offload::from_bytes(offload.to_bytes()), Some(offload));
            let packets = joined(Segments::of_frame(&offload, frame));
            assert_eq!(packets.len(), offload.packets(frame.len()));
            assert_eq!(packets.iter().map(Vec::len).sum::<usize>(), offload.wire_bytes(frame.len()));
            let longest = packets.iter().map(Vec::len).max().unwrap_or(0);
            assert_eq!(longest, offload.packet_bytes_max(frame.len()) + offload.network_at());
            packets
        }
        _ => frame.chunks(usize::from(header[0]).max(1)).map(<[u8]>::to_vec).collect(),
    };
    let batch: Vec<_> = packets.iter().take(MERGED_MAX).map(|packet| Some((&packet[..], None))).collect();
    let mut seen = 0_u64;
    coalesce(&batch, link, |merged| {
        assert_eq!(seen & merged.members, 0, "each packet leaves once");
        seen |= merged.members;
        let Some((header, offload)) = merged.frame else { return };
        let positions: Vec<usize> = merged.positions().collect();
        let payload: Vec<u8> = positions.iter().flat_map(|nth| packets[*nth][header.len()..].to_vec()).collect();
        let again = joined(Segments::new(&offload, header, &payload));
        assert_eq!(again.len(), positions.len());
        for (again, nth) in again.iter().zip(positions) {
            assert_eq!(again.len(), packets[nth].len());
            assert_eq!(again[header.len()..], packets[nth][header.len()..]);
        }
    });
    assert_eq!(seen.count_ones() as usize, batch.len());
}
