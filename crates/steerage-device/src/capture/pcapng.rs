//! pcapng: blocks, each with its type and, before and behind it, its length.
//!
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-02.html>
//!
//! `pcap-parser` reads the blocks that come once a section or interface. Packets are read here: it would collect the
//! options of each in a vector of its own, an allocation a packet.

use pcap_parser::pcapng::{
    BOM_MAGIC, EPB_MAGIC, IDB_MAGIC, SHB_MAGIC, SPB_MAGIC, parse_interfacedescriptionblock_be,
    parse_interfacedescriptionblock_le, parse_sectionheaderblock,
};

use steerage::LinkType;

use super::walk::{Span, Stop, Walked, Wrong};
use super::{DAMAGED, INTERFACES_MAX, PACKET_BYTES_MAX, RECORD_BYTES_MAX};

/// The plain packet block, obsolete since enhanced ones came, still in old files.
const PB_MAGIC: u32 = 2;

/// Type and length before, and the length again behind: the shortest block.
const BLOCK_BYTES_MIN: usize = 12;
const TRAILER_BYTES: usize = 4;

/// What stands before a packet: in an enhanced block type, length, interface, time (8), captured and original length;
/// in a simple one type, length and original length.
const EPB_HEADER_BYTES: usize = 28;
const SPB_HEADER_BYTES: usize = 12;

/// The only one so far; minor versions don't matter.
const VERSION_MAJOR: u16 = 1;

/// Whether a file that begins with these bytes is of this format: a section header's type reads the same both ways.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    u32::from_be_bytes(bytes) == SHB_MAGIC
}

/// A walk over the blocks.
#[derive(Debug, Default)]
pub(super) struct Pcapng {
    /// The section's byte order.
    big_endian: bool,
    /// Whether a section has begun.
    in_section: bool,
    /// The section's.
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// In bytes; 0: no limit.
    snap_bytes: u32,
}

/// What a block came to.
enum Found {
    Packet { span: Span, link: LinkType },
    Nothing,
}

impl Pcapng {
    /// Finds up to `room` packets in `bytes`, all of one link type: that of `link` if there is one.
    pub(super) fn walk(
        &mut self,
        bytes: &[u8],
        spans: &mut Vec<Span>,
        room: usize,
        mut link: Option<LinkType>,
    ) -> Walked {
        let mut at = 0;
        let stop = loop {
            if spans.len() == room {
                break Stop::Full;
            }
            let block = match self.block(&bytes[at..]) {
                Ok(block) => block,
                Err(stop) => break stop,
            };
            match self.read(block) {
                Ok(Found::Packet { link: other, .. }) if link.is_some_and(|link| link != other) => {
                    break Stop::OtherLink;
                }
                Ok(Found::Packet { span, link: its }) => {
                    link = Some(its);
                    spans.push(Span { at: span.at + at as u32, ..span });
                }
                Ok(Found::Nothing) => {}
                Err(wrong) => break Stop::Wrong(wrong),
            }
            at += block.len();
        };
        Walked { consumed: at, stop, link }
    }

    /// The block with which `rest` begins, whole, its lengths checked.
    fn block<'a>(&self, rest: &'a [u8]) -> Result<&'a [u8], Stop> {
        let Some(head) = rest.first_chunk::<BLOCK_BYTES_MIN>() else {
            return Err(Stop::Short { needs: BLOCK_BYTES_MIN });
        };
        let kind = self.u32_at(head, 0);
        // A section header brings its byte order along.
        let big_endian = if kind == SHB_MAGIC { is_big_endian(head).map_err(Stop::Wrong)? } else { self.big_endian };
        if kind != SHB_MAGIC && !self.in_section {
            return Err(wrong("it does not begin with a section header".to_owned()));
        }
        let total = read_u32(head, 4, big_endian) as usize;
        if total < BLOCK_BYTES_MIN || total % 4 != 0 {
            return Err(wrong(format!("a block says it has {total} bytes, not a multiple of 4 from 12 on")));
        }
        if total > RECORD_BYTES_MAX {
            return Err(match is_read(kind) {
                true => wrong(format!("a block says it has {total} bytes, more than {RECORD_BYTES_MAX}")),
                false => Stop::Skip { bytes: total as u64 },
            });
        }
        let Some(block) = rest.get(..total) else { return Err(Stop::Short { needs: total }) };
        let again = read_u32(block, total - TRAILER_BYTES, big_endian) as usize;
        if again != total {
            return Err(wrong(format!("a block says it has {total} bytes at its start, and {again} at its end")));
        }
        Ok(block)
    }

    fn read(&mut self, block: &[u8]) -> Result<Found, Wrong> {
        match self.u32_at(block, 0) {
            EPB_MAGIC => self.packet(block, self.u32_at(block, 8)),
            PB_MAGIC => self.packet(block, self.u16_at(block, 8).into()),
            SPB_MAGIC => self.simple_packet(block),
            IDB_MAGIC => self.begin_interface(block).map(|()| Found::Nothing),
            SHB_MAGIC => self.begin_section(block).map(|()| Found::Nothing),
            _ => Ok(Found::Nothing),
        }
    }

    fn packet(&self, block: &[u8], interface: u32) -> Result<Found, Wrong> {
        if block.len() < EPB_HEADER_BYTES + TRAILER_BYTES {
            return Err(damaged(format!("a packet's block has {} bytes, fewer than its header", block.len())));
        }
        let link = self.interface(interface)?.link;
        let (len, original) = (self.u32_at(block, 20), self.u32_at(block, 24));
        let span = span(block, EPB_HEADER_BYTES, len, original)?;
        Ok(Found::Packet { span, link })
    }

    fn simple_packet(&self, block: &[u8]) -> Result<Found, Wrong> {
        if block.len() < SPB_HEADER_BYTES + TRAILER_BYTES {
            return Err(damaged(format!("a packet's block has {} bytes, fewer than its header", block.len())));
        }
        let Interface { link, snap_bytes } = self.interface(0)?;
        let original = self.u32_at(block, 8);
        let len = if snap_bytes == 0 { original } else { original.min(snap_bytes) };
        let span = span(block, SPB_HEADER_BYTES, len, original)?;
        Ok(Found::Packet { span, link })
    }

    fn interface(&self, number: u32) -> Result<Interface, Wrong> {
        self.interfaces.get(number as usize).copied().ok_or_else(|| {
            let known = self.interfaces.len();
            damaged(format!("a packet is of interface {number}, and {known} have been described before it"))
        })
    }

    fn begin_interface(&mut self, block: &[u8]) -> Result<(), Wrong> {
        let parse =
            if self.big_endian { parse_interfacedescriptionblock_be } else { parse_interfacedescriptionblock_le };
        let Ok((_, interface)) = parse(block) else {
            return Err(damaged("an interface's description cannot be read".to_owned()));
        };
        if self.interfaces.len() == INTERFACES_MAX {
            return Err(damaged(format!("there are more than {INTERFACES_MAX} interfaces")));
        }
        // 16 bits in the file.
        let link = LinkType(interface.linktype.0 as u16);
        self.interfaces.push(Interface { link, snap_bytes: interface.snaplen });
        Ok(())
    }

    fn begin_section(&mut self, block: &[u8]) -> Result<(), Wrong> {
        let Ok((_, section)) = parse_sectionheaderblock(block) else {
            return Err(damaged("a section's header cannot be read".to_owned()));
        };
        if section.major_version != VERSION_MAJOR {
            let text = format!("a section says it is of version {}, and only 1 is known", section.major_version);
            return Err(Wrong::new(text, "rewrite it with `editcap -F pcapng`"));
        }
        self.big_endian = section.big_endian();
        self.in_section = true;
        self.interfaces.clear();
        Ok(())
    }

    #[inline(always)]
    fn u32_at(&self, bytes: &[u8], at: usize) -> u32 {
        read_u32(bytes, at, self.big_endian)
    }

    fn u16_at(&self, bytes: &[u8], at: usize) -> u16 {
        let bytes = [bytes[at], bytes[at + 1]];
        if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }
}

/// The packet of `len` bytes behind a header of `header_bytes`, if the block has room for it.
#[inline(always)]
fn span(block: &[u8], header_bytes: usize, len: u32, original: u32) -> Result<Span, Wrong> {
    let room = block.len() - header_bytes - TRAILER_BYTES;
    let most = room.min(PACKET_BYTES_MAX);
    if len as usize > most {
        return Err(damaged(format!("a packet says it has {len} bytes, more than the {most} that can be")));
    }
    Ok(Span { at: header_bytes as u32, len, original })
}

/// The blocks that are not skipped.
fn is_read(kind: u32) -> bool {
    matches!(kind, SHB_MAGIC | IDB_MAGIC | EPB_MAGIC | SPB_MAGIC | PB_MAGIC)
}

fn is_big_endian(section_header: &[u8; BLOCK_BYTES_MIN]) -> Result<bool, Wrong> {
    match BOM_MAGIC {
        bom if bom == read_u32(section_header, 8, true) => Ok(true),
        bom if bom == read_u32(section_header, 8, false) => Ok(false),
        bom => Err(damaged(format!("a section's byte order is not told: bytes 8 to 11 are not {bom:x} either way"))),
    }
}

#[inline(always)]
fn read_u32(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

fn wrong(text: String) -> Stop {
    Stop::Wrong(damaged(text))
}

#[cold]
fn damaged(text: String) -> Wrong {
    Wrong::new(text, DAMAGED)
}
