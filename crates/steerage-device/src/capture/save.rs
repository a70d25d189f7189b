//! Capture files as outputs: pcapng, as draft-ietf-opsawg-pcapng tells, in the machine's byte order, times in nanoseconds.
//!
//! All CPUs write to one file, and take turns: a batch at a time is appended to what waits, and whoever makes that long enough
//! writes it out while the others go on. So packets stand in the file in the order in which they were sent, whichever CPU has a
//! flow. A disk that is slower than what comes makes the CPUs wait for it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use steerage::{DeviceError, LinkType, Outgoing, OutgoingPacket, Output, Received, Sent, TxQueue, WallTime};

use super::PACKET_BYTES_MAX;

/// Block types and options.
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const IF_TSRESOL: u16 = 9;
/// Of a second: 10 to the minus 9th.
const NANOSECONDS: u8 = 9;

/// How much waits until it is written: so much that a system call costs nothing a packet.
const WRITE_BYTES: usize = 256 << 10;

/// What a packet takes besides its bytes, and their padding.
const PACKET_OVERHEAD: usize = 32 + 3;

/// Creates a capture file, or empties the one there is, to transmit packets to.
///
/// A packet has the time that its device noted; where it noted none, the time at which its batch was handled.
///
/// # Errors
/// [`DeviceError`] if the file cannot be made or written.
pub fn create(path: impl AsRef<Path>) -> Result<Output, DeviceError> {
    let name = path.as_ref().to_string_lossy().into_owned();
    let failed = |operation, error| DeviceError::new(name.clone(), operation, error);
    let file = File::create(&path).map_err(|error| failed("create", error))?;
    (&file).write_all(&section()).map_err(|error| failed("write to", error))?;
    let (waiting, written, links) = Default::default();
    let shared = Arc::new(SavedFile { name: name.clone(), file, waiting, written, links, epoch: now() });
    let open = Box::new(move |_cpu| {
        let save = Save { file: Arc::clone(&shared), links: Vec::new(), bytes: Vec::with_capacity(1 << 16) };
        Ok(Box::new(save) as Box<dyn TxQueue>)
    });
    Ok(Output { name: name.into(), kind: "pcap", open })
}

fn now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime::from_nanos(since_1970.as_nanos() as u64)
}

/// A file that all CPUs write to.
#[derive(Debug)]
struct SavedFile {
    name: String,
    file: File,
    /// What waits to be written.
    waiting: Mutex<Vec<u8>>,
    /// What is being written, by whoever has it.
    written: Mutex<Vec<u8>>,
    /// The link types that the file has an interface of, by the interface's number. Locked when a CPU meets one that is new
    /// to it.
    links: Mutex<Vec<LinkType>>,
    /// When the path's clock began.
    epoch: WallTime,
}

impl SavedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut waiting = lock(&self.waiting);
        waiting.extend_from_slice(bytes);
        if waiting.len() < WRITE_BYTES { Ok(()) } else { self.write(waiting) }
    }

    /// Writes what waits. The turn to write is taken before what waits is let go of: so it is written in its order.
    fn write(&self, mut waiting: MutexGuard<'_, Vec<u8>>) -> io::Result<()> {
        let mut written = lock(&self.written);
        std::mem::swap(&mut *waiting, &mut *written);
        drop(waiting);
        let result = (&self.file).write_all(&written);
        written.clear();
        result
    }

    /// The interface of a link type. It is in the file before any packet of it is.
    fn interface_of(&self, link: LinkType) -> io::Result<u32> {
        let mut links = lock(&self.links);
        if let Some(known) = links.iter().position(|known| *known == link) {
            return Ok(known as u32);
        }
        self.append(&interface(link))?;
        links.push(link);
        Ok(links.len() as u32 - 1)
    }
}

/// One CPU's way into it.
#[derive(Debug)]
struct Save {
    file: Arc<SavedFile>,
    /// What is known of the file's interfaces.
    links: Vec<(LinkType, u32)>,
    bytes: Vec<u8>,
}

impl TxQueue for Save {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let failed = |error| DeviceError::new(self.file.name.clone(), "write to", error);
        let handled = self.file.epoch.as_nanos() + packets.now().as_nanos();
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let Received { total_len, link, time, wire_len, .. } = packet.received();
            if total_len > PACKET_BYTES_MAX {
                sent.refused += 1;
                continue;
            }
            let known = self.links.iter().find(|(known, _)| *known == link).map(|(_, number)| *number);
            let interface = match known {
                Some(number) => number,
                None => {
                    let number = self.file.interface_of(link).map_err(failed)?;
                    self.links.push((link, number));
                    number
                }
            };
            let nanos = time.map_or(handled, WallTime::as_nanos);
            packet_block(&mut self.bytes, interface, nanos, &packet, (total_len, wire_len));
            sent.packets += 1;
            sent.bytes += total_len as u64;
        }
        let appended = self.file.append(&self.bytes);
        self.bytes.clear();
        appended.map_err(failed)?;
        Ok(sent)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        let written = self.file.write(lock(&self.file.waiting));
        written.map_err(|error| DeviceError::new(self.file.name.clone(), "write to", error))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    let head = [PACKET, len, interface, (nanos >> 32) as u32, nanos as u32, total_len as u32, wire_len as u32];
    head.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
    packet.segments().for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(bytes.len() + padded - total_len, 0);
    bytes.extend_from_slice(&len.to_ne_bytes());
}
