//! Decides whether steerage uses the flow hash that an interface provides, and finds out where the
//! key of this hash comes from.
//!
//! A network card that hashes packets uses a key that its driver sets. Most drivers use the
//! kernel's random key (`netdev_rss_key`). Some drivers use a published key, so that an attacker
//! can compute which packets get the same hash. If the card does not hash, the kernel hashes with
//! its own random key. A packet keeps its hash when the kernel forwards it, so that a packet of a
//! bridge or a veth may have the hash of a card that steerage does not see.

use std::fs;

use steerage::Affinity;
use steerage_netlink::ethtool::Ethtool;

use crate::sys;

/// Selects the flow hash of an interface's packets: the hash of the device, or the hash of
/// steerage.
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
    /// The device's hash is used under two conditions. First, steerage knows that the key of the
    /// hash is random. Second, either all fragments of a datagram get the same hash, or fragments
    /// get no hash. The device keeps together each direction of a flow separately
    /// ([`Affinity::OneDirection`]).
    IfSafe,
    /// The device's hash is used if the device provides a hash. The user guarantees that the hash
    /// keeps the packets of a flow together.
    Always,
}

pub(crate) const DEVICE_HASHES: [(&str, DeviceHash); 3] =
    [("auto", DeviceHash::IfSafe), ("device", DeviceHash::Always), ("ours", DeviceHash::Never)];

/// The part of the system that hashes the packets of an interface. `Unknown` means that steerage
/// cannot determine this part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashedBy {
    /// The kernel hashes the packets with a random key. All fragments of a datagram have the same
    /// hash, because the kernel does not hash the ports of any fragment.
    Kernel,
    /// The card hashes. The card's key may or may not be random, and the card may hash a first
    /// fragment by its ports.
    Card { random_key: bool },
    /// steerage does not know which part hashes. Packets may have arrived through another
    /// interface, and keep the hash that they got at that interface.
    Unknown,
}

impl DeviceHash {
    /// The packets that the hash keeps together if frames are read by AF_PACKET. `None` if steerage
    /// hashes. A packet that this machine sends has the hash of its socket, or of the card that it
    /// came by, so that the hash is known only for received packets.
    pub(crate) fn of_af_packet(self, by: HashedBy, only_received: bool) -> Option<Affinity> {
        self.if_safe(only_received && by == HashedBy::Kernel)
    }

    /// The packets that the hash keeps together if frames are taken by AF_XDP. `None` if steerage
    /// hashes. AF_XDP only takes received packets, and its program hashes no fragments.
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

/// The driver of TUN and TAP devices. A program that writes packets to a TUN or TAP provides no
/// hash, so the kernel hashes these packets. Other drivers without a card pass on packets of other
/// interfaces.
const TUN: &str = "tun";

/// Finds the part of the system that hashes the packets of this interface, if `wanted` requests the
/// device's hash.
pub(crate) fn hashed_by(interface: &str, wanted: DeviceHash) -> HashedBy {
    if wanted == DeviceHash::Never {
        return HashedBy::Unknown;
    }
    let Ok((driver, has_card)) = sys::driver(interface) else { return HashedBy::Unknown };
    let features = Ethtool::open().and_then(|mut ethtool| ethtool.features(interface));
    // If `/proc` shows another network namespace, the file `netdev_rss_key` is missing.
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

/// Parses bytes such as `6d:5a:56`.
fn key_of(text: &str) -> Vec<u8> {
    text.trim().split(':').map_while(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

/// Returns a warning for a user who requires the device's hash although its key is not random.
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

    /// The key that was published with the RSS specification. Many drivers use this published key
    /// for the hash of the card.
    const PUBLISHED: &str = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:\
                             f2:0c:6a:42:b7:3b:be:ac:01:fa";

    #[test]
    fn only_the_kernels_key_is_random() {
        let kernels: Vec<u8> = (1..=52).collect();
        let card = |key: Option<&[u8]>, kernels: &[u8]| judge(("mlx5_core", true), Some(true), key, kernels);
        let random = HashedBy::Card { random_key: true };
        // In this test, the driver uses only as many bytes of the published key as its card needs.
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
        // The card does not hash, or its hashing is disabled.
        assert_eq!(judge(("virtio_net", true), Some(false), None, &[]), HashedBy::Kernel);
        // The packets of these interfaces may have arrived through a card, and keep the card's
        // hash.
        for name in ["veth", "dummy", "802.1Q VLAN Support", "bridge", "bonding", "macvlan", ""] {
            for hashes in [Some(false), Some(true), None] {
                assert_eq!(judge((name, false), hashes, None, &[]), HashedBy::Unknown, "{name}");
            }
        }
        assert_eq!(judge(("mlx5_core", true), None, None, &[]), HashedBy::Unknown);
        assert_eq!(hashed_by("no-such-interface", DeviceHash::IfSafe), HashedBy::Unknown);
    }

    /// A card may hash a first fragment by its ports and the other fragments without ports. With
    /// AF_PACKET, steerage cannot distinguish the hash of a fragment from the hash of a flow.
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
