//! Capture files as outputs. CPUs pass packets to the file's [`writer`](super::writer) in batches,
//! so that the packets of all CPUs stay in the order in which they were sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::num::NonZero;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use steerage::{
    DeviceError, LinkType, Output, WallTime,
    device::{Outgoing, Sent, TxCapabilities, TxQueue, TxResources},
    packet::{Received, Segments},
};
use steerage_guard::file::{self, FilePattern, FileSeries, Opened, Readers};

use super::PACKET_BYTES_MAX;
use super::encode::{Interface, PacketHead, StreamFormat};
use super::inner::{LinksSeen, Unwrap};
use super::writer::{BUFFER_BYTES, Entry, Lane, Rotate, Target, Writer, WriterOptions};

pub(super) const READER_LOOK: Duration = Duration::from_millis(20);

/// Makes an output that creates or replaces a capture file. If the path is a FIFO, this function
/// waits for a reader, and the output writes to the FIFO.
///
/// The format is pcap if the name ends in `.pcap`, and pcapng otherwise. A pcap file has one link
/// type, so writing fails at the first packet with a different link type.
///
/// Each packet is written with the time that its device recorded, or else with the time at which
/// its batch was handled.
///
/// # Errors
/// [`DeviceError`] if the file cannot be created or written.
pub fn create(path: impl AsRef<Path>) -> Result<Output, DeviceError> {
    create_when_read(path, |_| true)
}

/// Like [`create`], but while a FIFO has no reader, this function calls `waits` with the number of
/// earlier calls, and stops waiting when `waits` returns false.
///
/// # Errors
/// Fails in the same cases as [`create`], and if `waits` returns false.
///
/// ```no_run
/// // Waits ten times for a reader.
/// let output = steerage_capture::create_when_read("pipe.pcapng", |asked| asked < 10)?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
pub fn create_when_read(path: impl AsRef<Path>, waits: impl FnMut(u64) -> bool) -> Result<Output, DeviceError> {
    let name = path.as_ref().to_string_lossy().into_owned();
    let failed = |operation, error| DeviceError::new(name.clone(), operation, error);
    let file = open_when_read(path.as_ref(), waits).map_err(|error| failed("create", error))?;
    let format = format_of(path.as_ref());
    let head = format.file_head();
    (&file).write_all(&head).map_err(|error| failed("write to", error))?;
    // If the path names an open descriptor, such as /dev/stdout, the file may have contents
    // already. A FIFO has no file position.
    let written = (&file).stream_position().unwrap_or(head.len() as u64);
    let writer = Arc::new(Writer::new(name.clone(), WriterOptions::new(format, BUFFER_BYTES)));
    Ok(output(name, "pcap", Arc::new(SavedFile::new(writer)), Target::File(file, written)))
}

pub(super) fn open_when_read(path: &Path, mut waits: impl FnMut(u64) -> bool) -> io::Result<File> {
    let mut asked = 0;
    loop {
        match file::open(path, Readers::Group) {
            Err(error) if file::has_no_reader(&error) && waits(asked) => std::thread::sleep(READER_LOOK),
            opened => return opened.map(|(Opened::File(file) | Opened::Special(file))| file),
        }
        asked += 1;
    }
}

/// Makes an output that creates a capture file, and then a new file whenever `rotate` requires it.
/// No packet is lost between files. `name` must contain a placeholder for a time: the time of the
/// file's first packet, or the start of the file's period. If a file with this name exists, a
/// number is added to the name of the new file.
///
/// The packets are in the files in the order in which they were sent. If several CPUs send, a file
/// may contain a few packets from the end of the previous file's period. If packet times go back
/// further, up to 1,024 packets in a row stay in the present file before a file with the earlier
/// time begins.
///
/// If `keep` is a number, only this number of files is kept, as for [`FileSeries::new`].
///
/// # Errors
/// [`DeviceError`] if files cannot be created in the directory, or if `name` contains no time.
///
/// ```no_run
/// use std::num::NonZero;
/// use std::time::Duration;
///
/// use steerage_capture::{FilePattern, Rotate, create_rotating};
///
/// let name = FilePattern::parse("kept/%Y%m%d-%H%M%S.pcapng")?;
/// let output = create_rotating(name, Rotate::Every(Duration::from_secs(3600)), NonZero::new(48))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn create_rotating(name: FilePattern, rotate: Rotate, keep: Option<NonZero<usize>>) -> Result<Output, DeviceError> {
    let text = name.as_str().to_owned();
    let failed = |error| DeviceError::new(text.clone(), "create files of", error);
    if !name.has_time() {
        let error = failed(io::Error::new(io::ErrorKind::InvalidInput, "all files would have the same name"));
        return Err(error.advise("put the time into the name, such as %Y%m%d-%H%M%S"));
    }
    let format = format_of(Path::new(name.as_str()));
    let series = FileSeries::new(name, keep).map_err(failed)?;
    let options = WriterOptions::new(format, BUFFER_BYTES);
    let writer = Arc::new(Writer::new(text.clone(), options).rotating(rotate));
    writer.append(&format.file_head());
    Ok(output(text, "pcap", Arc::new(SavedFile::new(writer)), Target::Series(series)))
}

fn format_of(path: &Path) -> StreamFormat {
    if path.extension().is_some_and(|end| end == "pcap") { StreamFormat::PcapNanos } else { StreamFormat::Pcapng }
}

pub(super) fn output(name: String, kind: &'static str, shared: Arc<SavedFile>, target: Target) -> Output {
    // The first queue starts the writing thread, after the program has dropped its privileges.
    let mut unwritten = Some(target);
    let open = Box::new(move |_cpu| {
        let lane = shared.writer.lane();
        let save = Save { file: Arc::clone(&shared), lane, interfaces: BTreeMap::new(), failed: None };
        if let Some(target) = unwritten.take() {
            shared.writer.start(target)?;
        }
        Ok(Box::new(save) as Box<dyn TxQueue>)
    });
    Output::new(name, kind, open)
}

fn now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime::from_nanos(since_1970.as_nanos() as u64)
}

#[derive(Debug)]
pub(super) struct SavedFile {
    pub(super) writer: Arc<Writer>,
    /// The number of each interface. A CPU takes this lock only for its first packet of each
    /// interface. A map, because a file can have a different link type for each packet.
    interfaces: Mutex<BTreeMap<Interface, u32>>,
    /// The wall time at which the receive path's clock started.
    epoch: WallTime,
    /// Finds the part of each packet to write. `None` if whole packets are written.
    unwrap: Option<Unwrap>,
    /// The link types of the packets in all streams that are made from one input. `None` for a
    /// single file.
    pub(super) seen: Option<Arc<LinksSeen>>,
}

impl SavedFile {
    pub(super) fn new(writer: Arc<Writer>) -> Self {
        Self { writer, interfaces: Mutex::default(), epoch: now(), unwrap: None, seen: None }
    }

    pub(super) fn part_of(self, seen: Arc<LinksSeen>, unwrap: Option<Unwrap>) -> Self {
        Self { seen: Some(seen), unwrap, ..self }
    }

    /// Returns the number of an interface. A new interface is written to the file before its first
    /// packet. Returns `None` if the format does not allow a second link type.
    pub(super) fn number_of(&self, interface: Interface) -> Option<u32> {
        let format = self.writer.format();
        if self.seen.as_ref().is_some_and(|seen| !seen.see(interface.link) && !format.takes_several_links()) {
            return None;
        }
        let mut interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = interfaces.get(&interface) {
            return Some(*known);
        }
        if !interfaces.is_empty() && !format.takes_several_links() {
            return None;
        }
        self.writer.append(&format.interface_head(interface));
        let number = interfaces.len() as u32;
        interfaces.insert(interface, number);
        Some(number)
    }

    /// Writes the file header if the file has none yet, so that other programs can read a file
    /// without packets.
    pub(super) fn begin(&self, link: LinkType) {
        if self.interfaces.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.number_of(self.writer.format().interface(link, 0));
        }
    }
}

#[derive(Debug)]
struct Save {
    file: Arc<SavedFile>,
    lane: Arc<Lane>,
    /// The interfaces that this CPU has used. The number is `None` for a rejected link type.
    interfaces: BTreeMap<Interface, Option<u32>>,
    /// An error that occurred after the file had taken packets of a batch. The next `flush` returns
    /// this error. `send` returns an error only if the file has taken no packet of the batch.
    failed: Option<DeviceError>,
}

impl TxQueue for Save {
    fn capabilities(&self) -> TxCapabilities {
        TxCapabilities::default().defers()
    }

    fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
        if let Some(account) = resources.account {
            self.lane.set_account(account);
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.file.writer.has_room(&self.lane)
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        if !self.file.writer.takes(&self.lane) {
            return Ok(sent);
        }
        let Self { file, lane, interfaces, .. } = self;
        let (format, unwrap) = (file.writer.format(), file.unwrap);
        let (handled, source) = (file.epoch.as_nanos() + packets.now().as_nanos(), packets.source());
        let (mut entry, mut failed): (Option<Entry<'_>>, _) = (None, false);
        // After an error within a batch, the remaining packets of the batch count as refused.
        let mut error = None;
        while let Some(packet) = packets.next_packet() {
            if error.is_some() {
                sent.refused += 1;
                continue;
            }
            let Received { data, total_len, link, time, wire_len, .. } = packet.received();
            let nanos = time.map_or(handled, WallTime::as_nanos);
            let inner = unwrap.and_then(|unwrap| unwrap(data, link));
            let (link, from, front) = match &inner {
                Some(inner) => (inner.link, inner.from.min(total_len), inner.front()),
                None => (link, 0, &[][..]),
            };
            let interface = format.interface(link, nanos);
            let number = match interfaces.get(&interface) {
                Some(number) => *number,
                None => {
                    // The interface must be written to the file before the packet.
                    entry = None;
                    let number = file.number_of(interface);
                    interfaces.insert(interface, number);
                    number
                }
            };
            if let (None, Some(_), false) = (&entry, number, failed) {
                match file.writer.begin(lane, source) {
                    Ok(begun) => entry = Some(begun),
                    // The code that started the reading program reports the program's end.
                    Err(_) if file.seen.is_some() => failed = true,
                    Err(cause) => error = Some(cause),
                }
            }
            if number.is_none() && file.seen.is_none() {
                error = Some(file.writer.several_links());
            }
            if number.is_none() {
                sent.link_type += 1;
                continue;
            }
            if total_len > PACKET_BYTES_MAX {
                sent.too_long += 1;
                continue;
            }
            match (number, &mut entry) {
                (Some(number), Some(entry)) if format.holds(nanos) => {
                    let (captured, wire) =
                        (total_len - from + front.len(), wire_len.max(total_len) - from + front.len());
                    entry.place(nanos, || format.packet_len(captured));
                    let head = PacketHead { interface: (number, interface), nanos, captured, wire };
                    let parts = std::iter::once(front).chain(parts_behind(packet.segments(), from));
                    format.packet(entry.blocks(), head, parts);
                    entry.count(captured as u64);
                    sent.deferred += 1;
                }
                _ => sent.refused += 1,
            }
        }
        drop(entry);
        match error {
            Some(error) if sent.deferred == 0 => Err(error),
            error => {
                self.failed = error;
                Ok(sent)
            }
        }
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.file.writer.flush();
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Save {
    fn drop(&mut self) {
        // Even a pcap file without packets needs a header, which names a link type.
        let format = self.file.writer.format();
        let needs_head = !format.takes_several_links() && self.file.seen.is_none();
        let head = if needs_head { format.interface_head(format.interface(LinkType::ETHERNET, 0)) } else { Vec::new() };
        self.file.writer.leave(&self.lane, &head);
    }
}

fn parts_behind(segments: Segments<'_>, from: usize) -> impl Iterator<Item = &[u8]> {
    let mut skipped = 0;
    segments.map(move |part| {
        let skip = (from - skipped).min(part.len());
        skipped += skip;
        &part[skip..]
    })
}
