//! The source and destination addresses that packets may have: by RFC 1122 (3.2.1.3) for hosts, RFC
//! 1812 (4.2.2.11, 5.3.7) for routers, and RFC 4291 (2.5.2, 2.5.3, 2.5.5.2, 2.7) for IPv6.
//! `steerage forward` and the TCP host of lab/ share this module.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv4Net;

/// A link address of 48 bits (IEEE 802).
pub type Mac = [u8; 6];

/// Returns true if a host on a link can have this IPv4 address: not 0/8 ("this network"), 127/8
/// (loopback), 224/4 (multicast) or 240/4 (reserved, with the limited broadcast address).
#[inline]
pub fn is_of_a_host_v4(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// Returns false for an unspecified, loopback, multicast or IPv4-mapped address.
#[inline]
pub fn is_of_a_host_v6(address: Ipv6Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.to_ipv4_mapped().is_some())
}

/// Returns the result of [`is_of_a_host_v4`] or [`is_of_a_host_v6`].
pub fn is_of_a_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_of_a_host_v4(address),
        IpAddr::V6(address) => is_of_a_host_v6(address),
    }
}

/// Returns true if an IPv4 packet may have this source address on a link with the broadcast
/// addresses `broadcasts`.
#[inline]
pub fn is_source_v4(address: Ipv4Addr, broadcasts: &[Ipv4Addr]) -> bool {
    is_of_a_host_v4(address) && !broadcasts.contains(&address)
}

/// The broadcast address of a network. Networks with one or two addresses have no broadcast address
/// (RFC 3021).
///
/// ```
/// use steerage_router::broadcast_of;
///
/// assert_eq!(broadcast_of("192.0.2.0/24".parse()?), Some("192.0.2.255".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn broadcast_of(network: Ipv4Net) -> Option<Ipv4Addr> {
    (network.prefix_len() < 31).then(|| network.broadcast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_these() {
        for nobody in ["0.1.2.3", "127.0.0.1", "224.0.0.5", "239.9.9.9", "240.0.0.1", "255.255.255.255"] {
            assert!(!is_of_a_host(nobody.parse().unwrap()), "{nobody}");
        }
        for nobody in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
            assert!(!is_of_a_host(nobody.parse().unwrap()), "{nobody}");
        }
        for host in ["1.0.0.0", "169.254.1.1", "223.255.255.255", "fe80::1", "2001:db8::1"] {
            assert!(is_of_a_host(host.parse().unwrap()), "{host}");
        }
    }

    #[test]
    fn a_broadcast_address_is_no_source() {
        let broadcast = |net: &str| broadcast_of(net.parse().unwrap());
        let all: Vec<Ipv4Addr> = ["10.0.0.2/24", "10.1.0.1/30"].into_iter().filter_map(broadcast).collect();
        assert_eq!(all, [Ipv4Addr::new(10, 0, 0, 255), Ipv4Addr::new(10, 1, 0, 3)]);
        assert!(all.iter().all(|address| !is_source_v4(*address, &all) && is_source_v4(*address, &[])));
        assert!(is_source_v4([10, 0, 0, 254].into(), &all));
        assert_eq!([broadcast("10.0.0.0/31"), broadcast("10.0.0.0/32")], [None, None]);
    }
}
