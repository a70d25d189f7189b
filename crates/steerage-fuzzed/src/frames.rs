//! Frames of any link type.

use steerage::LinkType;
use steerage::flow::limits::FLOW_HEADERS_MAX;
use steerage::flow::{self, Layers};

/// Two bytes that name a link type, a byte that says which layers, and a frame.
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
    // If there are fragments, the result of the innermost IP header is among them.
    if let Some(fragment) = found.fragment() {
        assert_eq!(found.ip.map(|ip| ip.offset), Some(fragment.ip_offset));
    }
}
