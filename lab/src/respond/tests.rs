//! Sends packets through the responder's handler. etherparse parses the output.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use etherparse::{
    IcmpEchoHeader, Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TcpHeaderSlice, TransportSlice,
};
use proptest::prelude::*;
use steerage::flow::wire::checksum::{finish, sum};
use steerage::{
    Builder, DeviceError, Input, LinkType, Output,
    device::{Capabilities, Completions, Filled, Outgoing, Polled, RxQueue, Sent, TxQueue},
};

use super::*;

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const V4: [u8; 4] = [10, 0, 0, 2];
const FROM: [u8; 4] = [10, 0, 0, 1];
const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56];
const FROM6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

struct Frames(std::vec::IntoIter<Vec<u8>>);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(1600).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |page| {
            let frame = self.0.next()?;
            page[..frame.len()].copy_from_slice(&frame);
            Some(Filled::whole(frame.len()))
        });
        Ok(if self.0.len() == 0 { Polled::Ended } else { Polled::More })
    }
}

type Sink = Arc<Mutex<Vec<Vec<u8>>>>;

struct Sinks(Sink);

impl TxQueue for Sinks {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            assert_eq!(packet.received().link, LinkType::ETHERNET);
            self.0.lock().unwrap().push(packet.received().data.to_vec());
            sent.packets += 1;
        }
        Ok(sent)
    }
}

fn config() -> Config {
    let config = Config::new(vec![IpAddr::from(V4), IpAddr::from(V6)], OURS, 1500).unwrap();
    config.networks(&["10.0.0.0/24".parse().unwrap()])
}

fn answers_of(responding: &Arc<Responding>, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let sink = Sink::default();
    let (ours, theirs) = (Arc::clone(responding), Arc::clone(&sink));
    let output = Output::new("sink", "sink", move |_| Ok(Box::new(Sinks(Arc::clone(&theirs)))));
    let input = Input::new("list", "list", vec![Box::new(Frames(frames.into_iter()))]);
    let builder = Builder::new().virtual_cpus(1).input(input).output(output).originated_max(64);
    builder.build(move |_| ours.handler()).unwrap().start().unwrap().join();
    std::mem::take(&mut *sink.lock().unwrap())
}

fn answers(frames: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Responded) {
    let responding = Responding::new(config());
    let out = answers_of(&responding, frames);
    (out, responding.so_far())
}

fn answer(frame: Vec<u8>) -> (Vec<u8>, Fate) {
    let (mut out, counts) = answers(vec![frame]);
    assert_eq!(out.len(), 1, "{counts:?}");
    let fate = *Fate::ALL.iter().find(|fate| counts.get(**fate) > 0).unwrap();
    (out.remove(0), fate)
}

fn fate(frame: Vec<u8>) -> Fate {
    let (out, counts) = answers(vec![frame]);
    assert_eq!(out.len(), 0, "{counts:?}");
    *Fate::ALL.iter().find(|fate| counts.get(**fate) > 0).unwrap()
}

fn written<T>(write: impl FnOnce(&mut Vec<u8>) -> Result<(), T>) -> Vec<u8> {
    let mut frame = Vec::new();
    assert!(write(&mut frame).is_ok());
    frame
}

fn ethernet() -> etherparse::PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2(PEER, OURS)
}

fn read(frame: &[u8]) -> SlicedPacket<'_> {
    assert_eq!((&frame[..6], &frame[6..12]), (&PEER[..], &OURS[..]));
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let pseudo = match packet.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!((header.source(), header.destination(), header.ttl()), (V4, FROM, 64));
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            None
        }
        NetSlice::Ipv6(ip) => Some((ip.header().source(), ip.header().destination())),
        NetSlice::Arp(_) => None,
    };
    match (packet.transport.as_ref(), pseudo) {
        (Some(TransportSlice::Udp(udp)), None) => {
            assert_eq!(udp.checksum(), udp.to_header().calc_checksum_ipv4_raw(V4, FROM, udp.payload()).unwrap());
        }
        (Some(TransportSlice::Tcp(tcp)), None) => {
            let right = tcp.to_header().calc_checksum_ipv4_raw(V4, FROM, tcp.payload()).unwrap();
            assert_eq!(tcp.checksum(), right);
        }
        (Some(TransportSlice::Tcp(tcp)), Some((from, to))) => {
            assert_eq!(tcp.checksum(), tcp.to_header().calc_checksum_ipv6_raw(from, to, tcp.payload()).unwrap());
        }
        (Some(TransportSlice::Icmpv4(icmp)), _) => {
            assert_eq!(icmp.icmp_type().calc_checksum(icmp.payload()), icmp.checksum());
        }
        (Some(TransportSlice::Icmpv6(icmp)), Some((from, to))) => assert!(icmp.is_checksum_valid(from, to)),
        _ => {}
    }
    packet
}

fn arp(target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &PEER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &PEER, &FROM, &[0; 6], &target].concat();
    frame.resize(60, 0);
    frame
}

#[test]
fn arp_is_answered_for_our_addresses() {
    let (reply, fate_of_it) = answer(arp(V4));
    let expected = [&PEER[..], &OURS, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &OURS, &V4, &PEER, &FROM].concat();
    assert_eq!((&reply, fate_of_it), (&expected, Fate::Arp));
    assert_eq!(fate(arp([10, 0, 0, 3])), Fate::NotOurs);
    let mut long = arp(V4);
    long.resize(1900, 0xff);
    assert_eq!(answer(long), (expected, Fate::Arp));
}

fn solicitation(from: [u8; 16], target: [u8; 16], hop_limit: u8) -> Vec<u8> {
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, target[13], target[14], target[15]];
    let mac = [0x33, 0x33, 0xff, target[13], target[14], target[15]];
    let option: &[u8] = if from == [0; 16] { &[] } else { &[1, 1, 2, 0, 0, 0, 0, 9] };
    let payload = [&target[..], option].concat();
    written(|frame| {
        PacketBuilder::ethernet2(PEER, mac)
            .ipv6(from, group, hop_limit)
            .icmpv6_raw(135, 0, [0; 4])
            .write(frame, &payload)
    })
}

#[test]
fn a_neighbour_is_told_and_so_is_who_wants_our_address() {
    let (reply, fate_of_it) = answer(solicitation(FROM6, V6, 255));
    let packet = read(&reply);
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { panic!() };
    let Some(NetSlice::Ipv6(ip)) = packet.net else { panic!() };
    assert_eq!((ip.header().source(), ip.header().destination(), ip.header().hop_limit()), (V6, FROM6, 255));
    assert_eq!((icmp.type_u8(), icmp.code_u8(), icmp.bytes5to8()), (136, 0, [0x60, 0, 0, 0]));
    assert_eq!(icmp.payload(), [&V6[..], &[2, 1], &OURS].concat());
    assert_eq!(fate_of_it, Fate::Neighbour);

    let (reply, _) = answer(solicitation([0; 16], V6, 255));
    let packet = SlicedPacket::from_ethernet(&reply).unwrap();
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { panic!() };
    let all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert!(icmp.is_checksum_valid(V6, all) && icmp.bytes5to8() == [0x20, 0, 0, 0]);
    assert_eq!(reply[..6], [0x33, 0x33, 0, 0, 0, 1]);

    let other = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x12, 0x34, 0x56];
    assert_eq!(fate(solicitation(FROM6, other, 255)), Fate::NotOurs);
    assert_eq!(fate(solicitation(FROM6, V6, 254)), Fate::BadHeader);
}

#[test]
fn echo_comes_back() {
    let header = IcmpEchoHeader { id: 7, seq: 9 };
    let ping = written(|frame| ethernet().ipv4(FROM, V4, 3).icmpv4_echo_request(7, 9).write(frame, b"hello"));
    let (reply, _) = answer(ping);
    let Some(TransportSlice::Icmpv4(icmp)) = read(&reply).transport else { panic!() };
    assert_eq!((icmp.icmp_type(), icmp.payload()), (Icmpv4Type::EchoReply(header), &b"hello"[..]));

    let ping = written(|frame| ethernet().ipv6(FROM6, V6, 3).icmpv6_echo_request(7, 9).write(frame, b"hello"));
    let (reply, _) = answer(ping);
    let Some(TransportSlice::Icmpv6(icmp)) = read(&reply).transport else { panic!() };
    let header = IcmpEchoHeader { id: 7, seq: 9 };
    assert_eq!((icmp.icmp_type(), icmp.payload()), (Icmpv6Type::EchoReply(header), &b"hello"[..]));

    let udp = |from: u16, to: u16| written(|frame| ethernet().ipv4(FROM, V4, 3).udp(from, to).write(frame, b"odd"));
    let mut frame = udp(1234, 7);
    frame.resize(60, 0xee);
    let (reply, _) = answer(frame);
    let Some(TransportSlice::Udp(udp_back)) = read(&reply).transport else { panic!() };
    assert_eq!((udp_back.source_port(), udp_back.destination_port(), udp_back.payload()), (7, 1234, &b"odd"[..]));
    // The request has a wrong checksum, as packets from the other end of a veth may have. The reply
    // must have a correct checksum.
    let mut frame = udp(1234, 7);
    frame[40] ^= 0xff;
    let trusting = Responding::new(config().verifies(false));
    let replies = answers_of(&trusting, vec![frame.clone()]);
    assert!(matches!(read(&replies[0]).transport, Some(TransportSlice::Udp(_))));
    assert_eq!(fate(frame), Fate::BadChecksum);
    assert_eq!(fate(udp(1234, 8)), Fate::Unserved);
    assert_eq!(fate(udp(7, 7)), Fate::Unserved, "for ever");
}

#[test]
fn echoes_fit_the_link() {
    for len in [1500, 1501, 1900] {
        // The headers take 28 bytes with IPv4, or 48 bytes with IPv6.
        let bytes = vec![7; len - 28];
        let frames = [
            written(|frame| ethernet().ipv4(FROM, V4, 3).icmpv4_echo_request(7, 9).write(frame, &bytes)),
            written(|frame| ethernet().ipv4(FROM, V4, 3).udp(1234, 7).write(frame, &bytes)),
            written(|frame| ethernet().ipv6(FROM6, V6, 3).udp(1234, 7).write(frame, &bytes[20..])),
        ];
        for frame in frames {
            assert_eq!(frame.len(), 14 + len);
            if len <= 1500 {
                assert_eq!(answer(frame.clone()).0.len(), frame.len());
            } else {
                assert_eq!(fate(frame), Fate::Fragment);
            }
        }
    }
}

fn segment(port: u16, to: u16, sequence: u32, flags: &[u16], acknowledged: u32, payload: &[u8]) -> Vec<u8> {
    let mut tcp = ethernet().ipv4(FROM, V4, 64).tcp(port, to, sequence, 60_000);
    for flag in flags {
        tcp = match *flag {
            SYN => tcp.syn().options(&[etherparse::TcpOptionElement::MaximumSegmentSize(1400)]).unwrap(),
            ACK => tcp.ack(acknowledged),
            FIN => tcp.fin(),
            _ => tcp.rst(),
        };
    }
    written(|frame| tcp.write(frame, payload))
}

fn tcp_of(frame: &[u8]) -> (TcpHeaderSlice<'_>, Vec<u8>) {
    let Some(TransportSlice::Tcp(tcp)) = read(frame).transport else { panic!() };
    let at = frame.len() - tcp.payload().len();
    (TcpHeaderSlice::from_slice(&frame[34..at]).unwrap(), tcp.payload().to_vec())
}

#[test]
fn a_flood_of_syns_leaves_nothing_behind() {
    let syn = |nth: u32| segment((nth % 60_000) as u16 + 1, 7, nth.wrapping_mul(77_777), &[SYN], 0, &[]);
    let (out, counts) = answers((0..100_000).map(syn).collect());
    assert_eq!((out.len(), counts.get(Fate::Syn), counts.opened), (100_000, 100_000, 0));
    for frame in out.iter().step_by(997) {
        let (tcp, _) = tcp_of(frame);
        assert!(tcp.syn() && tcp.ack() && !tcp.rst());
    }
    let sequences: BTreeMap<u32, ()> = out.iter().map(|frame| (tcp_of(frame).0.sequence_number(), ())).collect();
    assert!(sequences.len() > 99_000, "cookies are not to be guessed");
}

#[test]
fn what_nobody_serves_is_reset_as_it_should_be() {
    let (reply, _) = answer(segment(1000, 99, 500, &[SYN], 0, &[]));
    let (tcp, _) = tcp_of(&reply);
    assert_eq!((tcp.rst(), tcp.ack(), tcp.sequence_number(), tcp.acknowledgment_number()), (true, true, 0, 501));
    let (reply, fate_of_it) = answer(segment(1000, 7, 500, &[ACK], 12_345, b"who?"));
    let (tcp, _) = tcp_of(&reply);
    assert_eq!((tcp.rst(), tcp.ack(), tcp.sequence_number()), (true, false, 12_345));
    assert_eq!(fate_of_it, Fate::Reset);
    assert_eq!(fate(segment(1000, 7, 500, &[RST], 0, &[])), Fate::Stray);
    assert_eq!(fate(segment(0, 7, 500, &[SYN], 0, &[])), Fate::BadHeader);
}

/// Each list of frames gets a new handler, so all frames after the SYN are in one list.
#[test]
fn a_connection_from_beginning_to_end() {
    let responding = Responding::new(config());
    let out = answers_of(&responding, vec![segment(1000, 7, 500, &[SYN], 0, &[])]);
    let (tcp, _) = tcp_of(&out[0]);
    let cookie = tcp.sequence_number();
    assert_eq!((tcp.acknowledgment_number(), tcp.window_size()), (501, 8192));
    assert_eq!(tcp.options(), [2, 4, 0x05, 0xb4]);
    let out = answers_of(
        &responding,
        vec![
            // The second segment arrives first and is dropped. The peer resends it later.
            segment(1000, 7, 506, &[ACK], cookie + 1, b"world"),
            segment(1000, 7, 501, &[ACK], cookie + 1, b"hello"),
            segment(1000, 7, 506, &[ACK], cookie + 6, b"world"),
            segment(1000, 7, 511, &[ACK, FIN], cookie + 11, &[]),
            segment(1000, 7, 512, &[ACK], cookie + 12, &[]),
        ],
    );
    let said: Vec<(u32, u32, bool, Vec<u8>)> = out
        .iter()
        .map(|frame| tcp_of(frame))
        .map(|(tcp, payload)| {
            (tcp.sequence_number().wrapping_sub(cookie), tcp.acknowledgment_number(), tcp.fin(), payload)
        })
        .collect();
    let expected =
        vec![(1, 506, false, b"hello".to_vec()), (6, 511, false, b"world".to_vec()), (11, 512, true, Vec::new())];
    assert_eq!(said, expected);
    let counts = responding.so_far();
    assert_eq!((counts.get(Fate::Early), counts.opened, counts.open, counts.ended(End::Closed)), (1, 1, 0, 1));
}

/// The reply to a SYN with data acknowledges only the SYN. The peer resends the data, as after a
/// SYN cookie of Linux.
#[test]
fn data_in_a_syn_comes_again() {
    let responding = Responding::new(config());
    let out = answers_of(&responding, vec![segment(1000, 7, 500, &[SYN], 0, b"abc")]);
    let (tcp, _) = tcp_of(&out[0]);
    assert_eq!((tcp.syn(), tcp.ack(), tcp.acknowledgment_number()), (true, true, 501));
    let cookie = tcp.sequence_number();
    let out = answers_of(&responding, vec![segment(1000, 7, 501, &[ACK], cookie + 1, b"abc")]);
    let (tcp, payload) = tcp_of(&out[0]);
    assert_eq!((tcp.acknowledgment_number(), payload), (504, b"abc".to_vec()));
}

/// Returns the replies to `frames` on an open connection. The peer's next sequence number is 506.
fn challenged(frames: &[(u32, &[u16])]) -> (Vec<(u32, u32, bool)>, Responded) {
    let responding = Responding::new(config());
    let out = answers_of(&responding, vec![segment(1000, 7, 500, &[SYN], 0, &[])]);
    let cookie = tcp_of(&out[0]).0.sequence_number();
    let hello = segment(1000, 7, 501, &[ACK], cookie + 1, b"hello");
    let more = frames.iter().map(|(sequence, flags)| segment(1000, 7, *sequence, flags, cookie + 6, &[]));
    let out = answers_of(&responding, std::iter::once(hello).chain(more).collect());
    let said = out.iter().skip(1).map(|frame| tcp_of(frame).0).map(|tcp| {
        let is_ack = tcp.ack() && !tcp.syn() && !tcp.rst() && !tcp.fin();
        (tcp.sequence_number().wrapping_sub(cookie), tcp.acknowledgment_number(), is_ack)
    });
    (said.collect(), responding.so_far())
}

/// A SYN gets a challenge ACK (RFC 9293, 3.10.7.4, and RFC 5961). A reset within the window of 8192
/// bytes, but not at its beginning, also gets a challenge ACK. A reset outside of the window is
/// ignored. Only a reset with the next expected number ends the connection.
#[test]
fn a_stranger_does_not_end_a_connection() {
    let challenge = vec![(6, 506, true)];
    for (sequence, flags) in
        [(500, &[SYN][..]), (506, &[SYN]), (77_777, &[SYN]), (506, &[SYN, ACK]), (507, &[RST]), (8697, &[RST, ACK])]
    {
        let (said, counts) = challenged(&[(sequence, flags)]);
        assert_eq!((said, counts.ended(End::Aborted)), (challenge.clone(), 0), "{sequence} {flags:?}");
    }
    for sequence in [505, 8698, 0x9000_0000] {
        let (said, counts) = challenged(&[(sequence, &[RST])]);
        assert_eq!((said, counts.ended(End::Aborted)), (vec![], 0), "{sequence}");
    }
    // Challenge ACKs are limited in rate: RFC 5961, 7. A peer that has lost its state answers the
    // first challenge ACK with a reset that has the exact sequence number.
    let (said, counts) = challenged(&[(900, &[SYN]), (901, &[SYN]), (506, &[RST])]);
    assert_eq!((said, counts.ended(End::Aborted)), (challenge, 1));
}

/// A FIN takes a sequence number, so a reset after it is exact only with the next number.
#[test]
fn a_reset_after_a_fin_is_exact_after_the_fin() {
    for (sequence, aborted) in [(507, 1), (508, 0)] {
        let (said, counts) = challenged(&[(506, &[ACK, FIN]), (sequence, &[RST])]);
        // The responder's FIN, which acknowledges the peer's FIN.
        assert_eq!(said.len(), 2 - aborted as usize, "{said:?}");
        assert_eq!((said[0], counts.ended(End::Aborted)), ((6, 507, false), aborted));
    }
}

/// An open port ignores the segments of scans (RFC 9293, 3.10.7.2). Linux also ignores a SYN with
/// FIN. A closed port replies with a reset.
#[test]
fn scans_of_an_open_port_get_no_answer() {
    for flags in [&[][..], &[FIN], &[SYN, FIN], &[RST]] {
        assert_eq!(fate(segment(1000, 7, 500, flags, 0, &[])), Fate::Stray, "{flags:?}");
    }
    for (flags, acknowledged) in [(&[][..], 500), (&[FIN], 501), (&[SYN, FIN], 502)] {
        let (reply, fate) = answer(segment(1000, 99, 500, flags, 0, &[]));
        let (tcp, _) = tcp_of(&reply);
        assert_eq!((fate, tcp.rst(), tcp.acknowledgment_number()), (Fate::Reset, true, acknowledged), "{flags:?}");
    }
    let (reply, _) = answer(segment(1000, 7, 500, &[SYN, ACK], 900, &[]));
    assert_eq!((tcp_of(&reply).0.rst(), tcp_of(&reply).0.sequence_number()), (true, 900));
}

#[test]
fn one_peer_leaves_room_for_others() {
    const OTHER: [u8; 4] = [10, 0, 0, 3];
    let responding = Responding::new(config().connections_max(12));
    let from = |source: [u8; 4], port: u16, flags: &[u16], acknowledged: u32| {
        let tcp = ethernet().ipv4(source, V4, 64).tcp(port, 7, if flags[0] == SYN { 500 } else { 501 }, 60_000);
        let tcp = if flags[0] == SYN { tcp.syn() } else { tcp.ack(acknowledged) };
        written(|frame| tcp.write(frame, &[]))
    };
    let ports = 1000..1012;
    let all: Vec<([u8; 4], u16)> = ports.map(|port| (FROM, port)).chain([(OTHER, 1000)]).collect();
    let syns = answers_of(&responding, all.iter().map(|(source, port)| from(*source, *port, &[SYN], 0)).collect());
    let cookie = |nth: usize| u32::from_be_bytes(syns[nth][38..42].try_into().unwrap()) + 1;
    let acks = all.iter().enumerate().map(|(nth, (source, port))| from(*source, *port, &[ACK], cookie(nth)));
    let out = answers_of(&responding, acks.collect());
    // Each reset goes to the peer that has too many connections.
    assert!(out.iter().all(|frame| frame[30..34] == FROM && u16::from(frame[47]) & RST == RST) && out.len() == 9);
    let counts = responding.so_far();
    assert_eq!((counts.opened, counts.refused), (4, 9));
}

/// A refused connection counts once, even if its peer sends more segments before the reset arrives.
#[test]
fn each_connection_that_is_refused_counts_once() {
    let responding = Responding::new(config().connections_max(1));
    let ports = [1000, 1001, 1002];
    let syns = answers_of(&responding, ports.map(|port| segment(port, 7, 500, &[SYN], 0, &[])).to_vec());
    let cookie = |nth: usize| tcp_of(&syns[nth]).0.sequence_number() + 1;
    let mut frames = vec![segment(ports[0], 7, 501, &[ACK], cookie(0), &[])];
    for nth in [1, 2] {
        frames.push(segment(ports[nth], 7, 501, &[ACK], cookie(nth), &[]));
        frames.push(segment(ports[nth], 7, 501, &[ACK], cookie(nth), b"hello"));
    }
    // After the limit of connections is reached, one more SYN arrives twice.
    frames.extend([900, 900].map(|sequence| segment(1003, 7, sequence, &[SYN], 0, &[])));
    let out = answers_of(&responding, frames);
    assert!(out.iter().all(|frame| tcp_of(frame).0.rst()) && out.len() == 6);
    let counts = responding.so_far();
    assert_eq!((counts.get(Fate::Syn), counts.opened, counts.refused, counts.get(Fate::Reset)), (3, 1, 3, 6));
}

#[test]
fn what_is_left_undone_is_told_by_its_reason() {
    let ping = || written(|frame| ethernet().ipv4(FROM, V4, 3).icmpv4_echo_request(7, 9).write(frame, b"hello"));
    let with = |change: fn(&mut Vec<u8>)| {
        let mut frame = ping();
        change(&mut frame);
        fate(frame)
    };
    assert_eq!(with(|frame| frame[40] ^= 1), Fate::BadChecksum);
    assert_eq!(with(|frame| frame[24] ^= 1), Fate::BadChecksum);
    assert_eq!(with(|frame| frame.truncate(40)), Fate::BadHeader);
    assert_eq!(with(|frame| frame[14] = 0x44), Fate::BadHeader);
    assert_eq!(with(|frame| frame[0] = 4), Fate::NotOurs);
    assert_eq!(with(|frame| frame[33] = 77), Fate::NotOurs);
    let summed = |mut frame: Vec<u8>, len: usize| {
        frame[24..26].fill(0);
        let checksum = finish(sum(&frame[14..14 + len], 0));
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        fate(frame)
    };
    let mut fragment = ping();
    fragment[20] = 0x20;
    assert_eq!(summed(fragment, 20), Fate::Fragment);
    let mut options = ping();
    (options[14], options[17]) = (0x46, options[17] + 4);
    options.splice(34..34, [1, 1, 1, 0]);
    assert_eq!(summed(options, 24), Fate::Options);
    // Source addresses that get no reply: the responder's own address, broadcast addresses, and
    // addresses that no host can have.
    for nobody in [V4, [10, 0, 0, 255], [255; 4], [240, 0, 0, 1], [224, 0, 0, 1], [127, 0, 0, 1], [0, 0, 0, 1]] {
        let mut from_nobody = ping();
        from_nobody[26..30].copy_from_slice(&nobody);
        assert_eq!(summed(from_nobody, 20), Fate::BadHeader, "{nobody:?}");
    }
    let hop_by_hop = [&OURS[..], &PEER, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 0, 64], &FROM6, &V6, &[17; 8]];
    assert_eq!(fate(hop_by_hop.concat()), Fate::Options);
}

proptest! {
    #[test]
    fn a_stranger_can_write_what_he_likes(
        kind in 0_usize..5,
        changes in prop::collection::vec((14_usize..80, any::<u8>()), 0..6),
        len in 14_usize..120,
    ) {
        let mut frame = match kind {
            0 => segment(1000, 7, 500, &[SYN], 0, &[]),
            1 => solicitation(FROM6, V6, 255),
            2 => arp(V4),
            3 => written(|frame| ethernet().ipv6(FROM6, V6, 9).tcp(9, 7, 1, 1).ack(5).write(frame, b"abc")),
            _ => written(|frame| ethernet().ipv4(FROM, V4, 3).udp(5, 7).write(frame, b"abc")),
        };
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(len);
        let responding = Responding::new(config().verifies(false));
        answers_of(&responding, vec![frame]);
        let counts = responding.so_far();
        prop_assert_eq!(Fate::ALL.iter().map(|fate| counts.get(*fate)).sum::<u64>(), 1);
    }
}
