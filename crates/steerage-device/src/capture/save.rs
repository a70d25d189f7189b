//! Capture files as outputs: pcapng by draft-ietf-opsawg-pcapng, in the machine's byte order, with times in
//! nanoseconds.
//!
//! Each file has a thread that writes it ([`writer`](super::writer)). CPUs leave their packets with it a batch at a
//! time, so packets stand in the file in the order in which they were sent, whichever CPU has a flow.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use steerage::{
    DeviceError, LinkType, Output, WallTime,
    device::{Outgoing, OutgoingPacket, Sent, TxCapabilities, TxQueue, TxResources},
    packet::Received,
};
use steerage_file::{Opened, Readers};

use super::PACKET_BYTES_MAX;
use super::writer::{Batch, Lane, Writer};

/// Block types and options.
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const IF_TSRESOL: u16 = 9;
/// Of a second: 10 to the minus 9th.
const NANOSECONDS: u8 = 9;

/// The length of a packet block's head, in front of the packet's bytes: type, length, interface, time in two halves, and the packet's two lengths.
const PACKET_HEAD: usize = 28;

/// The pause between two attempts to open a FIFO that has no reader yet.
const READER_LOOK: Duration = Duration::from_millis(20);

/// What a packet takes besides its bytes, and their padding.
const PACKET_OVERHEAD: usize = 32 + 3;

/// Creates a capture file to transmit packets to; one that is there is replaced. Where there is a FIFO, it is written to, once
/// somebody reads it: this waits for a reader.
///
/// A packet has the time that its device noted; where it noted none, the time at which its batch was handled.
///
/// # Errors
/// [`DeviceError`] if the file cannot be made or written.
pub fn create(path: impl AsRef<Path>) -> Result<Output, DeviceError> {
    create_when_read(path, |_| true)
}

/// Like [`create`], but asks, again and again while a FIFO has no reader, whether to go on waiting; it says how often it has
/// asked before.
///
/// # Errors
/// As [`create`], and if it is not to wait any longer.
///
/// ```no_run
/// // Waits ten times for a reader.
/// let output = steerage_device::capture::create_when_read("pipe.pcapng", |asked| asked < 10)?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
pub fn create_when_read(path: impl AsRef<Path>, mut waits: impl FnMut(u64) -> bool) -> Result<Output, DeviceError> {
    let name = path.as_ref().to_string_lossy().into_owned();
    let failed = |operation, error| DeviceError::new(name.clone(), operation, error);
    let mut asked = 0;
    let opened = loop {
        match steerage_file::open(path.as_ref(), Readers::Group) {
            Err(error) if steerage_file::has_no_reader(&error) && waits(asked) => std::thread::sleep(READER_LOOK),
            other => break other,
        }
        asked += 1;
    };
    let (Opened::File(file) | Opened::Special(file)) = opened.map_err(|error| failed("create", error))?;
    let section = section();
    (&file).write_all(&section).map_err(|error| failed("write to", error))?;
    let writer = Arc::new(Writer::new(name.clone()));
    let shared = Arc::new(SavedFile { writer, links: Mutex::default(), epoch: now() });
    // The thread begins with the first queue: not before the program has given up its privileges.
    let mut unwritten = Some(file);
    let open = Box::new(move |_cpu| {
        let lane = shared.writer.lane();
        let save = Save { file: Arc::clone(&shared), lane, links: Vec::new(), bytes: Vec::with_capacity(1 << 16) };
        if let Some(file) = unwritten.take() {
            shared.writer.start(file, section.len() as u64)?;
        }
        Ok(Box::new(save) as Box<dyn TxQueue>)
    });
    Ok(Output::new(name, "pcap", open))
}

fn now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime::from_nanos(since_1970.as_nanos() as u64)
}

/// A file that all CPUs write to.
#[derive(Debug)]
struct SavedFile {
    writer: Arc<Writer>,
    /// The link types that the file has an interface of, by the interface's number. Locked when a CPU meets one that is new
    /// to it.
    links: Mutex<Vec<LinkType>>,
    /// When the path's clock began.
    epoch: WallTime,
}

impl SavedFile {
    /// The interface of a link type. It is in the file before any packet of it is.
    fn interface_of(&self, link: LinkType) -> u32 {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = links.iter().position(|known| *known == link) {
            return known as u32;
        }
        self.writer.append(&interface(link));
        links.push(link);
        links.len() as u32 - 1
    }
}

/// One CPU's way into it.
#[derive(Debug)]
struct Save {
    file: Arc<SavedFile>,
    lane: Arc<Lane>,
    /// What is known of the file's interfaces.
    links: Vec<(LinkType, u32)>,
    bytes: Vec<u8>,
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
        let handled = self.file.epoch.as_nanos() + packets.now().as_nanos();
        let mut captured = 0;
        self.bytes.clear();
        while let Some(packet) = packets.next_packet() {
            let Received { total_len, link, time, wire_len, .. } = packet.received();
            if total_len > PACKET_BYTES_MAX {
                sent.refused += 1;
                continue;
            }
            let known = self.links.iter().find(|(known, _)| *known == link).map(|(_, number)| *number);
            let interface = known.unwrap_or_else(|| {
                let number = self.file.interface_of(link);
                self.links.push((link, number));
                number
            });
            let nanos = time.map_or(handled, WallTime::as_nanos);
            packet_block(&mut self.bytes, interface, nanos, &packet, (total_len, wire_len));
            sent.deferred += 1;
            captured += total_len as u64;
        }
        if sent.deferred > 0 {
            let (source, packets, blocks) = (packets.source(), sent.deferred, self.bytes.as_slice());
            self.file.writer.push(&self.lane, &Batch { source, packets, bytes: captured, blocks })?;
        }
        Ok(sent)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.file.writer.flush();
        Ok(())
    }
}

impl Drop for Save {
    fn drop(&mut self) {
        self.file.writer.leave();
    }
}

/// The packets that stand whole in blocks, the bytes captured of them, and where the last whole block ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) len: usize,
}

/// Looks through blocks that were made here and may be cut off.
pub(super) fn whole_packets(blocks: &[u8]) -> Whole {
    let word = |at: usize| blocks.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let mut whole = Whole::default();
    while let (Some(kind), Some(len)) = (word(whole.len), word(whole.len + 4)) {
        let end = whole.len + len as usize;
        if end > blocks.len() {
            break;
        }
        if kind == PACKET {
            whole.packets += 1;
            whole.bytes += u64::from(word(whole.len + PACKET_HEAD - 8).unwrap_or(0));
        }
        whole.len = end;
    }
    whole
}

/// A block of that type, with its length before and behind.
fn block(kind: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = (12 + body.len() as u32).to_ne_bytes();
    [&kind.to_ne_bytes()[..], &len, &body, &len].concat()
}

fn section() -> Vec<u8> {
    let (version, unknown_length) = ([1_u16, 0].map(u16::to_ne_bytes).concat(), (-1_i64).to_ne_bytes());
    block(SECTION, &[&BYTE_ORDER.to_ne_bytes(), &version, &unknown_length])
}

fn interface(link: LinkType) -> Vec<u8> {
    let no_snap_length = 0_u32.to_ne_bytes();
    let resolution = [&IF_TSRESOL.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &[NANOSECONDS, 0, 0, 0]].concat();
    let end_of_options = [0; 4];
    block(INTERFACE, &[&link.0.to_ne_bytes(), &[0; 2], &no_snap_length, &resolution, &end_of_options])
}

fn packet_block(bytes: &mut Vec<u8>, interface: u32, nanos: u64, packet: &OutgoingPacket<'_>, lens: (usize, usize)) {
    let (total_len, wire_len) = lens;
    let padded = total_len.next_multiple_of(4);
    let len = (32 + padded) as u32;
    bytes.reserve(PACKET_OVERHEAD + total_len);
    let head: [u32; PACKET_HEAD / 4] =
        [PACKET, len, interface, (nanos >> 32) as u32, nanos as u32, total_len as u32, wire_len as u32];
    head.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
    packet.segments().for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(bytes.len() + padded - total_len, 0);
    bytes.extend_from_slice(&len.to_ne_bytes());
}
