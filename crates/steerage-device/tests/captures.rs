//! Capture files: real ones against what tshark says of them, and made ones, whole, cut and damaged.
#![expect(clippy::print_stderr, reason = "a test that skips says why")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::{POLLS_MAX, drain};
use steerage::testing::QueueTester;
use steerage::{Completions, DeviceError, LinkType, Polled, QueueMemory, RxQueue, Timestamp};
use steerage_device::capture::{self, BLOCK_BYTES, BLOCKS, Capture, PACKET_BYTES_MAX};

/// A new file of this test run.
fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    fs::write(&path, bytes).expect("the target folder can be written");
    path
}

/// All of a file's frames, and how it ended. Deletes the file.
fn read(name: &str, bytes: &[u8]) -> (Vec<Vec<u8>>, Result<(), DeviceError>) {
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

fn error_of(name: &str, bytes: &[u8]) -> String {
    read(name, bytes).1.expect_err("it is damaged").to_string()
}

/// A number in the byte order of a file.
fn u32_in(big_endian: bool, number: u32) -> [u8; 4] {
    if big_endian { number.to_be_bytes() } else { number.to_le_bytes() }
}

fn words(big_endian: bool, numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| u32_in(big_endian, *n)).collect()
}

/// A classic capture.
fn pcap(big_endian: bool, magic: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let version = if big_endian { 0x0002_0004 } else { 0x0004_0002 };
    let mut bytes = words(big_endian, &[magic, version, 0, 0, 65535, 1]);
    for packet in packets {
        let len = packet.len() as u32;
        bytes.extend(words(big_endian, &[1, 2, len, len + 4]));
        bytes.extend(packet);
    }
    bytes
}

/// A pcapng block.
fn block(big_endian: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let total = (body.len().next_multiple_of(4) + 12) as u32;
    let mut bytes = words(big_endian, &[kind, total]);
    bytes.extend(body);
    bytes.resize(total as usize - 4, 0);
    bytes.extend(u32_in(big_endian, total));
    bytes
}

fn section(big_endian: bool) -> Vec<u8> {
    let version = if big_endian { 0x0001_0000 } else { 0x0000_0001 };
    block(big_endian, 0x0a0d_0d0a, &words(big_endian, &[0x1a2b_3c4d, version, u32::MAX, u32::MAX]))
}

fn interface(big_endian: bool, link: u16, snap_bytes: u32) -> Vec<u8> {
    let link = if big_endian { u32::from(link) << 16 } else { link.into() };
    block(big_endian, 1, &words(big_endian, &[link, snap_bytes]))
}

fn enhanced(big_endian: bool, interface: u32, packet: &[u8]) -> Vec<u8> {
    let len = packet.len() as u32;
    let mut body = words(big_endian, &[interface, 1, 2, len, len + 4]);
    body.extend(packet);
    block(big_endian, 6, &body)
}

fn simple(big_endian: bool, original: u32, packet: &[u8]) -> Vec<u8> {
    let mut body = words(big_endian, &[original]);
    body.extend(packet);
    block(big_endian, 3, &body)
}

/// Every kind of block, in two sections of both byte orders: the file, its packets, and where each packet's block ends.
fn mixed_pcapng() -> (Vec<u8>, Vec<Vec<u8>>, Vec<usize>) {
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

/// Packets of the lengths given, no two alike.
fn packets_of(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let packet = |(i, len): (usize, usize)| (0..len).map(|at| (i * 31 + at * 7) as u8).collect();
    lengths.into_iter().enumerate().map(packet).collect()
}

/// Numbers by chance, the same in every run (xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

const MAGICS: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// The real captures, or `None` where the folder is absent.
fn real_captures() -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures");
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: there is no {}", folder.display());
        return None;
    };
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).filter(is_capture).collect();
    paths.sort();
    Some(paths)
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// What a tool of Wireshark's prints. `None` where it is absent, which is a failure where CI says that it isn't.
fn tool(name: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(name).args(arguments).arg(file).output() else {
        assert!(!in_ci(), "{name} is absent: install the package tshark");
        eprintln!("skipped: {name} is absent");
        return None;
    };
    // A capture that is cut short makes them fail after they have printed what there is.
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn real_captures_hold_what_tshark_finds() {
    for path in real_captures().unwrap_or_default() {
        let arguments = ["-n", "-T", "fields", "-e", "frame.cap_len", "-e", "frame.len", "-r"];
        let Some(expected) = tool("tshark", &arguments, &path) else { return };
        let expected: Vec<Vec<u64>> =
            expected.lines().map(|line| line.split_whitespace().map(|n| n.parse().unwrap()).collect()).collect();
        let (frames, end, wire_bytes) = drain(Box::new(Capture::open(&path).unwrap()));
        assert!(end.is_ok(), "{end:?}");
        let lengths: Vec<u64> = frames.iter().map(|frame| frame.len() as u64).collect();
        let captured: Vec<u64> = expected.iter().map(|lengths| lengths[0]).collect();
        assert_eq!(lengths, captured, "{}", path.display());
        assert_eq!(wire_bytes, expected.iter().map(|lengths| lengths[1]).sum::<u64>(), "{}", path.display());
    }
}

/// Wireshark's editcap writes each capture anew in other formats: the frames must be the same, byte by byte.
#[test]
fn real_captures_are_the_same_in_every_format() {
    for path in real_captures().unwrap_or_default() {
        let frames = drain(Box::new(Capture::open(&path).unwrap())).0;
        for format in ["pcap", "nsecpcap", "pcapng"] {
            let to = temporary(&format!("editcap-{format}"), b"");
            let Ok(status) = Command::new("editcap").args(["-F", format]).args([&path, &to]).status() else {
                assert!(!in_ci(), "editcap is absent: install the package tshark");
                eprintln!("skipped: editcap is absent");
                return;
            };
            // A capture of two link types cannot be written as pcap.
            if status.success() {
                assert_eq!(drain(Box::new(Capture::open(&to).unwrap())).0, frames, "{} as {format}", path.display());
            }
            fs::remove_file(to).unwrap();
        }
    }
}

#[test]
fn both_byte_orders_and_both_resolutions() {
    let packets = packets_of([60, 0, 1500, 61]);
    for big_endian in [false, true] {
        for magic in MAGICS {
            let path = temporary("orders.pcap", &pcap(big_endian, magic, &packets));
            let (frames, end, wire_bytes) = drain(Box::new(Capture::open(&path).unwrap()));
            assert!(end.is_ok());
            assert_eq!(frames, packets);
            assert_eq!(wire_bytes, packets.iter().map(|packet| packet.len() as u64 + 4).sum::<u64>());
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn sections_interfaces_and_blocks_of_all_kinds() {
    let (bytes, packets, _) = mixed_pcapng();
    let (frames, end) = read("mixed.pcapng", &bytes);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(frames, packets);
}

#[test]
fn a_snap_length_gives_the_length_of_a_simple_packet() {
    let packet = packets_of([40]).remove(0);
    for (snap_bytes, original, captured) in [(0, 40, 40), (40, 1500, 40), (64, 38, 38), (u32::MAX, 40, 40)] {
        let bytes = [section(false), interface(false, 1, snap_bytes), simple(false, original, &packet)].concat();
        let (frames, end) = read("simple.pcapng", &bytes);
        assert!(end.is_ok(), "{end:?}");
        assert_eq!(frames, [&packet[..captured]]);
    }
    let lies = [section(false), interface(false, 1, 0), simple(false, 41, &packet)].concat();
    assert!(error_of("lies.pcapng", &lies).contains("a packet says it has 41 bytes, more than the 40 that can be"));
}

/// A capture that notes, for every poll that handed over frames, their number and link type.
struct Watched {
    capture: Capture,
    seen: Arc<Mutex<Vec<(usize, LinkType)>>>,
}

impl RxQueue for Watched {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        self.capture.memory()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let polled = self.capture.poll(out, budget);
        if !out.is_empty() {
            self.seen.lock().unwrap().push((out.len(), self.capture.link()));
        }
        polled
    }
}

#[test]
fn no_poll_mixes_link_types() {
    let mut bytes = [section(false), interface(false, 1, 0), interface(false, 101, 0)].concat();
    for (packet, interface) in packets_of([60; 6]).iter().zip([0, 0, 1, 0, 1, 1]) {
        bytes.extend(enhanced(false, interface, packet));
    }
    let path = temporary("links.pcapng", &bytes);
    let seen = Arc::default();
    drain(Box::new(Watched { capture: Capture::open(&path).unwrap(), seen: Arc::clone(&seen) })).1.unwrap();
    let (ethernet, raw) = (LinkType::ETHERNET, LinkType(101));
    assert_eq!(*seen.lock().unwrap(), [(2, ethernet), (1, raw), (1, ethernet), (2, raw)]);
    fs::remove_file(path).unwrap();
}

#[test]
fn the_link_type_is_that_of_the_file() {
    let mut bytes = pcap(false, MAGICS[0], &packets_of([60]));
    // Bits about frame check sequences stand above the link type.
    bytes[20..24].copy_from_slice(&0x5400_0065u32.to_le_bytes());
    let path = temporary("raw.pcap", &bytes);
    assert_eq!(Capture::open(&path).unwrap().link(), LinkType(101));
    fs::remove_file(path).unwrap();
}

/// Records over several stretches, of lengths that put every kind of record across their ends.
#[test]
fn records_across_stretches() {
    let mut chance = Chance(7);
    let mut lengths: Vec<usize> = (0..4000).map(|_| 40 + chance.below(1500)).collect();
    lengths.extend([PACKET_BYTES_MAX, 1, PACKET_BYTES_MAX, PACKET_BYTES_MAX, 0, 60]);
    lengths.extend((0..4000).map(|_| chance.below(100)));
    let packets = packets_of(lengths);
    let classic = pcap(false, MAGICS[0], &packets);
    assert!(classic.len() > 3 * BLOCK_BYTES);
    let mut ng = [section(false), interface(false, 1, 0)].concat();
    packets.iter().for_each(|packet| ng.extend(enhanced(false, 0, packet)));
    for (name, bytes) in [("long.pcap", classic), ("long.pcapng", ng)] {
        let (frames, end) = read(name, &bytes);
        assert!(end.is_ok(), "{end:?}");
        assert!(frames == packets, "{name}: {} of {} frames, or not the same", frames.len(), packets.len());
    }
}

/// A block of no interest may be longer than a stretch, and than all of them.
#[test]
fn huge_blocks_are_passed_over() {
    let packets = packets_of([60, 61]);
    for bytes in [600_000, BLOCK_BYTES, (BLOCKS + 1) * BLOCK_BYTES + 4] {
        let mut file = [section(false), interface(false, 1, 0), enhanced(false, 0, &packets[0])].concat();
        file.extend(block(false, 0x0bad_cafe, &vec![0xee; bytes]));
        file.extend(enhanced(false, 0, &packets[1]));
        let (frames, end) = read("huge.pcapng", &file);
        assert!(end.is_ok(), "{end:?}");
        assert_eq!(frames, packets);
        let cut = file.len() - enhanced(false, 0, &packets[1]).len() - 1;
        assert!(error_of("huge-cut.pcapng", &file[..cut]).contains("ends within a block"));
    }
}

/// While frames are out their blocks are not filled again, and nothing waits; once they are home it goes on.
#[test]
fn frames_that_are_out_stop_the_reading_and_lose_nothing() {
    let packets = packets_of(vec![1400; (BLOCKS + 3) * BLOCK_BYTES / 1400]);
    let path = temporary("held.pcap", &pcap(false, MAGICS[0], &packets));
    let mut tester = QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap();
    let mut all: Vec<Vec<u8>> = Vec::new();
    tester.hold_frames();
    let mut idle = 0;
    while idle < 100 {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64).unwrap();
        assert_eq!(polled, Polled::More);
        idle = if frames.is_empty() { idle + 1 } else { 0 };
        all.extend(frames);
    }
    assert!(all.len() > (BLOCKS - 1) * BLOCK_BYTES / 1416 && all.len() < packets.len());
    tester.release_frames();
    for _ in 0..POLLS_MAX {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64).unwrap();
        all.extend(frames);
        if polled == Polled::Ended {
            break;
        }
    }
    assert!(all == packets);
    fs::remove_file(path).unwrap();
}

/// Every prefix ends, and gives the whole packets before its break.
#[test]
fn every_prefix_gives_its_whole_packets() {
    let packets = packets_of([60, 14, 0, 100]);
    let classic = pcap(true, MAGICS[1], &packets);
    let mut ends: Vec<usize> = Vec::new();
    for packet in &packets {
        ends.push(ends.last().unwrap_or(&24) + 16 + packet.len());
    }
    let (ng, ng_packets, ng_ends) = mixed_pcapng();
    for (name, bytes, packets, ends) in
        [("prefix.pcap", classic, packets, ends), ("prefix.pcapng", ng, ng_packets, ng_ends)]
    {
        for len in 0..bytes.len() {
            let (frames, end) = read(name, &bytes[..len]);
            let whole = ends.iter().filter(|end| **end <= len).count();
            assert_eq!(frames, packets[..whole], "{name} cut at {len}");
            if let Err(error) = end {
                let line = error.to_string();
                assert!(!line.contains('\n') && line.contains("at byte "), "{line}");
            } else {
                assert!(len >= 24, "{name} cut at {len} is no capture");
            }
        }
    }
}

#[test]
fn damage_ends_in_frames_or_errors() {
    let packets = packets_of([60, 14, 0, 1500, 100, 61, 62]);
    let (ng, ..) = mixed_pcapng();
    let mut chance = Chance(20_261_120);
    for round in 0..2000 {
        let mut bytes = match round % 3 {
            0 => pcap(false, MAGICS[0], &packets),
            1 => pcap(true, MAGICS[1], &packets),
            _ => ng.clone(),
        };
        for _ in 0..=chance.below(8) {
            let at = chance.below(bytes.len());
            match chance.below(4) {
                0 => bytes[at] ^= 1 << chance.below(8),
                1 => bytes[at] = chance.below(256) as u8,
                2 => bytes[at] = 0xff,
                _ => bytes.truncate(at.max(1)),
            }
        }
        let (frames, end) = read("damaged", &bytes);
        assert!(frames.iter().map(Vec::len).sum::<usize>() <= bytes.len());
        if let Err(error) = end {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

#[test]
fn errors_say_what_is_wrong_where_and_what_to_do() {
    let packets = packets_of([60, 60]);
    let ends = |error: String, text: &str| assert!(error.ends_with(text), "{error}");
    ends(
        error_of("e", b""),
        "cannot read the capture at byte 0: the file is empty; give a pcap or pcapng file, as it is or packed by gzip or zstd",
    );
    ends(
        error_of("e", b"\x1f\x8c\x08\x00abcdef"),
        "at byte 0: it begins with 1f 8c 08 00, as neither pcap nor pcapng does; give a pcap or pcapng file, as it is or packed by gzip or zstd",
    );
    let good = pcap(false, MAGICS[0], &packets);
    ends(
        error_of("e", &good[..good.len() - 1]),
        "at byte 100: the file ends 75 bytes into a record of 76 or more; \
         the file was cut short, the packets before are sound",
    );
    ends(
        error_of("e", &good[..10]),
        "at byte 0: the file ends 10 bytes into its header of 24; the file was cut short, the packets before are sound",
    );
    let mut lies = good.clone();
    lies[108..112].copy_from_slice(&262_145u32.to_le_bytes());
    ends(
        error_of("e", &lies),
        "at byte 100: a packet says it has 262145 bytes, more than 262144; \
         the file is damaged from there on, the packets before are sound",
    );
    let unknown = [section(true), interface(true, 1, 0), enhanced(true, 3, &packets[0])].concat();
    assert!(error_of("e", &unknown).contains("at byte 48: a packet is of interface 3, and 1 have been described"));
    let mut trailer = [section(false), interface(false, 1, 0)].concat();
    trailer[44] = 24;
    assert!(
        error_of("e", &trailer).contains("at byte 28: a block says it has 20 bytes at its start, and 24 at its end")
    );
}

#[test]
fn what_is_no_file_is_refused() {
    let error = |path: &str| capture::open(path).unwrap_err().to_string();
    assert_eq!(
        error("/nowhere/x.pcap"),
        "/nowhere/x.pcap: cannot open the capture: No such file or directory (os error 2); \
         give the path of a capture file, or `synthetic`"
    );
    assert!(error("/tmp").starts_with("/tmp: cannot open the capture: it is a directory; "));
    assert!(error("/dev/null").contains("it is neither a file nor a pipe"));
}
