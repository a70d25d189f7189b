use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

#[test]
fn shown_as_people_write_it() {
    let (one, two) = (0x0a00_0001, 0x0a00_0002);
    assert_eq!(FlowKey::v4_bits((one, 5), (two, 80), 6).to_string(), "tcp 10.0.0.1:5 > 10.0.0.2:80");
    assert_eq!(FlowKey::v4_bits((one, 0), (two, 80), 132).to_string(), "sctp 10.0.0.1:0 > 10.0.0.2:80");
    assert_eq!(FlowKey::v4_bits((one, 0), (two, 0), 1).to_string(), "icmp 10.0.0.1 > 10.0.0.2");
    assert_eq!(FlowKey::v4_bits((one, 0), (two, 0), 99).to_string(), "protocol-99 10.0.0.1 > 10.0.0.2");
    let (one, two) = (0xfd00 << 112 | 1, 0xfd00 << 112 | 2);
    assert_eq!(FlowKey::v6_bits((one, 5), (two, 53), 17).to_string(), "udp [fd00::1]:5 > [fd00::2]:53");
    assert_eq!(FlowKey::v6_bits((one, 0), (two, 0), 58).to_string(), "icmp6 fd00::1 > fd00::2");
    let link = FlowKey::link([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 0x0806);
    assert_eq!(link.to_string(), "link 02:00:00:00:00:01 > 02:00:00:00:00:02 0x0806");
    assert_eq!(format!("{:?}", FlowKey::from_bytes(&[0xc0, 0xff, 0xee])), "FlowKey(bytes c0ffee)");
    let long = "ab".repeat(40);
    assert_eq!(FlowKey::from_bytes(&[0xab; 64]).to_string(), format!("bytes {long}.. of 64"));
}

/// If keys did not contain their kind and length, all keys of this test would be equal.
#[test]
fn no_two_kinds_are_equal() {
    let mut keys: Vec<_> = (0..64).map(|len| FlowKey::from_bytes(&[0; 64][..len])).collect();
    keys.push(FlowKey::v4_bits((0, 0), (0, 0), 0));
    keys.push(FlowKey::v6_bits((0, 0), (0, 0), 0));
    keys.push(FlowKey::link([0; 6], [0; 6], 0));
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
}

fn check_ends(key: FlowKey, [source, destination]: [SocketAddr; 2], protocol: u8) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (key.source(), key.destination(), key.protocol()),
        (Some(source), Some(destination), Some(protocol))
    );
    prop_assert_eq!(FlowKey::between(source, destination, protocol), Some(key));
    prop_assert_eq!(FlowKey::between(destination, source, protocol), Some(key.reversed()));
    let (bare_source, bare_destination) = (SocketAddr::new(source.ip(), 0), SocketAddr::new(destination.ip(), 0));
    prop_assert_eq!(FlowKey::between(bare_source, bare_destination, protocol), Some(key.without_ports()));
    Ok(())
}

fn check_no_ends(key: FlowKey) -> Result<(), TestCaseError> {
    prop_assert_eq!((key.source(), key.destination(), key.protocol()), (None, None, None));
    prop_assert_eq!(key.without_ports(), key);
    Ok(())
}

#[test]
fn no_flow_is_between_the_two_versions() {
    let (v4, v6) = ("10.0.0.1:5".parse().unwrap(), "[::ffff:10.0.0.2]:80".parse().unwrap());
    assert_eq!((FlowKey::between(v4, v6, 6), FlowKey::between(v6, v4, 6)), (None, None));
}

type Five<A> = ((A, u16), (A, u16), u8);

proptest! {
    #[test]
    fn v4_is_what_was_given((source, destination, protocol) in any::<Five<u32>>()) {
        let key = FlowKey::v4_bits(source, destination, protocol);
        let ends = [source, destination].map(|(bits, port)| SocketAddrV4::new(Ipv4Addr::from_bits(bits), port));
        prop_assert_eq!(key.parts(), FlowParts::V4 { source: ends[0], destination: ends[1], protocol });
        check_ends(key, ends.map(SocketAddr::V4), protocol)?;
        prop_assert!(key.is_v4() && key.is_short() && !key.is_v6());
        let turned = FlowKey::v4_bits(destination, source, protocol);
        prop_assert_eq!(key.both_directions(), turned.both_directions());
        let (low, high) = (source.min(destination), source.max(destination));
        prop_assert_eq!(key.both_directions(), FlowKey::v4_bits(low, high, protocol));
    }

    /// The two addresses are often equal, so that only the ports decide the endpoints' order.
    #[test]
    fn v6_is_what_was_given(few in any::<bool>(), (source, destination, protocol) in any::<Five<u128>>()) {
        let reduce = |(address, port): (u128, u16)| (if few { address >> 127 << 64 } else { address }, port);
        let (source, destination) = (reduce(source), reduce(destination));
        let key = FlowKey::v6_bits(source, destination, protocol);
        let ends = [source, destination].map(|(bits, port)| SocketAddrV6::new(Ipv6Addr::from_bits(bits), port, 0, 0));
        prop_assert_eq!(key.parts(), FlowParts::V6 { source: ends[0], destination: ends[1], protocol });
        check_ends(key, ends.map(SocketAddr::V6), protocol)?;
        prop_assert!(key.is_v6() && !key.is_short() && !key.is_v4());
        let turned = FlowKey::v6_bits(destination, source, protocol);
        prop_assert_eq!(key.both_directions(), turned.both_directions());
        let (low, high) = (source.min(destination), source.max(destination));
        prop_assert_eq!(key.both_directions(), FlowKey::v6_bits(low, high, protocol));
    }

    #[test]
    fn link_is_what_was_given(source: [u8; 6], destination: [u8; 6], ethertype: u16) {
        let key = FlowKey::link(source, destination, ethertype);
        prop_assert_eq!(key.parts(), FlowParts::Link { source, destination, ethertype });
        prop_assert_eq!(key.reversed(), FlowKey::link(destination, source, ethertype));
        check_no_ends(key)?;
        let (low, high) = (source.min(destination), source.max(destination));
        prop_assert_eq!(key.both_directions(), FlowKey::link(low, high, ethertype));
    }

    #[test]
    fn bytes_are_what_was_given(given in prop::collection::vec(any::<u8>(), 0..60)) {
        let key = FlowKey::from_bytes(&given);
        let mut bytes = [0; BYTES_MAX];
        let hashed = given.len().min(BYTES_MAX);
        bytes[..hashed].copy_from_slice(&given[..hashed]);
        prop_assert_eq!(key.parts(), FlowParts::Bytes { bytes, len: given.len() });
        prop_assert_eq!((key.both_directions(), key.reversed()), (key, key));
        check_no_ends(key)?;
        prop_assert_ne!(key, FlowKey::from_bytes(&[&given[..], &[0]].concat()));
    }
}
