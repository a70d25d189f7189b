use std::io::Cursor;

use steerage::{Builder, Handler, LinkType, WallTime, packet::Received};
use steerage_capture::Capture;
use steerage_fixtures::tshark;

use crate::common::*;
use steerage_fixtures::queues::drain_headed;

const SECOND: u64 = 1_000_000_000;

fn noted(bytes: Vec<u8>) -> Vec<(u64, u32, usize, u16, u16)> {
    let frames = drain_headed(Box::new(Capture::from_reader("made", Cursor::new(bytes))));
    let noted = frames.into_iter().map(|(header, frame)| {
        let header = header.expect("each frame has a header");
        (header.nanos, header.wire_len, frame.len(), header.link, header.interface)
    });
    noted.collect()
}

/// In tshark's output, a time has as many digits as in the file.
fn nanos(text: &str) -> u64 {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let fraction: u64 = format!("{fraction:0<9}")[..9].parse().unwrap();
    // A packet with a time after 2554 counts as a packet without a time.
    let seconds = seconds.parse::<u64>().unwrap().checked_mul(SECOND);
    seconds.and_then(|seconds| seconds.checked_add(fraction)).unwrap_or(u64::MAX)
}

/// Translates Wireshark's link types (`wiretap/wtap.h`) to tcpdump's.
fn link_of(encapsulation: &str) -> u16 {
    match encapsulation {
        "1" => 1,
        "4" => 9,
        "7" => 101,
        "15" => 0,
        "25" => 113,
        "129" => 228,
        "130" => 229,
        other => panic!("no link type is known for encapsulation {other}"),
    }
}

#[test]
fn real_captures_note_what_tshark_finds() {
    for path in tshark::all_captures() {
        let fields = ["frame.time_epoch", "frame.len", "frame.cap_len", "frame.encap_type", "frame.interface_id"];
        let mut arguments = vec!["-n", "-T", "fields", "-E", "separator=,"];
        fields.iter().for_each(|field| arguments.extend(["-e", field]));
        arguments.push("-r");
        let Some(expected) = tshark::output("tshark", &arguments, &path) else { return };
        let expected: Vec<(u64, u32, usize, u16, u16)> = expected
            .lines()
            .map(|line| {
                let [time, len, cap_len, encapsulation, interface]: [&str; 5] =
                    line.split(',').collect::<Vec<_>>().try_into().unwrap();
                let number = |text: &str| text.parse::<usize>().unwrap();
                // A pcap file has no interfaces.
                let interface = if interface.is_empty() { 0 } else { number(interface) };
                (nanos(time), number(len) as u32, number(cap_len), link_of(encapsulation), interface as u16)
            })
            .collect();
        let capture = Capture::open(&path).unwrap();
        let info = capture.info();
        let file = noted(std::fs::read(&path).unwrap());
        assert_eq!(file, expected, "{}", path.display());
        assert_eq!(drain_headed(Box::new(capture)).len(), expected.len());

        let times = expected.iter().map(|frame| frame.0).filter(|nanos| *nanos < u64::MAX);
        let times = times.clone().min().zip(times.max());
        assert_eq!(info.times(), times.map(|(a, b)| (WallTime::from_nanos(a), WallTime::from_nanos(b))));
        let mut links: Vec<LinkType> = expected.iter().map(|frame| LinkType(frame.3)).collect();
        links.dedup();
        assert_eq!((info.packets(), info.links()), (expected.len() as u64, links));
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(info.bytes_total(), Some(size));
        assert_eq!(info.bytes_read(), size, "{}", path.display());
    }
}

fn clocked(big_endian: bool, resolution: u8, offset: i64) -> Vec<u8> {
    let two = |a: u16, b: u16| match big_endian {
        true => [a.to_be_bytes(), b.to_be_bytes()].concat(),
        false => [a.to_le_bytes(), b.to_le_bytes()].concat(),
    };
    let offset = if big_endian { offset.to_be_bytes() } else { offset.to_le_bytes() };
    let parts = [
        two(101, 0),
        words(big_endian, &[0]),
        two(9, 1),
        vec![resolution, 0, 0, 0],
        two(14, 8),
        offset.to_vec(),
        two(0, 0),
    ];
    block(big_endian, 1, &parts.concat())
}

fn at(big_endian: bool, interface: u32, ticks: u64) -> Vec<u8> {
    let (high, low) = ((ticks >> 32) as u32, ticks as u32);
    block(big_endian, 6, &words(big_endian, &[interface, high, low, 0, 60]))
}

#[test]
fn pcap_times_in_both_resolutions_and_byte_orders() {
    for big_endian in [false, true] {
        for (magic, nanos) in MAGICS.into_iter().zip([SECOND + 2000, SECOND + 2]) {
            assert_eq!(noted(pcap(big_endian, magic, &[vec![7; 9]])), [(nanos, 13, 9, 1, 0)]);
        }
    }
}

/// The seconds of a pcap timestamp are unsigned, and last until 2106. A fraction of more than a
/// second is added to the seconds.
#[test]
fn pcap_times_reach_to_the_end_of_their_field() {
    let mut file = pcap(false, MAGICS[0], &[vec![]]);
    file[24..32].fill(0xff);
    let expected = u64::from(u32::MAX) * SECOND + u64::from(u32::MAX) * 1000;
    assert_eq!(noted(file)[0].0, expected);
}

#[test]
fn each_interface_has_its_own_clock() {
    for big_endian in [false, true] {
        let file = [
            section(big_endian),
            clocked(big_endian, 9, 0),
            clocked(big_endian, 3, -10),
            clocked(big_endian, 0x80 | 10, 1_700_000_000),
            at(big_endian, 0, 5),
            at(big_endian, 1, 12_345),
            at(big_endian, 2, 512),
            at(big_endian, 0, (1 << 40) + 1),
        ];
        let times: Vec<(u64, u16)> = noted(file.concat()).iter().map(|frame| (frame.0, frame.4)).collect();
        let half = SECOND / 2;
        assert_eq!(times, [(5, 0), (2_345_000_000, 1), (1_700_000_000 * SECOND + half, 2), ((1 << 40) + 1, 0)]);
    }
}

#[test]
fn what_follows_the_end_of_the_options_is_no_option() {
    for big_endian in [false, true] {
        // The link type, the snap length, the end of the options, and then a resolution of 1 ns.
        let words_of = |halves: [u16; 8]| match big_endian {
            true => halves.map(u16::to_be_bytes).concat(),
            false => halves.map(u16::to_le_bytes).concat(),
        };
        let mut body = words_of([1, 0, 0, 0, 0, 0, 9, 1]);
        body.extend([9, 0, 0, 0]);
        let file = [section(big_endian), block(big_endian, 1, &body), at(big_endian, 0, 5)];
        assert_eq!(noted(file.concat())[0].0, 5000);
    }
}

#[test]
fn a_time_that_cannot_be_is_no_time() {
    let good = [section(false), clocked(false, 0, -10), at(false, 0, 11)].concat();
    let file = [good, at(false, 0, 9), at(false, 0, u64::MAX), at(false, 0, 12)].concat();
    let capture = Capture::from_reader("times", Cursor::new(file));
    let info = capture.info();
    let times: Vec<u64> = drain_headed(Box::new(capture)).iter().map(|(header, _)| header.unwrap().nanos).collect();
    assert_eq!(times, [SECOND, u64::MAX, u64::MAX, 2 * SECOND]);
    assert_eq!((info.packets(), info.bad_times()), (4, 2));
    assert_eq!(info.times(), Some((WallTime::from_nanos(SECOND), WallTime::from_nanos(2 * SECOND))));
}

/// pcap versions before 2.4 store a packet's two lengths in another order: see libpcap's sf-pcap.c.
#[test]
fn old_versions_have_their_lengths_in_another_order() {
    for (minor, first, second) in [(0, 70, 60), (1, 70, 60), (2, 70, 60), (3, 70, 60), (3, 60, 70), (4, 60, 70)] {
        for big_endian in [false, true] {
            let two = |number: u16| if big_endian { number.to_be_bytes() } else { number.to_le_bytes() };
            let mut file = words(big_endian, &[0xa1b2_c3d4, 0, 0, 0, 65535, 1, 1, 2, first, second]);
            file[4..8].copy_from_slice(&[two(2), two(minor)].concat());
            file.extend([9; 60]);
            assert_eq!(noted(file), [(SECOND + 2_000, 70, 60, 1, 0)], "2.{minor}");
        }
    }
    for version in [[1, 0, 4, 0], [2, 0, 5, 0], [3, 0, 0, 0]] {
        let mut file = pcap(false, MAGICS[0], &[]);
        file[4..8].copy_from_slice(&version);
        let error = read_bytes(&file).1.unwrap_err().to_string();
        assert!(error.contains("only 2.0 to 2.4 are known"), "{error}");
    }
}

#[test]
fn simple_packets_have_no_time_and_keep_their_length() {
    let file = [section(false), interface(false, 1, 96), simple(false, 1500, &[1; 96]), simple(false, 3, &[2; 3])];
    assert_eq!(noted(file.concat()), [(u64::MAX, 1500, 96, 1, 0), (u64::MAX, 3, 3, 1, 0)]);
}

/// When a file is read, packets may be longer than the snap length in its header.
#[test]
fn snap_lengths_of_nothing_and_too_much_change_nothing() {
    for snap_bytes in [0, 1, u32::MAX] {
        let mut file = pcap(false, MAGICS[0], &packets_of([60]));
        file[16..20].copy_from_slice(&u32::to_le_bytes(snap_bytes));
        assert_eq!(noted(file)[0].2, 60);
        let file = [section(false), interface(false, 1, snap_bytes), enhanced(false, 0, &[9; 60])];
        assert_eq!(noted(file.concat())[0].2, 60);
    }
}

#[derive(Default)]
struct Asks(Vec<(Option<WallTime>, usize, LinkType, usize)>);

impl Handler for Asks {
    type Moved = ();
    type Report = Self;

    fn handle(&mut self, batch: &mut steerage::Batch<'_>, _: &mut steerage::Cpu) {
        for mut packet in batch.iter_mut() {
            let asked = (packet.time(), packet.wire_len(), packet.link(), packet.data().len());
            assert_eq!(at_once(&packet), (asked.0, asked.1, asked.2, packet.data()));
            packet.data_mut().expect("a page for a copy").fill(0xff);
            assert_eq!((packet.time(), packet.wire_len(), packet.link(), packet.data().len()), asked);
            assert_eq!(at_once(&packet), (asked.0, asked.1, asked.2, &vec![0xff; asked.3][..]));
            let known = (packet.time(), packet.wire_len(), packet.link(), packet.interface());
            let kept = packet.keep().expect("room to keep it");
            assert_eq!((kept.time(), kept.wire_len(), kept.link(), kept.interface()), known);
            self.0.push(asked);
        }
    }

    fn finish(self, _: &mut steerage::Cpu) -> Self {
        self
    }
}

fn at_once<'a>(packet: &'a steerage::Packet<'_>) -> (Option<WallTime>, usize, LinkType, &'a [u8]) {
    let Received { data, link, time, wire_len, .. } = packet.received();
    (time, wire_len, link, data)
}

#[test]
fn handlers_can_ask() {
    let mut file = [section(false), clocked(false, 9, 0), interface(false, 1, 0)].concat();
    file.extend(at(false, 0, 77));
    file.extend(enhanced(false, 1, &[1; 60]));
    let input = Capture::from_reader("made", Cursor::new(file)).into_input();
    let running = Builder::new().virtual_cpus(1).input(input).build(|_| Asks::default()).unwrap().start().unwrap();
    let outcome = running.join();
    let asked = outcome.reports.into_iter().next().unwrap().1.0;
    let time = |nanos| Some(WallTime::from_nanos(nanos));
    // The ticks of this clock are microseconds.
    let micros = ((1u64 << 32) + 2) * 1000;
    assert_eq!(asked, [(time(77), 60, LinkType(101), 0), (time(micros), 64, LinkType::ETHERNET, 60)]);
}
