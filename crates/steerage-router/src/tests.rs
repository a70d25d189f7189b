use std::sync::{Arc, Mutex};

use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, icmpv4, icmpv6};
use steerage::{
    Builder, DeviceError, Input, Output,
    device::{Capabilities, Completions, Filled, Gather, Outgoing, Polled, RxQueue, Sent, TxQueue},
    limits::{HEADROOM, SEGMENTS_MAX},
};

use super::*;

const OURS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const HOST: Mac = [2, 0, 0, 0, 0, 9];
const NEXT: Mac = [2, 0, 0, 0, 0, 7];

/// Delivers each frame in one page, or in several pages with this number of bytes in the first
/// page.
struct Frames(std::vec::IntoIter<Vec<u8>>, LinkType, Option<usize>);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(9000).segments(SEGMENTS_MAX).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(self.1);
        let count = self.0.len().min(budget);
        if let Some(first) = self.2 {
            for frame in self.0.by_ref().take(count) {
                let mut begun = Gather::default();
                let (head, rest) = frame.split_at(first.min(frame.len()));
                for part in [head].into_iter().chain(rest.chunks(200)) {
                    let mut page = out.take_page().unwrap();
                    out.page_mut(&mut page)[HEADROOM..][..part.len()].copy_from_slice(part);
                    out.gather(&mut begun, page, HEADROOM, part.len());
                }
                assert!(out.push_gathered(&mut begun, None));
            }
            return Ok(if self.0.len() == 0 { Polled::Ended } else { Polled::More });
        }
        out.fill(count, |page| {
            let frame = self.0.next()?;
            page[..frame.len()].copy_from_slice(&frame);
            Some(Filled::whole(frame.len()))
        });
        Ok(if self.0.len() == 0 { Polled::Ended } else { Polled::More })
    }
}

type Sink = Arc<Mutex<Vec<(u8, Vec<u8>)>>>;

struct Sinks(u8, Sink);

impl TxQueue for Sinks {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let received = packet.received();
            assert_eq!(received.link, if self.0 == 2 { LinkType::RAW } else { LinkType::ETHERNET });
            self.1.lock().unwrap().push((self.0, packet.segments().flatten().copied().collect()));
            sent.packets += 1;
        }
        Ok(sent)
    }
}

fn sink(nth: u8, sink: &Sink) -> Output {
    let sink = Arc::clone(sink);
    Output::new(format!("sink{nth}"), "sink", move |_| Ok(Box::new(Sinks(nth, Arc::clone(&sink)))))
}

/// Routes for every kind of target. The default routes use the hops 10.0.1.2 and fd00:1::2.
///
/// | interface | IPv4 | IPv6 | MTU | link header |
/// |---|---|---|---|---|
/// | 0 | 10.0.0.1/24 | fd00:0::1/64 | 1500 | yes |
/// | 1 | 10.0.1.1/24 | fd00:1::1/64 | 1400 | yes |
/// | 2 | 10.0.2.1/24 | fd00:2::1/64 | 1500 | no |
fn table() -> Table {
    let interface = |nth: usize, mtu, mac| Interface {
        output: TxId(nth as u8),
        mac,
        mtu,
        up: true,
        ipv4: Some([10, 0, nth as u8, 1].into()),
        ipv6: Some(format!("fd00:{nth}::1").parse().unwrap()),
        broadcasts: vec![[10, 0, nth as u8, 255].into()],
    };
    let interfaces =
        vec![interface(0, 1500, Some(OURS[0])), interface(1, 1400, Some(OURS[1])), interface(2, 1500, None)];
    let mut routes = Routes::default();
    let via = |interface, gateway: Option<&str>| {
        Target::Via(vec![Hop { interface, gateway: gateway.map(|text| text.parse().unwrap()), weight: 1 }])
    };
    for (prefix, target) in [
        ("0.0.0.0/0", via(1, Some("10.0.1.2"))),
        ("10.0.0.0/24", via(0, None)),
        ("10.0.1.0/24", via(1, None)),
        ("10.0.0.1/32", Target::Local),
        ("10.0.2.0/24", via(2, None)),
        ("10.9.1.0/24", Target::Blackhole),
        ("10.9.2.0/24", Target::Unreachable),
        ("10.9.3.0/24", Target::Prohibit),
        ("::/0", via(1, Some("fd00:1::2"))),
        ("fd00:2::/64", via(2, None)),
        ("fe80::1/128", Target::Local),
        ("fd09::/16", Target::Prohibit),
    ] {
        routes.insert(prefix.parse().unwrap(), target);
    }
    let neighbour =
        |interface, address: &str, mac| ((interface, address.parse().unwrap()), Arc::new(Neighbour::new(mac)));
    let neighbours =
        [neighbour(1, "10.0.1.2", Some(NEXT)), neighbour(1, "fd00:1::2", Some(NEXT)), neighbour(1, "10.0.1.66", None)];
    Table { interfaces, routes: Arc::new(routes), neighbours: Arc::new(Neighbours::from(neighbours)) }
}

struct Came2 {
    out: Vec<(u8, Vec<u8>)>,
    counts: Forwarded,
    shared: Arc<Forwarding>,
}

fn through(interface: u16, link: LinkType, frames: Vec<Vec<u8>>) -> Came2 {
    lying(None, interface, link, frames)
}

fn lying(first: Option<usize>, interface: u16, link: LinkType, frames: Vec<Vec<u8>>) -> Came2 {
    let shared = Forwarding::new(vec![interface]).unwrap();
    shared.show(table());
    let (out, count) = (Sink::default(), frames.len() as u64);
    let builder = (0..3).fold(Builder::new().virtual_cpus(1), |builder, nth| builder.output(sink(nth, &out)));
    let input = Input::new("list", "list", vec![Box::new(Frames(frames.into_iter(), link, first))]);
    let ours = Arc::clone(&shared);
    let outcome = builder.input(input).build(move |_| ours.handler()).unwrap().start().unwrap().join();
    let snapshot = outcome.snapshot;
    let counts = shared.so_far();
    assert_eq!((snapshot.delivered(), snapshot.pages_free), (count, snapshot.pages));
    assert_eq!(snapshot.verdicts().transmitted, counts.get(Fate::Forwarded) + counts.icmp_sent);
    assert_eq!(Fate::ALL.iter().map(|fate| counts.get(*fate)).sum::<u64>(), count);
    let out = std::mem::take(&mut *out.lock().unwrap());
    Came2 { out, counts, shared }
}

fn one(frame: Vec<u8>) -> Came2 {
    let whole = through(0, LinkType::ETHERNET, vec![frame.clone()]);
    // Splits the frame into pages inside its payload, and at the end of the IP header.
    for first in [100, 54] {
        let parts = lying(Some(first), 0, LinkType::ETHERNET, vec![frame.clone()]);
        assert_eq!((parts.out, parts.counts), (whole.out.clone(), whole.counts));
    }
    whole
}

fn v4(to: [u8; 4], ttl: u8, payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(HOST, OURS[0]).ipv4([10, 0, 0, 9], to, ttl).udp(1000, 2000);
    builder.write(&mut frame, &vec![0x5a; payload]).unwrap();
    frame
}

fn v6(to: &str, hop_limit: u8, payload: usize) -> Vec<u8> {
    let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(HOST, OURS[0]).ipv6(octets("fd00::9"), octets(to), hop_limit).udp(1, 2);
    builder.write(&mut frame, &vec![0x5a; payload]).unwrap();
    frame
}

/// The frame that the router must send for `frame`. etherparse computes the checksum.
fn sent_on(frame: &[u8], interface: usize, is_v4: bool) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&NEXT);
    frame[6..12].copy_from_slice(&OURS[interface]);
    if is_v4 {
        frame[22] -= 1;
        let header = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap().to_header();
        frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    } else {
        frame[21] -= 1;
    }
    frame
}

#[test]
fn packets_go_to_the_next_hop() {
    let frames = [v4([192, 0, 2, 1], 64, 100), v6("2001:db8::1", 2, 100), v4([10, 0, 1, 2], 2, 1372)];
    let padded = [&v4([192, 0, 2, 1], 64, 1)[..], &[0xee; 17]].concat();
    let came = through(0, LinkType::ETHERNET, [&frames[..], std::slice::from_ref(&padded)].concat());
    let is_v4 = [true, false, true];
    let expected: Vec<_> = frames.iter().zip(is_v4).map(|(frame, is_v4)| (1, sent_on(frame, 1, is_v4))).collect();
    assert_eq!(came.out[..3], expected[..]);
    assert_eq!(came.out[3].1, sent_on(&padded[..padded.len() - 17], 1, true));
    assert_eq!((came.counts.get(Fate::Forwarded), came.counts.dropped()), (4, 0));
    let table = came.shared.table();
    assert!(table.neighbours[&(1, "10.0.1.2".parse().unwrap())].take_use());
    assert!(!table.neighbours[&(1, "10.0.1.66".parse().unwrap())].take_use());
}

#[test]
fn link_headers_come_and_go() {
    let (four, six) = (v4([10, 0, 2, 9], 64, 50), v6("fd00:2::9", 64, 50));
    let came = through(0, LinkType::ETHERNET, vec![four.clone(), six.clone()]);
    assert_eq!(came.out, [(2, sent_on(&four, 1, true)[14..].to_vec()), (2, sent_on(&six, 1, false)[14..].to_vec())]);
    let (four, six) = (v4([192, 0, 2, 1], 64, 50), v6("2001:db8::1", 64, 50));
    let came = through(2, LinkType::RAW, vec![four[14..].to_vec(), six[14..].to_vec()]);
    assert_eq!(came.out, [(1, sent_on(&four, 1, true)), (1, sent_on(&six, 1, false))]);
}

#[test]
fn what_is_not_for_a_router_is_left_alone() {
    let mut arp = v4([10, 0, 0, 1], 64, 50);
    arp[12..14].copy_from_slice(&[8, 6]);
    let to = |first: &[u8]| {
        let mut frame = v4([192, 0, 2, 1], 64, 50);
        frame[..6].copy_from_slice(first);
        frame
    };
    for (frame, fate) in [
        (arp, Fate::NotIp),
        (to(&[0xff; 6]), Fate::Local),
        (to(&[1, 0, 0x5e, 0, 0, 5]), Fate::Local),
        (to(&HOST), Fate::OtherHost),
        (v4([10, 0, 0, 1], 1, 50), Fate::Local),
        (v6("fe80::1", 1, 50), Fate::Local),
    ] {
        let came = one(frame);
        assert_eq!((came.counts.get(fate), came.out.len(), came.counts.dropped()), (1, 0, 0), "{fate:?}");
    }
}

#[test]
fn drops_without_a_word() {
    let mut wrong = v4([192, 0, 2, 1], 64, 50);
    wrong[24] ^= 1;
    for (frame, fate) in [
        (wrong, Fate::BadChecksum),
        (v4([192, 0, 2, 1], 64, 50)[..60].to_vec(), Fate::BadHeader),
        (v4([127, 0, 0, 1], 64, 50), Fate::MartianDestination),
        (v6("fe80::2", 64, 50), Fate::LinkLocal),
        (v4([169, 254, 9, 9], 64, 50), Fate::LinkLocal),
        (v4([10, 9, 1, 1], 64, 50), Fate::Prohibited),
        (v4([10, 0, 1, 77], 64, 50), Fate::Unresolved),
        (v4([192, 0, 2, 1], 64, 3000), Fate::Merged),
    ] {
        let came = one(frame);
        assert_eq!((came.counts.get(fate), came.out.len(), came.counts.dropped()), (1, 0, 1), "{fate:?}");
    }
    let came = one(v4([10, 0, 1, 77], 64, 50));
    assert_eq!(came.shared.wanted().take(), [(1, "10.0.1.77".parse().unwrap())]);
}

fn answer(came: &Came2, fate: Fate) -> Vec<u8> {
    assert_eq!((came.counts.get(fate), came.counts.icmp_sent), (1, 1), "{fate:?}");
    let [(0, frame)] = came.out.as_slice() else { panic!("{fate:?}: {:?}", came.out) };
    assert_eq!(([&HOST[..], &OURS[0]].concat(), 2), (frame[..12].to_vec(), came.shared.table().interfaces.len() - 1));
    frame[14..].to_vec()
}

#[test]
fn icmp_errors_are_right() {
    use icmpv4::DestUnreachableHeader as Unreachable;
    let unreachable = Icmpv4Type::DestinationUnreachable;
    for (frame, fate, expected) in [
        (
            v4([192, 0, 2, 1], 1, 50),
            Fate::TtlExpired,
            Icmpv4Type::TimeExceeded(icmpv4::TimeExceededCode::TtlExceededInTransit),
        ),
        (v4([10, 9, 2, 1], 9, 2), Fate::NoRoute, unreachable(Unreachable::Host)),
        (v4([10, 9, 3, 1], 9, 50), Fate::Prohibited, unreachable(Unreachable::FilterProhibited)),
        (v4([10, 0, 1, 66], 9, 50), Fate::HostUnreachable, unreachable(Unreachable::Host)),
        (
            v4([192, 0, 2, 1], 9, 1400),
            Fate::TooBig,
            unreachable(Unreachable::FragmentationNeeded { next_hop_mtu: 1400 }),
        ),
    ] {
        let came = one(frame.clone());
        let answer = answer(&came, fate);
        let sliced = SlicedPacket::from_ip(&answer).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("{sliced:?}") };
        assert_eq!((ip.header().source(), ip.header().destination()), ([10, 0, 0, 1], [10, 0, 0, 9]));
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        let Some(TransportSlice::Icmpv4(icmp)) = &sliced.transport else { panic!("{sliced:?}") };
        assert_eq!(icmp.icmp_type(), expected);
        assert_eq!(icmp.checksum(), expected.calc_checksum(icmp.payload()));
        assert_eq!(icmp.payload(), &frame[14..][..(frame.len() - 14).min(576 - 28)]);
        assert_eq!(answer.len(), 28 + icmp.payload().len());
    }
}

#[test]
fn icmpv6_errors_are_right() {
    use icmpv6::{DestUnreachableCode, TimeExceededCode};
    for (frame, fate, expected) in [
        (v6("2001:db8::1", 1, 3), Fate::TtlExpired, Icmpv6Type::TimeExceeded(TimeExceededCode::HopLimitExceeded)),
        (v6("fd09::1", 9, 50), Fate::Prohibited, Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Prohibited)),
        (v6("2001:db8::1", 9, 1400), Fate::TooBig, Icmpv6Type::PacketTooBig { mtu: 1400 }),
    ] {
        let came = one(frame.clone());
        let answer = answer(&came, fate);
        let sliced = SlicedPacket::from_ip(&answer).unwrap();
        let Some(NetSlice::Ipv6(ip)) = &sliced.net else { panic!("{sliced:?}") };
        let (source, to) = (ip.header().source(), ip.header().destination());
        assert_eq!((ip.header().source_addr(), to), ("fd00:0::1".parse().unwrap(), frame[22..38].try_into().unwrap()));
        let Some(TransportSlice::Icmpv6(icmp)) = &sliced.transport else { panic!("{sliced:?}") };
        assert_eq!(icmp.icmp_type(), expected);
        assert_eq!(icmp.checksum(), expected.calc_checksum(source, to, icmp.payload()).unwrap());
        assert_eq!(icmp.payload(), &frame[14..][..(frame.len() - 14).min(1280 - 48)]);
        assert_eq!(answer.len(), 48 + icmp.payload().len());
    }
}

#[test]
fn there_are_no_errors_about_errors_and_not_too_many() {
    let mut error = v4([192, 0, 2, 1], 1, 50);
    let before = u16::from_be_bytes([error[24], error[25]]);
    let word = |ttl: u8, protocol: u8| u16::from_be_bytes([ttl, protocol]);
    error[24..26].copy_from_slice(&adjusted(before, word(1, 17), word(1, 1)).to_be_bytes());
    (error[23], error[34]) = (1, 3);
    let came = one(error);
    assert_eq!((came.counts.get(Fate::TtlExpired), came.counts.icmp_sent, came.out.len()), (1, 0, 0));

    let came = through(0, LinkType::ETHERNET, vec![v4([192, 0, 2, 1], 1, 50); 5000]);
    let Forwarded { icmp_sent, icmp_suppressed, .. } = came.counts;
    assert_eq!((came.counts.get(Fate::TtlExpired), icmp_sent + icmp_suppressed), (5000, 5000));
    // At least the ICMP errors of one burst were sent. The exact number of ICMP errors depends on
    // the duration of the test.
    assert!(icmp_sent >= ICMP_ERRORS_BURST && came.out.len() as u64 == icmp_sent, "{icmp_sent}");
}

#[test]
fn any_bytes_will_do() {
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let bytes = proptest::collection::vec(proptest::collection::vec(proptest::num::u8::ANY, 0..120), 1..64);
    let tested = runner.run(&bytes, |tails| {
        let heads = [v4([192, 0, 2, 1], 1, 0), v6("2001:db8::1", 9, 0), v4([10, 0, 2, 9], 64, 0)];
        let frames = tails.iter().zip(heads.iter().cycle()).map(|(tail, head)| {
            let keep = tail.first().map_or(0, |byte| usize::from(*byte) % head.len());
            [&head[..keep], tail].concat()
        });
        let frames: Vec<_> = frames.collect();
        lying(Some(tails[0].len()), 0, LinkType::ETHERNET, frames.clone());
        through(0, LinkType::ETHERNET, frames);
        Ok(())
    });
    tested.unwrap();
}
