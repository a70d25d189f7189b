//! Compares the TCP health in records with tshark's analysis of the same captures.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use fastrand::Rng;
use steerage::flow::wire::FrameBuilder;
use steerage::flow::wire::tcp::{ACK, FIN, RST, SYN};
use steerage_fixtures::capture::pcap;
use steerage_fixtures::tshark;
use steerage_meter::ClosedBy;

use crate::meter_captures::{endless, meter};

/// The start of all recordings: 2023-11-14 22:13:20 UTC.
const START: u64 = 1_700_000_000;

/// Retransmissions, out-of-order segments, zero windows and resets, by sender and receiver.
type Counts = BTreeMap<(String, String), [u64; 4]>;
type Handshakes = BTreeMap<(String, String), u64>;

struct Connection {
    client: u16,
    now: u64,
    frames: Vec<(u64, Vec<u8>)>,
    next: [u32; 2],
}

impl Connection {
    fn begin(client: u16, now: u64, random: &mut Rng) -> Self {
        // Some sequence numbers soon wrap around.
        let next = [random.u32(..), if random.u64(..3) == 0 { u32::MAX - 2000 } else { 77 }];
        Self { client, now, frames: Vec::new(), next }
    }

    fn wait(&mut self, micros: u64) {
        self.now += micros;
    }

    fn segment(&mut self, side: usize, sequence: u32, flags: u16, bytes: usize, window: u16) {
        let ends = [([10, 0, 0, 1], self.client), ([10, 0, 0, 2], 80)];
        let (from, to) = (ends[side], ends[1 - side]);
        let acknowledged = if flags & ACK != 0 { self.next[1 - side] } else { 0 };
        let tcp =
            FrameBuilder::tcp(from, to).sequence(sequence).acknowledgement(acknowledged).flags(flags).window(window);
        self.frames.push((self.now, tcp.frame(&vec![0; bytes])));
    }

    fn open(&mut self, random: &mut Rng) {
        self.segment(0, self.next[0], SYN, 0, 1000);
        if random.u64(..4) == 0 {
            // The first SYN is not answered.
            self.wait(1_000_000);
            self.segment(0, self.next[0], SYN, 0, 1000);
        }
        self.next[0] = self.next[0].wrapping_add(1);
        self.wait(100 + random.u64(..40_000));
        self.segment(1, self.next[1], SYN | ACK, 0, 1000);
        self.next[1] = self.next[1].wrapping_add(1);
        self.wait(100 + random.u64(..40_000));
        self.segment(0, self.next[0], ACK, 0, 1000);
    }

    fn data(&mut self, side: usize, random: &mut Rng) {
        let (first, bytes) = (self.next[side], 100 + random.usize(..900));
        let second = first.wrapping_add(bytes as u32);
        let send = |this: &mut Self, sequence: u32, bytes: usize| this.segment(side, sequence, ACK, bytes, 1000);
        self.wait(50_000 + random.u64(..100_000));
        match random.u64(..6) {
            // The segment is sent twice, because the acknowledgement was lost.
            0 => {
                send(self, first, bytes);
                self.wait(300_000 + random.u64(..300_000));
                send(self, first, bytes);
                self.next[side] = second;
            }
            // The second segment overtakes the first by less than the shortest round-trip time.
            1 => {
                send(self, second, 200);
                self.wait(20 + random.u64(..60));
                send(self, first, bytes);
                self.next[side] = second.wrapping_add(200);
            }
            // A segment is lost before the capture, and the receiver requests its retransmission.
            2 => {
                send(self, second, 200);
                self.wait(10);
                for _ in 0..4 {
                    self.segment(1 - side, self.next[1 - side], ACK, 0, 1000);
                    self.wait(10);
                }
                send(self, first, bytes);
                self.next[side] = second.wrapping_add(200);
            }
            3 => {
                send(self, first, bytes);
                self.next[side] = second;
                self.wait(30);
                self.segment(1 - side, self.next[1 - side], ACK, 0, 0);
                self.wait(200_000);
                self.segment(1 - side, self.next[1 - side], ACK, 0, 2000);
            }
            // A keep-alive, which is acknowledged, has a sequence number one below the sender's
            // next number.
            4 => {
                send(self, first, bytes);
                self.next[side] = second;
                self.wait(20_000);
                self.segment(1 - side, self.next[1 - side], ACK, 0, 1001);
                self.wait(5_000_000);
                self.segment(side, self.next[side].wrapping_sub(1), ACK, random.usize(..2), 1000);
            }
            _ => {
                send(self, first, bytes);
                send(self, second, 300);
                self.next[side] = second.wrapping_add(300);
            }
        }
        self.wait(20_000);
        self.segment(1 - side, self.next[1 - side], ACK, 0, 1000 + random.u16(..100));
    }

    fn close(&mut self, random: &mut Rng) -> Option<ClosedBy> {
        let side = random.usize(..2);
        self.wait(60_000);
        match random.u64(..3) {
            0 => self.segment(side, self.next[side], RST | ACK, 0, 0),
            1 => {
                for side in [side, 1 - side] {
                    self.segment(side, self.next[side], FIN | ACK, 0, 1000);
                    self.next[side] = self.next[side].wrapping_add(1);
                    self.wait(1000);
                }
                self.segment(side, self.next[side], ACK, 0, 1000);
            }
            _ => return None,
        }
        Some([ClosedBy::Source, ClosedBy::Destination][side])
    }
}

fn of_records(capture: &Path) -> (Counts, Handshakes, BTreeMap<String, Option<ClosedBy>>) {
    let (mut counts, mut handshakes, mut closed) = (Counts::new(), Handshakes::new(), BTreeMap::new());
    for record in meter(capture, endless(), 2).1 {
        let Some(health) = record.tcp_health() else { continue };
        let end = |end: Option<SocketAddr>| end.map(|end| format!("{} {}", end.ip(), end.port())).unwrap();
        let (source, destination) = (end(record.key().source()), end(record.key().destination()));
        let ways = [(source.clone(), destination.clone()), (destination.clone(), source.clone())];
        for (way, sent) in ways.into_iter().zip([health.forth, health.back]) {
            let sums = counts.entry(way).or_default();
            let more: [u64; 4] =
                [sent.retransmitted.into(), sent.out_of_order.into(), sent.zero_windows.into(), sent.resets.into()];
            (0..4).for_each(|nth| sums[nth] += more[nth]);
        }
        if let Some(micros) = health.handshake_us {
            handshakes.insert((source.clone(), destination), micros.into());
        }
        closed.insert(source, health.closed_by);
    }
    (counts, handshakes, closed)
}

fn of_tshark(capture: &Path) -> Option<(Counts, Handshakes)> {
    let fields = [
        "ip.src",
        "ipv6.src",
        "tcp.srcport",
        "ip.dst",
        "ipv6.dst",
        "tcp.dstport",
        "tcp.analysis.retransmission",
        "tcp.analysis.out_of_order",
        "tcp.analysis.zero_window",
        "tcp.flags.reset",
        "tcp.analysis.initial_rtt",
        "tcp.flags.syn",
        "tcp.flags.ack",
    ];
    let rows = tshark::tshark(capture, &fields)?;
    let (mut counts, mut handshakes, mut clients) = (Counts::new(), Handshakes::new(), BTreeMap::new());
    for row in rows.iter().filter(|row| !row[2].is_empty()) {
        let source = format!("{}{} {}", row[0], row[1], row[2]);
        let destination = format!("{}{} {}", row[3], row[4], row[5]);
        let is_set = |nth: usize| matches!(row[nth].as_str(), "1" | "True");
        let found = [!row[6].is_empty(), !row[7].is_empty(), !row[8].is_empty(), is_set(9)];
        counts.entry((destination.clone(), source.clone())).or_default();
        let sums = counts.entry((source.clone(), destination.clone())).or_default();
        (0..4).for_each(|nth| sums[nth] += u64::from(found[nth]));
        if is_set(11) && !is_set(12) {
            clients.insert((source.clone(), destination.clone()), ());
        }
        if let Ok(seconds) = row[10].parse::<f64>() {
            let ends = [(source.clone(), destination.clone()), (destination, source)];
            let client = ends.into_iter().find(|ends| clients.contains_key(ends)).unwrap();
            handshakes.insert(client, (seconds * 1e6 + 1e-3) as u64);
        }
    }
    Some((counts, handshakes))
}

#[test]
fn made_connections() {
    let mut random = Rng::with_seed(2026);
    let (mut frames, mut closed) = (Vec::new(), BTreeMap::new());
    for nth in 0..400 {
        let mut connection = Connection::begin(20_000 + nth, START * 1_000_000 + random.u64(..5_000_000), &mut random);
        // Some recordings begin after the handshake.
        if random.u64(..8) != 0 {
            connection.open(&mut random);
        }
        for _ in 0..random.u64(..12) {
            let side = random.usize(..2);
            connection.data(side, &mut random);
        }
        let by = connection.close(&mut random);
        // The source is the endpoint that sent first.
        if connection.frames.first().is_some_and(|(_, first)| first[29] == 1) {
            closed.insert(format!("10.0.0.1 {}", connection.client), by);
        }
        frames.extend(connection.frames);
    }
    frames.sort_by_key(|(time, _)| *time);
    let file = pcap(frames.iter().map(|(time, frame)| ((time / 1_000_000) as u32, (time % 1_000_000) as u32, frame)));
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tcp-health.pcap");
    fs::write(&capture, file).unwrap();
    let Some((counts, handshakes)) = of_tshark(&capture) else { return };
    let (found, found_handshakes, found_closed) = of_records(&capture);
    // Each kind of event is frequent enough for the comparison to be meaningful.
    let total = |nth: usize| counts.values().map(|counts| counts[nth]).sum::<u64>();
    assert!((0..4).all(|nth| total(nth) > 50), "{:?}", [0, 1, 2, 3].map(total));
    assert!(handshakes.len() > 200, "{}", handshakes.len());
    let wrong: Vec<_> = counts.iter().filter(|(key, counts)| found.get(key) != Some(counts)).collect();
    assert!(wrong.is_empty(), "{} of {}: {:?}, not {:?}", wrong.len(), counts.len(), wrong[0], found.get(wrong[0].0));
    assert_eq!(found_handshakes, handshakes);
    for (source, by) in closed {
        assert_eq!(found_closed.get(&source), Some(&by), "{source}");
    }
}

#[test]
fn recorded_connections() {
    for name in ["dns_tcp.pcap", "tcp-handshake-nano.pcap", "mptcp-v1.pcap"] {
        let Some(capture) = tshark::capture(name) else { return };
        let Some((counts, handshakes)) = of_tshark(&capture) else { return };
        let (found, found_handshakes, _) = of_records(&capture);
        assert_eq!((found, found_handshakes), (counts, handshakes), "{name}");
    }
}

/// Creates a connection that breaks the rules: repeated and late data, SYNs with old and new
/// sequence numbers, FINs with data, keep-alives, probes and resets.
fn lawless(client: u16, random: &mut Rng) -> Connection {
    let mut connection = Connection::begin(client, START * 1_000_000 + random.u64(..5_000_000), random);
    if random.u64(..4) != 0 {
        connection.open(random);
    }
    let mut acknowledged = [0; 2];
    for _ in 0..random.u64(5..60) {
        let side = random.usize(..2);
        if random.u64(..8) == 0 {
            // Wireshark forgets duplicate acknowledgements after 20 ms, and steerage does not.
            for side in [0, 1, 0] {
                connection.wait(1);
                connection.segment(side, connection.next[side], ACK, 1, 1000);
                connection.next[side] = connection.next[side].wrapping_add(1);
                acknowledged[side] = connection.next[1 - side];
            }
            connection.wait(random.u64(50_000..600_000));
        }
        connection.wait(random.u64(1..1500));
        let bytes = *random.choice(&[0, 0, 1, 10, 10, 20]).unwrap();
        let window = *random.choice(&[0, 1000, 1000, 1000, 2000]).unwrap();
        let back = *random.choice(&[0, 0, 0, 0, 1, 10, 20, 30]).unwrap();
        let flags = match random.u64(..40) {
            0 => SYN,
            1 => SYN | ACK,
            2 | 3 => FIN | ACK,
            4 => RST | ACK,
            _ => ACK,
        };
        let mut sequence = connection.next[side].wrapping_sub(back);
        if flags == SYN && random.bool() {
            sequence = random.u32(1..);
            connection.next[side] = sequence;
        }
        let kept = connection.next[1 - side];
        if random.u64(..3) == 0 && acknowledged[side] != 0 {
            connection.next[1 - side] = acknowledged[side];
        }
        connection.segment(side, sequence, flags, bytes, window);
        acknowledged[side] = if flags & ACK != 0 { connection.next[1 - side] } else { 0 };
        connection.next[1 - side] = kept;
        let end = sequence.wrapping_add(bytes as u32 + u32::from(flags & (SYN | FIN) != 0));
        if (end.wrapping_sub(connection.next[side]) as i32) > 0 {
            connection.next[side] = end;
        }
    }
    connection
}

/// tshark also takes the handshake time from acknowledgements outside of the handshake.
#[test]
fn lawless_connections() {
    let mut random = Rng::with_seed(54);
    let mut frames: Vec<_> = (0..600).flat_map(|nth| lawless(20_000 + nth, &mut random).frames).collect();
    frames.sort_by_key(|(time, _)| *time);
    let file = pcap(frames.iter().map(|(time, frame)| ((time / 1_000_000) as u32, (time % 1_000_000) as u32, frame)));
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tcp-lawless.pcap");
    fs::write(&capture, file).unwrap();
    let Some((counts, _)) = of_tshark(&capture) else { return };
    let (found, ..) = of_records(&capture);
    let total = |nth: usize| counts.values().map(|counts| counts[nth]).sum::<u64>();
    assert!((0..4).all(|nth| total(nth) > 200), "{:?}", [0, 1, 2, 3].map(total));
    let wrong: Vec<_> = counts.iter().filter(|(key, counts)| found.get(key) != Some(counts)).collect();
    // After a repeated SYN, Wireshark and the meter derive the handshake time from different
    // acknowledgements.
    assert!(wrong.len() * 100 < counts.len(), "{} of {}: {wrong:?}", wrong.len(), counts.len());
}

/// Sequence numbers that begin at 0 are frequent in captures that were made by hand.
#[test]
fn initial_numbers_of_zero() {
    let mut random = Rng::with_seed(7);
    let mut frames = Vec::new();
    for (client, closes) in [(20_000, true), (20_001, false)] {
        let mut connection = Connection::begin(client, START * 1_000_000, &mut random);
        for initial in [0, u32::MAX - 100_000, 0] {
            connection.next = [initial; 2];
            connection.open(&mut random);
            for side in [0, 1, 0] {
                connection.wait(50_000);
                connection.segment(side, connection.next[side], ACK, 100, 1000);
                connection.next[side] = connection.next[side].wrapping_add(100);
            }
            if closes {
                connection.segment(1, connection.next[1], RST | ACK, 0, 0);
            }
            connection.wait(100_000);
        }
        frames.extend(connection.frames);
    }
    let file = pcap(frames.iter().map(|(time, frame)| ((time / 1_000_000) as u32, (time % 1_000_000) as u32, frame)));
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tcp-zero.pcap");
    fs::write(&capture, file).unwrap();
    let records = meter(&capture, endless(), 2).1;
    let handshakes = records.iter().filter_map(|record| record.tcp_health()?.handshake_us);
    assert_eq!((records.len(), handshakes.count()), (6, 6));
    let Some((counts, _)) = of_tshark(&capture) else { return };
    assert_eq!(of_records(&capture).0, counts);
}
