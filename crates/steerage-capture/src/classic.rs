//! The pcap format: a file header, and then records with a fixed header and the packet's bytes.
//!
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>

use pcap_parser::parse_pcap_header;

use steerage::{
    LinkType,
    device::{FrameHeader, RecordForm, Spot},
};

use super::sift::Sifting;
use super::walk::{All, Found, Sieve, Stop, Walk, Wrong};
use super::{CUT, PACKET_BYTES_MAX};
use crate::filter::FileFilters;

pub(super) const HEADER_BYTES: usize = 24;

/// A record's header has seconds, fraction, captured length and original length, 4 bytes each. A
/// [`FrameHeader`] is as long as a record's header, so that it can replace the record's header in
/// memory.
const RECORD_HEADER_BYTES: usize = FrameHeader::BYTES;

/// The magic numbers of pcap files. In a little-endian file, the bytes of a magic number are
/// reversed.
const MAGICS: [u32; 3] = [0xa1b2_c3d4, 0xa1b2_3c4d, MODIFIED_MAGIC];

/// Modified pcap, which some devices such as FRITZ!Box routers write, has times in microseconds.
/// Each record's header has 8 more bytes than in pcap: the interface, the protocol and the packet
/// type.
const MODIFIED_MAGIC: u32 = 0xa1b2_cd34;
const MODIFIED_BYTES: usize = 8;

/// Version 2.4 of pcap has been used since 1998. Older pcap versions have records of the same size
/// as version 2.4.
const VERSION_MAJOR: u16 = 2;
const VERSION_MINOR_MAX: u16 = 4;

/// In the last field of the pcap file header, the bits above the link type describe frame check
/// sequences.
const LINK_TYPE_MASK: u32 = 0xffff;

pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    MAGICS.contains(&u32::from_be_bytes(bytes)) || MAGICS.contains(&u32::from_le_bytes(bytes))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    InOrder,
    /// Some programs that wrote pcap version 2.3 swapped a packet's two lengths. The captured
    /// length is the smaller of the two lengths.
    Either,
    /// The original length is before the captured length, as in files up to pcap version 2.2.
    Swapped,
}

impl Lengths {
    fn of_version(minor: u16) -> Self {
        match minor {
            0..=2 => Self::Swapped,
            3 => Self::Either,
            _ => Self::InOrder,
        }
    }

    #[cold]
    fn of_old_version(self, first: u32, second: u32) -> (u32, u32) {
        if self == Self::Swapped || first > second { (second, first) } else { (first, second) }
    }
}

#[derive(Debug)]
pub(super) struct Classic {
    big_endian: bool,
    link: LinkType,
    lengths: Lengths,
    record_bytes: usize,
    /// The nanoseconds in one unit of a timestamp's fraction: 1 or 1000.
    nanos_a_fraction: u64,
}

impl Classic {
    pub(super) fn new(head: &[u8]) -> Result<Self, Wrong> {
        let is_modified = |magic: &[u8; 4]| {
            u32::from_be_bytes(*magic) == MODIFIED_MAGIC || u32::from_le_bytes(*magic) == MODIFIED_MAGIC
        };
        let is_modified = head.first_chunk().is_some_and(is_modified);
        // Apart from its magic number, a modified pcap file has the header of a usual pcap file.
        let mut usual = head.first_chunk::<HEADER_BYTES>().copied().unwrap_or_default();
        if is_modified {
            let is_big_endian = usual[0] == MODIFIED_MAGIC.to_be_bytes()[0];
            let magic = if is_big_endian { MAGICS[0].to_be_bytes() } else { MAGICS[0].to_le_bytes() };
            usual[..magic.len()].copy_from_slice(&magic);
        }
        let usual = if head.len() < HEADER_BYTES { head } else { &usual };
        let Ok((_, header)) = parse_pcap_header(usual) else {
            let text = format!("the file ends {} bytes into its header of {HEADER_BYTES}", head.len());
            return Err(Wrong::new(text, CUT));
        };
        let (major, minor) = (header.version_major, header.version_minor);
        if major != VERSION_MAJOR || minor > VERSION_MINOR_MAX {
            let text = format!("it says it is of version {major}.{minor}, and only 2.0 to 2.4 are known");
            return Err(Wrong::new(text, "rewrite it with `editcap -F pcap`"));
        }
        let link = LinkType((header.network.0 as u32 & LINK_TYPE_MASK) as u16);
        // In a big-endian file, the stored magic number equals one of `MAGICS`.
        let big_endian = head.first_chunk().is_some_and(|magic| MAGICS.contains(&u32::from_be_bytes(*magic)));
        let lengths = Lengths::of_version(minor);
        Ok(Self {
            big_endian,
            link,
            lengths,
            record_bytes: RECORD_HEADER_BYTES + if is_modified { MODIFIED_BYTES } else { 0 },
            nanos_a_fraction: if header.is_nanosecond_precision() { 1 } else { 1000 },
        })
    }

    pub(super) fn has_nanos(&self) -> bool {
        self.nanos_a_fraction == 1
    }

    pub(super) fn link(&self) -> LinkType {
        self.link
    }

    /// Returns the layout of the record headers if the file can be read in place. Returns `None`
    /// for unusual record headers, and for link types that do not fit into a slot (an entry of a
    /// packet ring).
    pub(super) fn form(&self) -> Option<RecordForm> {
        let has_usual_header = self.lengths == Lengths::InOrder && self.record_bytes == RECORD_HEADER_BYTES;
        let is_plain = has_usual_header && LinkType::READ.contains(&self.link);
        is_plain.then(|| RecordForm::new(self.big_endian, self.has_nanos()))
    }

    pub(super) fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    pub(super) fn walk(&self, walk: &mut Walk<'_>, filters: Option<&mut FileFilters>) -> Stop {
        walk.link = Some(self.link);
        // The byte order and the presence of a filter are constants in each arm, so that reading a
        // field compiles to a load and at most a byte swap, without a branch.
        match (self.big_endian, filters) {
            (true, None) => self.records(walk, All, u32::from_be_bytes),
            (false, None) => self.records(walk, All, u32::from_le_bytes),
            (true, Some(filters)) => self.records(walk, Sifting::new(filters, true), u32::from_be_bytes),
            (false, Some(filters)) => self.records(walk, Sifting::new(filters, false), u32::from_le_bytes),
        }
    }

    /// Returns the length and the time of the first record. The function `records` has its own copy
    /// of this code: with a common function, each packet needed 20 more instructions.
    pub(super) fn next(&self, rest: &[u8]) -> Result<(usize, u64), Stop> {
        let Some(header) = rest.first_chunk::<RECORD_HEADER_BYTES>() else {
            return Err(Stop::Short { needs: RECORD_HEADER_BYTES });
        };
        let number = if self.big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        let word = |at: usize| number([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (captured, original) = match self.lengths {
            Lengths::InOrder => (word(8), word(12)),
            lengths => lengths.of_old_version(word(8), word(12)),
        };
        if captured as usize > PACKET_BYTES_MAX {
            return Err(Stop::Wrong(too_long(captured)));
        }
        let needs = self.record_bytes + captured as usize;
        if rest.len() < needs {
            return Err(Stop::Short { needs });
        }
        let time = (word(0), word(4), self.nanos_a_fraction);
        Ok((needs, FrameHeader::of_record(time, (captured, original)).nanos))
    }

    #[inline(never)]
    fn records(&self, walk: &mut Walk<'_>, mut sieve: impl Sieve, number: impl Fn([u8; 4]) -> u32) -> Stop {
        let (until, mut met, record_bytes) = (walk.until, walk.met, self.record_bytes);
        let stop = walk.push_each(self.form(), |rest| {
            let Some(header) = rest.first_chunk::<RECORD_HEADER_BYTES>() else {
                return Err(Stop::Short { needs: RECORD_HEADER_BYTES });
            };
            let word = |at: usize| number([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let (captured, original) = match self.lengths {
                Lengths::InOrder => (word(8), word(12)),
                lengths => lengths.of_old_version(word(8), word(12)),
            };
            if captured as usize > PACKET_BYTES_MAX {
                return Err(Stop::Wrong(too_long(captured)));
            }
            let needs = record_bytes + captured as usize;
            if rest.len() < needs {
                return Err(Stop::Short { needs });
            }
            let time = (word(0), word(4), self.nanos_a_fraction);
            let header = FrameHeader { link: self.link.0, ..FrameHeader::of_record(time, (captured, original)) };
            let Some(len) = sieve.wanted(&rest[record_bytes..needs], self.link, header.wire_len)? else {
                met.filtered += 1;
                return Ok(Found::Other { bytes: needs });
            };
            if header.nanos > until {
                return Err(Stop::NotYet { nanos: header.nanos });
            }
            met.packet_at(header.nanos);
            let behind = captured as usize - len;
            Ok(Found::Packet { spot: Spot::new(record_bytes, len, header), behind })
        });
        walk.met = met;
        stop
    }
}

#[cold]
fn too_long(captured: u32) -> Wrong {
    Wrong::damaged(format!("a packet says it has {captured} bytes, more than {PACKET_BYTES_MAX}"))
}
