//! Checks neighbour solicitations: RFC 4861, 7.1.1. Any host can send a solicitation, and the reply
//! changes neighbour tables, so invalid solicitations are discarded.

use std::net::Ipv6Addr;

use steerage::flow::wire::checksum::{finish, pseudo_sum, sum};
use steerage::flow::wire::{ipv6, protocol};

/// The length of a solicitation without options: type, code, checksum, reserved field, and target.
const SOLICITATION_BYTES: usize = 24;

/// The maximum hop limit proves that the sender is on the link: a router would have reduced it.
const HOP_LIMIT: u8 = 255;

const OPTION_UNIT: usize = 8;

const SOURCE_LINK_ADDRESS: u8 = 1;

/// The prefix of solicited-node addresses: RFC 4291, 2.7.1.
const SOLICITED_NODE: [u8; 13] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Solicitation {
    pub(super) target: Ipv6Addr,
    /// The sender has no address yet, and checks whether the target address is free: RFC 4862, 5.4.
    pub(super) is_probe: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    HopLimit,
    Checksum,
    Code,
    Length,
    MulticastTarget,
    /// An option of length 0, or one that does not end within the packet.
    OptionLength,
    ProbeDestination,
    ProbeSource,
}

impl Solicitation {
    /// `packet` is an IPv6 packet without extension headers and padding, whose payload is ICMPv6.
    pub(super) fn read(packet: &[u8]) -> Result<Self, Broken> {
        let (header, icmp) = packet.split_first_chunk::<{ ipv6::BYTES }>().ok_or(Broken::Length)?;
        if icmp.len() < SOLICITATION_BYTES {
            return Err(Broken::Length);
        }
        if header[7] != HOP_LIMIT {
            return Err(Broken::HopLimit);
        }
        if finish(sum(icmp, pseudo_sum(header, false, protocol::ICMP6, icmp.len()))) != 0 {
            return Err(Broken::Checksum);
        }
        if icmp[1] != 0 {
            return Err(Broken::Code);
        }
        let address = |bytes: &[u8]| bytes.first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |all| (*all).into());
        let target = address(&icmp[8..]);
        if target.is_multicast() {
            return Err(Broken::MulticastTarget);
        }
        let has_source = has_source(&icmp[SOLICITATION_BYTES..])?;
        let is_probe = address(&header[8..]).is_unspecified();
        if is_probe && !header[24..].starts_with(&SOLICITED_NODE) {
            return Err(Broken::ProbeDestination);
        }
        if is_probe && has_source {
            return Err(Broken::ProbeSource);
        }
        Ok(Self { target, is_probe })
    }
}

/// Checks the lengths of all options. Returns true if one of the options is the sender's link
/// address.
fn has_source(mut options: &[u8]) -> Result<bool, Broken> {
    let mut found = false;
    while let Some(kind) = options.first() {
        found |= *kind == SOURCE_LINK_ADDRESS;
        let bytes = options.get(1).map_or(0, |units| usize::from(*units) * OPTION_UNIT);
        options = options.get(bytes..).filter(|_| bytes > 0).ok_or(Broken::OptionLength)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use steerage::flow::wire::icmp6;

    use super::*;

    const HOST: &str = "fd00::1";
    const TARGET: &str = "fd00::12:3456";
    const GROUP: &str = "ff02::1:ff12:3456";
    const LINK: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 9];

    /// Makes a solicitation, which is valid with the hop limit 255, the code 0, valid options, and
    /// a host's address as the target.
    fn packet(source: &str, destination: &str, hops: u8, code: u8, target: &str, options: &[u8]) -> Vec<u8> {
        let octets = |address: &str| address.parse::<Ipv6Addr>().unwrap().octets();
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv6(octets(source), octets(destination), hops);
        let payload = [&octets(target)[..], options].concat();
        builder.icmpv6_raw(icmp6::NEIGHBOUR_SOLICITATION, code, [0; 4]).write(&mut packet, &payload).unwrap();
        packet
    }

    #[test]
    fn what_follows_the_rules_is_read() {
        let target = TARGET.parse().unwrap();
        let cases = [
            (packet(HOST, GROUP, 255, 0, TARGET, &LINK), false),
            (packet(HOST, GROUP, 255, 0, TARGET, &[]), false),
            // A solicitation to the target's own address, to check whether the target is still
            // reachable: RFC 4861, 7.3.3.
            (packet(HOST, TARGET, 255, 0, TARGET, &[]), false),
            // An option of unknown type, with a length of two units (16 bytes), precedes the link
            // address.
            (packet(HOST, GROUP, 255, 0, TARGET, &[&[99, 2][..], &[0; 14], &LINK].concat()), false),
            (packet("::", GROUP, 255, 0, TARGET, &[]), true),
            // A nonce option, which RFC 7527 adds to probes for an address.
            (packet("::", GROUP, 255, 0, TARGET, &[14, 1, 1, 2, 3, 4, 5, 6]), true),
        ];
        for (packet, is_probe) in cases {
            assert_eq!(Solicitation::read(&packet), Ok(Solicitation { target, is_probe }), "{packet:02x?}");
        }
    }

    /// For each rule of RFC 4861, 7.1.1, one packet breaks the rule.
    #[test]
    fn what_breaks_one_rule_is_discarded() {
        let valid = packet(HOST, GROUP, 255, 0, TARGET, &LINK);
        let mut bad_checksum = valid.clone();
        bad_checksum[ipv6::BYTES + 2] ^= 1;
        // 23 instead of 24 bytes of ICMPv6, with a correct checksum.
        let mut short = packet(HOST, GROUP, 255, 0, "fd00::", &[]);
        short.truncate(ipv6::BYTES + SOLICITATION_BYTES - 1);
        short[ipv6::BYTES + 2..ipv6::BYTES + 4].fill(0);
        let pseudo = pseudo_sum(&short, false, protocol::ICMP6, SOLICITATION_BYTES - 1);
        let checksum = finish(sum(&short[ipv6::BYTES..], pseudo));
        short[ipv6::BYTES + 2..ipv6::BYTES + 4].copy_from_slice(&checksum.to_be_bytes());
        let cases = [
            ("hop limit 254", packet(HOST, GROUP, 254, 0, TARGET, &LINK), Broken::HopLimit),
            ("checksum", bad_checksum, Broken::Checksum),
            ("code", packet(HOST, GROUP, 255, 1, TARGET, &LINK), Broken::Code),
            ("23 bytes", short, Broken::Length),
            ("no header", valid[..ipv6::BYTES - 1].to_vec(), Broken::Length),
            ("multicast target", packet(HOST, GROUP, 255, 0, "ff02::1", &LINK), Broken::MulticastTarget),
            ("option of 0 units", packet(HOST, GROUP, 255, 0, TARGET, &[1, 0, 2, 0, 0, 0, 0, 9]), Broken::OptionLength),
            (
                "a second of 0",
                packet(HOST, GROUP, 255, 0, TARGET, &[&LINK[..], &[0; 8]].concat()),
                Broken::OptionLength,
            ),
            (
                "option after the end",
                packet(HOST, GROUP, 255, 0, TARGET, &[1, 2, 2, 0, 0, 0, 0, 9]),
                Broken::OptionLength,
            ),
            ("half an option", packet(HOST, GROUP, 255, 0, TARGET, &[1]), Broken::OptionLength),
            ("probe to a host", packet("::", TARGET, 255, 0, TARGET, &[]), Broken::ProbeDestination),
            ("probe to all nodes", packet("::", "ff02::1", 255, 0, TARGET, &[]), Broken::ProbeDestination),
            ("probe with a link address", packet("::", GROUP, 255, 0, TARGET, &LINK), Broken::ProbeSource),
        ];
        for (what, packet, broken) in cases {
            assert_eq!(Solicitation::read(&packet), Err(broken), "{what}");
        }
    }
}
