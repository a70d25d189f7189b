use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use steerage::DeviceError;
use steerage_capture::Capture;

use steerage_fixtures::queues::drain;

pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

pub(crate) fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path_of(name);
    fs::write(&path, bytes).expect("the target folder can be written");
    path
}

pub(crate) fn fifo(name: &str) -> PathBuf {
    let path = temporary(name, b"");
    fs::remove_file(&path).unwrap();
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    path
}

/// Returns all frames of a file and the outcome of reading, and deletes the file.
pub(crate) fn read(name: &str, bytes: &[u8]) -> (Vec<Vec<u8>>, Result<(), DeviceError>) {
    let path = temporary(name, bytes);
    let result = match Capture::open(&path) {
        Ok(capture) => {
            let (frames, end, _) = drain(Box::new(capture));
            (frames, end)
        }
        Err(error) => (Vec::new(), Err(error)),
    };
    fs::remove_file(path).expect("it was there");
    result
}

pub(crate) fn error_of(name: &str, bytes: &[u8]) -> String {
    read(name, bytes).1.expect_err("it is damaged").to_string()
}

pub(crate) fn u32_in(big_endian: bool, number: u32) -> [u8; 4] {
    if big_endian { number.to_be_bytes() } else { number.to_le_bytes() }
}

pub(crate) fn words(big_endian: bool, numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| u32_in(big_endian, *n)).collect()
}

pub(crate) fn pcap(big_endian: bool, magic: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let version = if big_endian { 0x0002_0004 } else { 0x0004_0002 };
    let mut bytes = words(big_endian, &[magic, version, 0, 0, 65535, 1]);
    for packet in packets {
        let len = packet.len() as u32;
        bytes.extend(words(big_endian, &[1, 2, len, len + 4]));
        bytes.extend(packet);
    }
    bytes
}

pub(crate) fn block(big_endian: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let total = (body.len().next_multiple_of(4) + 12) as u32;
    let mut bytes = words(big_endian, &[kind, total]);
    bytes.extend(body);
    bytes.resize(total as usize - 4, 0);
    bytes.extend(u32_in(big_endian, total));
    bytes
}

pub(crate) fn section(big_endian: bool) -> Vec<u8> {
    let version = if big_endian { 0x0001_0000 } else { 0x0000_0001 };
    block(big_endian, 0x0a0d_0d0a, &words(big_endian, &[0x1a2b_3c4d, version, u32::MAX, u32::MAX]))
}

pub(crate) fn interface(big_endian: bool, link: u16, snap_bytes: u32) -> Vec<u8> {
    let link = if big_endian { u32::from(link) << 16 } else { link.into() };
    block(big_endian, 1, &words(big_endian, &[link, snap_bytes]))
}

pub(crate) fn enhanced(big_endian: bool, interface: u32, packet: &[u8]) -> Vec<u8> {
    let len = packet.len() as u32;
    let mut body = words(big_endian, &[interface, 1, 2, len, len + 4]);
    body.extend(packet);
    block(big_endian, 6, &body)
}

pub(crate) fn simple(big_endian: bool, original: u32, packet: &[u8]) -> Vec<u8> {
    let mut body = words(big_endian, &[original]);
    body.extend(packet);
    block(big_endian, 3, &body)
}

/// Returns a pcapng file with every kind of block in both byte orders, the file's packets, and the
/// ends of the packets' blocks.
pub(crate) fn mixed_pcapng() -> (Vec<u8>, Vec<Vec<u8>>, Vec<usize>) {
    let (mut bytes, mut packets, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for big_endian in [false, true] {
        bytes.extend(section(big_endian));
        bytes.extend(interface(big_endian, 1, 0));
        bytes.extend(interface(big_endian, 1, 96));
        for (i, packet) in packets_of([14, 61, 0, 60]).into_iter().enumerate() {
            bytes.extend(match i {
                0 => enhanced(big_endian, 1, &packet),
                1 => simple(big_endian, packet.len() as u32, &packet),
                2 => enhanced(big_endian, 0, &packet),
                _ => {
                    let drops = if big_endian { 7 } else { 7 << 16 };
                    let mut body = words(big_endian, &[drops, 1, 2, packet.len() as u32, 99]);
                    body.extend(&packet);
                    block(big_endian, 2, &body)
                }
            });
            ends.push(bytes.len());
            bytes.extend(block(big_endian, 0x0bad_cafe, &[i as u8; 13]));
            packets.push(packet);
        }
        bytes.extend(block(big_endian, 5, &[0; 12]));
    }
    (bytes, packets, ends)
}

/// All packets have different contents.
pub(crate) fn packets_of(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let packet = |(i, len): (usize, usize)| (0..len).map(|at| (i * 31 + at * 7) as u8).collect();
    lengths.into_iter().enumerate().map(packet).collect()
}

pub(crate) const MAGICS: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// A reader that returns pieces of various sizes like a pipe, and before each piece the error that
/// no data is there yet.
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    random: Rng,
    silent: bool,
}

impl Pieces {
    pub(crate) fn new(bytes: Vec<u8>, seed: u64) -> Self {
        Self { bytes, at: 0, random: Rng::with_seed(seed), silent: false }
    }
}

impl io::Read for Pieces {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.silent = !self.silent;
        if self.silent && self.at < self.bytes.len() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let most = [1, 3, 61, 4096][self.random.usize(..4)];
        let len = (1 + self.random.usize(..most)).min(to.len()).min(self.bytes.len() - self.at);
        to[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

pub(crate) fn read_bytes(bytes: &[u8]) -> (Vec<Vec<u8>>, Result<(), DeviceError>) {
    let (frames, end, _) = drain(Box::new(Capture::from_reader("bytes", io::Cursor::new(bytes.to_vec()))));
    (frames, end)
}

pub(crate) fn damage(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..=random.usize(..8) {
        let at = random.usize(..bytes.len());
        match random.usize(..4) {
            0 => bytes[at] ^= 1 << random.usize(..8),
            1 => bytes[at] = random.usize(..256) as u8,
            2 => bytes[at] = 0xff,
            _ => bytes.truncate(at.max(1)),
        }
    }
}
