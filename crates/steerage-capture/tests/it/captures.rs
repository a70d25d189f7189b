use std::fs;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use steerage::testing::QueueTester;
use steerage::{
    DeviceError, LinkType, Timestamp,
    device::{Capabilities, Completions, Opened, Polled, Region, RxQueue},
};
use steerage_capture::{self as capture, BLOCK_BYTES, BLOCKS, Capture, PACKET_BYTES_MAX};
use steerage_fixtures::{skip, tshark};

use crate::common::*;
use steerage_fixtures::queues::{POLLS_MAX, drain, drain_headed};

#[test]
fn real_captures_hold_what_tshark_finds() {
    for path in tshark::all_captures() {
        let arguments = ["-n", "-T", "fields", "-e", "frame.cap_len", "-e", "frame.len", "-r"];
        let Some(expected) = tshark::output("tshark", &arguments, &path) else { return };
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

#[test]
fn real_captures_are_the_same_in_every_format() {
    for path in tshark::captures() {
        let frames = drain(Box::new(Capture::open(&path).unwrap())).0;
        for format in ["pcap", "nsecpcap", "pcapng"] {
            let to = temporary(&format!("editcap-{format}"), b"");
            let Ok(status) = Command::new("editcap").args(["-F", format]).args([&path, &to]).status() else {
                return skip("editcap is absent: install the package tshark");
            };
            // editcap cannot write a capture with two link types as pcap.
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

/// Modified pcap, as FRITZ!Box routers write it, has eight more bytes in each record's header.
#[test]
fn modified_pcap_is_read() {
    let packets = packets_of([60, 0, 1500, 61]);
    for big_endian in [false, true] {
        let mut bytes = pcap(big_endian, 0xa1b2_cd34, &[]);
        for packet in &packets {
            let len = packet.len() as u32;
            bytes.extend([words(big_endian, &[1, 2, len, len + 4, 7, 0x0800_0400]), packet.clone()].concat());
        }
        let path = temporary("modified.pcap", &bytes);
        let all = drain_headed(Box::new(Capture::open(&path).unwrap()));
        assert!(all.iter().all(|(header, _)| header.is_some_and(|header| header.nanos == 1_000_002_000)));
        let frames: Vec<Vec<u8>> = all.into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(frames, packets);
        let to = temporary("modified.pcapng", b"");
        if let Ok(status) = Command::new("editcap").args(["-F", "pcapng"]).args([&path, &to]).status() {
            assert!(status.success());
            assert_eq!(drain(Box::new(Capture::open(&to).unwrap())).0, packets);
        }
        fs::remove_file(path).unwrap();
        fs::remove_file(to).unwrap();
    }
}

#[test]
fn refused_formats_are_named_with_the_command_that_converts_them() {
    let rows: [(&[u8], &str); 8] = [
        (b"\xfd7zXZ\0", "it is compressed by xz; unpack it: xz -dc FILE | steerage count -"),
        (b"\x04\x22\x4d\x18\x64", "it is compressed by lz4; unpack it: lz4 -dc FILE | steerage count -"),
        (b"BZh91AY", "it is compressed by bzip2; unpack it: bzip2 -dc FILE | steerage count -"),
        (b"\x1f\x9d\x90", "it is compressed by compress; unpack it: gzip -dc FILE | steerage count -"),
        (b"PK\x03\x04", "it is a zip archive; unpack it: unzip -p FILE | steerage count -"),
        (b"snoop\0\0\0", "it is a snoop capture; convert it: editcap -F pcapng FILE NEW.pcapng"),
        (b"btsnoop\0", "it is a btsnoop capture; convert it: editcap -F pcapng FILE NEW.pcapng"),
        (b"\xa1\xb2\x34\xcd", "it is a variant of pcap; convert it: editcap -F pcapng FILE NEW.pcapng"),
    ];
    for (bytes, expected) in rows {
        let error = error_of("refused", &[bytes, &[0; 40]].concat());
        assert!(error.ends_with(&format!("cannot read the capture at byte 0: {expected}")), "{error}");
        let by_pipe = read_bytes(&[bytes, &[0; 40]].concat()).1.unwrap_err().to_string();
        assert!(by_pipe.ends_with(expected), "{by_pipe}");
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

struct Watched {
    capture: Capture,
    seen: Arc<Mutex<Vec<(usize, LinkType)>>>,
}

impl RxQueue for Watched {
    fn capabilities(&self) -> Capabilities {
        self.capture.capabilities()
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        self.capture.open(region)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let polled = self.capture.poll(out, budget);
        if !out.is_empty() {
            self.seen.lock().unwrap().push((out.len(), out.link()));
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
    // In the file header, the bits above the link type describe frame check sequences.
    bytes[20..24].copy_from_slice(&0x5400_0065u32.to_le_bytes());
    let path = temporary("raw.pcap", &bytes);
    let frames = steerage_fixtures::queues::drain_with_links(Box::new(Capture::open(&path).unwrap()));
    assert_eq!(frames.iter().map(|(_, link)| *link).collect::<Vec<_>>(), [LinkType(101)]);
    fs::remove_file(path).unwrap();
}

/// The lengths of the pieces are chosen so that every kind of record is cut by the end of a piece.
#[test]
fn records_across_stretches() {
    let mut random = Rng::with_seed(7);
    let mut lengths: Vec<usize> = (0..4000).map(|_| 40 + random.usize(..1500)).collect();
    lengths.extend([PACKET_BYTES_MAX, 1, PACKET_BYTES_MAX, PACKET_BYTES_MAX, 0, 60]);
    lengths.extend((0..4000).map(|_| random.usize(..100)));
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

#[test]
fn frames_that_are_out_stop_the_reading_and_lose_nothing() {
    let packets = packets_of(vec![1400; (BLOCKS + 3) * BLOCK_BYTES / 1400]);
    let file = io::Cursor::new(pcap(false, MAGICS[0], &packets));
    let mut tester = QueueTester::new(Box::new(Capture::from_reader("held", file))).unwrap();
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
}

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
    let files = [pcap(false, MAGICS[0], &packets), pcap(true, MAGICS[1], &packets), mixed_pcapng().0];
    let mut random = Rng::with_seed(20_261_120);
    for round in 0..20_000 {
        let mut bytes = files[[0, 2, 1, 2][round % 4]].clone();
        damage(&mut bytes, &mut random);
        let (frames, end) = read_bytes(&bytes);
        assert!(frames.iter().map(Vec::len).sum::<usize>() <= bytes.len());
        if let Err(error) = end {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.contains("at byte "), "{line}");
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
