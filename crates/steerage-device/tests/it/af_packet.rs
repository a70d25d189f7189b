use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use steerage::testing::{Headed, QueueTester};
use steerage::{
    Affinity, LinkType, Timestamp,
    device::{Polled, RxQueue},
    flow,
    limits::POLL_BUDGET,
};
use steerage_capture::filter::{Filter, FilterError};
use steerage_device::DeviceHash;
use steerage_device::af_packet::{AfPacketOptions, BUFFER_MIN, Direction};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::namespaces::bind_when_free;
use steerage_fixtures::{HANG, in_ci, is_installed, until};

use crate::common::send_raw;

const BUFFER: usize = 64 * (128 << 10);
const BLOCK_TIMEOUT: Duration = Duration::from_millis(20);

struct Listening {
    tester: QueueTester,
    start: Instant,
}

fn options(interface: &str) -> AfPacketOptions {
    AfPacketOptions::new(interface).block_timeout(BLOCK_TIMEOUT).buffer(BUFFER)
}

fn small(interface: &str) -> AfPacketOptions {
    options(interface).buffer(BUFFER_MIN).direction(Direction::In)
}

fn queues(net: &Net, options: &AfPacketOptions) -> Vec<Box<dyn RxQueue>> {
    net.near(|| options.open().unwrap()).input.queues
}

/// The kernel drops frames that are sent while `near0` is down.
fn bring_up(net: &Net) {
    net.must(&format!("-n {} link set near0 up", net.near));
    until("the cable carries", || {
        let shown = Command::new("ip").args(["-n", &net.far, "link", "show", "far0"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap().contains("state UP")
    });
    net.must(&format!("-n {} neigh replace {NEAR} lladdr 02:00:00:00:00:01 dev far0 nud permanent", net.far));
}

fn listen(net: &Net, options: &AfPacketOptions) -> Listening {
    Listening::new(queues(net, options).pop().unwrap())
}

impl Listening {
    fn new(queue: Box<dyn RxQueue>) -> Self {
        Self { tester: QueueTester::new(queue).unwrap(), start: Instant::now() }
    }

    fn poll(&mut self) -> Result<(Polled, Vec<Headed>), steerage::DeviceError> {
        assert!(self.start.elapsed() < HANG, "what should come does not; {} lost", self.tester.lost());
        self.tester.poll_with_headers(Timestamp::ZERO + self.start.elapsed(), POLL_BUDGET)
    }

    fn frames(mut self, count: usize, meanwhile: impl FnOnce() + Send) -> Vec<Headed> {
        let mut frames = Vec::new();
        thread::scope(|scope| {
            let meanwhile = scope.spawn(meanwhile);
            while frames.len() < count || !meanwhile.is_finished() {
                frames.extend(self.poll().unwrap().1);
            }
        });
        frames.extend(self.rest());
        assert_eq!((frames.len(), self.tester.lost()), (count, 0));
        frames
    }

    fn rest(&mut self) -> Vec<Headed> {
        assert!(self.tester.stop());
        let mut frames = Vec::new();
        loop {
            let (polled, more) = self.poll().unwrap();
            frames.extend(more);
            if polled == Polled::Ended {
                return frames;
            }
        }
    }
}

fn send(from: &str, to: &str, numbers: std::ops::Range<u32>, pad: usize) {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    for number in numbers {
        let mut payload = vec![0; 4 + pad];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        // An ICMP error for an earlier datagram makes `send_to` fail.
        while let Err(error) = socket.send_to(&payload, (to, 9)) {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
    }
}

fn number(frame: &[u8], link: usize) -> u32 {
    u32::from_be_bytes(frame[link + 28..link + 32].try_into().unwrap())
}

#[test]
fn frames_come_in_order_with_their_time_and_length() {
    let Some(net) = Net::new() else { return };
    let listening = listen(&net, &options("near0").direction(Direction::In));
    let before = std::time::SystemTime::now();
    let frames = listening.frames(1000, || net.far(|| send(FAR, NEAR, 0..1000, 100)));
    let since_1970 = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    for (expected, (header, frame)) in frames.iter().enumerate() {
        let header = header.unwrap();
        assert_eq!((number(frame, 14), frame.len(), header.wire_len), (expected as u32, 146, 146));
        assert_eq!((LinkType(header.link), &frame[..6]), (LinkType::ETHERNET, &[2, 0, 0, 0, 0, 1][..]));
        // The kernel's timestamp may be one clock tick too early.
        assert!((since_1970 - 100_000_000..since_1970 + HANG.as_nanos() as u64).contains(&header.nanos));
    }
}

#[test]
fn directions() {
    let Some(net) = Net::new() else { return };
    for (direction, expected) in [(Direction::In, 30), (Direction::Out, 20), (Direction::InOut, 50)] {
        let listening = listen(&net, &options("near0").direction(direction));
        // The ports are open, because closed ports would cause ICMP errors in the other direction.
        let here = net.near(|| bind_when_free((NEAR, 9)));
        let there = net.far(|| bind_when_free((FAR, 9)));
        let frames = listening.frames(expected, || {
            net.near(|| send(NEAR, FAR, 0..20, 0));
            net.far(|| send(FAR, NEAR, 0..30, 0));
        });
        let out = frames.iter().filter(|(_, frame)| frame[5] == 2).count();
        assert_eq!(out, if direction == Direction::In { 0 } else { 20 }, "{direction:?}");
        drop((here, there));
    }
}

#[test]
fn on_loopback_each_frame_is_seen_once() {
    let Some(net) = Net::new() else { return };
    let open = net.near(|| UdpSocket::bind(("127.0.0.1", 9)).unwrap());
    for direction in [Direction::InOut, Direction::In, Direction::Out] {
        let listening = listen(&net, &options("lo").direction(direction));
        let frames = listening.frames(100, || net.near(|| send("127.0.0.1", "127.0.0.1", 0..100, 0)));
        let numbers: Vec<u32> = frames.iter().map(|(_, frame)| number(frame, 14)).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }
    drop(open);
}

fn tagged(number: u32) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &TAGS, &[8, 0, 0x45]].concat();
    frame.resize(12 + TAGS.len() + 2 + 28, 0);
    frame.extend(number.to_be_bytes());
    frame
}

/// A VLAN tag with priority 3 and VLAN ID 5, and a second VLAN tag with VLAN ID 9.
const TAGS: [u8; 8] = [0x88, 0xa8, 0x60, 5, 0x81, 0, 0, 9];

/// The kernel removes the outer VLAN tag before the filter sees the frame.
#[test]
fn a_filter_finds_tags() {
    let Some(net) = Net::new() else { return };
    let frames: Vec<Vec<u8>> = (0..10).map(tagged).collect();
    for (text, count) in [("vlan 5", 10), ("vlan 5 and vlan 9", 10), ("vlan 9", 0), ("not vlan", 0)] {
        let options = match net.near(|| small("near0").filtered(text)) {
            Err(FilterError::NoTcpdump) if !in_ci() => return,
            other => other.unwrap(),
        };
        let seen = listen(&net, &options).frames(count, || net.far(|| send_raw("far0", &frames)));
        assert!(seen.iter().map(|(_, frame)| frame).eq(&frames[..count]), "{text}");
    }
}

/// The interface `only-here` exists only in this thread's network namespace, so /sys does not
/// describe it. The interface `only-here` is down, so tcpdump cannot open it.
#[test]
fn a_filter_fits_the_link_type_in_the_namespace() {
    let Some(net) = Net::new() else { return };
    net.near(|| Command::new("ip").args(["tuntap", "add", "only-here", "mode", "tun"]).status().unwrap());
    let filtered = match net.near(|| options("only-here").filtered("udp port 9")) {
        Err(FilterError::NoTcpdump) if !in_ci() => return,
        other => other.unwrap(),
    };
    let raw = Filter::compile("udp port 9", None, LinkType::RAW).unwrap();
    assert_eq!(format!("{filtered:?}"), format!("{:?}", options("only-here").filter(raw)));
}

/// The device reinserts the VLAN tag that the kernel removed, into lent and into copied frames.
#[test]
fn vlan_tags_are_put_back() {
    let Some(net) = Net::new() else { return };
    let frames: Vec<Vec<u8>> = (0..100).map(tagged).collect();
    let mut listening = listen(&net, &small("near0"));
    // The test sends one frame more than the ring has blocks: the last frame is copied to a page.
    listening.tester.hold_frames();
    for nth in 0..5 {
        net.far(|| send_raw("far0", &frames[nth..=nth]));
        let (header, frame) = loop {
            if let Some(one) = listening.poll().unwrap().1.pop() {
                break one;
            }
        };
        assert_eq!((&frame, header.unwrap().wire_len), (&frames[nth], frame.len() as u32));
    }
    assert!(listening.tester.copied() > 0);
    listening.tester.release_frames();
    let seen = listening.frames(100, || net.far(|| send_raw("far0", &frames)));
    assert!(seen.iter().map(|(_, frame)| frame).eq(&frames));
}

/// The kernel at the other end leaves checksums to a network card. With `finish_checksums`, the
/// device completes the checksums in lent and in copied frames.
#[test]
fn checksums_are_finished() {
    let Some(net) = Net::new() else { return };
    for finish_checksums in [true, false] {
        let options = small("near0").finish_checksums(finish_checksums);
        let mut listening = listen(&net, &options);
        listening.tester.hold_frames();
        for nth in 0..5 {
            net.far(|| send(FAR, NEAR, nth..nth + 1, 100));
            let (_, frame) = loop {
                if let Some(one) = listening.poll().unwrap().1.pop() {
                    break one;
                }
            };
            let packet = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let (Some(etherparse::NetSlice::Ipv4(ip)), Some(etherparse::TransportSlice::Udp(udp))) =
                (&packet.net, &packet.transport)
            else {
                panic!("{packet:?}")
            };
            let right = udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap();
            assert_eq!((number(&frame, 14), udp.checksum() == right), (nth, finish_checksums));
        }
        assert!(listening.tester.copied() > 0);
    }
}

#[test]
fn jumbo_frames_come_whole_and_snaplen_cuts() {
    let Some(net) = Net::new() else { return };
    net.must(&format!("-n {} link set near0 mtu 9000", net.near));
    net.must(&format!("-n {} link set far0 mtu 9000", net.far));
    let whole = listen(&net, &options("near0").direction(Direction::In));
    let cut = listen(&net, &options("near0").direction(Direction::In).snaplen(60));
    let cut = thread::scope(|scope| {
        let cut = scope.spawn(|| cut.frames(20, || ()));
        let frames = whole.frames(20, || net.far(|| send(FAR, NEAR, 0..20, 8968)));
        for (expected, (header, frame)) in frames.iter().enumerate() {
            assert_eq!((number(frame, 14), frame.len(), header.unwrap().wire_len), (expected as u32, 9014, 9014));
        }
        cut.join().unwrap()
    });
    for (header, frame) in cut {
        assert_eq!((frame.len(), header.unwrap().wire_len), (60, 9014));
    }
}

/// Both directions of a flow, and all fragments of a datagram, arrive on the same socket.
#[test]
fn a_group_of_sockets_shares_by_flow() {
    let Some(net) = Net::new() else { return };
    let open = net.near(|| (0..64).map(|_| UdpSocket::bind((NEAR, 0)).unwrap()).collect::<Vec<_>>());
    let ports: Vec<u16> = open.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    let listening = queues(&net, &options("near0").queues(2));
    let mut listening: Vec<Listening> = listening.into_iter().map(Listening::new).collect();
    net.far(|| {
        for (socket, port) in open.iter().zip(&ports) {
            let far = UdpSocket::bind((FAR, 0)).unwrap();
            far.send_to(&[0; 10], (NEAR, *port)).unwrap();
            far.send_to(&[0; 4000], (NEAR, *port)).unwrap();
            socket.send_to(&[0; 10], far.local_addr().unwrap()).unwrap();
        }
    });
    // A flow has one datagram in each direction, and one datagram in three fragments.
    let mut frames = [Vec::new(), Vec::new()];
    while frames[0].len() + frames[1].len() < 64 * 5 {
        for (frames, listening) in frames.iter_mut().zip(&mut listening) {
            frames.extend(listening.poll().unwrap().1.into_iter().map(|(_, frame)| frame));
        }
    }
    for (frames, listening) in frames.iter_mut().zip(&mut listening) {
        frames.extend(listening.rest().into_iter().map(|(_, frame)| frame));
    }
    assert_eq!(frames[0].len() + frames[1].len(), 64 * 5);
    let flows = frames.each_ref().map(|frames| {
        let whole = frames.iter().filter(|frame| frame.len() == 52);
        let mut keys: Vec<_> = whole
            .map(|frame| flow::dissect(frame, LinkType::ETHERNET, flow::Layers::Inner).key.both_directions())
            .collect();
        keys.sort_unstable_by_key(|key| format!("{key:?}"));
        keys
    });
    for flows in &flows {
        assert!(!flows.is_empty(), "one socket has it all");
        assert!(flows.chunks(2).all(|pair| pair.len() == 2 && pair[0] == pair[1]), "a flow's directions are apart");
    }
    let fragments = frames.each_ref().map(|frames| {
        let mut datagrams = std::collections::BTreeMap::<[u8; 2], usize>::new();
        for frame in frames.iter().filter(|frame| frame.len() != 52) {
            *datagrams.entry([frame[18], frame[19]]).or_default() += 1;
        }
        datagrams
    });
    assert!(fragments.iter().all(|datagrams| datagrams.values().all(|count| *count == 3)), "{fragments:?}");
}

#[test]
fn the_kernels_hash_is_taken_where_it_is_asked_for() {
    let Some(net) = Net::new() else { return };
    let ours = queues(&net, &options("near0"));
    let theirs = queues(&net, &options("near0").device_hash(DeviceHash::Always));
    assert_eq!(ours[0].capabilities().hash, None);
    assert_eq!(theirs[0].capabilities().hash, Some(Affinity::BothDirections));
}

#[test]
fn what_the_kernel_drops_is_counted() {
    let Some(net) = Net::new() else { return };
    let mut listening = listen(&net, &small("near0"));
    // The queue is not polled while 2 MB of frames are sent, and the ring has only 512 KiB.
    net.far(|| send(FAR, NEAR, 0..2000, 1000));
    let frames = listening.rest();
    let lost = listening.tester.lost();
    assert!(lost > 0 && !frames.is_empty());
    assert_eq!(frames.len() as u64 + lost, 2000);
    let numbers: Vec<u32> = frames.iter().map(|(_, frame)| number(frame, 14)).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
}

/// Dropped frames are reported when the ring is empty, although the clock does not advance.
#[test]
fn what_the_kernel_drops_is_counted_soon() {
    let Some(net) = Net::new() else { return };
    let mut listening = listen(&net, &small("near0"));
    let now = Timestamp::ZERO + Duration::from_micros(1);
    net.far(|| send(FAR, NEAR, 0..2000, 1000));
    let mut seen = 0;
    until("the frames come or are lost", || {
        seen += listening.tester.poll(now, POLL_BUDGET).unwrap().1.len() as u64;
        seen + listening.tester.lost() == 2000
    });
    assert!(listening.tester.lost() > 0);
}

/// Handlers return no frame. Frames that handlers cannot read in the ring are copied, as long as a
/// page is free.
#[test]
fn frames_that_stay_out_do_not_stop_the_ring() {
    let Some(net) = Net::new() else { return };
    let mut listening = listen(&net, &small("near0"));
    listening.tester.hold_frames();
    // The ring has four blocks, and the kernel puts each frame of this test into a separate block.
    let (mut seen, mut rounds) = (0, 0);
    while listening.tester.lost() == 0 {
        net.far(|| send(FAR, NEAR, rounds..rounds + 1, 0));
        rounds += 1;
        while seen + listening.tester.lost() < u64::from(rounds) {
            seen += listening.poll().unwrap().1.len() as u64;
        }
    }
    // Four frames were lent. The device copied at least three lent frames to give their blocks back
    // to the kernel. One frame was copied to the pool's only page, and the last frame was lost.
    assert_eq!((seen, rounds), (5, 6));
    assert!((3 + 1..=4 + 1).contains(&listening.tester.copied()), "{}", listening.tester.copied());
    listening.tester.release_frames();
    let frames = listening_again(&mut listening, &net, 1000..1100);
    assert_eq!(frames, (1000..1100).collect::<Vec<_>>());
    assert_eq!(listening.tester.lost(), 1);
}

#[test]
fn what_is_longer_than_a_page_is_cut() {
    let Some(net) = Net::new() else { return };
    let mut listening = listen(&net, &small("near0"));
    net.must(&format!("-n {} link set near0 mtu 9000", net.near));
    net.must(&format!("-n {} link set far0 mtu 9000", net.far));
    listening.tester.hold_frames();
    for number_sent in 0..5 {
        net.far(|| send(FAR, NEAR, number_sent..number_sent + 1, 8968));
        let (header, frame) = loop {
            if let Some(one) = listening.poll().unwrap().1.pop() {
                break one;
            }
        };
        assert_eq!((number(&frame, 14), header.unwrap().wire_len), (number_sent, 9014));
        // The ring has four blocks, so handlers read the first four frames in the ring, and later
        // frames are copied.
        assert!(
            if number_sent < 4 { frame.len() == 9014 } else { (1514..2112).contains(&frame.len()) },
            "{}",
            frame.len()
        );
    }
}

fn listening_again(listening: &mut Listening, net: &Net, numbers: std::ops::Range<u32>) -> Vec<u32> {
    let mut seen = Vec::new();
    for number_sent in numbers {
        net.far(|| send(FAR, NEAR, number_sent..number_sent + 1, 0));
        let before = seen.len();
        while seen.len() == before {
            seen.extend(listening.poll().unwrap().1.iter().map(|(_, frame)| number(frame, 14)));
        }
    }
    seen
}

#[test]
fn an_interface_goes_down_and_comes_up() {
    let Some(net) = Net::new() else { return };
    let mut listening = listen(&net, &options("near0").direction(Direction::In));
    net.far(|| send(FAR, NEAR, 0..10, 0));
    net.must(&format!("-n {} link set near0 down", net.near));
    let mut frames = Vec::new();
    loop {
        let (polled, more) = listening.poll().unwrap();
        frames.extend(more);
        if matches!(polled, Polled::NotBefore(_)) && frames.len() == 10 {
            break;
        }
    }
    bring_up(&net);
    net.far(|| send(FAR, NEAR, 10..20, 0));
    while frames.len() < 20 {
        frames.extend(listening.poll().unwrap().1);
    }
    assert_eq!(listening.rest().len(), 0);
    assert_eq!(number(&frames[19].1, 14), 19);
}

/// The device requests an interface's state by the interface's name, which may change between two
/// requests.
#[test]
fn an_interface_that_is_renamed_while_it_is_looked_at_is_not_gone() {
    let Some(net) = Net::new() else { return };
    let mut listening = listen(&net, &options("near0").direction(Direction::In));
    net.must(&format!("-n {} link set near0 down", net.near));
    thread::scope(|scope| {
        let renaming = scope.spawn(|| {
            for (from, to) in [("near0", "other0"), ("other0", "near0")].into_iter().cycle().take(100) {
                net.must(&format!("-n {} link set {from} name {to}", net.near));
            }
        });
        while !renaming.is_finished() {
            let (polled, frames) = listening.poll().unwrap();
            assert!(polled != Polled::Ended && frames.is_empty(), "{polled:?}, {frames:?}");
        }
        renaming.join().unwrap();
    });
    bring_up(&net);
    net.far(|| send(FAR, NEAR, 7..8, 0));
    // The queue may also receive ARP packets of the kernel.
    let is_ours = |(_, frame): &Headed| frame[12..14] == [8, 0] && number(frame, 14) == 7;
    while !listening.poll().unwrap().1.iter().any(is_ours) {}
}

#[test]
fn an_interface_that_is_deleted_ends_the_queue() {
    for namespace in [true, false] {
        let Some(net) = Net::new() else { return };
        let mut listening = listen(&net, &options("near0").direction(Direction::In));
        net.far(|| send(FAR, NEAR, 0..10, 0));
        match namespace {
            true => net.must(&format!("netns del {}", net.far)),
            false => net.must(&format!("-n {} link del near0", net.near)),
        }
        let mut frames = 0;
        let error = loop {
            match listening.poll() {
                Ok((_, more)) => frames += more.len(),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(frames, 10);
        assert_eq!(error, "near0: cannot go on listening: No such device (os error 19); the interface was deleted");
    }
}

#[test]
fn what_cannot_be_listened_to_is_said_in_a_line() {
    let Some(net) = Net::new() else { return };
    let error = |options: AfPacketOptions| net.near(|| options.open().unwrap_err().to_string());
    let nowhere = error(options("nowhere"));
    assert!(nowhere.starts_with("nowhere: cannot look at the interface: No such device"), "{nowhere}");
    for buffer in [0, BUFFER_MIN - 1, 3 << 30] {
        assert!(error(options("near0").buffer(buffer)).contains("512K to 2G"));
    }
}

#[test]
fn notes_tell_what_is_of_interest() {
    let Some(net) = Net::new() else { return };
    let notes = || net.near(|| options("near0").open().unwrap().notes).join("\n");
    assert_eq!(notes(), "");
    let ethtool = |args: [&str; 4]| net.near(|| Command::new("ethtool").args(args).status());
    if is_installed("ethtool", "ethtool") && ethtool(["-K", "near0", "gro", "on"]).is_ok_and(|status| status.success())
    {
        assert!(notes().ends_with("ethtool -K near0 gro off"), "{}", notes());
        ethtool(["-K", "near0", "gro", "off"]).unwrap();
        assert_eq!(notes(), "");
    }
    net.must(&format!("-n {} link set near0 down", net.near));
    assert!(notes().contains("near0 is down"), "{}", notes());
}
