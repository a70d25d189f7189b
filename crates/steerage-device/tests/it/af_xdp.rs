use std::net::UdpSocket;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use steerage::flow::wire::{FrameBuilder, ethernet};
use steerage::testing::{QueueTester, TESTER_PAGES};
use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Hash, LinkType, Snapshot, Timestamp,
    device::Polled,
    limits::{PAGE_BYTES_MIN, POLL_BUDGET, SEGMENTS_MAX},
};
use steerage_device::af_xdp::{AfXdpOptions, COALESCE_MAX, Mode, Take};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::{HANG, until};

use crate::common::send_raw;

struct Taking {
    tester: QueueTester,
    start: Instant,
}

fn options(take: &str) -> AfXdpOptions {
    AfXdpOptions::new("near0").take(take.parse().unwrap())
}

/// A forked child of another test may keep an ended queue's XDP program open for a moment.
fn take(net: &Net, options: &AfXdpOptions) -> Taking {
    let mut taking = None;
    until("the interface is free", || {
        taking = match try_take(net, options) {
            Err(error) if error.to_string().contains("another steerage has near0 already") => None,
            taken => Some(taken.unwrap()),
        };
        taking.is_some()
    });
    taking.unwrap()
}

/// AF_XDP takes the frames that arrive after the first poll of a queue.
fn try_take(net: &Net, options: &AfXdpOptions) -> Result<Taking, DeviceError> {
    let queue = net.near(|| options.open())?.input.queues.remove(0);
    let mut taking = Taking { tester: QueueTester::new(queue)?, start: Instant::now() };
    assert!(taking.poll()?.1.is_empty());
    Ok(taking)
}

impl Taking {
    fn poll(&mut self) -> Result<(Polled, Vec<Vec<u8>>), DeviceError> {
        assert!(self.start.elapsed() < HANG, "what should come does not; {} lost", self.tester.lost());
        self.tester.poll(Timestamp::ZERO + self.start.elapsed(), POLL_BUDGET)
    }

    fn frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            frames.extend(self.poll().unwrap().1);
        }
        frames
    }

    fn end(mut self) {
        assert!(self.tester.stop());
        loop {
            let (polled, frames) = self.poll().unwrap();
            assert!(frames.is_empty(), "{frames:?}");
            if polled == Polled::Ended {
                assert_eq!(self.tester.pages_out(), 0);
                return;
            }
        }
    }
}

fn send(net: &Net, numbers: Range<u32>, bytes: usize) {
    net.far(|| {
        let socket = UdpSocket::bind((FAR, 0)).unwrap();
        for number in numbers {
            assert_eq!(socket.send_to(&payload(number, bytes), (NEAR, 9)).unwrap(), bytes);
        }
    });
}

fn payload(number: u32, bytes: usize) -> Vec<u8> {
    let pattern = (0..bytes).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8);
    number.to_be_bytes().into_iter().chain(pattern).take(bytes).collect()
}

fn payload_of(frame: &[u8]) -> &[u8] {
    &frame[ethernet::BYTES + 28..]
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(payload_of(frame)[..4].try_into().unwrap())
}

#[test]
fn frames_come_in_order_in_every_mode() {
    let Some(net) = Net::new() else { return };
    for (mode, runs) in [(Mode::Auto, "native, copy"), (Mode::Copy, "native, copy"), (Mode::Skb, "skb, copy")] {
        let mut taking = take(&net, &options("all").mode(mode));
        assert!(taking.tester.mode().is_some_and(|mode| mode.starts_with(runs)));
        // There are more datagrams than the queue has pages, so each page must be used again.
        let count = 4 * TESTER_PAGES as u32;
        for first in (0..count).step_by(64) {
            send(&net, first..first + 64, 100);
            for (frame, expected) in taking.frames(64).iter().zip(first..) {
                assert_eq!((number(frame), payload_of(frame)), (expected, &payload(expected, 100)[..]));
            }
        }
        assert_eq!(taking.tester.lost(), 0);
        taking.end();
    }
}

/// If frames arrive at short intervals (here 10 us), a poll that empties the ring returns the time
/// of the next poll. After a poll without frames, the queue waits until its socket is readable.
#[test]
fn frames_may_wait_after_a_poll_that_emptied_the_ring() {
    let Some(net) = Net::new() else { return };
    let wait = Duration::from_micros(50);
    let mut taking = take(&net, &options("all").coalesce(wait));
    let (mut now, mut waits) = (Timestamp::ZERO + Duration::from_millis(1), 0);
    for first in (0..2000).step_by(10) {
        send(&net, first..first + 10, 100);
        let mut numbers = first..first + 10;
        while !numbers.is_empty() {
            assert!(taking.start.elapsed() < HANG, "what should come does not");
            let (polled, frames) = taking.tester.poll(now, POLL_BUDGET).unwrap();
            frames.iter().for_each(|frame| assert_eq!(Some(number(frame)), numbers.next()));
            // `Polled::More` is also right: frames may arrive between the last read of the ring and
            // the end of the poll.
            match polled {
                Polled::Coalesce(until) if !frames.is_empty() && until == now + wait => waits += 1,
                Polled::Drained if frames.is_empty() || waits == 0 => {}
                Polled::More => {}
                _ => panic!("{polled:?} after {} frames", frames.len()),
            }
            if !frames.is_empty() {
                now = now + Duration::from_micros(10);
            }
        }
        // An empty poll between polls with frames does not lengthen the interval that the queue
        // measures.
        assert_eq!(taking.tester.poll(now, POLL_BUDGET).unwrap().0, Polled::Drained);
    }
    assert!(waits > 0 && taking.tester.lost() == 0, "{waits}");
    taking.end();
}

/// While handlers hold all pages outside the ring, frames are dropped and counted, but their pages
/// stay in the ring, so that the kernel never has too few pages.
#[test]
fn without_another_page_a_frame_is_dropped_and_its_page_stays_in_the_ring() {
    let Some(net) = Net::with("mtu 9000") else { return };
    for (bytes, pages) in [(100, 1), (8000, 3)] {
        let mut taking = take(&net, &options("all").ring(256));
        taking.tester.hold_frames();
        let held = TESTER_PAGES as u32 / pages;
        for first in (0..held).step_by(64) {
            let count = 64.min(held - first);
            send(&net, first..first + count, bytes);
            taking.frames(count as usize);
        }
        for round in 1..=8 {
            send(&net, 0..64, bytes);
            while taking.tester.no_page() < 64 * round {
                assert!(taking.poll().unwrap().1.is_empty());
            }
        }
        taking.tester.release_frames();
        send(&net, 500..564, bytes);
        let frames = taking.frames(64);
        assert!(frames.iter().zip(500..).all(|(frame, nth)| payload_of(frame) == payload(nth, bytes)));
        assert_eq!((taking.tester.no_page(), taking.tester.lost()), (8 * 64, 0));
        taking.end();
    }
}

/// Frames of up to `copybreak` bytes are copied out of the ring's page, and longer frames keep the
/// page. `copybreak` can be changed while the queue receives.
#[test]
fn short_frames_are_copied_out_of_the_ring() {
    const COUNT: u64 = 2000;
    let Some(net) = Net::new() else { return };
    let longer = |snapshot: &Snapshot| snapshot.received() - COUNT;
    for (at_start, later, of_each) in [(0, 0, [0, 0]), (0, 142, [1, 0]), (LONGEST, 141, [0, 0]), (0, LONGEST, [1, 1])] {
        let input = net.near(|| options("udp").ring(8192).open()).unwrap().input;
        let builder = Builder::new().virtual_cpus(2).policy(Hash).check_order(true).backlog(8192);
        let builder = builder.copybreak(at_start).input(input);
        let running = builder.build(|_| Checks).unwrap().start().unwrap();
        let handle = running.handle();
        assert_eq!(handle.set_queue_limits(0, |_| ()).unwrap().copybreak, at_start);
        handle.set_queue_limits(0, |limits| limits.copybreak = later).unwrap();
        until("the limits are in force", || handle.is_settled());
        until("the queue receives", || {
            send(&net, 0..1, 200);
            handle.snapshot().received() > 0
        });
        send(&net, 0..COUNT as u32, 100);
        send(&net, 0..COUNT as u32, 200);
        handle.stop();
        let ledger = running.join().snapshot;
        let expected = of_each[0] * COUNT + of_each[1] * longer(&ledger);
        assert_eq!(ledger.queues[0].pool.rx_copybreak, expected, "{at_start} {later}");
        assert!(longer(&ledger) > COUNT && ledger.queues[0].reordered == Some(0), "{ledger:?}");
        assert_eq!((ledger.delivered(), ledger.pages_free), (ledger.received(), ledger.pages));
    }
}

const LONGEST: usize = 242;

struct Checks;

impl Handler for Checks {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let frame = packet.data();
            assert_eq!(payload_of(frame), payload(number(frame), payload_of(frame).len()));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn jumbo_frames_are_whole() {
    let Some(net) = Net::with("mtu 9000") else { return };
    let sizes = [100, 3797, 3798, 3799, 7637, 7638, 7639, 8972];
    // A chunk of AF_XDP is one page, of which the kernel leaves the first 256 bytes free.
    let in_one = |bytes: usize| ethernet::BYTES + 28 + bytes <= 4096 - 256;
    for mode in [Mode::Auto, Mode::Skb] {
        let mut taking = take(&net, &options("udp").mode(mode));
        for (bytes, first) in sizes.into_iter().zip((0..).step_by(20)) {
            send(&net, first..first + 20, bytes);
            for (frame, expected) in taking.frames(20).iter().zip(first..) {
                assert_eq!(payload_of(frame), payload(expected, bytes), "{bytes} bytes");
            }
        }
        let chained = 20 * sizes.iter().filter(|bytes| !in_one(**bytes)).count();
        assert_eq!((taking.tester.lost(), taking.tester.chained()), (0, chained as u64));
        taking.end();
    }
}

/// The MTU is raised during the run. Frames longer than a chunk arrive in several chunks. Frames
/// longer than the maximum are lost and counted, and no page is missing at the end.
#[test]
fn longer_frames_than_before_come_in_parts_or_are_lost_and_counted() {
    let Some(net) = Net::new() else { return };
    let mut taking = take(&net, &options("udp"));
    net.must(&format!("-n {} link set near0 mtu 65535", net.near));
    net.must(&format!("-n {} link set far0 mtu 65535", net.far));
    let too_long = SEGMENTS_MAX * (PAGE_BYTES_MIN - 256) + 1;
    for round in 0..TESTER_PAGES as u32 {
        send(&net, round..round + 1, 8000);
        send(&net, round..round + 1, too_long);
        send(&net, round..round + 1, 100);
        let frames = taking.frames(2);
        for (frame, bytes) in frames.iter().zip([8000, 100]) {
            assert_eq!(payload_of(frame), payload(round, bytes));
        }
    }
    assert_eq!((taking.tester.lost(), taking.tester.chained()), (TESTER_PAGES as u64, TESTER_PAGES as u64));
    taking.end();
}

#[test]
fn it_goes_on_when_the_interface_is_up_again() {
    let Some(net) = Net::new() else { return };
    let mut taking = take(&net, &options("udp"));
    for round in 0..3 {
        send(&net, round..round + 1, 100);
        assert_eq!(number(&taking.frames(1)[0]), round);
        net.must(&format!("-n {} link set near0 down", net.near));
        taking.poll().unwrap();
        net.must(&format!("-n {} link set near0 up", net.near));
        taking.poll().unwrap();
    }
    taking.end();
}

#[test]
fn a_new_start_hands_over_nothing_of_before() {
    let Some(net) = Net::new() else { return };
    for round in 0..3 {
        let left = take(&net, &options("udp"));
        send(&net, 0..100, 100);
        drop(left);
        let mut taking = take(&net, &options("udp"));
        send(&net, 1000 + round..1010 + round, 100);
        assert!(taking.frames(10).iter().map(|frame| number(frame)).eq(1000 + round..1010 + round));
        taking.end();
    }
}

#[test]
fn a_deleted_interface_ends_it() {
    for namespace in [false, true] {
        let Some(net) = Net::new() else { return };
        let mut taking = take(&net, &options("udp"));
        send(&net, 0..10, 100);
        match namespace {
            true => net.must(&format!("netns del {}", net.far)),
            false => net.must(&format!("-n {} link del near0", net.near)),
        }
        let mut frames = 0;
        let error = loop {
            match taking.poll() {
                Ok((_, some)) => frames += some.len(),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("near0: cannot go on receiving") && error.contains("deleted"), "{error}");
        assert_eq!((frames, taking.tester.lost(), taking.tester.pages_out()), (10, 0, 0));
    }
}

#[test]
fn a_second_one_is_refused_until_the_first_has_gone() {
    let Some(net) = Net::new() else { return };
    let first = take(&net, &options("all"));
    for replace in [false, true] {
        let error = try_take(&net, &options("all").replace(replace)).map(drop).unwrap_err().to_string();
        assert!(
            error.contains("this program has near0 already") && error.contains("open the interface once"),
            "{error}"
        );
        let error = net.near(|| options("all").replace(replace).open_or_listen()).map(drop).unwrap_err().to_string();
        assert!(error.contains("this program has near0 already"), "listening would get no packet: {error}");
    }
    drop(first);
    let mut again = take(&net, &options("all"));
    send(&net, 0..10, 100);
    assert_eq!(again.frames(10).len(), 10);
    again.end();
}

#[test]
fn what_is_wrong_is_said() {
    let Some(net) = Net::new() else { return };
    let on = |interface: &str| AfXdpOptions::new(interface).take("all".parse().unwrap());
    let (nothing, none, loopback) = (AfXdpOptions::new("near0"), on("no-such"), on("lo"));
    let queue = options("all").queues(0..=1);
    let ring = options("all").ring(100);
    let both = options("all").busy_poll(Duration::from_micros(20)).coalesce(Duration::from_micros(20));
    let long = options("all").coalesce(COALESCE_MAX + Duration::from_nanos(1));
    for (options, says) in [
        (nothing, "--take"),
        (none, "look at the interface"),
        (queue, "there are 1"),
        (loopback, "not Ethernet"),
        (ring, "power of two"),
        (both, "a busy poll never waits"),
        (long, "1 us to 10 ms"),
    ] {
        let error = net.near(|| options.open()).map(drop).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
}

// ---- tests of the decision which frames AF_XDP takes

/// The frame is addressed to another machine, so that the kernel does not reply.
fn frame(kind: u16, body: &[&[u8]]) -> Vec<u8> {
    let addresses = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2];
    let mut frame = [&addresses[..], &kind.to_be_bytes(), &body.concat()].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(protocol: u8, fragment: u16, options: usize, body: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45 + options as u8, 0, 0, 100, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 1, 2, 3, 192, 0, 2, 1];
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header.resize(20 + 4 * options, 1);
    header.extend(body);
    header
}

fn ipv6(next: u8, body: &[u8]) -> Vec<u8> {
    let [from, to] = [[0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], [0x2001, 0xdb8, 0x8000, 0, 0, 0, 0, 2]];
    FrameBuilder::ip(from, to, next).packet(body)
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &[0; 16]].concat()
}

fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let dns = ipv4(17, 0, 0, &ports(4000, 53));
    // A packet with hop-by-hop options and then a fragment header, although the packet is not
    // fragmented.
    let extended = [&[44, 1][..], &[0; 14], &[6, 0, 0, 0, 0, 0, 0, 7], &ports(443, 5000)].concat();
    vec![
        ("dns", frame(0x0800, &[&dns])),
        ("web", frame(0x0800, &[&ipv4(6, 0, 2, &ports(5000, 443))])),
        ("tagged", frame(0x8100, &[&[0, 5, 8, 0], &dns])),
        ("twice", frame(0x88a8, &[&[0, 5, 0x81, 0, 0, 6, 8, 0], &dns])),
        ("first", frame(0x0800, &[&ipv4(17, 0x2000, 0, &ports(4000, 53))])),
        ("later", frame(0x0800, &[&ipv4(17, 185, 0, &ports(4000, 53))])),
        ("ping", frame(0x0800, &[&ipv4(1, 0, 0, &[8, 0, 0, 0])])),
        ("dns6", frame(0x86dd, &[&ipv6(17, &ports(4000, 53))])),
        ("web6", frame(0x86dd, &[&ipv6(0, &extended)])),
        ("ping6", frame(0x86dd, &[&ipv6(58, &[128, 0, 0, 0])])),
        ("nd", frame(0x86dd, &[&ipv6(58, &[135, 0, 0, 0])])),
        ("arp", frame(0x0806, &[&[0, 1, 8, 0, 6, 4, 0, 1]])),
        ("lldp", frame(0x88cc, &[&[2, 7, 4]])),
        ("short", frame(0x0800, &[&[0x4f]])),
    ]
}

const TABLE: [(&str, &str); 24] = [
    ("all", "dns web tagged twice first later ping dns6 web6 ping6 lldp short"),
    ("all or arp", "dns web tagged twice first later ping dns6 web6 ping6 arp lldp short"),
    ("all, nd", "dns web tagged twice first later ping dns6 web6 ping6 nd lldp short"),
    ("all not ip not ip6", "lldp"),
    ("arp or nd", "nd arp"),
    ("ip", "dns web tagged twice first later ping short"),
    ("ip6", "dns6 web6 ping6"),
    ("udp", "dns tagged twice first later dns6"),
    ("udp port 53", "dns tagged twice dns6"),
    ("udp and not port 53", "first later"),
    ("port 443", "web web6"),
    ("dst port 443", "web"),
    ("src port 440-443", "web6"),
    ("tcp or icmp", "web ping web6"),
    ("icmp6", "ping6"),
    ("icmp", "ping"),
    ("proto 6 ip", "web"),
    ("sctp or port 54-442", ""),
    ("net 10.0.0.0/8 not udp not tcp", "ping"),
    ("src net 10.1.2.0/24 tcp", "web"),
    ("dst net 10.0.0.0/8", ""),
    ("host 192.0.2.1 port 443", "web"),
    ("net 2001:db8:8000::/33", "dns6 web6 ping6"),
    ("src net 2001:db8:8000::/33 or src host 2001:db8::2", ""),
];

#[test]
fn what_is_named_is_taken_and_the_rest_passes() {
    let Some(net) = Net::new() else { return };
    let kinds = kinds();
    for mode in [Mode::Native, Mode::Skb] {
        for (expression, wanted) in TABLE {
            let last = frame(0x0800, &[&ipv4(17, 0, 0, &ports(61_000, 61_001))]);
            let expression = format!("{expression} or src port 61000 dst port 61001");
            let mut taking = take(&net, &options(&expression).mode(mode));
            let frames: Vec<Vec<u8>> = kinds.iter().map(|(_, frame)| frame.clone()).chain([last.clone()]).collect();
            net.far(|| send_raw("far0", &frames));
            let mut taken = Vec::new();
            while taken.last() != Some(&last) {
                taken.extend(taking.poll().unwrap().1);
            }
            taken.pop();
            let names = taken.iter().map(|frame| kinds.iter().find(|(_, kind)| kind == frame).unwrap().0);
            assert_eq!(names.collect::<Vec<_>>().join(" "), wanted, "{expression} ({mode:?})");
            let expected = (kinds.len() - wanted.split_whitespace().count()) as u64;
            assert!(taking.tester.stop());
            while taking.poll().unwrap().0 != Polled::Ended {}
            assert_eq!((taking.tester.passed(), taking.tester.lost()), (expected, 0), "{expression}");
        }
    }
}

#[test]
fn a_socket_that_listens_selects_the_same() {
    let kinds = kinds();
    let filter =
        |expression: &str, link| expression.parse::<Take>().unwrap().filter(link).unwrap().for_frames().unwrap();
    let is_ip = |frame: &[u8]| matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd]);
    for (expression, wanted) in TABLE {
        let (ethernet, ip) = (filter(expression, LinkType::ETHERNET), filter(expression, LinkType::RAW));
        for (name, frame) in &kinds {
            let is_wanted = wanted.split(' ').any(|wanted| wanted == *name);
            assert_eq!(ethernet.run(frame, frame.len() as u32) > 0, is_wanted, "{expression}: {name}");
            if is_ip(frame) {
                let packet = &frame[14..];
                assert_eq!(ip.run(packet, packet.len() as u32) > 0, is_wanted, "{expression}: {name} without Ethernet");
            }
        }
    }
    // A filter that loads bytes beyond the end of a frame drops the frame.
    let all = filter("all or arp or nd", LinkType::ETHERNET);
    let cut = kinds.iter().flat_map(|(_, frame)| (0..frame.len()).map(|len| &frame[..len]));
    assert!(cut.into_iter().all(|frame| all.run(frame, frame.len() as u32) > 0));
}

/// On the loopback interface, an XDP program sees no Ethernet frames.
#[test]
fn without_xdp_the_same_packets_are_listened_to() {
    let Some(net) = Net::new() else { return };
    net.near(|| {
        let options = AfXdpOptions::new("lo").take("udp dst port 7777".parse().unwrap());
        let mut listening = options.open_or_listen().unwrap();
        assert_eq!(
            (listening.is_listening, listening.input.kind, listening.input.queues.len()),
            (true, "af_packet", 1)
        );
        assert!(listening.notes[0].contains("not Ethernet") && listening.notes[0].contains("It listens instead"));
        let mut tester = QueueTester::new(listening.input.queues.remove(0)).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (start, mut frames) = (Instant::now(), Vec::new());
        for number in 0..3_u8 {
            socket.send_to(&[number; 20], "127.0.0.1:7778").unwrap();
            socket.send_to(&[number; 20], "127.0.0.1:7777").unwrap();
        }
        while frames.len() < 3 {
            assert!(start.elapsed() < HANG, "{frames:?}");
            frames.extend(tester.poll(Timestamp::ZERO + start.elapsed(), POLL_BUDGET).unwrap().1);
        }
        let to = |frame: &Vec<u8>| (frame[36..38].to_vec(), frame[42]);
        assert_eq!(
            frames.iter().map(to).collect::<Vec<_>>(),
            (0..3).map(|n| (vec![0x1e, 0x61], n)).collect::<Vec<_>>()
        );
    });
}

/// The XDP program must not hang on truncated frames, nor take frames that it cannot parse.
#[test]
fn cut_frames_are_no_trouble() {
    let Some(net) = Net::new() else { return };
    let mut taking = take(&net, &options("port 53 or dst net 2001:db8::/32 or src port 61000"));
    let whole: Vec<Vec<u8>> = kinds().into_iter().map(|(_, frame)| frame).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let cut = whole.iter().flat_map(|frame| (14..frame.len()).map(|len| frame[..len].to_vec()));
            let last = frame(0x0800, &[&ipv4(17, 0, 0, &ports(61_000, 1))]);
            net.far(|| send_raw("far0", &cut.chain([last]).collect::<Vec<_>>()));
        });
        while !taking
            .poll()
            .unwrap()
            .1
            .iter()
            .any(|frame| frame.len() >= 36 && frame[34..36] == 61_000u16.to_be_bytes())
        {}
    });
    taking.end();
}
