//! The pcapng format: a file consists of blocks. Each block has a type, contents, and its length
//! before and after the contents.
//!
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-02.html>
//!
//! The crate `pcap-parser` reads the blocks that occur once per section or interface. This module
//! reads packet blocks, for which `pcap-parser` would allocate vectors of options.

use pcap_parser::pcapng::{
    BOM_MAGIC, EPB_MAGIC, IDB_MAGIC, ISB_MAGIC, OptionCode, SHB_MAGIC, SPB_MAGIC, parse_interfacedescriptionblock_be,
    parse_interfacedescriptionblock_le, parse_sectionheaderblock,
};

use steerage::{
    LinkType,
    device::{FrameHeader, Spot},
};

use super::clock::Clock;
use super::sift::Sifting;
use super::walk::{All, Found, Sieve, Stop, Walk, Wrong};
use super::{INTERFACES_MAX, PACKET_BYTES_MAX, RECORD_BYTES_MAX};
use crate::filter::{FileFilters, FrameKind};

/// Plain packet blocks are obsolete, but old files still contain them.
const PB_MAGIC: u32 = 2;

/// The bytes of an empty block: type and length at the start, and the length again at the end.
const BLOCK_BYTES_MIN: usize = 12;
const TRAILER_BYTES: usize = 4;

/// The sizes of the headers in front of a packet's bytes. An enhanced packet block begins with
/// type, length, interface, time (8 bytes), captured length and original length. A simple packet
/// block begins with type, length and original length. The [`FrameHeader`] overwrites the end of
/// the block's header. In front of a simple packet block, there is always another block, and the
/// [`FrameHeader`] also overwrites the length at its end.
const EPB_HEADER_BYTES: usize = 28;
const SPB_HEADER_BYTES: usize = 12;
const _: () = assert!(SPB_HEADER_BYTES + TRAILER_BYTES >= FrameHeader::BYTES);

/// The only major version of pcapng so far. All minor versions are readable.
const VERSION_MAJOR: u16 = 1;

/// The type of a section header is the same in both byte orders.
pub(super) fn is_magic(bytes: [u8; 4]) -> bool {
    u32::from_be_bytes(bytes) == SHB_MAGIC
}

#[derive(Debug, Default)]
pub(super) struct Pcapng {
    big_endian: bool,
    in_section: bool,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// The snap length in bytes, or 0 if there is no limit.
    snap_bytes: u32,
    clock: Clock,
    has_microseconds: bool,
}

struct Packet {
    at: usize,
    len: usize,
    header: FrameHeader,
    bad_time: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Section,
    Interface,
    /// The interface number has 32 bits in the block if `is_wide` is true, and otherwise 16 bits.
    Packet {
        interface: u32,
        is_wide: bool,
    },
    SimplePacket,
    Statistics,
    Other,
}

impl Pcapng {
    /// Returns the length of the first block of `rest`, and its packet's time or `NO_TIME`.
    pub(super) fn next(&mut self, rest: &[u8]) -> Result<(usize, u64), Stop> {
        let block = self.block(rest)?;
        let packet = self.read(block).map_err(Stop::Wrong)?;
        Ok((block.len(), packet.map_or(FrameHeader::NO_TIME, |packet| packet.header.nanos)))
    }

    /// Returns the kind of a block that [`next`](Self::next) has read.
    pub(super) fn kind(&self, block: &[u8]) -> Block {
        match self.u32_at(block, 0) {
            SHB_MAGIC => Block::Section,
            IDB_MAGIC => Block::Interface,
            EPB_MAGIC => Block::Packet { interface: self.u32_at(block, 8), is_wide: true },
            PB_MAGIC => Block::Packet { interface: self.u16_at(block, 8).into(), is_wide: false },
            SPB_MAGIC => Block::SimplePacket,
            ISB_MAGIC => Block::Statistics,
            _ => Block::Other,
        }
    }

    pub(super) fn bytes_u32(&self, number: u32) -> [u8; 4] {
        if self.big_endian { number.to_be_bytes() } else { number.to_le_bytes() }
    }

    pub(super) fn bytes_u16(&self, number: u16) -> [u8; 2] {
        if self.big_endian { number.to_be_bytes() } else { number.to_le_bytes() }
    }

    /// Hands over at most `walk.room` packets that pass the filter. Stops before a packet whose
    /// link type differs from that of the previous packets.
    pub(super) fn walk(&mut self, walk: &mut Walk<'_>, filters: Option<&mut FileFilters>) -> Stop {
        match filters {
            None => self.blocks(walk, All),
            Some(filters) => self.blocks(walk, Sifting::new(filters, self.big_endian)),
        }
    }

    #[inline(never)]
    fn blocks(&mut self, walk: &mut Walk<'_>, mut sieve: impl Sieve) -> Stop {
        let (until, mut link, mut met) = (walk.until, walk.link, walk.met);
        let stop = walk.push_each(None, |rest| {
            let block = self.block(rest)?;
            let bytes = block.len();
            let Some(Packet { at, len, header, bad_time }) = self.read(block).map_err(Stop::Wrong)? else {
                return Ok(Found::Other { bytes });
            };
            let its_link = LinkType(header.link);
            sieve.section(self.big_endian);
            let Some(wanted) = sieve.wanted(block.get(at..at + len).unwrap_or_default(), its_link, header.wire_len)?
            else {
                met.filtered += 1;
                return Ok(Found::Other { bytes });
            };
            if *link.get_or_insert(its_link) != its_link {
                return Err(Stop::OtherLink);
            }
            let has_time = header.nanos != FrameHeader::NO_TIME;
            if has_time && header.nanos > until {
                return Err(Stop::NotYet { nanos: header.nanos });
            }
            match has_time {
                true => met.packet_at(header.nanos),
                false => {
                    met.packets += 1;
                    met.bad_times += u64::from(bad_time);
                }
            }
            Ok(Found::Packet { spot: Spot::new(at, wanted, header), behind: bytes - at - wanted })
        });
        (walk.link, walk.met) = (link, met);
        stop
    }

    /// Returns true if all interfaces before the first packet have times in whole microseconds.
    pub(super) fn has_microseconds(&mut self, mut head: &[u8]) -> bool {
        while let Ok(block) = self.block(head) {
            // A damaged block is reported later, when the file is read.
            if is_packet(self.u32_at(block, 0)) || self.read(block).is_err() {
                break;
            }
            head = &head[block.len()..];
        }
        !self.interfaces.is_empty() && self.interfaces.iter().all(|interface| interface.has_microseconds)
    }

    /// Returns the frame kind (link type and byte order) of each interface that the file describes
    /// before its first incomplete or invalid block.
    pub(super) fn kinds(head: &[u8]) -> Vec<FrameKind> {
        let (mut walk, mut rest, mut kinds) = (Self::default(), head, Vec::new());
        while let Ok(block) = walk.block(rest) {
            let known = walk.interfaces.len();
            if walk.read(block).is_err() {
                break;
            }
            if let Some(interface) = walk.interfaces.get(known) {
                kinds.push(FrameKind::new(interface.link, walk.big_endian));
            }
            rest = rest.get(block.len()..).unwrap_or_default();
        }
        kinds
    }

    /// Returns the first block of `rest` if the block is complete and its two lengths are equal.
    fn block<'a>(&self, rest: &'a [u8]) -> Result<&'a [u8], Stop> {
        let Some(head) = rest.first_chunk::<BLOCK_BYTES_MIN>() else {
            return Err(Stop::Short { needs: BLOCK_BYTES_MIN });
        };
        let kind = self.u32_at(head, 0);
        // A section header defines the byte order of its section.
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

    #[inline(always)]
    fn read(&mut self, block: &[u8]) -> Result<Option<Packet>, Wrong> {
        match self.u32_at(block, 0) {
            EPB_MAGIC => self.packet(block, self.u32_at(block, 8)).map(Some),
            PB_MAGIC => self.packet(block, self.u16_at(block, 8).into()).map(Some),
            SPB_MAGIC => self.simple_packet(block).map(Some),
            IDB_MAGIC => self.begin_interface(block).map(|()| None),
            SHB_MAGIC => self.begin_section(block).map(|()| None),
            _ => Ok(None),
        }
    }

    #[inline(always)]
    fn packet(&self, block: &[u8], number: u32) -> Result<Packet, Wrong> {
        if block.len() < EPB_HEADER_BYTES + TRAILER_BYTES {
            return Err(shorter_than_its_header(block));
        }
        let interface = self.interface(number)?;
        let ticks = u64::from(self.u32_at(block, 12)) << 32 | u64::from(self.u32_at(block, 16));
        let known = interface.clock.nanos(ticks);
        let (nanos, bad_time) = (known.unwrap_or(FrameHeader::NO_TIME), known.is_none());
        let (len, original) = (self.u32_at(block, 20), self.u32_at(block, 24));
        // A section has at most 65,536 interfaces, so 16 bits suffice for the interface number.
        let header =
            FrameHeader { nanos, wire_len: original.max(len), link: interface.link.0, interface: number as u16 };
        check_room(block, EPB_HEADER_BYTES, len)?;
        Ok(Packet { at: EPB_HEADER_BYTES, len: len as usize, header, bad_time })
    }

    /// The packet of a simple packet block has no time, and belongs to the section's first
    /// interface.
    fn simple_packet(&self, block: &[u8]) -> Result<Packet, Wrong> {
        if block.len() < SPB_HEADER_BYTES + TRAILER_BYTES {
            return Err(shorter_than_its_header(block));
        }
        let Interface { link, snap_bytes, .. } = self.interface(0)?;
        let original = self.u32_at(block, 8);
        let len = if snap_bytes == 0 { original } else { original.min(snap_bytes) };
        check_room(block, SPB_HEADER_BYTES, len)?;
        let header = FrameHeader { nanos: FrameHeader::NO_TIME, wire_len: original, link: link.0, interface: 0 };
        Ok(Packet { at: SPB_HEADER_BYTES, len: len as usize, header, bad_time: false })
    }

    fn interface(&self, number: u32) -> Result<Interface, Wrong> {
        self.interfaces.get(number as usize).copied().ok_or_else(|| {
            let known = self.interfaces.len();
            Wrong::damaged(format!("a packet is of interface {number}, and {known} have been described before it"))
        })
    }

    fn begin_interface(&mut self, block: &[u8]) -> Result<(), Wrong> {
        let parse =
            if self.big_endian { parse_interfacedescriptionblock_be } else { parse_interfacedescriptionblock_le };
        let Ok((_, interface)) = parse(block) else {
            return Err(Wrong::damaged("an interface's description cannot be read".to_owned()));
        };
        if self.interfaces.len() == INTERFACES_MAX {
            return Err(Wrong::damaged(format!("there are more than {INTERFACES_MAX} interfaces")));
        }
        // The link type has 16 bits in the file.
        let link = LinkType(interface.linktype.0 as u16);
        // `pcap-parser` also returns what follows the end of the options, which is no option.
        let options = || interface.options.iter().take_while(|option| option.code != OptionCode::EndOfOpt);
        let value = |code| options().find(|option| option.code == code).map(|option| &*option.value);
        let resolution = value(OptionCode::IfTsresol).and_then(|value| value.first().copied());
        // `pcap-parser` reads `if_tsoffset` as little-endian in every section.
        let offset = value(OptionCode::IfTsoffset).and_then(|value| value.first_chunk().copied());
        let offset = offset.map(if self.big_endian { i64::from_be_bytes } else { i64::from_le_bytes });
        let clock = Clock::new(resolution, offset);
        // The resolution of times is a power of ten, or a power of two if the highest bit is set.
        let has_microseconds = resolution.is_none_or(|power| power <= 6);
        self.interfaces.push(Interface { link, snap_bytes: interface.snaplen, clock, has_microseconds });
        Ok(())
    }

    fn begin_section(&mut self, block: &[u8]) -> Result<(), Wrong> {
        let Ok((_, section)) = parse_sectionheaderblock(block) else {
            return Err(Wrong::damaged("a section's header cannot be read".to_owned()));
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

#[inline(always)]
fn check_room(block: &[u8], header_bytes: usize, len: u32) -> Result<(), Wrong> {
    let room = block.len() - header_bytes - TRAILER_BYTES;
    let most = room.min(PACKET_BYTES_MAX);
    if len as usize > most {
        return Err(Wrong::damaged(format!("a packet says it has {len} bytes, more than the {most} that can be")));
    }
    Ok(())
}

#[cold]
fn shorter_than_its_header(block: &[u8]) -> Wrong {
    Wrong::damaged(format!("a packet's block has {} bytes, fewer than its header", block.len()))
}

fn is_read(kind: u32) -> bool {
    matches!(kind, SHB_MAGIC | IDB_MAGIC) || is_packet(kind)
}

fn is_packet(kind: u32) -> bool {
    matches!(kind, EPB_MAGIC | SPB_MAGIC | PB_MAGIC)
}

fn is_big_endian(section_header: &[u8; BLOCK_BYTES_MIN]) -> Result<bool, Wrong> {
    match BOM_MAGIC {
        bom if bom == read_u32(section_header, 8, true) => Ok(true),
        bom if bom == read_u32(section_header, 8, false) => Ok(false),
        bom => Err(Wrong::damaged(format!(
            "the byte order of a section is unknown: bytes 8 to 11 are not {bom:x} either way"
        ))),
    }
}

#[inline(always)]
fn read_u32(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

fn wrong(text: String) -> Stop {
    Stop::Wrong(Wrong::damaged(text))
}
