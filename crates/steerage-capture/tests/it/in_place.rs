use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};

use steerage::testing::QueueTester;
use steerage::{Batch, Builder, Cpu, Handler, Timestamp, device::Polled};
use steerage_capture::Capture;
use steerage_fixtures::queues::{POLLS_MAX, drain_headed};
use steerage_fixtures::scratch::write_by_another_process;
use steerage_fixtures::{skip, tshark};

use crate::common::*;

/// The packets are more than the queue reads in one poll.
const PACKETS: usize = 2_000;

fn packets() -> Vec<Vec<u8>> {
    packets_of((0..PACKETS).map(|nth| nth % 1500))
}

fn leasable(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path_of(name);
    write_by_another_process(&path, bytes);
    path
}

fn is_mapped(path: &Path) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap())
}

fn can_be_mapped(tester: &mut QueueTester, path: &Path, all: &mut Vec<Vec<u8>>) -> bool {
    while all.is_empty() {
        all.extend(tester.poll(Timestamp::ZERO, 64).unwrap().1);
    }
    let mapped = is_mapped(path);
    if !mapped {
        skip("the kernel grants no lease for a file in the target folder");
    }
    mapped
}

fn rest(tester: &mut QueueTester, all: &mut Vec<Vec<u8>>) {
    for _ in 0..POLLS_MAX {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64).unwrap();
        all.extend(frames);
        if polled == Polled::Ended {
            return;
        }
    }
    panic!("it does not end");
}

#[test]
fn captures_have_the_same_values_in_place() {
    let mut paths = tshark::all_captures();
    paths.extend(fs::read_dir(tshark::folder().join("outside")).into_iter().flatten().map(|e| e.unwrap().path()));
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "pcap" || e == "cap")) {
        // Files in a read-only folder of another user get no leases, so the test reads a copy.
        let copy = temporary("same.pcap", &fs::read(path).unwrap());
        if let Ok(capture) = Capture::open(&copy) {
            let by_read = Capture::from_reader("read", File::open(&copy).unwrap());
            let (left, right) = (all_of(capture), all_of(by_read));
            assert!(left == right, "{}", path.display());
        }
        fs::remove_file(copy).unwrap();
    }
}

/// A frame's time, length on the wire, and bytes. The header of a frame that is read in place has
/// no link type.
type Values = (u64, u32, Vec<u8>);

fn all_of(capture: Capture) -> (Vec<Values>, Option<String>) {
    let mut tester = QueueTester::new(Box::new(capture)).unwrap();
    let mut all = Vec::new();
    for _ in 0..POLLS_MAX {
        match tester.poll_with_headers(Timestamp::ZERO, 64) {
            Ok((polled, frames)) => {
                let plain = |(header, bytes): (Option<steerage::device::FrameHeader>, Vec<u8>)| {
                    let header = header.expect("every frame has a header");
                    (header.nanos, header.wire_len, bytes)
                };
                all.extend(frames.into_iter().map(plain));
                if polled == Polled::Ended {
                    return (all, None);
                }
            }
            Err(error) => {
                let line = error.to_string();
                return (all, Some(line.split_once(": ").map_or(line.clone(), |(_, text)| text.to_owned())));
            }
        }
    }
    panic!("it does not end");
}

#[test]
fn every_form_of_records_has_the_same_values_in_place() {
    let packets = packets_of([60, 0, 1500, 61]);
    for big_endian in [false, true] {
        for magic in MAGICS {
            let bytes = pcap(big_endian, magic, &packets);
            for len in [bytes.len(), bytes.len() - 1, bytes.len() - 70, 24] {
                let path = temporary("forms.pcap", &bytes[..len]);
                let in_place = all_of(Capture::open(&path).unwrap());
                let by_read = all_of(Capture::from_reader("read", File::open(&path).unwrap()));
                assert_eq!(in_place, by_read);
                let nanos = 1_000_000_000 + if magic == MAGICS[0] { 2_000 } else { 2 };
                assert!(in_place.0.iter().all(|(time, ..)| *time == nanos));
                assert_eq!(in_place.1.is_some(), ![bytes.len(), 24].contains(&len), "{len}");
                fs::remove_file(path).unwrap();
            }
        }
    }
}

#[test]
fn a_file_that_grows_is_read_to_its_new_end() {
    let mut packets = packets();
    let path = leasable("grows.pcap", &pcap(true, MAGICS[1], &packets));
    let capture = Capture::open(&path).unwrap();
    let info = capture.info();
    let (mut tester, mut all) = (QueueTester::new(Box::new(capture)).unwrap(), Vec::new());
    if can_be_mapped(&mut tester, &path, &mut all) {
        // Opening the file for writing blocks until the lease has been returned.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        let more = packets_of([700, 800]);
        file.write_all(&pcap(true, MAGICS[1], &more)[24..]).unwrap();
        packets.extend(more);
        rest(&mut tester, &mut all);
        assert!(all == packets);
        assert_eq!(info.bytes_read(), fs::metadata(&path).unwrap().len());
        assert!(!is_mapped(&path), "the file is still mapped");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_that_is_replaced_is_read_to_its_end() {
    let packets = packets();
    let path = leasable("replaced.pcap", &pcap(false, MAGICS[0], &packets));
    let (mut tester, mut all) = (QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap(), Vec::new());
    if can_be_mapped(&mut tester, &path, &mut all) {
        fs::rename(temporary("other.pcap", b"other"), &path).unwrap();
        rest(&mut tester, &mut all);
        assert!(all == packets);
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_in_a_tmpfs_is_read_in_place() {
    let packets = packets();
    let path = PathBuf::from(format!("/dev/shm/steerage-in-place-{}.pcap", std::process::id()));
    if fs::write(&path, "").is_err() {
        return skip("/dev/shm cannot be written");
    }
    fs::remove_file(&path).unwrap();
    write_by_another_process(&path, &pcap(false, MAGICS[0], &packets));
    let (mut tester, mut all) = (QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap(), Vec::new());
    if can_be_mapped(&mut tester, &path, &mut all) {
        rest(&mut tester, &mut all);
        assert!(all == packets);
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_without_a_lease_is_read_by_read() {
    let packets = packets();
    let bytes = pcap(false, MAGICS[0], &packets);
    let written = temporary("written.pcap", &bytes);
    let foreign = temporary("foreign.pcap", &bytes);
    let _writer = OpenOptions::new().append(true).open(&written).unwrap();
    // The thread that takes leases has no capabilities.
    let is_foreign = chown(&foreign, Some(12_345), None).is_ok();
    if !is_foreign {
        skip("only root can give a file to another user");
    }
    for path in [Some(&written), is_foreign.then_some(&foreign)].into_iter().flatten() {
        let (mut tester, mut all) = (QueueTester::new(Box::new(Capture::open(path).unwrap())).unwrap(), Vec::new());
        while all.is_empty() {
            all.extend(tester.poll(Timestamp::ZERO, 64).unwrap().1);
        }
        assert!(!is_mapped(path), "{}", path.display());
        rest(&mut tester, &mut all);
        assert!(all == packets);
    }
    fs::remove_file(written).unwrap();
    fs::remove_file(foreign).unwrap();
}

/// A handler that lets another thread truncate the file, and then compares and changes the packets.
struct Truncates {
    started: Option<mpsc::Sender<()>>,
    truncated: mpsc::Receiver<()>,
    packets: u64,
}

impl Handler for Truncates {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        if let Some(started) = self.started.take() {
            started.send(()).unwrap();
            self.truncated.recv().unwrap();
        }
        let expected = packets();
        for mut packet in batch.iter_mut() {
            let expected = &expected[self.packets as usize];
            assert_eq!(packet.data(), expected);
            assert_eq!((packet.wire_len(), packet.time().unwrap().as_nanos()), (expected.len() + 4, 1_000_002_000));
            if let Some(first) = packet.data_mut().unwrap().first_mut() {
                *first ^= 0xff;
                assert_eq!(packet.data()[0], !expected[0]);
            }
            self.packets += 1;
        }
    }

    fn finish(self, _: &mut Cpu) -> u64 {
        self.packets
    }
}

#[test]
fn packets_of_a_truncated_file_stay_as_they_are() {
    let path = leasable("truncated.pcap", &pcap(false, MAGICS[0], &packets()));
    let (started, has_started) = mpsc::channel();
    let (to, truncated) = mpsc::channel();
    let handler = Mutex::new(Some(Truncates { started: Some(started), truncated, packets: 0 }));
    let running = Builder::new()
        .virtual_cpus(1)
        .input(Capture::open(&path).unwrap().into_input())
        .build(move |_| handler.lock().unwrap().take().unwrap())
        .unwrap()
        .start()
        .unwrap();
    has_started.recv().unwrap();
    let mapped = is_mapped(&path);
    // `File::create` blocks until the lease has been returned.
    File::create(&path).unwrap();
    to.send(()).unwrap();
    let outcome = running.join();
    let handled = outcome.reports[0].1;
    // The queue delivers only the packets that it had made readable before the file was truncated.
    if mapped {
        assert!(handled > 0 && handled < PACKETS as u64, "{handled}");
    } else {
        skip("the kernel grants no lease for a file in the target folder");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn files_of_several_kinds_follow_each_other() {
    let packets = packets();
    let files = [pcap(false, MAGICS[0], &packets), mixed_pcapng().0, pcap(true, MAGICS[1], &packets)];
    let paths: Vec<PathBuf> =
        files.iter().enumerate().map(|(nth, bytes)| temporary(&format!("several-{nth}"), bytes)).collect();
    let all = drain_headed(Box::new(Capture::open_all(&paths).unwrap()));
    let frames: Vec<Vec<u8>> = all.into_iter().map(|(_, bytes)| bytes).collect();
    assert!(frames == [packets.clone(), mixed_pcapng().1, packets].concat());
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
}
