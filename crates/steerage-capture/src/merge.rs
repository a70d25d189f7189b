use std::collections::BTreeMap;

use steerage::device::FrameHeader;

use super::Format;
use super::classic::{self, Classic};
use super::pcapng::{self, Block, Pcapng};
use super::walk::{Stop, Wrong};

const MAGIC_BYTES: usize = 4;

const SECTION_LENGTH: std::ops::Range<usize> = 16..24;
const BYTE_ORDER: std::ops::Range<usize> = 8..12;
const BYTE_ORDERS: [&[u8]; 2] = [&[0x1a, 0x2b, 0x3c, 0x4d], &[0x4d, 0x3c, 0x2b, 0x1a]];
/// The position of the interface's number in a packet block.
const INTERFACE: usize = 8;

/// The bytes of a pcap header that merged files must share: magic number, version, link type.
const COMMON: [std::ops::Range<usize>; 2] = [0..8, 20..24];

/// The reason why streams cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The stream is not a capture, or is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The stream has another format, byte order, link type or time resolution than the first
    /// stream.
    #[error("its capture has another format or link type than that of another stream, and one file cannot have both")]
    Differs,
    /// In the merged file, packets without an interface number would belong to another stream's
    /// interface.
    #[error("its capture has simple packet blocks, which cannot be merged")]
    SimplePackets,
}

/// The next record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaptureRecord {
    /// The packet's time in nanoseconds since 1970. A record without a time gets the time of the
    /// previous record, or 0 if there is no previous record.
    pub nanos: u64,
    /// The length of the record in bytes.
    pub len: usize,
}

/// Makes one pcap or pcapng file from several streams, record by record. The caller stores the bytes
/// of the streams, and chooses the stream whose record is next.
///
/// The merged file has the header of the first record that was appended. In a pcapng file, equal
/// interfaces of several streams become one interface, and interface statistics are left out. All
/// other bytes of the streams stay unchanged.
///
/// ```
/// use steerage::{LinkType, WallTime};
/// use steerage_capture::{CaptureMerge, PcapngEncoder};
///
/// let capture = |seconds: u64| {
///     let (mut encoder, mut bytes) = (PcapngEncoder::default(), Vec::new());
///     encoder.begin(&mut bytes);
///     encoder.packet(&mut bytes, LinkType::ETHERNET, WallTime::from_nanos(seconds), 60, &[0; 60]);
///     bytes
/// };
/// let (mut merge, mut merged) = (CaptureMerge::new(2), Vec::new());
/// let mut streams = [&capture(2)[..], &capture(1)[..]];
/// loop {
///     let mut records = Vec::new();
///     for (nth, bytes) in streams.iter().enumerate() {
///         records.extend(merge.next(nth, bytes)?.map(|record| (record, nth)));
///     }
///     let Some((record, nth)) = records.into_iter().min() else { break };
///     let (bytes, rest) = streams[nth].split_at(record.len);
///     merge.append(nth, bytes, &mut merged)?;
///     streams[nth] = rest;
/// }
/// assert_eq!(merged.len(), 28 + 32 + 2 * 92);
/// # Ok::<(), steerage_capture::MergeError>(())
/// ```
#[derive(Debug)]
pub struct CaptureMerge {
    streams: Vec<Stream>,
    /// `None` before the first record was appended.
    head: Option<Vec<u8>>,
    /// For each interface block, the number of its interface.
    interfaces: BTreeMap<Vec<u8>, u32>,
}

#[derive(Debug, Default)]
struct Stream {
    format: Option<Format>,
    nanos: u64,
    /// True if the next bytes of a pcap file are the file's header.
    is_new: bool,
    found: Option<CaptureRecord>,
    /// For each interface in this stream's current section, its number in the merged file.
    interfaces: Vec<u32>,
}

impl CaptureMerge {
    /// Makes a `CaptureMerge` for `streams` streams.
    pub fn new(streams: usize) -> Self {
        let streams = std::iter::repeat_with(Stream::default).take(streams).collect();
        Self { streams, head: None, interfaces: BTreeMap::new() }
    }

    /// Returns whether `start` begins a capture, or `None` if more bytes are needed.
    pub fn is_capture(start: &[u8]) -> Option<bool> {
        match start.first_chunk() {
            // A text file can begin like a section header, whose type consists of line ends.
            Some(magic) if pcapng::is_magic(*magic) => {
                return start.get(BYTE_ORDER).map(|bytes| BYTE_ORDERS.contains(&bytes));
            }
            Some(magic) => return Some(classic::is_magic(*magic)),
            None => {}
        }
        // The first bytes of pcap and pcapng files in all byte orders.
        let may_be = start.first().is_none_or(|first| matches!(first, 0x0a | 0x4d | 0xa1 | 0xd4 | 0x34));
        if may_be { None } else { Some(false) }
    }

    /// Finds the record at the start of `bytes`, which are the bytes of stream `nth` that were not
    /// appended yet. Returns `None` if the record is incomplete.
    ///
    /// # Errors
    /// [`MergeError`] if the bytes are not a record.
    ///
    /// # Panics
    /// Panics if there is no stream `nth`.
    pub fn next(&mut self, nth: usize, bytes: &[u8]) -> Result<Option<CaptureRecord>, MergeError> {
        let stream = &mut self.streams[nth];
        if stream.found.is_none() {
            stream.found = match stream.find(bytes) {
                Ok(record) => Some(record),
                Err(Stop::Wrong(wrong)) => return Err(MergeError::Damaged(wrong.text().to_owned())),
                Err(Stop::Skip { bytes }) => {
                    return Err(MergeError::Damaged(format!("a block of {bytes} bytes is too long")));
                }
                Err(_) => None,
            };
        }
        Ok(stream.found)
    }

    /// Appends `record`, the bytes of the record that [`next`](Self::next) found.
    ///
    /// # Errors
    /// [`MergeError`] if the merged file cannot contain the record.
    ///
    /// # Panics
    /// Panics if there is no stream `nth`.
    pub fn append(&mut self, nth: usize, record: &[u8], to: &mut Vec<u8>) -> Result<(), MergeError> {
        let stream = &mut self.streams[nth];
        stream.found = None;
        match &stream.format {
            None => Ok(()),
            Some(Format::Classic(_)) => {
                if std::mem::take(&mut stream.is_new) {
                    return self.begin(
                        record,
                        |first| COMMON.iter().all(|range| first.get(range.clone()) == record.get(range.clone())),
                        to,
                    );
                }
                to.extend_from_slice(record);
                Ok(())
            }
            Some(Format::Pcapng(reader)) => match reader.kind(record) {
                Block::Section => {
                    stream.interfaces.clear();
                    let mut head = record.to_vec();
                    if let Some(length) = head.get_mut(SECTION_LENGTH) {
                        length.fill(0xff);
                    }
                    self.begin(
                        &head,
                        |first| first.get(..4) == head.get(..4) && first.get(BYTE_ORDER) == head.get(BYTE_ORDER),
                        to,
                    )
                }
                Block::Interface => {
                    let next = self.interfaces.len() as u32;
                    let number = *self.interfaces.entry(record.to_vec()).or_insert_with(|| {
                        to.extend_from_slice(record);
                        next
                    });
                    stream.interfaces.push(number);
                    Ok(())
                }
                Block::Packet { interface, is_wide } => {
                    let number = stream.interfaces.get(interface as usize).copied().unwrap_or(interface);
                    let at = to.len() + INTERFACE;
                    to.extend_from_slice(record);
                    // In an obsolete packet block, the interface number has 16 bits.
                    let words = if is_wide {
                        reader.bytes_u32(number).to_vec()
                    } else {
                        reader.bytes_u16(number as u16).to_vec()
                    };
                    if let Some(place) = to.get_mut(at..at + words.len()) {
                        place.copy_from_slice(&words);
                    }
                    Ok(())
                }
                Block::SimplePacket if stream.interfaces.first() != Some(&0) => Err(MergeError::SimplePackets),
                Block::Statistics => Ok(()),
                Block::SimplePacket | Block::Other => {
                    to.extend_from_slice(record);
                    Ok(())
                }
            },
        }
    }

    /// Writes `head` as the header of the merged file. If a header was written before, checks that
    /// `head` is compatible with that header.
    fn begin(&mut self, head: &[u8], is_same: impl Fn(&[u8]) -> bool, to: &mut Vec<u8>) -> Result<(), MergeError> {
        match &self.head {
            Some(first) if is_same(first) => Ok(()),
            Some(_) => Err(MergeError::Differs),
            None => {
                self.head = Some(head.to_vec());
                to.extend_from_slice(head);
                Ok(())
            }
        }
    }
}

impl Stream {
    fn find(&mut self, bytes: &[u8]) -> Result<CaptureRecord, Stop> {
        let format = match &mut self.format {
            Some(format) => format,
            None => {
                let Some(magic) = bytes.first_chunk() else { return Err(Stop::Short { needs: MAGIC_BYTES }) };
                if pcapng::is_magic(*magic) {
                    self.format.insert(Format::Pcapng(Pcapng::default()))
                } else if !classic::is_magic(*magic) {
                    return Err(Stop::Wrong(Wrong::new("it does not begin as a capture".to_owned(), "")));
                } else if bytes.len() < classic::HEADER_BYTES {
                    return Err(Stop::Short { needs: classic::HEADER_BYTES });
                } else {
                    self.format = Some(Format::Classic(Classic::new(bytes).map_err(Stop::Wrong)?));
                    self.is_new = true;
                    return Ok(CaptureRecord { len: classic::HEADER_BYTES, nanos: 0 });
                }
            }
        };
        let (len, nanos) = match format {
            Format::Classic(classic) => classic.next(bytes)?,
            Format::Pcapng(pcapng) => pcapng.next(bytes)?,
        };
        if nanos != FrameHeader::NO_TIME {
            self.nanos = nanos;
        }
        Ok(CaptureRecord { len, nanos: self.nanos })
    }
}

#[cfg(test)]
mod tests {
    use steerage::{LinkType, WallTime};

    use super::*;
    use crate::encode::{PacketHead, PcapngEncoder, StreamFormat};

    fn pcapng(packets: &[(LinkType, u64)]) -> Vec<u8> {
        let (mut encoder, mut bytes) = (PcapngEncoder::default(), Vec::new());
        encoder.begin(&mut bytes);
        for (link, nanos) in packets {
            encoder.packet(&mut bytes, *link, WallTime::from_nanos(*nanos), 60, &[7; 60]);
        }
        bytes
    }

    fn pcap(link: LinkType, times: &[u64]) -> Vec<u8> {
        let format = StreamFormat::PcapNanos;
        let interface = format.interface(link, 0);
        let mut bytes = format.interface_head(interface);
        for nanos in times {
            let head = PacketHead { interface: (0, interface), nanos: *nanos, captured: 3, wire: 60 };
            format.packet(&mut bytes, head, std::iter::once(&[1, 2, 3][..]));
        }
        bytes
    }

    fn merged(streams: &[Vec<u8>]) -> Result<Vec<u8>, MergeError> {
        let (mut merge, mut out) = (CaptureMerge::new(streams.len()), Vec::new());
        let mut rest: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        loop {
            let mut records = Vec::new();
            for (nth, bytes) in rest.iter().enumerate() {
                let record = merge.next(nth, bytes)?;
                records.extend(record.map(|record| (record, nth)));
            }
            let Some((record, nth)) = records.into_iter().min() else { return Ok(out) };
            merge.append(nth, &rest[nth][..record.len], &mut out)?;
            rest[nth] = &rest[nth][record.len..];
        }
    }

    #[test]
    fn packets_are_merged_by_time_in_one_file() {
        let streams = [&[5, 9][..], &[1, 6], &[]].map(|times| pcap(LinkType::ETHERNET, times));
        assert_eq!(merged(&streams).unwrap(), pcap(LinkType::ETHERNET, &[1, 5, 6, 9]));
        // Interface 0 of the second stream is interface 1 of the merged file.
        let (ethernet, raw) = (LinkType::ETHERNET, LinkType::RAW);
        let streams = [pcapng(&[(ethernet, 5)]), pcapng(&[(raw, 6), (ethernet, 7)])];
        let mut expected = pcapng(&[(ethernet, 5), (raw, 6), (ethernet, 7)]);
        // Interface descriptions (32 bytes) come before packets (92 bytes) in the expected file.
        expected[60..184].rotate_left(92);
        assert_eq!(merged(&streams).unwrap(), expected);
    }

    #[test]
    fn what_one_file_cannot_have_is_refused() {
        let (one, other) = (pcap(LinkType::ETHERNET, &[1]), pcap(LinkType::RAW, &[2]));
        assert_eq!(merged(&[one.clone(), other]), Err(MergeError::Differs));
        assert_eq!(merged(&[one.clone(), pcapng(&[(LinkType::ETHERNET, 1)])]), Err(MergeError::Differs));
        assert!(matches!(merged(&[one, b"text and more".to_vec()]), Err(MergeError::Damaged(_))));
        let simple = [3_u32, 16, 0, 16].map(u32::to_ne_bytes).concat();
        let with_simple = |link| [pcapng(&[(link, 1)]), simple.clone()].concat();
        assert!(merged(&[with_simple(LinkType::ETHERNET), pcapng(&[])]).is_ok());
        let streams = [pcapng(&[(LinkType::ETHERNET, 0)]), with_simple(LinkType::RAW)];
        assert_eq!(merged(&streams), Err(MergeError::SimplePackets));
    }

    #[test]
    fn statistics_are_left_out_and_other_blocks_stay() {
        let block = |kind: u32| [kind, 20, 0, 0, 20].map(u32::to_ne_bytes).concat();
        let file = pcapng(&[(LinkType::ETHERNET, 5)]);
        let names = [file.clone(), block(4)].concat();
        assert_eq!(merged(&[[names.clone(), block(5)].concat()]).unwrap(), names);
        let old = [2_u32, 36, 0, 0, 6, 4, 4, 0, 36].map(u32::to_ne_bytes).concat();
        let streams = [file, [pcapng(&[(LinkType::RAW, 4)]), old].concat()];
        let out = merged(&streams).unwrap();
        let at = out.len() - 36;
        assert_eq!(out[at + 8..at + 12], [1_u16, 0].map(u16::to_ne_bytes).concat());
    }

    #[test]
    fn an_incomplete_record_waits() {
        for file in [pcap(LinkType::ETHERNET, &[1]), pcapng(&[(LinkType::ETHERNET, 1)])] {
            let mut merge = CaptureMerge::new(1);
            let mut at = 0;
            while at < file.len() {
                let ends = (at..=file.len()).find_map(|end| Some((end, merge.next(0, &file[at..end]).unwrap()?)));
                let (end, record) = ends.unwrap();
                assert_eq!(end, at + record.len);
                merge.append(0, &file[at..at + record.len], &mut Vec::new()).unwrap();
                at += record.len;
            }
            assert_eq!((at, merge.next(0, &[]).unwrap()), (file.len(), None));
        }
        assert_eq!((CaptureMerge::is_capture(b"\xd4\xc3"), CaptureMerge::is_capture(b"text")), (None, Some(false)));
    }
}
