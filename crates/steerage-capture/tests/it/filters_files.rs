//! Tests filters of capture files. A filter must pass the same packets as `tcpdump -r FILE EXPR`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use steerage::flow::wire::{FrameBuilder, ethertype};
use steerage::{Timestamp, device::Polled, testing::QueueTester};
use steerage_capture::filter::{Filter, FilterError};
use steerage_capture::{Capture, Pace};
use steerage_fixtures::{is_installed, tshark};

use super::common::{block, enhanced, interface, pcap, section, temporary, words};
use steerage_fixtures::queues::{drain, drain_with_links};

/// All parts of the filter language. Each expression passes some packets and removes others.
const EXPRESSIONS: [&str; 30] = [
    "ip",
    "ip6",
    "tcp",
    "udp",
    "icmp or icmp6",
    "arp",
    "not ip",
    "port 53",
    "not port 7001",
    "src port 7001 and greater 100",
    "portrange 1-1023",
    "host 131.114.129.4 or host fe80::1",
    "src net 10.0.0.0/8 or dst net 192.168.0.0/16",
    "net 2001:db8::/32",
    "ether multicast",
    "ip multicast or ip6 multicast",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[((tcp[12] & 0xf0) >> 2):1] = 0x16",
    "ip[6:2] & 0x3fff != 0",
    "ip[0] & 0xf > 5 or ip6[6] != 6",
    "less 80",
    "len > 1000",
    "ip proto 47 or ip6 proto 47",
    "udp port 4789 or udp port 6081",
    "vlan",
    "mpls",
    "pppoes and ip",
    "ether proto 0x88e5 or ether[12:2] < 1500",
    "udp[4:2] % 2 = 1 and not icmp",
    "tcp and not (src port 22 or dst portrange 6000-6100) and ip[2:2] * 2 - ((ip[0] & 0xf) << 2) > 200",
];

fn tcpdumps(file: &Path, expression: &str) -> Result<Vec<Vec<u8>>, String> {
    let output = Command::new("tcpdump").arg("-r").arg(file).args(["-w", "-", "--", expression]).output().unwrap();
    if output.stdout.is_empty() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let (frames, end, _) = drain(Box::new(Capture::from_reader("tcpdump", Cursor::new(output.stdout))));
    end.expect("tcpdump writes sound captures");
    Ok(frames)
}

fn ours(file: &Path, expression: &str) -> Result<(Vec<Vec<u8>>, u64), FilterError> {
    let capture = Capture::open(file).expect("a capture").filtered(expression)?;
    let info = capture.info();
    let (frames, _, _) = drain(Box::new(capture));
    assert_eq!(info.packets(), frames.len() as u64);
    Ok((frames, info.filtered()))
}

#[test]
fn thirty_expressions_pass_what_tcpdump_passes() {
    let files = tshark::all_captures();
    if !is_installed("tcpdump", "tcpdump") || files.is_empty() {
        return;
    }
    let jobs: Vec<(&PathBuf, &str)> = files.iter().flat_map(|file| EXPRESSIONS.map(|text| (file, text))).collect();
    let (next, passed, out) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let refused = AtomicUsize::new(0);
    let check = |(file, text): (&PathBuf, &str)| match (tcpdumps(file, text), ours(file, text)) {
        (Ok(theirs), Ok((ours, filtered))) => {
            assert!(theirs == ours, "{}: {text}: tcpdump {}, we {}", file.display(), theirs.len(), ours.len());
            passed.fetch_add(ours.len(), Ordering::Relaxed);
            out.fetch_add(filtered as usize, Ordering::Relaxed);
        }
        (Err(said), Err(FilterError::Expression { said: again, .. })) => {
            assert!(said.contains(&again), "{}: {text}: {said}: {again}", file.display());
            refused.fetch_add(1, Ordering::Relaxed);
        }
        (theirs, ours) => panic!("{}: {text}: {:?}, {ours:?}", file.display(), theirs.map(|all| all.len())),
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(*job);
                }
            });
        }
    });
    // Some filter expressions cannot be compiled for some link types.
    let counts = [passed, out, refused].map(AtomicUsize::into_inner);
    assert!(counts[0] > 4_000 && counts[1] > 10_000 && counts[2] > 10, "{counts:?}");
}

/// The sections of the file have different link types and byte orders.
#[test]
fn each_link_type_of_a_file_has_its_own_program() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let v4 = FrameBuilder::udp(([0; 4], 0), ([0; 4], 0)).packet(&[]);
    let v6 = FrameBuilder::udp(([0; 16], 0), ([0; 16], 0)).packet(&[]);
    let in_ethernet = |ethertype: u16, packet: &[u8]| [&[0; 12], &ethertype.to_be_bytes()[..], packet].concat();
    let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
    for big_endian in [false, true] {
        let family = |family: u32, packet: &[u8]| [&words(big_endian, &[family])[..], packet].concat();
        bytes.extend(section(big_endian));
        for link in [1, 101, 0] {
            bytes.extend(interface(big_endian, link, 0));
        }
        for (number, other, packet) in [
            (0, in_ethernet(ethertype::IPV4, &v4), in_ethernet(ethertype::IPV6, &v6)),
            (1, v4.clone(), v6.clone()),
            (2, family(2, &v4), family(24, &v6)),
        ] {
            bytes.extend(enhanced(big_endian, number, &other));
            bytes.extend(enhanced(big_endian, number, &packet));
            wanted.push((packet, [1, 101, 0][number as usize]));
        }
    }
    let path = temporary("two-links.pcapng", &bytes);
    let capture = Capture::open(&path).unwrap().filtered("ip6").unwrap();
    let info = capture.info();
    let passed: Vec<_> = drain_with_links(Box::new(capture)).into_iter().map(|(frame, link)| (frame, link.0)).collect();
    assert_eq!((passed, info.filtered()), (wanted.clone(), 6));
    let piped = Capture::from_reader("pipe", Cursor::new(bytes.clone())).filtered("ip6").unwrap();
    let passed: Vec<_> = drain_with_links(Box::new(piped)).into_iter().map(|(frame, link)| (frame, link.0)).collect();
    assert_eq!(passed, wanted);
    let numbers = "4, 40 0 0 12, 21 0 1 34525, 6 0 0 262144, 6 0 0 0";
    let (frames, end, _) = drain(Box::new(Capture::open(&path).unwrap().filtered(numbers).unwrap()));
    let end = end.unwrap_err().to_string();
    assert!(frames.len() == 1 && end.contains("for frames of link type 1, and here is one of link type 101"), "{end}");
    fs::remove_file(path).unwrap();
}

#[test]
fn a_filter_that_cannot_be_is_an_error_at_once() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let open = |bytes: &[u8], text: &str| {
        let path = temporary("refused.pcap", bytes);
        let error = Capture::open(&path).unwrap().filtered(text).map(|_| ());
        fs::remove_file(path).unwrap();
        error.unwrap_err().to_string()
    };
    let ethernet = pcap(false, 0xa1b2_c3d4, &[]);
    assert!(open(&ethernet, "port").contains("syntax error"));
    let mut usb = ethernet.clone();
    usb[20] = 220;
    let error = open(&usb, "ip");
    assert!(error.contains("link-layer type filtering not implemented"), "{error}");
    // In a pipe, a filter that is invalid only for some link types fails at the first packet with
    // such a link type.
    let piped = |text| Capture::from_reader("pipe", Cursor::new(usb.clone())).filtered(text);
    let error = piped("tcp an udp").unwrap_err();
    assert!(error.is_mistake() && error.to_string().contains("syntax error"), "{error}");
    let (_, end, _) = drain(Box::new(piped("type mgt or ether host 1:2:3:4:5:6 or less 9").unwrap()));
    end.expect("no packets");
    let mut one = pcap(false, 0xa1b2_c3d4, &[vec![0; 64]]);
    one[20] = 220;
    let (_, end, _) = drain(Box::new(Capture::from_reader("pipe", Cursor::new(one)).filtered("ip").unwrap()));
    let end = end.unwrap_err().to_string();
    assert!(end.contains("not compiled for frames of link type 220"), "{end}");
}

/// The filter program is the output of `tcpdump -s 96 -ddd`, and does not change a packet's length
/// on the wire.
#[test]
fn a_program_may_cut_packets() {
    let file = pcap(true, 0xa1b2_c3d4, &[vec![1; 200], vec![2; 20]]);
    let capture = Capture::from_reader("cut", Cursor::new(file)).filtered("1, 6 0 0 96").unwrap();
    let (frames, end, wire_bytes) = drain(Box::new(capture));
    end.unwrap();
    // In the file, the length on the wire is four bytes more than each packet's captured length.
    assert_eq!((frames, wire_bytes), (vec![vec![1; 96], vec![2; 20]], 228));
}

/// In a paced replay, the timestamp of a filtered-out packet does not delay the next packets.
#[test]
fn polls_are_bounded_and_paced() {
    let file = pcap(false, 0xa1b2_c3d4, &vec![Vec::new(); 5_000]);
    let capture = Capture::from_reader("empty", Cursor::new(file)).filtered("1, 6 0 0 0").unwrap();
    let info = capture.info();
    let mut queue = QueueTester::new(Box::new(capture)).unwrap();
    let mut polls = BTreeMap::new();
    loop {
        let before = info.filtered();
        let (polled, frames) = queue.poll(Timestamp::ZERO, 64).unwrap();
        assert!(frames.is_empty());
        *polls.entry(info.filtered() - before).or_insert(0) += 1;
        if polled == Polled::Ended {
            break;
        }
    }
    assert_eq!(info.filtered(), 5_000);
    // A poll filters at most 1,024 packets before it reads more of the file, and at most 1,024
    // packets after it.
    assert!(polls.keys().all(|looked_at| *looked_at <= 2 * 1024), "{polls:?}");

    // The second packet is due immediately, because it is the first one that passes the filter.
    let mut file = words(false, &[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for (second, byte) in [(1, 0), (2, 1), (3, 1)] {
        file.extend(words(false, &[second, 0, 1, 1]));
        file.push(byte);
    }
    let numbers = "4, 48 0 0 0, 21 0 1 1, 6 0 0 1, 6 0 0 0";
    let capture = Capture::from_reader("paced", Cursor::new(file)).filtered(numbers).unwrap().paced(Pace::RECORDED);
    let mut queue = QueueTester::new(Box::new(capture)).unwrap();
    let mut handed_over = 0;
    let until = loop {
        let (polled, frames) = queue.poll(Timestamp::ZERO, 64).unwrap();
        handed_over += frames.len();
        if polled != Polled::More {
            break polled;
        }
    };
    assert_eq!((until, handed_over), (Polled::NotBefore(Timestamp::from_nanos(1_000_000_000)), 1));
}

#[test]
fn damage_is_found_behind_the_filter() {
    let mut bytes = [section(false), interface(false, 1, 0), enhanced(false, 0, &[7; 60])].concat();
    bytes.extend(block(false, 6, &words(false, &[9, 0, 0, 0, 0])));
    let capture = Capture::from_reader("broken", Cursor::new(bytes)).filtered("1, 6 0 0 0").unwrap();
    let info = capture.info();
    let (frames, end, _) = drain(Box::new(capture));
    assert!(end.unwrap_err().to_string().contains("of interface 9") && frames.is_empty() && info.filtered() == 1);
}

#[test]
fn the_longest_program_runs_to_its_end() {
    let numbers = format!("4096, {} 6 0 0 5", "4 0 0 1, ".repeat(4095));
    let filter: Filter = numbers.parse().unwrap();
    assert_eq!(filter.for_frames().unwrap().run(&[], 0), 5);
}
