//! Capture files as outputs: pcapng, as draft-ietf-opsawg-pcapng tells, in the machine's byte order, times in nanoseconds.
//!
//! All CPUs write to one file. Each appends what a batch gave it by one call, which the kernel does not mix with others'
//! (`O_APPEND` on a regular file); into a pipe they take turns.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use steerage::{DeviceError, LinkType, Outgoing, Output, Received, Sent, TxQueue, WallTime};

use super::PACKET_BYTES_MAX;

/// Block types and options.
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const IF_TSRESOL: u16 = 9;
/// Of a second: 10 to the minus 9th.
const NANOSECONDS: u8 = 9;

/// How much is written at a time at most, but for one packet more: a batch of common frames is far less.
const WRITE_BYTES: usize = 1 << 20;

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
    let file = OpenOptions::new().create(true).append(true).open(&path).map_err(|error| failed("create", error))?;
    let is_regular = file.metadata().map_err(|error| failed("look at", error))?.is_file();
    if is_regular {
        file.set_len(0).map_err(|error| failed("empty", error))?;
    }
    let shared = Arc::new(SavedFile {
        name: name.clone(),
        turn: (!is_regular).then(Mutex::default),
        file,
        links: Mutex::default(),
        epoch: now(),
    });
    shared.append(&section()).map_err(|error| failed("write to", error))?;
    let open = Box::new(move |_cpu| {
        let save = Save { file: Arc::clone(&shared), links: Vec::new(), bytes: Vec::with_capacity(1 << 16) };
        Ok(Box::new(save) as Box<dyn TxQueue>)
    });
    Ok(Output { name, kind: "pcap", open })
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
    /// Where the kernel does not keep writes apart.
    turn: Option<Mutex<()>>,
    /// The link types that the file has an interface of, by the interface's number. Locked when a CPU meets one that is new
    /// to it.
    links: Mutex<Vec<LinkType>>,
    /// When the path's clock began.
    epoch: WallTime,
}

impl SavedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let _turn = self.turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        (&self.file).write_all(bytes)
    }

    /// The interface of a link type. It is in the file before any packet of it is.
    fn interface_of(&self, link: LinkType) -> io::Result<u32> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
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
            let Received { data, link, time, wire_len } = packet.received();
            if data.len() > PACKET_BYTES_MAX {
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
            packet_block(&mut self.bytes, interface, nanos, data, wire_len);
            sent.packets += 1;
            sent.bytes += data.len() as u64;
            if self.bytes.len() >= WRITE_BYTES {
                self.file.append(&self.bytes).map_err(failed)?;
                self.bytes.clear();
            }
        }
        self.file.append(&self.bytes).map_err(failed)?;
        self.bytes.clear();
        Ok(sent)
    }
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

fn packet_block(bytes: &mut Vec<u8>, interface: u32, nanos: u64, data: &[u8], wire_len: usize) {
    let padded = data.len().next_multiple_of(4);
    let len = (32 + padded) as u32;
    bytes.reserve(PACKET_OVERHEAD + data.len());
    let head = [PACKET, len, interface, (nanos >> 32) as u32, nanos as u32, data.len() as u32, wire_len as u32];
    head.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len() + padded - data.len(), 0);
    bytes.extend_from_slice(&len.to_ne_bytes());
}
