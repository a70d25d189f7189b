//! A capture file: pcap in both byte orders, with micro- and nanoseconds, and pcapng.
//!
//! The file is read in stretches of [`STRETCH_BYTES`] into [`BLOCKS`] blocks, and its frames are lent where they lie,
//! uncopied. (Mapping it would save the kernel's copy, and kill the process when another one truncates the file.) A
//! frame that lies across the end of a stretch is moved to the start of the next. A block is filled again when all its
//! frames are home; until then a poll hands over nothing, and nothing is lost: the device
//! [can wait](steerage::RxQueue::can_wait).
//!
//! What is read: whole packets of up to [`PACKET_BYTES_MAX`] bytes, their length on the wire, and their link type. In
//! pcapng: any number of sections, of either byte order; up to [`INTERFACES_MAX`] interfaces in each; enhanced, simple
//! and (obsolete) plain packet blocks; all other blocks are skipped. Snap lengths are not enforced, except where they
//! alone give a length (simple packet blocks): what a packet says of itself is what lies there.
//!
//! Only Ethernet is parsed for now. Frames of other link types are handed over all the same, never mixed with Ethernet
//! in one poll, and [`Capture::link`] says which they are.
//!
//! Nothing the file says is believed before it is checked. A file that breaks off, or lies, gives its packets up to
//! that place and then an error with the offset.

mod classic;
mod pcapng;
mod stretch;
mod walk;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use steerage::{Blocks, Completions, DeviceError, Input, LinkType, POLL_BUDGET, Polled, QueueMemory, RxQueue};

use classic::Classic;
use pcapng::Pcapng;
use stretch::{Advance, Stretches};
use walk::{Span, Stop, Walked, Wrong};

/// How much of the file is read at a time. Large enough that a system call costs nothing a packet (16,000 of the
/// shortest), small enough that one read from the page cache is over in about 150 us.
pub const STRETCH_BYTES: usize = 1 << 20;

/// How many stretches are in memory at a time: enough for full backlogs of common frames, 8 MiB in all.
pub const BLOCKS: usize = 8;

/// The longest packet in bytes: what tcpdump and Wireshark hold to be the most (`MAXIMUM_SNAPLEN`).
pub const PACKET_BYTES_MAX: usize = 262_144;

/// The longest packet that a handler can keep or write to: jumbo frames with room to spare. Every page is that long.
pub const COPY_BYTES_MAX: usize = 9_728;

/// The longest record that is kept in memory whole: a packet, its header, and as much again for comments and the like.
pub const RECORD_BYTES_MAX: usize = 2 * PACKET_BYTES_MAX;

/// The most interfaces in one section of a pcapng file.
pub const INTERFACES_MAX: usize = 65_536;

const _: () = assert!(STRETCH_BYTES >= 2 * RECORD_BYTES_MAX, "a record moved to the next stretch leaves room to read");
const _: () = assert!(PACKET_BYTES_MAX <= u32::MAX as usize / 2 && STRETCH_BYTES <= u32::MAX as usize);

const DAMAGED: &str = "the file is damaged from there on, the packets before are sound";
const CUT: &str = "the file was cut short, the packets before are sound";
const UNPACKED: &str = "give a pcap or pcapng file, unpacked";

/// Opens a capture file as a device with one queue.
///
/// # Errors
/// [`DeviceError`] if there is no such file, it cannot be read, or it is no capture.
pub fn open(path: impl AsRef<Path>) -> Result<Input, DeviceError> {
    let capture = Capture::open(&path)?;
    let name = path.as_ref().display().to_string();
    Ok(Input { name, kind: "capture", mode: "", queues: vec![Box::new(capture)] })
}

/// An open capture file: the one queue of the device that [`open`] makes.
#[derive(Debug)]
pub struct Capture {
    name: String,
    stretches: Stretches,
    format: Format,
    link: LinkType,
    /// The frames found by the last walk.
    spans: Vec<Span>,
}

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Pcapng(Pcapng),
}

impl Capture {
    /// Opens the file and reads as much as tells its format.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |cause| DeviceError::new(&name, "open the capture", cause);
        let kind = fs::metadata(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => failed(e).advise("give the path of a capture file, or `synthetic`"),
            _ => failed(e),
        })?;
        // Reading a pipe may block, and opening one too; a poll may not.
        if !kind.is_file() {
            let what = if kind.is_dir() { "it is a directory" } else { "it is not a regular file" };
            return Err(failed(io::Error::other(what)).advise(UNPACKED));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut head = Vec::with_capacity(classic::HEADER_BYTES);
        let size = classic::HEADER_BYTES as u64;
        file.by_ref().take(size).read_to_end(&mut head).map_err(|e| failed(e).at(0))?;
        let (format, header_bytes, link) = recognise(&head).map_err(|wrong| wrong.into_error(&name, 0))?;
        let stretches = Stretches::new(file, header_bytes as u64, head.split_off(header_bytes));
        Ok(Self { name, stretches, format, link, spans: Vec::with_capacity(POLL_BUDGET) })
    }

    /// Finds the frames that lie in the current stretch, up to `room`, and hands them over.
    fn walk(&mut self, out: &mut Completions<'_>, room: usize) -> Result<Stop, DeviceError> {
        let link = (!out.is_empty()).then_some(self.link);
        let Some(blocks) = out.blocks() else { return Err(self.no_blocks()) };
        self.spans.clear();
        let bytes = self.stretches.rest(blocks);
        let Walked { consumed, stop, link } = match &mut self.format {
            Format::Classic(classic) => classic.walk(bytes, &mut self.spans, room),
            Format::Pcapng(pcapng) => pcapng.walk(bytes, &mut self.spans, room, link),
        };
        self.link = link.unwrap_or(self.link);
        for span in &self.spans {
            let frame = out.blocks().and_then(|blocks| self.stretches.lend(blocks, span));
            let Some(frame) = frame else { return Err(self.no_blocks()) };
            out.push(frame, span.wire_bytes());
        }
        self.stretches.consume(consumed);
        Ok(stop)
    }

    /// The file holds no more: whether that is a good place to end.
    fn end(&self, needs: usize) -> Result<Polled, DeviceError> {
        let text = match (self.stretches.rest_bytes(), self.stretches.skips()) {
            (0, false) => return Ok(Polled::Ended),
            (_, true) => "the file ends within a block that is of no interest here".to_owned(),
            (rest, false) => format!("the file ends {rest} bytes into a record of {needs} or more"),
        };
        Err(Wrong::new(text, CUT).into_error(&self.name, self.stretches.offset()))
    }

    #[cold]
    fn no_blocks(&self) -> DeviceError {
        // Not to be reached: `memory` brings the blocks and the walk checks its spans. An error rather than a panic.
        let wrong = Wrong::new("the memory for the file is missing or too small".to_owned(), "report this as a fault");
        wrong.into_error(&self.name, self.stretches.offset())
    }
}

impl RxQueue for Capture {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        let blocks = Blocks::map(BLOCKS, STRETCH_BYTES)
            .map_err(|e| DeviceError::new(&self.name, "get memory to read the capture", io::Error::other(e)))?;
        Ok(QueueMemory::Blocks { blocks, copy_bytes_max: COPY_BYTES_MAX })
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        // One stretch a poll at most: a poll's time is bounded by the time of one read.
        let mut may_read = true;
        let full = out.len().saturating_add(budget);
        while out.len() < full {
            let room = (full - out.len()).min(POLL_BUDGET);
            let needs = match self.walk(out, room)? {
                Stop::Full => continue,
                Stop::OtherLink => return Ok(Polled::More),
                Stop::Wrong(wrong) => return Err(wrong.into_error(&self.name, self.stretches.offset())),
                Stop::Skip { bytes } => {
                    self.stretches.skip(bytes);
                    continue;
                }
                Stop::Short { needs } => needs,
            };
            if self.stretches.ended() {
                return self.end(needs);
            }
            if !std::mem::take(&mut may_read) {
                return Ok(Polled::More);
            }
            let Some(blocks) = out.blocks() else { return Err(self.no_blocks()) };
            match self.stretches.advance(blocks) {
                Ok(Advance::Read) => {}
                Ok(Advance::FramesOut) => return Ok(Polled::More),
                Err(e) => {
                    let offset = self.stretches.end_offset();
                    return Err(DeviceError::new(&self.name, "read the capture", e).at(offset));
                }
            }
        }
        Ok(Polled::More)
    }

    fn link(&self) -> LinkType {
        self.link
    }

    fn can_wait(&self) -> bool {
        true
    }
}

/// Tells the format by the file's first bytes: with how many of them are its header, and the link type.
fn recognise(head: &[u8]) -> Result<(Format, usize, LinkType), Wrong> {
    let Some(magic) = head.first_chunk::<4>() else {
        let text = if head.is_empty() { "the file is empty".to_owned() } else { begins_with(head) };
        return Err(Wrong::new(text, UNPACKED));
    };
    if pcapng::is_magic(*magic) {
        return Ok((Format::Pcapng(Pcapng::default()), 0, LinkType::ETHERNET));
    }
    if !classic::is_magic(*magic) {
        return Err(Wrong::new(begins_with(magic), UNPACKED));
    }
    let (classic, link) = Classic::new(head)?;
    Ok((Format::Classic(classic), classic::HEADER_BYTES, link))
}

fn begins_with(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("it begins with {}, as neither pcap nor pcapng does", hex.join(" "))
}
