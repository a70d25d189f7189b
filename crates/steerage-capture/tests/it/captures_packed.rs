#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use fastrand::Rng;
use flate2::Compression;
use flate2::write::GzEncoder;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use steerage::testing::QueueTester;
use steerage::{Timestamp, device::Polled};
use steerage_capture::{BLOCK_BYTES, Capture, Pace};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{in_own_process, skip, tshark, until};

use crate::common::*;
use steerage_fixtures::queues::{drain, drain_headed, wait_for_data};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

fn packed_by(program: &str, arguments: &[&str], bytes: &[u8]) -> Option<Vec<u8>> {
    let scratch = Scratch::new();
    let path = scratch.join("plain");
    fs::write(&path, bytes).unwrap();
    let output = Command::new(program).args(arguments).arg("-c").arg(&path).stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Some(output.stdout),
        _ => {
            eprintln!("skipped: {program} is absent");
            None
        }
    }
}

/// About 100 kB of packets, in the pcap and the pcapng format.
fn files() -> [Vec<u8>; 2] {
    let mut random = Rng::with_seed(3);
    let packets = packets_of((0..300).map(|_| random.usize(..700)));
    let mut ng = [section(false), interface(false, 1, 0)].concat();
    packets.iter().for_each(|packet| ng.extend(enhanced(false, 0, packet)));
    [pcap(false, MAGICS[0], &packets), ng]
}

#[test]
fn packed_captures_hold_the_same_frames() {
    for bytes in files() {
        let frames = drain_headed(Box::new(Capture::from_reader("plain", std::io::Cursor::new(bytes.clone()))));
        let (half, rest) = bytes.split_at(bytes.len() / 2);
        let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(&bytes)].concat();
        let packed = [
            Some(gzip(&bytes)),
            Some([gzip(half), gzip(rest)].concat()),
            Some(zstd(&bytes)),
            Some([zstd(half), zstd(rest)].concat()),
            Some(skippable),
            packed_by("gzip", &["-9"], &bytes),
            packed_by("zstd", &["-1"], &bytes),
            packed_by("zstd", &["-19", "--check"], &bytes),
            packed_by("zstd", &["--no-check"], &bytes),
        ];
        for (nth, packed) in packed.into_iter().enumerate().filter_map(|(nth, packed)| Some((nth, packed?))) {
            let path = temporary(&format!("packed-{nth}"), &packed);
            assert!(drain_headed(Box::new(Capture::open(&path).unwrap())) == frames, "{nth}");
            fs::remove_file(path).unwrap();
            let pieces = Capture::from_reader("pieces", Pieces::new(packed, 1 + nth as u64));
            assert!(drain_headed(Box::new(pieces)) == frames, "{nth} in pieces");
        }
    }
}

/// The complete frames are delivered before the error, whatever pieces the data arrives in.
#[test]
fn cut_anywhere() {
    let packets = packets_of([60, 14, 300, 100]);
    let bytes = pcap(false, MAGICS[0], &packets);
    let plain: Vec<Vec<u8>> = packets;
    for packed in [gzip(&bytes), zstd(&bytes)] {
        for len in 0..packed.len() {
            let (frames, end) = read_bytes(&packed[..len]);
            let line = end.expect_err("it is cut").to_string();
            assert!(!line.contains('\n') && line.contains("at byte "), "{line}");
            assert!(plain.starts_with(&frames), "{len}");
            let (again, end, _) =
                drain(Box::new(Capture::from_reader("bytes", Pieces::new(packed[..len].to_vec(), 9))));
            assert_eq!((again, end.unwrap_err().to_string()), (frames, line), "{len}");
        }
    }
}

#[test]
fn damage_ends_in_frames_or_errors() {
    let bytes = pcap(false, MAGICS[0], &packets_of([60, 14, 0, 1500, 100, 61, 62]));
    let files = [gzip(&bytes), zstd(&bytes)];
    let mut random = Rng::with_seed(20_261_121);
    for round in 0..5_000 {
        let mut packed = files[round % 2].clone();
        damage(&mut packed, &mut random);
        if let Err(error) = read_bytes(&packed).1 {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// A checksum at the end of compressed data shows damage only after all packets were handed over.
const MAY_BE_WRONG: &str = "; the file is damaged there or before, and packets before may be wrong";

#[test]
fn errors_say_what_is_wrong() {
    let whole = gzip(&pcap(false, MAGICS[0], &packets_of([60, 60])));
    let error = |name, bytes: &[u8]| error_of(name, bytes);
    let cut = error("cut.gz", &whole[..whole.len() - 1]);
    assert!(
        cut.ends_with(
            "the file ends before what is packed in it; the file was cut short, the packets before are sound"
        )
    );
    let mut sum = whole.clone();
    *sum.last_mut().unwrap() ^= 1;
    let sum = error("sum.gz", &sum);
    assert!(sum.contains(": cannot unpack the capture at byte ") && sum.ends_with(MAY_BE_WRONG), "{sum}");
    let inside = gzip(&pcap(false, MAGICS[0], &packets_of([60]))[..50]);
    let inside = error("inside.gz", &inside);
    assert!(inside.contains(": cannot read the capture, unpacked, at byte 24: "), "{inside}");
    let mut long = pcap(false, MAGICS[0], &packets_of([60]));
    long[32..36].fill(0xff);
    let long = error("long.gz", &gzip(&long));
    assert!(long.contains("4294967295") && long.ends_with(MAY_BE_WRONG), "{long}");
    let text = error("text.gz", &gzip(b"Hello, world"));
    assert!(text.contains("unpacked, at byte 0: it begins with 48 65 6c 6c"), "{text}");

    // The last four bytes of a zstd frame are a checksum.
    let mut sum = zstd(&pcap(false, MAGICS[0], &[]));
    *sum.last_mut().unwrap() ^= 1;
    let sum = error("sum.zst", &sum);
    assert!(sum.contains("does not match its checksum") && sum.ends_with(MAY_BE_WRONG), "{sum}");
    // A zstd frame with a window of 3.75 TiB, and a frame with an unknown dictionary.
    let wide = error("wide.zst", &[0x28, 0xb5, 0x2f, 0xfd, 0, 0xff, 1, 0, 0]);
    assert!(wide.contains("zstd: it needs a window of 4123168604160 bytes, more than 134217728: unpack it"), "{wide}");
    let dictionary = error("dictionary.zst", &[0x28, 0xb5, 0x2f, 0xfd, 1, 0, 7, 1, 0, 0]);
    assert!(dictionary.contains("zstd: it was packed with dictionary 7: unpack it with zstd -dc -D "), "{dictionary}");
    assert!(!wide.contains("damaged") && !dictionary.contains("damaged"));
}

/// Bytes after the compressed data may be the padding of a tape or a signature. gzip(1) and tshark
/// ignore them, too.
#[test]
fn bytes_after_compressed_data_are_ignored() {
    let packets = packets_of([60, 61]);
    let bytes = pcap(false, MAGICS[0], &packets);
    let (half, rest) = bytes.split_at(50);
    // A BGZF file ends with an empty gzip member.
    let bgzf = [gzip(half), gzip(rest), gzip(&[])].concat();
    for (name, packed) in [("gz", gzip(&bytes)), ("bgzf", bgzf), ("zst", zstd(&bytes))] {
        for after in [&[0; 1][..], &[0; 100_000], b"-", b"-----BEGIN PGP SIGNATURE-----", &[0x1f, 0x8c, 8, 0, 0]] {
            let path = temporary(&format!("after.{name}"), &[&packed, after].concat());
            let capture = Capture::open(&path).unwrap();
            let info = capture.info();
            let (frames, end, _) = drain(Box::new(capture));
            assert!(end.is_ok(), "{name}: {end:?}");
            assert_eq!(frames, packets, "{name}");
            let note = format!("the last {} bytes are not compressed data and were ignored", after.len());
            assert!(info.notes().len() == 1 && info.notes()[0].ends_with(&note), "{:?}", info.notes());
            fs::remove_file(path).unwrap();
        }
    }
    // A file that ends inside the first bytes of a further compressed part was cut off.
    for (name, part) in [("gz", gzip(&[])), ("zst", zstd(&[])), ("skippable.zst", b"\x51\x2a\x4d\x18".to_vec())] {
        let whole = if name == "gz" { gzip(&bytes) } else { zstd(&bytes) };
        for len in 1..4 {
            let (frames, end) = read(&format!("cut-part.{name}"), &[&whole, &part[..len]].concat());
            assert!(end.unwrap_err().to_string().contains("the file ends before what is packed in it"), "{name} {len}");
            assert_eq!(frames, packets, "{name}");
        }
    }
}

/// Tests files that `zstd` made, with windows of 64 MiB and 128 MiB, and with a dictionary.
#[test]
fn large_windows_are_read_and_dictionaries_named() {
    for name in ["w26.zst", "w27.zst"] {
        let Some(path) = tshark::capture(&format!("repro/{name}")) else { return };
        let unpacked = Command::new("zstd").args(["-dc", "--long=27"]).arg(&path).output();
        let Ok(unpacked) = unpacked else { return skip("zstd is absent") };
        assert!(unpacked.status.success(), "{unpacked:?}");
        let (frames, end, _) = drain(Box::new(Capture::open(&path).unwrap()));
        end.unwrap();
        let (expected, end) = read_bytes(&unpacked.stdout);
        end.unwrap();
        assert!(frames == expected && !frames.is_empty(), "{name}: {} of {}", frames.len(), expected.len());
    }
    let Some(path) = tshark::capture("repro/dict.zst") else { return };
    let error = Capture::open(&path).unwrap_err().to_string();
    assert!(error.contains("it was packed with dictionary ") && !error.contains("damaged"), "{error}");
}

/// The second half of the data refers back by 3 MiB, within the zstd window of 4 MiB.
#[test]
fn matches_reach_back_through_the_whole_window() {
    let random: Vec<u8> = {
        let mut random = Rng::with_seed(7);
        (0..3 << 20).map(|_| random.usize(..256) as u8).collect()
    };
    let packet = |bytes: &[u8]| [&words(false, &[1, 2, bytes.len() as u32, bytes.len() as u32])[..], bytes].concat();
    let records: Vec<u8> = random.chunks(60_000).chain(random.chunks(60_000)).flat_map(packet).collect();
    let file = [pcap(false, MAGICS[0], &[]), records].concat();
    let Some(packed) = packed_by("zstd", &["-3", "--long=22"], &file) else { return };
    assert!(packed.len() < 4 << 20, "the second half was found in the first");
    let (frames, end) = read_bytes(&packed);
    end.unwrap();
    assert!(frames.concat() == [&random[..], &random].concat());
}

/// The peak memory belongs to the whole process, so the test runs in its own process.
#[test]
fn bombs_do_not_go_off() {
    const PEAK_KIB: u64 = 128 << 10;
    if !in_own_process("captures_packed::bombs_do_not_go_off") {
        return;
    }
    let zeros = 1usize << 30;
    let head = [section(false), words(false, &[0x0bad_cafe, 12 + zeros as u32])].concat();
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
    let block = |last: u32, kind: u32, size: usize| ((size as u32) << 3 | kind << 1 | last).to_le_bytes()[..3].to_vec();
    packed.extend([block(0, 0, head.len()), head].concat());
    for nth in 0..zeros >> 17 {
        packed.extend(block(u32::from(nth + 1 == zeros >> 17), 1, 128 << 10));
        packed.push(0);
    }
    let (frames, end) = read_bytes(&packed);
    assert!(frames.is_empty() && end.unwrap_err().to_string().contains("at byte "));

    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(&[section(false), words(false, &[0x0bad_cafe, 256 << 20])].concat()).unwrap();
    (0..256).for_each(|_| packer.write_all(&vec![0; BLOCK_BYTES]).unwrap());
    let (frames, end) = read_bytes(&packer.finish().unwrap());
    assert!(frames.is_empty() && end.is_err());

    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < PEAK_KIB, "{peak} KiB");
}

fn next_frames(tester: &mut QueueTester) -> Vec<Vec<u8>> {
    loop {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64).unwrap();
        if !frames.is_empty() || polled == Polled::Ended {
            return frames;
        }
        if polled == Polled::Drained {
            wait_for_data(tester);
        }
    }
}

#[test]
fn a_packed_pipe_is_read_as_it_comes() {
    let packets = packets_of([60, 0, 700, 61, 9000]);
    let path = fifo("packed-live");
    let mut tester = QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap();
    assert_eq!(tester.poll(Timestamp::ZERO, 64).unwrap().0, Polled::Drained);
    let mut packer = GzEncoder::new(OpenOptions::new().write(true).open(&path).unwrap(), Compression::default());
    packer.write_all(&pcap(false, MAGICS[0], &[])).unwrap();
    for packet in &packets {
        let len = packet.len() as u32;
        packer.write_all(&[&words(false, &[1, 2, len, len])[..], packet].concat()).unwrap();
        packer.flush().unwrap();
        assert_eq!(next_frames(&mut tester), std::slice::from_ref(packet));
        assert_eq!(tester.poll(Timestamp::ZERO, 64).unwrap().0, Polled::Drained);
    }
    packer.finish().unwrap();
    assert!(next_frames(&mut tester).is_empty());
    fs::remove_file(path).unwrap();
}

/// The unpacking thread may be waiting for more input, or for free space in a pipe without a
/// reader.
#[test]
fn unpacking_ends_with_the_queue() {
    for (name, packets, missing) in [("packed-input", 10, 20), ("packed-output", 100, 0)] {
        let packed = gzip(&pcap(false, MAGICS[0], &vec![vec![0; 60_000]; packets]));
        let path = fifo(name);
        let mut tester = QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap();
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(&packed[..packed.len() - missing]).unwrap();
        assert!(!next_frames(&mut tester).is_empty());
        drop(tester);
        until("unpacking has ended", || {
            let mut events = [PollFd::new(writer.as_fd(), PollFlags::empty())];
            poll(&mut events, PollTimeout::ZERO).unwrap();
            events[0].revents().unwrap().contains(PollFlags::POLLERR)
        });
        fs::remove_file(path).unwrap();
    }
}

/// The thread that unpacks survives a pipe without a reader, and has no capabilities.
#[test]
fn the_thread_that_unpacks_is_restricted() {
    const SIGPIPE: u64 = 1 << (13 - 1);
    if !in_own_process("captures_packed::the_thread_that_unpacks_is_restricted") {
        return;
    }
    let capture = Capture::from_reader("any", std::io::Cursor::new(gzip(&files()[0])));
    let tester = QueueTester::new(Box::new(capture)).unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_unpacker = |task: &Path| fs::read_to_string(task.join("comm")).unwrap().trim() == "unpack";
    let unpackers: Vec<_> = tasks.filter(|task| is_unpacker(task)).collect();
    let [unpacker] = &unpackers[..] else { panic!("{unpackers:?}") };
    let status = fs::read_to_string(unpacker.join("status")).unwrap();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert_eq!(u64::from_str_radix(field("SigBlk:"), 16).unwrap() & SIGPIPE, SIGPIPE);
    assert_eq!([field("CapEff:"), field("CapPrm:"), field("NoNewPrivs:")], [&"0".repeat(16), &"0".repeat(16), "1"]);
    drop(tester);
}

#[test]
fn what_comes_before_a_cut_is_handed_over() {
    let mut random = Rng::with_seed(5);
    let packets: Vec<Vec<u8>> = (0..200).map(|_| (0..10_000).map(|_| random.u8(..)).collect()).collect();
    let Some(packed) = packed_by("zstd", &["-3"], &pcap(false, MAGICS[0], &packets)) else { return };
    let (frames, end) = read_bytes(&packed[..packed.len() - 10]);
    assert!(end.unwrap_err().to_string().contains("the file ends before what is packed in it"));
    // A zstd block has at most 128 KiB.
    assert!(packets.starts_with(&frames) && frames.len() > packets.len() - 15, "{}", frames.len());
}

#[test]
fn packed_files_follow_each_other_and_keep_a_pace() {
    let plain = pcap(false, MAGICS[0], &packets_of([60, 61]));
    let stored = [gzip(&plain), plain.clone(), zstd(&plain)];
    let paths: Vec<_> = stored.iter().zip(["1.gz", "2", "3.zst"]).map(|(bytes, name)| temporary(name, bytes)).collect();
    let capture = Capture::open_all(&paths).unwrap().paced(Pace::RECORDED);
    let info = capture.info();
    let frames: Vec<Vec<u8>> = drain_headed(Box::new(capture)).into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames, vec![packets_of([60, 61]); 3].concat());
    assert_eq!(Some(info.bytes_read()), info.bytes_total());
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
}
