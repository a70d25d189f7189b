use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::wire::checksum::{finish, finish_transport, fold, pseudo_sum, sum};
use crate::wire::{be16, ipv4, put};

#[derive(Clone, Debug)]
struct Spec {
    tags: usize,
    is_v4: bool,
    is_tcp: bool,
    options: usize,
    dont_fragment: bool,
    number: u16,
    flow: u8,
    sequence: u32,
    flags: u8,
    payload: Vec<u8>,
}

impl Spec {
    fn link(&self) -> LinkType {
        if self.tags == 9 { LinkType::RAW } else { LinkType::ETHERNET }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut packet = Vec::new();
        if self.tags != 9 {
            packet.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            (0..self.tags).for_each(|tag| packet.extend([0x81, 0, 0, 5 + tag as u8]));
            packet.extend(if self.is_v4 { [8, 0] } else { [0x86, 0xdd] });
        }
        let mut transport = Vec::new();
        transport.extend([0x30, 0x39, 0x1f, self.flow]);
        if self.is_tcp {
            transport.extend(self.sequence.to_be_bytes());
            transport.extend([0, 0, 0, 77, ((20 + 4 * self.options) / 4 * 16) as u8, self.flags, 2, 0, 0, 0, 0, 0]);
            transport.extend((0..4 * self.options).map(|nth| nth as u8 ^ 0x11));
        } else {
            transport.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            transport.extend([0, 0]);
        }
        transport.extend(&self.payload);
        let protocol = if self.is_tcp { 6 } else { 17 };
        let (header, addresses) = if self.is_v4 {
            let mut header = vec![0x45, 0];
            header.extend(((20 + transport.len()) as u16).to_be_bytes());
            header.extend(self.number.to_be_bytes());
            header.extend([if self.dont_fragment { 0x40 } else { 0 }, 0, 64, protocol, 0, 0]);
            header.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            let checksum = finish(sum(&header, 0));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            (header, 12..20)
        } else {
            let mut header = vec![0x60, 0, 0, 9];
            header.extend((transport.len() as u16).to_be_bytes());
            header.extend([protocol, 64]);
            header.extend([0xfd; 32]);
            (header, 8..40)
        };
        let pseudo = sum(&header[addresses], transport.len() as u64 + u64::from(protocol));
        let at = if self.is_tcp { 16 } else { 6 };
        let checksum = finish_transport(sum(&transport, pseudo));
        transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(header);
        packet.extend(transport);
        packet
    }

    /// Replaces the checksum by the sum of the pseudo-header, as a sender with checksum offload
    /// does, or by a wrong sum.
    fn begin(&self, packet: &[u8], is_wrong: bool) -> (Vec<u8>, Offload) {
        let layout = layout::read(packet, self.link()).unwrap();
        let (mut packet, at) = (packet.to_vec(), layout.transport_at + layout.checksum_at());
        let bytes = packet.len() - layout.transport_at;
        let pseudo = fold(pseudo_sum(&packet[layout.network_at..], layout.is_v4, layout.protocol, bytes));
        put(&mut packet, at, (pseudo ^ u16::from(is_wrong)).to_be_bytes());
        let [start, offset] = [layout.transport_at, layout.checksum_at()].map(|at| (at as u16).to_le_bytes());
        let header = [1, 0, 0, 0, 0, 0, start[0], start[1], offset[0], offset[1]];
        let offload = Offload::from_virtio(&header, &packet, self.link()).unwrap().unwrap();
        (packet, offload)
    }
}

fn spec() -> impl Strategy<Value = Spec> {
    let tags = prop_oneof![Just(0_usize), Just(1), Just(2), Just(9)];
    let numbers = (any::<bool>(), any::<u16>(), any::<u32>());
    let flags = prop_oneof![Just(0x10_u8), Just(0x18), Just(0x11), Just(0x90), Just(0x50)];
    (tags, any::<bool>(), any::<bool>(), 0_usize..=10, numbers, flags, prop::collection::vec(any::<u8>(), 1..4000))
        .prop_map(|(tags, is_v4, is_tcp, options, (dont_fragment, number, sequence), flags, payload)| Spec {
            tags,
            is_v4,
            is_tcp,
            options,
            dont_fragment,
            number,
            flow: 1,
            sequence,
            flags,
            payload,
        })
}

fn kind(is_tcp: bool) -> OffloadKind {
    if is_tcp { OffloadKind::Tcp } else { OffloadKind::Udp }
}

fn joined(segment: &Segment<'_>) -> Vec<u8> {
    [segment.header(), segment.payload()].concat()
}

fn cut(offload: &Offload, frame: &[u8]) -> Vec<Vec<u8>> {
    Segments::of_frame(offload, frame).map(|segment| joined(&segment)).collect()
}

fn check_by_etherparse(packet: &[u8], link: LinkType) -> Vec<u8> {
    let sliced = if link == LinkType::ETHERNET {
        SlicedPacket::from_ethernet(packet).unwrap()
    } else {
        SlicedPacket::from_ip(packet).unwrap()
    };
    let net = sliced.net.unwrap();
    match (&net, sliced.transport.unwrap()) {
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            let expected = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap();
            assert!(tcp.checksum() == expected || (expected == 0 && tcp.checksum() == 0xffff));
            tcp.payload().to_vec()
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let expected = tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap();
            assert!(tcp.checksum() == expected || (expected == 0 && tcp.checksum() == 0xffff));
            tcp.payload().to_vec()
        }
        (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(usize::from(udp.length()), 8 + udp.payload().len());
            let expected = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
            assert_eq!(udp.checksum(), expected);
            udp.payload().to_vec()
        }
        (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
            let expected = udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload()).unwrap();
            assert_eq!(udp.checksum(), expected);
            udp.payload().to_vec()
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn cut_and_merged_is_the_same(spec in spec(), size in 1_usize..1500) {
        let size = size.max(spec.payload.len().div_ceil(MERGED_MAX));
        let (frame, link) = (spec.bytes(), spec.link());
        let offload = Offload::super_frame(kind(spec.is_tcp), size, &frame, link).unwrap();
        let packets = cut(&offload, &frame);
        prop_assert_eq!(packets.len(), offload.packets(frame.len()));
        prop_assert_eq!(packets.iter().map(Vec::len).sum::<usize>(), offload.wire_bytes(frame.len()));
        let longest = packets.iter().map(Vec::len).max().unwrap() - offload.network_at();
        prop_assert_eq!(longest, offload.packet_bytes_max(frame.len()));
        let payload: Vec<u8> = packets.iter().flat_map(|packet| check_by_etherparse(packet, link)).collect();
        prop_assert_eq!(&payload, &spec.payload);
        if packets.len() == 1 {
            prop_assert_eq!(&packets[0], &frame);
            return Ok(());
        }
        if spec.is_tcp && spec.flags & 0x80 != 0 {
            let at = usize::from(offload.transport_at) + 13;
            let first_alone = packets.iter().enumerate().all(|(nth, packet)| (packet[at] & 0x80 != 0) == (nth == 0));
            prop_assert!(first_alone);
            return Ok(());
        }
        let batch: Vec<_> = packets.iter().map(|packet| Some((&packet[..], None))).collect();
        let mut merged = Vec::new();
        coalesce(&batch, link, |one| {
            let (header, again) = one.frame.expect("a super-frame");
            assert_eq!(again, Offload { checksum: ChecksumState::Partial, ..offload });
            let mut whole = header.to_vec();
            one.positions().for_each(|nth| whole.extend(&packets[nth][offload.header_bytes()..]));
            let single = Offload { kind: OffloadKind::Single, segment_bytes: 0, network_at: 0, ..again };
            merged.push(cut(&single, &whole).concat());
        });
        prop_assert_eq!(merged, vec![frame]);
    }

    #[test]
    fn merged_and_cut_is_the_same(
        first in spec(),
        size in 1_usize..900,
        steps in prop::collection::vec((1_u8..4, 0_u8..12, 0_u8..3), 1..=MERGED_MAX),
        fixed in any::<bool>(),
        begun in any::<bool>(),
    ) {
        let link = first.link();
        let (mut numbers, mut sequences) = ([first.number; 4], [first.sequence; 4]);
        let (mut packets, mut begins, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for (flow, step, numbered) in steps {
            let mut spec = Spec { flow, flags: 0x10, dont_fragment: fixed, ..first.clone() };
            let at = usize::from(flow);
            spec.payload.resize(size, step);
            let step_size = match step { 0 => size / 2, 1 => size + 1, 2 => 0, _ => size };
            spec.payload.resize(step_size, 9);
            if step == 3 { spec.flags = 0x18; }
            if step == 4 { spec.flags = 0x50; }
            if step == 5 { spec.flags = 0x14; }
            spec.number = numbers[at];
            spec.sequence = if step == 6 { sequences[at].wrapping_add(1) } else { sequences[at] };
            sequences[at] = spec.sequence.wrapping_add(step_size as u32);
            numbers[at] = numbers[at].wrapping_add(if fixed { 0 } else if numbered == 0 { 2 } else { 1 });
            let mut bytes = spec.bytes();
            if step == 7 && !begun { *bytes.last_mut().unwrap() ^= 0x40; }
            packets.push((flow, bytes));
            wrong.push(step == 7);
            begins.push(first.begin(&packets[packets.len() - 1].1, step == 7));
        }
        let as_they_are = packets.iter().map(|(_, packet)| Some((&packet[..], None)));
        let as_begun = begins.iter().map(|(packet, offload)| Some((&packet[..], Some(*offload))));
        let batch: Vec<_> = if begun { as_begun.collect() } else { as_they_are.collect() };
        let mut left: Vec<(u8, Vec<u8>)> = Vec::new();
        let mut seen = 0_u64;
        coalesce(&batch, link, |merged| {
            assert_eq!(seen & merged.members, 0);
            seen |= merged.members;
            let positions: Vec<usize> = merged.positions().collect();
            let flow = packets[positions[0]].0;
            assert!(positions.iter().all(|nth| packets[*nth].0 == flow));
            let Some((header, offload)) = merged.frame else {
                assert_eq!(positions.len(), 1);
                return left.push(packets[positions[0]].clone());
            };
            let payload: Vec<u8> =
                positions.iter().flat_map(|nth| packets[*nth].1[header.len()..].to_vec()).collect();
            assert_eq!(offload.packets(header.len() + payload.len()), positions.len());
            assert!(positions.iter().all(|nth| !wrong[*nth]), "a wrong checksum is made right");
            for (segment, nth) in Segments::new(&offload, header, &payload).zip(&positions) {
                let mut bytes = joined(&segment);
                // The IP identification has no meaning in a packet that must not be fragmented (RFC
                // 6864).
                if fixed && first.is_v4 {
                    let at = offload.network_at();
                    bytes[at + 4..at + 6].copy_from_slice(&packets[*nth].1[at + 4..at + 6]);
                    bytes[at + 10..at + 12].copy_from_slice(&packets[*nth].1[at + 10..at + 12]);
                }
                left.push((flow, bytes));
            }
        });
        for flow in 1..4 {
            let of_flow = |all: &[(u8, Vec<u8>)]| all.iter().filter(|one| one.0 == flow).cloned().collect::<Vec<_>>();
            prop_assert_eq!(of_flow(&left), of_flow(&packets));
        }
    }

    #[test]
    fn forms_are_read_as_written(spec in spec(), size in 1_usize..1500) {
        let (frame, link) = (spec.bytes(), spec.link());
        let complete = Offload::super_frame(kind(spec.is_tcp), size, &frame, link).unwrap();
        prop_assert_eq!(Offload::from_bytes(complete.to_bytes()), Some(complete));
        prop_assert_eq!(complete.to_virtio(spec.is_v4), None);
        let partial = Offload { checksum: ChecksumState::Partial, ..complete };
        prop_assert_eq!(Offload::from_bytes(partial.to_bytes()), Some(partial));
        let header = partial.to_virtio(spec.is_v4).unwrap();
        prop_assert_eq!(Offload::from_virtio(&header, &frame, link), Ok(Some(partial)));
        let other = if spec.is_tcp { header[1] ^ 5 } else { 1 };
        for (at, wrong) in [(1, 3), (1, 7), (1, other), (6, header[6] ^ 1), (8, header[8] ^ 2)] {
            let mut header = header;
            header[at] = wrong;
            prop_assert!(Offload::from_virtio(&header, &frame, link).is_err(), "{} at {}", wrong, at);
        }
        prop_assert_eq!(partial.shifted(14).and_then(|offload| offload.shifted(-14)), Some(partial));
        prop_assert_eq!(partial.shifted(-1000), None);
    }

    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), link in 0_u8..3) {
        any_bytes(&bytes, link);
    }
}

fn any_bytes(bytes: &[u8], link: u8) {
    let link = [LinkType::ETHERNET, LinkType::RAW, LinkType::LINUX_SLL][usize::from(link)];
    let Some((header, frame)) = bytes.split_first_chunk() else { return };
    if let Ok(Some(offload)) = Offload::from_virtio(header, frame, link) {
        assert_eq!(cut(&offload, frame).len(), offload.packets(frame.len()));
    }
    if let Some((offload, frame)) = bytes.split_first_chunk() {
        if let Some(offload) = Offload::from_bytes(*offload) {
            Segments::of_frame(&offload, frame).take(100).for_each(drop);
        }
    }
}

/// In one's complement arithmetic, 0 and 0xffff are the same number.
#[test]
fn both_forms_of_zero_are_kept() {
    for ((is_v4, is_tcp), in_network, form) in [(true, true), (true, false), (false, true), (false, false)]
        .into_iter()
        .flat_map(|kind| [(kind, false, 0), (kind, false, 0xffff), (kind, true, 0), (kind, true, 0xffff)])
        .filter(|((is_v4, is_tcp), in_network, form)| (*is_v4 || !in_network) && (*is_tcp || *in_network || *form != 0))
    {
        let packet = |nth: u32| {
            let mut spec = Spec {
                tags: 9,
                is_v4,
                is_tcp,
                options: 0,
                dont_fragment: true,
                number: 0,
                flow: 1,
                sequence: nth * 60,
                flags: 0x10,
                payload: vec![0; 60],
            };
            let layout = layout::read(&spec.bytes(), LinkType::RAW).unwrap();
            let at = if in_network { ipv4::CHECKSUM_AT } else { layout.transport_at + layout.checksum_at() };
            let checksum = be16(&spec.bytes(), at);
            if in_network {
                spec.number = checksum
            } else {
                put(&mut spec.payload, 0, checksum.to_be_bytes())
            }
            let mut bytes = spec.bytes();
            assert_eq!(be16(&bytes, at) % 0xffff, 0);
            put(&mut bytes, at, u16::to_be_bytes(form));
            bytes
        };
        let packets = [packet(0), packet(1)];
        let (mut left, mut are_merged) = (Vec::new(), false);
        coalesce(&packets.each_ref().map(|packet| Some((&packet[..], None))), LinkType::RAW, |merged| {
            let positions: Vec<usize> = merged.positions().collect();
            let Some((header, offload)) = merged.frame else { return left.push(packets[positions[0]].clone()) };
            are_merged = true;
            let payload: Vec<u8> = positions.iter().flat_map(|nth| packets[*nth][header.len()..].to_vec()).collect();
            left.extend(Segments::new(&offload, header, &payload).map(|segment| joined(&segment)));
        });
        // Splitting a super-frame increments the IP identification from packet to packet, even if
        // the flag "don't fragment" is set.
        if is_v4 && are_merged {
            for at in [4, ipv4::CHECKSUM_AT] {
                let word = be16(&packets[1], at);
                put(&mut left[1], at, word.to_be_bytes());
            }
        }
        assert_eq!(left, packets, "{is_v4} {is_tcp} {in_network} {form:#x}");
        assert_eq!(are_merged, form == if in_network { 0 } else { 0xffff }, "{is_v4} {is_tcp} {in_network} {form:#x}");
    }
}

#[test]
fn a_checksum_is_finished() {
    for (len, header) in [(41_usize, 28_usize), (60, 28), (28, 28), (44, 27)] {
        let mut frame: Vec<u8> = (0..len).map(|nth| nth as u8).collect();
        let offload = Offload::from_virtio(&[1, 0, 0, 0, 0, 0, 3, 0, header as u8 - 5, 0], &frame, LinkType::RAW);
        let offload = offload.unwrap().unwrap();
        assert_eq!((offload.kind(), offload.header_bytes()), (OffloadKind::Single, header));
        let expected = finish_transport(sum(&frame[3..], 0));
        let packets = cut(&offload, &frame);
        frame[header - 2..header].copy_from_slice(&expected.to_be_bytes());
        assert_eq!(packets, [frame]);
    }
}

#[test]
fn a_guest_cannot_ask_for_too_much() {
    let spec = Spec {
        tags: 0,
        is_v4: true,
        is_tcp: true,
        options: 0,
        dont_fragment: true,
        number: 1,
        flow: 1,
        sequence: 1,
        flags: 0x10,
        payload: vec![0; 60_000],
    };
    let frame = spec.bytes();
    let of_size = |size| Offload::super_frame(OffloadKind::Tcp, size, &frame, LinkType::ETHERNET).map(drop);
    for wrong in [0, 1, 14, 0xffff, 0x1_0000] {
        assert_eq!(of_size(wrong), Err(BadOffload::SegmentSize), "{wrong}");
    }
    assert_eq!(of_size(15), Ok(()));
    assert!(Offload::super_frame(OffloadKind::Udp, 1000, &frame, LinkType::ETHERNET).is_err());
    assert!(Offload::super_frame(OffloadKind::Tcp, 1000, &frame[..frame.len() - 1], LinkType::ETHERNET).is_err());
    assert!(Offload::super_frame(OffloadKind::Tcp, 1000, &frame, LinkType::RAW).is_err());
}
