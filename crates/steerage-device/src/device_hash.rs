//! Decides whether steerage uses the flow hash that an interface provides.
//!
//! Most drivers set the kernel's random key (`netdev_rss_key`) in the card. Some drivers set a
//! published key, with which an attacker can compute which packets get the same hash. If the card
//! does not hash, the kernel hashes with its own random key. A forwarded packet keeps its hash, so
//! a packet from a bridge or a veth may have a hash from an unknown card.

use std::fs;

use steerage::Affinity;
use steerage_netlink::ethtool::Ethtool;

use crate::sys;

/// Selects what computes the flow hash of an interface's packets: the device or steerage.
///
/// ```
/// use steerage_device::DeviceHash;
/// use steerage_device::af_packet::AfPacketOptions;
///
/// /// Listens, and lets the interface hash where that is safe.
/// fn listen() -> AfPacketOptions {
///     AfPacketOptions::new("eth1").device_hash(DeviceHash::IfSafe)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceHash {
    /// steerage computes the hash.
    #[default]
    Never,
    /// The device computes the hash, if steerage knows that the hash key is random, and that the
    /// fragments of a datagram all get the same hash or no hash. The two directions of a flow may
    /// get different hashes ([`Affinity::OneDirection`]).
    IfSafe,
    /// The device computes the hash if it can. The user guarantees one hash for each flow.
    Always,
}

pub(crate) const DEVICE_HASHES: [(&str, DeviceHash); 3] =
    [("auto", DeviceHash::IfSafe), ("device", DeviceHash::Always), ("ours", DeviceHash::Never)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashedBy {
    /// The kernel's key is random. All fragments of a datagram have the same hash, because the
    /// kernel does not hash the ports of any fragment.
    Kernel,
    /// The card may hash the first fragment of a datagram by its ports.
    Card { random_key: bool },
    /// Packets may have the hash of another interface, through which they arrived.
    Unknown,
}

impl DeviceHash {
    /// Returns which packets get the same device hash if frames are received by AF_PACKET. Returns
    /// `None` if steerage computes the hash. A packet that this machine sends has a hash from its
    /// socket. If the machine forwards the packet, the packet has a hash from the card that
    /// received it. So steerage knows where a packet's hash comes from only if the packet was
    /// received.
    pub(crate) fn of_af_packet(self, by: HashedBy, only_received: bool) -> Option<Affinity> {
        self.if_safe(only_received && by == HashedBy::Kernel)
    }

    /// Returns which packets get the same device hash if frames are received by AF_XDP. Returns
    /// `None` if steerage computes the hash. AF_XDP takes only received packets, and steerage's XDP
    /// program reports no hash for fragments.
    pub(crate) fn of_af_xdp(self, by: HashedBy) -> Option<Affinity> {
        self.if_safe(matches!(by, HashedBy::Kernel | HashedBy::Card { random_key: true }))
    }

    fn if_safe(self, is_safe: bool) -> Option<Affinity> {
        match self {
            Self::Never => None,
            Self::IfSafe => is_safe.then_some(Affinity::OneDirection),
            Self::Always => Some(Affinity::BothDirections),
        }
    }
}

/// The driver of TUN and TAP devices. The kernel hashes the packets that a process writes to a TUN
/// or TAP device. Other virtual interfaces may deliver packets that a network card hashed.
const TUN: &str = "tun";

pub(crate) fn hashed_by(interface: &str, wanted: DeviceHash) -> HashedBy {
    if wanted == DeviceHash::Never {
        return HashedBy::Unknown;
    }
    let Ok((driver, has_card)) = sys::driver(interface) else { return HashedBy::Unknown };
    let features = Ethtool::open().and_then(|mut ethtool| ethtool.features(interface));
    // The file `netdev_rss_key` is missing if `/proc` shows another network namespace.
    let kernels = fs::read_to_string("/proc/sys/net/core/netdev_rss_key").unwrap_or_default();
    judge(
        (&driver, has_card),
        features.ok().map(|features| features.is_on("rx-hashing")),
        sys::rss_key(interface).ok().as_deref(),
        &key_of(&kernels),
    )
}

fn judge(driver: (&str, bool), hashes: Option<bool>, key: Option<&[u8]>, kernels: &[u8]) -> HashedBy {
    match (driver, hashes) {
        ((TUN, false), _) => HashedBy::Kernel,
        ((_, true), Some(false)) => HashedBy::Kernel,
        ((_, true), Some(true)) => {
            // The kernel's key is all zeros until the first driver requests it.
            let is_drawn = kernels.iter().any(|byte| *byte != 0);
            let random_key = key.is_some_and(|key| !key.is_empty() && is_drawn && kernels.starts_with(key));
            HashedBy::Card { random_key }
        }
        _ => HashedBy::Unknown,
    }
}

/// Parses hexadecimal bytes, such as `6d:5a:56`.
fn key_of(text: &str) -> Vec<u8> {
    text.trim().split(':').map_while(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

pub(crate) fn note(interface: &str, by: HashedBy) -> Option<String> {
    (by == HashedBy::Card { random_key: false }).then(|| {
        format!(
            "{interface}: the key of its hash is not the kernel's random one: who knows the key can aim packets at one CPU \
             (ethtool -x {interface} shows it)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key in the RSS specification, which many drivers set in the card.
    const PUBLISHED: &str = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:\
                             f2:0c:6a:42:b7:3b:be:ac:01:fa";

    #[test]
    fn only_the_kernels_key_is_random() {
        let kernels: Vec<u8> = (1..=52).collect();
        let card = |key: Option<&[u8]>, kernels: &[u8]| judge(("mlx5_core", true), Some(true), key, kernels);
        let random = HashedBy::Card { random_key: true };
        // A driver uses only as many bytes of the kernel's key as its card needs.
        assert_eq!([card(Some(&kernels), &kernels), card(Some(&kernels[..40]), &kernels)], [random; 2]);
        let known = HashedBy::Card { random_key: false };
        assert_eq!(card(Some(&key_of(PUBLISHED)), &kernels), known);
        assert_eq!(key_of(PUBLISHED).len(), 40);
        assert_eq!(card(Some(&[0; 40]), &[0; 52]), known);
        assert_eq!([card(Some(&[]), &kernels), card(None, &kernels), card(Some(&kernels), &[])], [known; 3]);
    }

    #[test]
    fn who_hashes_depends_on_the_driver() {
        assert_eq!(judge(("tun", false), Some(false), None, &[]), HashedBy::Kernel);
        assert_eq!(judge(("virtio_net", true), Some(false), None, &[]), HashedBy::Kernel);
        // Packets may keep the hash of the card through which they arrived.
        for name in ["veth", "dummy", "802.1Q VLAN Support", "bridge", "bonding", "macvlan", ""] {
            for hashes in [Some(false), Some(true), None] {
                assert_eq!(judge((name, false), hashes, None, &[]), HashedBy::Unknown, "{name}");
            }
        }
        assert_eq!(judge(("mlx5_core", true), None, None, &[]), HashedBy::Unknown);
        assert_eq!(hashed_by("no-such-interface", DeviceHash::IfSafe), HashedBy::Unknown);
    }

    /// A card may hash the first fragment of a datagram by its ports, and the other fragments
    /// without ports. AF_PACKET does not show which hashes are those of fragments.
    #[test]
    fn a_hash_is_used_where_it_is_known_and_keeps_fragments_together() {
        let one = Some(Affinity::OneDirection);
        let [random, known] = [true, false].map(|random_key| HashedBy::Card { random_key });
        for (by, by_af_packet, by_af_xdp) in
            [(HashedBy::Kernel, one, one), (random, None, one), (known, None, None), (HashedBy::Unknown, None, None)]
        {
            assert_eq!(DeviceHash::IfSafe.of_af_packet(by, true), by_af_packet, "{by:?}");
            assert_eq!(DeviceHash::IfSafe.of_af_packet(by, false), None, "{by:?}");
            assert_eq!(DeviceHash::IfSafe.of_af_xdp(by), by_af_xdp, "{by:?}");
            for only_received in [true, false] {
                assert_eq!(DeviceHash::Never.of_af_packet(by, only_received), None, "{by:?}");
                assert_eq!(
                    DeviceHash::Always.of_af_packet(by, only_received),
                    Some(Affinity::BothDirections),
                    "{by:?}"
                );
            }
        }
    }

    #[test]
    fn a_key_that_is_known_is_told_about() {
        assert!(note("eth1", HashedBy::Card { random_key: false }).unwrap().contains("ethtool -x eth1"));
        assert_eq!(note("eth1", HashedBy::Card { random_key: true }), None);
        assert_eq!(note("eth1", HashedBy::Kernel), None);
    }
}
