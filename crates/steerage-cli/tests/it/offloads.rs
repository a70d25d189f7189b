//! Tests `steerage forward` with super-frames (one frame for several packets of the cable). tcpdump
//! checks the packets on the cables on both sides of the router.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steerage::{Batch, Builder, Cpu, Handler, Running, TxId};
use steerage_device::af_packet::{AfPacketOptions, AfPacketOutput, Direction};
use steerage_device::tap::{Layer, TapOptions};
use steerage_fixtures::handlers::end;
use steerage_fixtures::namespaces::{
    DATAGRAM_BYTES, DATAGRAMS, MESSAGE_BYTES, Namespaces, address, any, cutting_socket, datagrams_in_one_piece, ping,
    tcp_transfer, tcp_transfer_in_steps,
};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{is_installed, until};

use crate::forward::{FAR4, FAR6, ONE, OTHER, ROUTER, linked, linked_by};
use crate::program::{Ends, Started, command};

const FAR: [&str; 2] = [FAR4, FAR6];

const BYTES: usize = 2_000_000;

/// The payload of the last packet of a test.
const LAST: &[u8] = b"This is the last datagram.";

/// Creates the cables of [`linked_by`] with offloads that let tcpdump check each packet.
fn checkable(vlan: Option<u16>) -> Option<Namespaces> {
    let namespaces = linked_by(vlan)?;
    // The packets on the veth pairs are not merged, and have valid checksums. The router's kernel
    // merges received packets (GRO).
    for (nth, cable, features) in [
        (ONE, "one0", "tx off tso off gso off"),
        (OTHER, "other0", "tx off tso off gso off"),
        (ROUTER, "r0", "gro on rx-udp-gro-forwarding on tx off tso off gso off"),
        (ROUTER, "r1", "gro on rx-udp-gro-forwarding on tx off tso off gso off"),
    ] {
        namespaces.features(nth, cable, features);
    }
    Some(namespaces)
}

struct Dump(Ends, PathBuf);

impl Dump {
    fn start(namespaces: &Namespaces, nth: usize, cable: &str, directory: &Path) -> Self {
        let file = directory.join(format!("{cable}.pcap"));
        // `-B` is the size of tcpdump's buffer in KiB, and makes room for all packets of a test.
        let args = ["-Z", "root", "-U", "-B", "65536", "-i", cable, "-w"];
        let mut child = Ends(
            namespaces
                .within(nth, || Command::new("tcpdump").args(args).arg(&file).stderr(Stdio::piped()).spawn().unwrap()),
        );
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("listening on"), "{said}");
        Self(child, file)
    }

    /// Waits for the last datagram, and returns tcpdump's description of each packet.
    fn packets(mut self) -> Vec<String> {
        until("tcpdump has written the last datagram", || {
            std::fs::read(&self.1).unwrap().windows(LAST.len()).any(|bytes| bytes == LAST)
        });
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT).unwrap();
        assert!(self.0.wait().unwrap().success());
        let read = Command::new("tcpdump").args(["-n", "-e", "-vv", "-r"]).arg(&self.1).output().unwrap();
        let text = String::from_utf8(read.stdout).unwrap();
        // If tcpdump prints several lines for a packet, all lines except the first begin with a
        // space or a tab.
        text.replace("\n ", " ").replace("\n\t", " ").lines().map(String::from).collect()
    }
}

fn udp(packets: &[String]) -> Vec<&String> {
    packets.iter().filter(|packet| packet.contains("UDP")).collect()
}

fn count(packets: &[String], is_one: impl Fn(&str) -> bool) -> usize {
    packets.iter().filter(|packet| is_one(packet)).count()
}

#[test]
fn merged_packets_are_correct_on_both_cables() {
    merged_packets_are_correct(None);
}

#[test]
fn merged_packets_of_a_vlan_are_correct_on_both_cables() {
    merged_packets_are_correct(Some(VLAN));
}

/// Returns whether this number of datagrams of the full length can be from so many messages. The last
/// message arrived whole, and earlier messages not.
fn are_of(messages: usize, datagrams: usize) -> bool {
    const EACH: usize = MESSAGE_BYTES / DATAGRAM_BYTES;
    (EACH..=messages * EACH).contains(&datagrams)
}

fn merged_packets_are_correct(vlan: Option<u16>) {
    if !is_installed("tcpdump", "tcpdump") || !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = checkable(vlan) else { return };
    let directory = Scratch::new();
    let names = ["r0", "r1"].map(|cable| vlan.map_or(cable.to_owned(), |id| format!("{cable}.{id}")));
    let args = ["forward", &names[0], &names[1], "--virtual-cpus", "2", "--check-order", "--json", "-v"];
    let started = Started::of(namespaces.within(ROUTER, || command(&args).spawn().unwrap()));
    FAR.iter().for_each(|to| namespaces.within(ONE, || ping(address(to), 56)));
    let dumps = [(ONE, "one0"), (OTHER, "other0")].map(|(nth, cable)| Dump::start(&namespaces, nth, cable, &directory));
    let messages = FAR.map(|to| {
        tcp_transfer(&namespaces, ONE, OTHER, address(to), BYTES);
        datagrams_in_one_piece(&namespaces, ONE, OTHER, address(to))
    });
    namespaces.within(ONE, || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(LAST, (FAR[0], 9)).unwrap());
    let [before, behind] = dumps.map(Dump::packets);
    let report = started.stop_at_rest();
    for packets in [&before, &behind] {
        let wrong: Vec<_> = packets
            .iter()
            .filter(|packet| {
                packet.contains("incorrect") || packet.contains("bad udp cksum") || packet.contains("bad cksum")
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        for (kind, messages) in ["proto UDP", "next-header UDP"].into_iter().zip(messages) {
            let is_one =
                |packet: &str| [kind, "[udp sum ok] UDP, length 1000"].iter().all(|part| packet.contains(part));
            assert!(are_of(messages, count(packets, is_one)), "{messages} messages: {:#?}", udp(packets));
        }
        assert!(count(packets, |packet| packet.contains("(correct), seq")) > 2 * BYTES / 1460);
        // No packet is longer than the MTU of the cable.
        let lengths =
            packets.iter().filter_map(|packet| packet.split_once(", length ")?.1.split_once(':')?.0.parse().ok());
        assert_eq!(lengths.max(), Some(vlan.map_or(1514_usize, |_| 1514 + TAG.len())));
        let tagged = |packet: &&String| packet.contains(&format!("vlan {VLAN},"));
        assert_eq!(packets.iter().filter(tagged).count(), vlan.map_or(0, |_| packets.len()));
    }
    // If frames have more than 1514 bytes on average, some frames are super-frames.
    let sent = &report["snapshot"]["outputs"][1];
    let (packets, bytes) = (sent["packets"].as_u64().unwrap(), sent["bytes"].as_u64().unwrap());
    assert!(packets > 0 && bytes / packets > 1514, "{sent}");
    assert_eq!(report["snapshot"]["reordered"], 0, "{report}");
}

/// The offload features with which a kernel creates super-frames.
const FEATURES: [&str; 6] = [
    "tso off",
    "gso off gro off",
    "tx off",
    "tx on tso on gso on",
    "tx off tso off gso off",
    "tx on tso on gso on gro on",
];

#[test]
fn a_transfer_survives_changing_features() {
    const SWITCHES: usize = 5 * FEATURES.len();
    const MORE_BYTES: usize = 10 * BYTES;
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = linked() else { return };
    let args = ["forward", "r0", "r1", "--virtual-cpus", "2", "--check-order", "--json", "-v"];
    let started = Started::of(namespaces.within(ROUTER, || command(&args).spawn().unwrap()));
    FAR.iter().for_each(|to| namespaces.within(ONE, || ping(address(to), 56)));
    let change = |part: usize| {
        for (nth, cable) in [(ONE, "one0"), (ROUTER, "r0"), (ROUTER, "r1"), (OTHER, "other0")] {
            namespaces.features(nth, cable, FEATURES[part % FEATURES.len()]);
        }
    };
    for to in FAR {
        tcp_transfer_in_steps(&namespaces, (ONE, OTHER), address(to), (MORE_BYTES, SWITCHES), change);
    }
    let report = started.stop_at_rest();
    assert_eq!(namespaces.checksum_errors(), 0);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let dropped: u64 = report["snapshot"]["dropped"].as_object().unwrap().values().map(number).sum();
    assert_eq!(number(&report["snapshot"]["received"]), number(&report["snapshot"]["delivered"]) + dropped, "{report}");
    let (frames, bytes) =
        (number(&report["snapshot"]["outputs"][1]["packets"]), number(&report["snapshot"]["outputs"][1]["bytes"]));
    assert!(bytes as usize > FAR.len() * MORE_BYTES && bytes / frames > 1514, "{report}");
}

/// The hosts send each segment in its own frame, and no kernel merges frames. Packet sockets send
/// merged packets in one piece, and AF_XDP sends single frames.
#[test]
fn segments_are_merged_before_they_are_routed() {
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    for (left, right, more) in [("r0", "r1", &[][..]), ("af_xdp:r0", "af_xdp:r1", &["--take", "all"])] {
        let Some(namespaces) = linked() else { return };
        for (nth, cable) in [(ONE, "one0"), (OTHER, "other0"), (ROUTER, "r0"), (ROUTER, "r1")] {
            namespaces.features(nth, cable, "tx off tso off gso off gro off");
        }
        let handled = [&[][..], &["--gro"]].map(|gro| {
            let fixed = ["forward", left, right, "--virtual-cpus", "2", "--check-order", "--json", "-v"];
            let args = [&fixed, more, gro].concat();
            let started = Started::of(namespaces.within(ROUTER, || command(&args).spawn().unwrap()));
            FAR.iter().for_each(|to| namespaces.within(ONE, || ping(address(to), 56)));
            for to in FAR {
                tcp_transfer(&namespaces, ONE, OTHER, address(to), BYTES);
            }
            let report = started.stop_at_rest();
            let number = |value: &serde_json::Value| value.as_u64().unwrap();
            let sent: u64 =
                report["snapshot"]["outputs"].as_array().unwrap().iter().map(|out| number(&out["packets"])).sum();
            let transmitted = number(&report["snapshot"]["verdicts"]["transmitted"]);
            assert_eq!(sent, transmitted, "{report}");
            assert!(sent as usize > FAR.len() * BYTES / 1448, "{report}");
            assert_eq!(report["snapshot"]["reordered"], 0, "{report}");
            // If a slow host answers ARP late, the router also sends ICMP errors.
            let app = &report["app"]["forward"];
            (number(&app["forwarded"]) + number(&app["icmp_sent"]), transmitted)
        });
        let [plain, merged] = handled;
        assert_eq!(plain.0, plain.1, "{left}");
        assert!(merged.0 < merged.1, "{left}: {merged:?}");
        assert_eq!(namespaces.checksum_errors(), 0, "{left}");
    }
}

/// The sender's kernel sends each message as one super-frame of 21 datagrams.
#[test]
fn count_and_meter_state_frames_and_packets_of_the_wire() {
    const MESSAGES: u64 = 3;
    let Some(namespaces) = Namespaces::new(1) else { return };
    let scratch = Scratch::new();
    let flows = scratch.join("flows.jsonl").to_str().unwrap().to_owned();
    let datagrams = DATAGRAMS as u64;
    for program in [&["count"][..], &["meter", "--flows", &flows]] {
        let args = [program, &["tun:left,offload=on", "--virtual-cpus", "2", "--check-order", "--json", "-v"]].concat();
        let started = Started::of(namespaces.within(0, || command(&args).spawn().unwrap()));
        namespaces.address(0, 1, "left");
        for to in ["10.210.0.9", "fd00:210::9"] {
            let socket = namespaces.within(0, || cutting_socket(any(address(to)), DATAGRAM_BYTES));
            for _ in 0..MESSAGES {
                socket.send_to(&[0x5a; MESSAGE_BYTES], (to, 9)).unwrap();
            }
        }
        let report = started.stop_at_rest();
        let queue = &report["snapshot"]["queues"][0];
        let counted = |name: &str| queue["device_counts"][name].as_u64().unwrap();
        assert_eq!(counted("super_frames"), 2 * MESSAGES, "{report}");
        let received = queue["received"].as_u64().unwrap();
        assert_eq!(counted("wire_packets") - received, 2 * MESSAGES * (datagrams - 1), "{report}");
    }
    let text = std::fs::read_to_string(&flows).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let to_us: Vec<_> = rows.filter(|row| row["destination_port"] == 9).collect();
    let told: Vec<_> = to_us.iter().map(|row| (row["packets"].as_u64(), row["bytes"].as_u64())).collect();
    // The headers of IPv4, IPv6 and UDP have 20, 40 and 8 bytes.
    let bytes = |header: u64| MESSAGES * (MESSAGE_BYTES as u64 + datagrams * (header + 8));
    let expected = [20, 40].map(|header| (Some(MESSAGES * datagrams), Some(bytes(header))));
    assert!(told == expected || told == [expected[1], expected[0]], "{to_us:#?}");
}

/// If both TUNs use super-frames, packets stay on the CPU of their arrival unless the user requests
/// steering. If one of the two TUNs has no super-frames, the router steers packets by default.
#[test]
fn super_frames_between_tuns_stay_where_they_arrive() {
    const MESSAGES: u64 = 3;
    let Some(namespaces) = Namespaces::new(1) else { return };
    for (left, right, more, masks) in [
        ("tun:left,offload=on", "tun:right,offload=on", &[][..], ["0", "1"]),
        ("tun:left,offload=on", "tun:right,offload=on", &["--rps-cpus", "3"], ["0-1", "0-1"]),
        ("tun:left,offload=on", "tun:right", &[], ["0-1", "0-1"]),
    ] {
        let fixed = ["forward", left, right, "--route", "10.66.0.0/24 dev right"];
        let args = [&fixed, more, &["--virtual-cpus", "2", "--check-order", "--json", "-v"]].concat();
        let started = Started::of(namespaces.within(0, || command(&args).spawn().unwrap()));
        namespaces.address(0, 1, "left");
        namespaces.must(0, "link set right up");
        namespaces.must(0, "route add 10.66.0.0/24 dev left");
        let socket = namespaces.within(0, || cutting_socket(any(address("10.66.0.9")), DATAGRAM_BYTES));
        for _ in 0..MESSAGES {
            socket.send_to(&[0x5a; MESSAGE_BYTES], ("10.66.0.9", 9)).unwrap();
        }
        let report = started.stop_at_rest();
        let told = report["snapshot"]["queues"].as_array().unwrap().iter().map(|queue| &queue["rps_cpus_list"]);
        assert_eq!(told.collect::<Vec<_>>(), masks, "{report}");
        let sent = report["snapshot"]["outputs"][1]["packets"].as_u64().unwrap();
        assert!(sent >= MESSAGES, "{report}");
    }
}

/// The bytes before the VLAN tag in an Ethernet header.
const ADDRESSES: usize = 12;
const VLAN: u16 = 42;
const TAG: [u8; 4] = [0x81, 0, 0, VLAN as u8];

/// Forwards frames between a TAP, without VLAN tags, and a veth, with VLAN tags.
struct Tagger;

impl Handler for Tagger {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let is_from_tap = batch.queue() == 0;
        for mut packet in batch.iter_mut() {
            if is_from_tap {
                packet.prepend(TAG.len()).unwrap();
                let frame = packet.data_mut().unwrap();
                frame.copy_within(TAG.len()..TAG.len() + ADDRESSES, 0);
                frame[ADDRESSES..ADDRESSES + TAG.len()].copy_from_slice(&TAG);
                packet.transmit(TxId(1));
            } else if packet.data()[ADDRESSES..].starts_with(&TAG) {
                packet.data_mut().unwrap().copy_within(..ADDRESSES, TAG.len());
                packet.trim_front(TAG.len()).unwrap();
                packet.transmit(TxId(0));
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn tagging(namespaces: &Namespaces, nth: usize, host: usize, cable: &str) -> Running<()> {
    let running = namespaces.within(nth, || {
        let tap = TapOptions::new(Layer::Tap, "host").offloads(true).open().unwrap();
        let listens = AfPacketOptions::new(cable).direction(Direction::In).offloads(true);
        let listens = listens.block_timeout(Duration::from_millis(1)).open().unwrap();
        let sends = AfPacketOutput::new(cable).offloads(true).open().unwrap();
        let builder = Builder::new().virtual_cpus(2).input(tap.input().unwrap()).input(listens.input);
        builder.output(tap.output()).output(sends).build(|_| Tagger).unwrap().start().unwrap()
    });
    namespaces.address(nth, host, "host");
    running
}

/// `fanout` forwards frames between two veth pairs on which all frames have a VLAN tag.
#[test]
fn tagged_super_frames_pass_whole() {
    if !is_installed("tcpdump", "tcpdump") || !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = Namespaces::new(3) else { return };
    namespaces.veth((ONE, "one0"), (ROUTER, "r0"));
    namespaces.veth((OTHER, "other0"), (ROUTER, "r1"));
    // The kernel of the namespace `ROUTER` segments super-frames, so that tcpdump can check each
    // packet.
    namespaces.features(ROUTER, "r1", "tx off tso off gso off");
    let fanouts = [("r0", "r1"), ("r1", "r0")].map(|(from, to)| {
        let from = format!("af_packet:{from},direction=in,offload=on,timeout=1");
        let to = format!("af_packet:{to},offload=on");
        let args = ["fanout", &from, "--to", &to, "--virtual-cpus", "2", "--check-order", "--json", "-v"];
        Started::of(namespaces.within(ROUTER, || command(&args).spawn().unwrap()))
    });
    let ends = [tagging(&namespaces, ONE, 1, "one0"), tagging(&namespaces, OTHER, 2, "other0")];
    let far = ["10.210.0.2", "fd00:210::2"];
    far.iter().for_each(|to| namespaces.within(ONE, || ping(address(to), 56)));
    let directory = Scratch::new();
    let dump = Dump::start(&namespaces, OTHER, "other0", &directory);
    let messages = far.map(|to| {
        tcp_transfer(&namespaces, ONE, OTHER, address(to), BYTES);
        datagrams_in_one_piece(&namespaces, ONE, OTHER, address(to))
    });
    namespaces.within(ONE, || UdpSocket::bind("0.0.0.0:0").unwrap().send_to(LAST, (far[0], 9)).unwrap());
    let packets = dump.packets();
    let _ = ends.map(end);
    let reports = fanouts.map(Started::stop_at_rest);
    // Super-frames to the namespace `ONE` are not segmented, and may lack a checksum.
    let to_far: Vec<_> = packets
        .iter()
        .filter(|packet| [" > 10.210.0.2.", " > fd00:210::2."].iter().any(|to| packet.contains(to)))
        .collect();
    let wrong: Vec<_> = to_far
        .iter()
        .filter(|packet| ["incorrect", "bad udp cksum", "bad cksum"].iter().any(|bad| packet.contains(bad)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(to_far.iter().all(|packet| packet.contains(&format!("vlan {VLAN},"))), "{to_far:#?}");
    for (kind, messages) in ["proto UDP", "next-header UDP"].into_iter().zip(messages) {
        let is_one =
            |packet: &&&String| [kind, "[udp sum ok] UDP, length 1000"].iter().all(|part| packet.contains(part));
        assert!(are_of(messages, to_far.iter().filter(is_one).count()), "{messages} messages: {to_far:#?}");
    }
    assert!(to_far.iter().filter(|packet| packet.contains("(correct), seq")).count() > 2 * BYTES / 1460);
    let sent = &reports[0]["snapshot"]["outputs"][0];
    let (frames, bytes) = (sent["packets"].as_u64().unwrap(), sent["bytes"].as_u64().unwrap());
    assert!(bytes / frames > 1518, "{sent}");
    assert!(reports.iter().all(|report| report["snapshot"]["reordered"] == 0), "{reports:#?}");
}
