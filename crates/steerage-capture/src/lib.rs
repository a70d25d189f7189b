//! Capture files: pcap in both byte orders, with micro- and nanoseconds, and pcapng. Captures are
//! read from files, pipes and standard input, uncompressed or compressed with gzip or zstd. The
//! user's guide is docs/captures.md.
//!
//! A pcap file is read in place, in the kernel's page cache, while the kernel grants a read lease
//! (fcntl(2), F_SETLEASE). While this process holds the lease, no other process can change or
//! truncate the capture file unnoticed. If another process wants to change the file, a thread
//! copies the bytes that handlers still use and returns the lease. The queue of the capture file
//! then continues at the same record with read(2). Pipes, pcapng files, and files for which the
//! kernel grants no lease are read with read(2) from the beginning.
//!
//! A queue that uses read(2) fills [`BLOCKS`] blocks of memory, [`READ_BYTES`] at a time, and hands
//! frames over in these blocks without a copy. A [`FrameHeader`](steerage::device::FrameHeader)
//! with time, length on the wire, link type and interface replaces the header of each record in
//! place. If a read ends in the middle of a record, the record is moved to the block of the next
//! read, or the rest of the record is read into the same block. A block is filled again after
//! handlers have released all of its frames. While handlers hold frames of all blocks, a poll
//! delivers nothing, but no packet is lost, because the device [can
//! wait](steerage::device::Capabilities::can_wait).
//!
//! A separate thread unpacks compressed input into a pipe, so that a poll never unpacks data.
//!
//! Packets of up to [`PACKET_BYTES_MAX`] bytes are read whole. A pcapng file may have any number of
//! sections in either byte order, each with up to [`INTERFACES_MAX`] interfaces with their own link
//! types and clocks. The pcapng reader understands enhanced, simple and (obsolete) plain packet
//! blocks, and skips all other blocks. Snap lengths are ignored, except for simple packet blocks,
//! which do not contain the captured length.
//!
//! Packets of all link types are delivered, but each poll delivers packets of only one link type.
//!
//! [`filter`] has filters in tcpdump's language, for files and for frames in memory. [`tap`] copies
//! the packets of a running instance.
//!
//! Every value in the file is checked before use. If a file is truncated or invalid, the packets
//! before the damage are delivered, and then the queue reports an error with the offset of the
//! damage.

#![forbid(unsafe_code)]

mod classic;
mod clock;
mod encode;
mod files;
pub mod filter;
mod in_place;
mod info;
mod inner;
mod links;
mod listen;
mod merge;
mod opener;
mod options;
mod pace;
mod pcapng;
mod peer_user;
mod pipe;
mod save;
mod sift;
mod source;
mod stream;
mod strip;
pub mod tap;
mod unpack;
mod walk;
mod window;
mod writer;
mod zstd;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steerage::{
    DeviceError, Input, LinkType,
    device::{Blocks, Capabilities, Claim, Completions, Opened, Polled, Region, RxQueue},
    limits::POLL_BUDGET,
};

pub use encode::{PcapngEncoder, StreamFormat};
pub use info::CaptureInfo;
pub use inner::{Inner, LinksSeen, Unwrap};
pub use links::link_name;
pub use listen::{Waiting, fifo, listen};
pub use merge::{CaptureMerge, CaptureRecord, MergeError};
pub use options::{CaptureError, CaptureOptions};
pub use pace::{Pace, ParsePaceError};
pub use save::{create, create_rotating, create_when_read};
pub use steerage_guard::file::FilePattern;
pub use stream::{Stream, StreamOptions, stream};
pub use strip::strip_tunnels;
pub use writer::{Rotate, StreamFailure};

use classic::Classic;
use files::{Files, Kinds, Open};
use in_place::{WINDOW_BYTES, WINDOWS, Windows};
use pace::Paced;
use pcapng::Pcapng;
use source::Source;
use walk::{Met, Stop, Walk, Wrong};
use window::{Filled, Window};

use crate::filter::{FileFilters, FilterError};

/// The number of bytes that are read from a file at a time, so large that the cost of a system call
/// per packet is negligible. During a read of a file, other CPUs do not run out of packets: the
/// kernel copies 64 KiB in about 10 us, and a CPU needs 20 us for a full backlog of cheap packets.
pub const READ_BYTES: usize = 64 << 10;

/// The size of a block of frames in bytes, with room for [`READ_BYTES`] and the longest record.
pub const BLOCK_BYTES: usize = 1 << 20;

/// The number of blocks. Their 8 MiB are enough for ordinary frames in the full backlogs of CPUs.
pub const BLOCKS: usize = 8;

/// The longest packet in bytes: `MAXIMUM_SNAPLEN` of tcpdump and Wireshark.
pub const PACKET_BYTES_MAX: usize = 262_144;

/// The length in bytes of the longest packet that a handler can keep or write to, and the length of
/// every page. Jumbo frames are shorter than this limit.
pub const COPY_BYTES_MAX: usize = 9_728;

/// The length in bytes of the longest record in memory. A record may be twice as long as the
/// longest packet, because a record also has a header, and may have comments and other options.
pub const RECORD_BYTES_MAX: usize = 2 * PACKET_BYTES_MAX;

/// The maximum number of interfaces in one section of a pcapng file: a frame header has 16 bits for
/// the number of the interface.
pub const INTERFACES_MAX: usize = 65_536;

const _: () = assert!(BLOCK_BYTES >= 2 * RECORD_BYTES_MAX, "a record carried to another block leaves room to read");
const _: () = assert!(PACKET_BYTES_MAX <= u32::MAX as usize / 2 && BLOCK_BYTES <= u32::MAX as usize);
const _: () = assert!(INTERFACES_MAX <= u16::MAX as usize + 1);

const DAMAGED: &str = "the file is damaged from there on, the packets before are sound";
/// Damage to compressed data can change the bytes of many packets before unpacking fails or a
/// checksum differs.
const DAMAGED_PACKED: &str = "the file is damaged there or before, and packets before may be wrong";
const CUT: &str = "the file was cut short, the packets before are sound";
/// Formats that steerage recognises but cannot read: first bytes, name, and advice.
const REFUSED: [(&[u8], &str, &str); 16] = [
    (b"\xfd7zX", "compressed by xz", "unpack it: xz -dc FILE | steerage count -"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "unpack it: lz4 -dc FILE | steerage count -"),
    (b"\x02\x21\x4c\x18", "compressed by lz4", "unpack it: lz4 -dc FILE | steerage count -"),
    (b"BZh", "compressed by bzip2", "unpack it: bzip2 -dc FILE | steerage count -"),
    (b"\x1f\x9d", "compressed by compress", "unpack it: gzip -dc FILE | steerage count -"),
    (b"PK\x03\x04", "a zip archive", "unpack it: unzip -p FILE | steerage count -"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it: 7z x -so FILE | steerage count -"),
    (b"snoo", "a snoop capture", CONVERT),
    (b"btsn", "a btsnoop capture", CONVERT),
    (b"GMBU", "a capture of Microsoft's Network Monitor", CONVERT),
    (b"RTSS", "a capture of Microsoft's Network Monitor", CONVERT),
    (b"TRSN", "a capture of Sniffer", CONVERT),
    (b"\xa1\xb2\x34\xcd", "a variant of pcap", CONVERT),
    (b"\xcd\x34\xb2\xa1", "a variant of pcap", CONVERT),
    (b"\xa1\x2b\x3c\x4d", "a variant of pcap", CONVERT),
    (b"\x4d\x3c\x2b\xa1", "a variant of pcap", CONVERT),
];
const CONVERT: &str = "convert it: editcap -F pcapng FILE NEW.pcapng";

const GIVE: &str = "give a pcap or pcapng file, as it is or packed by gzip or zstd";

/// Opens a capture file as a device with one queue. `-` is standard input.
///
/// # Errors
/// [`DeviceError`] if the file does not exist, cannot be read, or is not a capture. If the data of
/// a pipe is not a capture, a later poll reports the error.
pub fn open(path: impl AsRef<Path>) -> Result<Input, DeviceError> {
    Capture::open(path).map(Capture::into_input)
}

/// Open capture files. One queue delivers the packets of all files, one file after another, so that
/// the packets of a flow stay in order. In a rotated capture, flows continue from file to file.
///
/// ```no_run
/// use steerage_capture::Capture;
///
/// let capture = Capture::open("evening.pcapng")?.paced("2.5".parse()?);
/// let info = capture.info();
/// let input = capture.into_input();
/// // From any thread, while an instance reads the input:
/// println!("{} packets so far", info.packets());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Capture {
    name: String,
    files: Files,
    file: String,
    source: Source,
    window: Window,
    claim: Option<Claim>,
    /// The mapped parts of files that are read in place.
    windows: Option<Windows>,
    format: Option<Format>,
    /// The link type of the last poll's frames.
    link: LinkType,
    noted: Option<LinkType>,
    paced: Option<Paced>,
    kinds: Kinds,
    filters: Option<FileFilters>,
    info: Arc<CaptureInfo>,
}

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Pcapng(Pcapng),
}

impl Capture {
    /// Opens a file and reads its first bytes to find its format.
    ///
    /// # Errors
    /// Fails in the same cases as [`open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        Self::open_all(&[path])
    }

    /// Opens files that are read one after the other, and checks each of them.
    ///
    /// # Errors
    /// Fails in the same cases as [`open`], and if the list of files is empty.
    pub fn open_all(paths: &[impl AsRef<Path>]) -> Result<Self, DeviceError> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        let (mut files, known) = Files::new(&paths)?;
        let info = Arc::new(CaptureInfo::new(known.bytes, known.format));
        let first = files.next(&info).unwrap_or_else(|| {
            let cause = io::Error::new(io::ErrorKind::NotFound, "there are none");
            Err(DeviceError::new("no files", "open the capture", cause).advise(GIVE))
        })?;
        let mut capture = Self::new(name_of(&paths), files, first, info);
        capture.link = known.link.unwrap_or(capture.link);
        capture.kinds = known.kinds;
        Ok(capture)
    }

    /// Makes a capture from any reader. The reader must not block: while no data is available, the
    /// reader returns [`io::ErrorKind::WouldBlock`], and is called again immediately. If the data
    /// is not a capture, a poll reports the error.
    pub fn from_reader(name: impl Into<String>, reader: impl io::Read + Send + 'static) -> Self {
        let (name, info, files) = (name.into(), Arc::new(CaptureInfo::new(None, None)), Files::none());
        let source = files.source(name.clone(), source::Input::Reader(Box::new(reader)), &info);
        Self::new(name.clone(), files, Open { name, source }, info)
    }

    /// Makes a capture from the reading end of a pipe or socket. `name` names the capture in
    /// messages. If the data is not a capture, a poll reports the error.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot report when the pipe has data.
    pub fn from_pipe(name: impl Into<String>, pipe: OwnedFd) -> Result<Self, DeviceError> {
        let (name, info, (files, _)) = (name.into(), Arc::new(CaptureInfo::new(None, None)), Files::new(&[])?);
        let source = files.source(name.clone(), files.pipe(pipe.into()), &info);
        Ok(Self::new(name.clone(), files, Open { name, source }, info))
    }

    /// For fuzz targets: reads another capture into the memory that is already allocated. No frames
    /// may be in use.
    #[doc(hidden)]
    pub fn read_anew(&mut self, reader: impl io::Read + Send + 'static) {
        self.info = Arc::new(CaptureInfo::new(None, None));
        self.source = self.files.source(self.name.clone(), source::Input::Reader(Box::new(reader)), &self.info);
        self.window.begin_anew();
        (self.format, self.link, self.noted, self.paced) = (None, LinkType::ETHERNET, None, None);
    }

    fn new(name: String, files: Files, first: Open, info: Arc<CaptureInfo>) -> Self {
        Self {
            name,
            files,
            file: first.name,
            source: first.source,
            window: Window::new(),
            claim: None,
            windows: None,
            format: None,
            link: LinkType::ETHERNET,
            noted: None,
            paced: None,
            kinds: Kinds::UNKNOWN,
            filters: None,
            info,
        }
    }

    /// Replays each file at its recorded speed, multiplied by the factor of `pace`, after the
    /// previous file has ended. A slow receiver loses no packet: late packets follow immediately,
    /// and so do packets without a time.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { paced: Some(Paced::new(pace)), ..self }
    }

    /// Removes the frames that do not match `text`, as `tcpdump -r FILE` would. `text` is a tcpdump
    /// expression or the numbers that `tcpdump -ddd` prints: see
    /// [`Filter::compile`](crate::filter::Filter::compile). Removed frames do not count as
    /// received, and [`CaptureInfo::filtered`] counts them.
    ///
    /// `tcpdump` runs as a child process and compiles an expression for each link type in the
    /// files, so call this function before you [drop privileges](https://docs.rs/steerage-guard)
    /// and start threads. A filter that consists of numbers is a program for only one link type.
    ///
    /// # Errors
    /// [`FilterError`] if the text is not a filter for these files, or if `tcpdump` is missing.
    ///
    /// ```no_run
    /// use steerage_capture::Capture;
    ///
    /// let input = Capture::open("evening.pcapng")?.filtered("not port 22")?.into_input();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn filtered(self, text: &str) -> Result<Self, FilterError> {
        let filters = FileFilters::compile(text, &self.kinds.known, self.kinds.others)?;
        Ok(Self { filters: Some(filters), ..self })
    }

    /// Returns information about the capture, which is updated while the capture is read.
    pub fn info(&self) -> Arc<CaptureInfo> {
        Arc::clone(&self.info)
    }

    /// Converts the capture into an input for a builder.
    pub fn into_input(self) -> Input {
        Input::new(self.name.clone(), "capture", vec![Box::new(self)])
    }

    fn walk(&mut self, out: &mut Completions<'_>, room: usize) -> Result<Stop, DeviceError> {
        let link = (!out.is_empty()).then_some(self.link);
        let now = out.now();
        let (until, room) = match &self.paced {
            // The first packet's recorded time determines when the later packets are due.
            Some(paced) => (paced.until(now), if paced.has_begun() { room } else { 1 }),
            None => (u64::MAX, room),
        };
        let (block, at, end) = self.window.place();
        let lending = self.claim.as_ref().and_then(|claim| out.lending(claim, block, end));
        let Some(lending) = lending else { return Err(self.no_blocks()) };
        let at = at.saturating_sub(lending.offset());
        let mut walk = Walk { lending, at, room, until, link, met: Met::NOTHING };
        let was_known = self.format.is_some();
        let stop = match &mut self.format {
            Some(Format::Classic(classic)) => classic.walk(&mut walk, self.filters.as_mut()),
            Some(Format::Pcapng(pcapng)) => pcapng.walk(&mut walk, self.filters.as_mut()),
            none => match recognise(walk.bytes(), self.window.ended()) {
                Ok(Some((format, header_bytes))) => {
                    walk.at += header_bytes;
                    *none = Some(format);
                    Stop::Skip { bytes: 0 }
                }
                Ok(None) => Stop::Short { needs: classic::HEADER_BYTES },
                Err(wrong) => Stop::Wrong(wrong),
            },
        };
        let (met, link) = (walk.met, walk.link);
        self.window.walked_to(walk.lending.offset() + walk.at);
        if !was_known {
            self.go_on_in_place();
        }
        if met.packets > 0 {
            self.take_note(&met, link, now);
        }
        if met.filtered > 0 {
            self.info.add_filtered(met.filtered);
        }
        Ok(stop)
    }

    fn go_on_in_place(&mut self) {
        let Some(Format::Classic(classic)) = &self.format else { return };
        let (Some(windows), Some(file)) = (&self.windows, self.source.file()) else { return };
        if let Some(file) = classic.form().and_then(|_| windows.lease(file)) {
            self.window.go_on_in_place(file);
        }
    }

    fn take_note(&mut self, met: &Met, link: Option<LinkType>, now: steerage::Timestamp) {
        self.link = link.unwrap_or(self.link);
        self.info.add(met);
        if self.noted != Some(self.link) {
            self.info.add_link(self.link);
            self.noted = Some(self.link);
        }
        if let Some(paced) = &mut self.paced {
            if !paced.has_begun() && met.earliest <= met.latest {
                paced.begin(now, met.earliest);
            }
        }
    }

    /// Continues with the next file, unless the current file ends within a record.
    fn end(&mut self, needs: usize) -> Result<Polled, DeviceError> {
        let text = match (self.window.len(), self.window.skips()) {
            (0, false) => return self.next_file(),
            (_, true) => "the file ends within a block that is of no interest here".to_owned(),
            (rest, false) => format!("the file ends {rest} bytes into a record of {needs} or more"),
        };
        Err(self.wrong(Wrong::new(text, CUT)))
    }

    fn next_file(&mut self) -> Result<Polled, DeviceError> {
        let Some(next) = self.files.next(&self.info) else { return Ok(Polled::Ended) };
        Open { name: self.file, source: self.source } = next?;
        self.format = None;
        self.window.begin_file();
        if let Some(paced) = &mut self.paced {
            paced.begin_file();
        }
        Ok(Polled::More)
    }

    #[cold]
    fn wrong(&self, wrong: Wrong) -> DeviceError {
        wrong.into_error(&self.file, self.window.offset(), self.source.is_packed())
    }

    #[cold]
    fn no_blocks(&self) -> DeviceError {
        let text = "the blocks that it is polled with are not those that it brought";
        self.wrong(Wrong::new(text.to_owned(), "poll a queue with the memory that it brought"))
    }
}

impl Capture {
    fn read(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        // Make at most one read per poll, so that a poll is short.
        let mut may_read = true;
        let full = out.len().saturating_add(budget);
        while out.len() < full {
            let room = (full - out.len()).min(POLL_BUDGET);
            let needs = match self.walk(out, room)? {
                Stop::Full => continue,
                Stop::OtherLink | Stop::Filtered => return Ok(Polled::More),
                Stop::NotYet { nanos } => {
                    let due = self.paced.as_ref().map(|paced| paced.due(nanos));
                    return Ok(due.map_or(Polled::More, Polled::NotBefore));
                }
                Stop::Wrong(wrong) => return Err(self.wrong(wrong)),
                Stop::Skip { bytes } => {
                    self.window.skip(bytes);
                    continue;
                }
                Stop::Short { needs } => needs,
            };
            if self.window.ended() {
                if let Some(Err(error)) = self.windows.as_ref().map(Windows::check) {
                    return Err(files::unreadable(&self.file, false, self.source.offset(), error));
                }
                return self.end(needs);
            }
            if !std::mem::take(&mut may_read) {
                return Ok(Polled::More);
            }
            let owned = self.claim.as_ref().and_then(|claim| Some((out.blocks(claim)?, claim)));
            let Some(owned) = owned else { return Err(self.no_blocks()) };
            match self.window.fill(owned, &mut self.source, needs) {
                Ok(Filled::Read) => {}
                Ok(Filled::Later) => return Ok(Polled::Drained),
                Ok(Filled::FramesOut) => return Ok(Polled::More),
                Err(error) => {
                    let (is_packed, offset) = (self.source.is_packed(), self.source.offset());
                    return Err(files::unreadable(&self.file, is_packed, offset, error));
                }
            }
        }
        Ok(Polled::More)
    }
}

impl RxQueue for Capture {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(COPY_BYTES_MAX).can_wait()
    }

    fn open(&mut self, _region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let error = |cause| DeviceError::new(&self.name, "get memory to read the capture", cause);
        if self.claim.is_some() {
            return Err(error(io::Error::other("its memory was given away before")).advise("open a queue once"));
        }
        let thread_error = |cause| {
            let advice = "let it have three more threads";
            DeviceError::new(&self.name, "start threads to open, unpack and lease its files", cause).advise(advice)
        };
        let has_files = self.source.is_file() || self.files.are_left();
        self.files.start_threads().map_err(thread_error)?;
        let made = Blocks::map_with_windows((BLOCKS, BLOCK_BYTES), (WINDOWS, WINDOW_BYTES));
        let (blocks, claim, windows) = made.map_err(|e| error(io::Error::other(e)))?;
        self.claim = Some(claim);
        if has_files {
            self.windows = Some(Windows::new(windows).map_err(thread_error)?);
        }
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let polled = self.read(out, budget);
        out.set_link(self.link);
        polled
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.files.waker().map(|waker| waker.0.as_fd())
    }
}

/// Returns the format and the length of the file's header, or `None` if the format is not clear
/// without more bytes. If `whole` is true, `head` is the whole file.
fn recognise(head: &[u8], whole: bool) -> Result<Option<(Format, usize)>, Wrong> {
    let Some(magic) = head.first_chunk::<4>() else {
        let text = if head.is_empty() { "the file is empty".to_owned() } else { begins_with(head) };
        return if whole { Err(Wrong::new(text, GIVE)) } else { Ok(None) };
    };
    if pcapng::is_magic(*magic) {
        return Ok(Some((Format::Pcapng(Pcapng::default()), 0)));
    }
    if !classic::is_magic(*magic) {
        let refused = REFUSED.iter().find(|refused| magic.starts_with(refused.0));
        return Err(match refused {
            Some((_, name, advice)) => Wrong::new(format!("it is {name}"), advice),
            None => Wrong::new(begins_with(magic), GIVE),
        });
    }
    if head.len() < classic::HEADER_BYTES && !whole {
        return Ok(None);
    }
    Ok(Some((Format::Classic(Classic::new(head)?), classic::HEADER_BYTES)))
}

fn begins_with(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("it begins with {}, as neither pcap nor pcapng does", hex.join(" "))
}

fn name_of(paths: &[PathBuf]) -> String {
    match paths {
        [a, b, rest @ ..] if !rest.is_empty() => {
            format!("{} {} and {} more", files::name(a), files::name(b), rest.len())
        }
        few => few.iter().map(|path| files::name(path)).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
