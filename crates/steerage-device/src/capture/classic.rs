//! The classic format: a file header, then records of a fixed header and the packet's bytes.
//!
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>

use pcap_parser::parse_pcap_header;

use steerage::LinkType;

use super::walk::{Span, Stop, Walked, Wrong};
use super::{CUT, DAMAGED, PACKET_BYTES_MAX};

/// The file header's size.
pub(super) const HEADER_BYTES: usize = 24;

/// A record's header: seconds, fraction, captured and original length, of 4 bytes each.
const RECORD_HEADER_BYTES: usize = 16;

/// With micro- and with nanoseconds; big-endian, and reversed where the file is little-endian.
const MAGICS: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// The only version since 1998.
const VERSION: (u16, u16) = (2, 4);

/// The link type's bits in its field; above are those about frame check sequences.
const LINK_TYPE_MASK: u32 = 0xffff;

/// Whether a file that begins with these bytes is of this format.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    MAGICS.contains(&u32::from_be_bytes(bytes)) || MAGICS.contains(&u32::from_le_bytes(bytes))
}

/// A walk over the records.
#[derive(Debug)]
pub(super) struct Classic {
    big_endian: bool,
    link: LinkType,
}

impl Classic {
    /// Reads the file header.
    pub(super) fn new(head: &[u8]) -> Result<(Self, LinkType), Wrong> {
        let Ok((_, header)) = parse_pcap_header(head) else {
            let text = format!("the file ends {} bytes into its header of {HEADER_BYTES}", head.len());
            return Err(Wrong::new(text, CUT));
        };
        let (major, minor) = (header.version_major, header.version_minor);
        if (major, minor) != VERSION {
            let text = format!("it says it is of version {major}.{minor}, and only 2.4 is known");
            return Err(Wrong::new(text, "rewrite it with `editcap -F pcap`"));
        }
        let link = LinkType((header.network.0 as u32 & LINK_TYPE_MASK) as u16);
        // By the magic number itself: a big-endian file is one that reads as it is written.
        let big_endian = head.first_chunk().is_some_and(|magic| MAGICS.contains(&u32::from_be_bytes(*magic)));
        Ok((Self { big_endian, link }, link))
    }

    /// Finds up to `room` packets in `bytes`.
    pub(super) fn walk(&mut self, bytes: &[u8], spans: &mut Vec<Span>, room: usize) -> Walked {
        // The byte order as a constant: a load and at most a swap, and no branch.
        let (consumed, stop) = match self.big_endian {
            true => walk(bytes, spans, room, u32::from_be_bytes),
            false => walk(bytes, spans, room, u32::from_le_bytes),
        };
        Walked { consumed, stop, link: Some(self.link) }
    }
}

#[inline(always)]
fn walk(bytes: &[u8], spans: &mut Vec<Span>, room: usize, number: impl Fn([u8; 4]) -> u32) -> (usize, Stop) {
    let mut at = 0;
    for _ in 0..room {
        let rest = &bytes[at..];
        let Some(header) = rest.first_chunk::<RECORD_HEADER_BYTES>() else {
            return (at, Stop::Short { needs: RECORD_HEADER_BYTES });
        };
        let [.., c0, c1, c2, c3, o0, o1, o2, o3] = *header;
        let (captured, original) = (number([c0, c1, c2, c3]), number([o0, o1, o2, o3]));
        if captured as usize > PACKET_BYTES_MAX {
            return (at, Stop::Wrong(too_long(captured)));
        }
        let needs = RECORD_HEADER_BYTES + captured as usize;
        if rest.len() < needs {
            return (at, Stop::Short { needs });
        }
        spans.push(Span { at: (at + RECORD_HEADER_BYTES) as u32, len: captured, original });
        at += needs;
    }
    (at, Stop::Full)
}

#[cold]
fn too_long(captured: u32) -> Wrong {
    Wrong::new(format!("a packet says it has {captured} bytes, more than {PACKET_BYTES_MAX}"), DAMAGED)
}
