//! The XDP features that drivers support: the family `netdev` of generic netlink
//! (Documentation/netlink/specs/netdev.yaml of the kernel). The family exists since Linux 6.3, and
//! has attributes for metadata since Linux 6.8. Any user may query the features.

use std::io;

use netlink_packet_core::parse_u64;

use crate::attributes::{attribute, find};
use crate::generic::Family;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
/// `NETDEV_XDP_ACT_BASIC`, `NETDEV_XDP_ACT_XSK_ZEROCOPY`, and `enum netdev_xdp_rx_metadata`.
const BASIC: u64 = 1;
const ZERO_COPY: u64 = 8;
const METADATA_TIMESTAMP: u64 = 1;
const METADATA_HASH: u64 = 2;
const METADATA_VLAN_TAG: u64 = 4;

/// The XDP features that a driver supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSupport {
    /// True if XDP programs can run in the driver.
    pub driver: bool,
    /// True if AF_XDP sockets can receive and send packets without a copy.
    pub zero_copy: bool,
    /// True if XDP programs can read the card's flow hash. `None` if the kernel does not report it.
    pub hash: Option<bool>,
    /// True if XDP programs can read the time at which the card received a frame.
    pub time: Option<bool>,
    /// True if XDP programs can read the VLAN tag that the card removed.
    pub vlan_tag: Option<bool>,
}

/// Queries the XDP features of the link with this index.
///
/// # Errors
/// Fails if no link has this index, or the kernel does not report the features.
pub fn xdp_support(link: u32) -> io::Result<XdpSupport> {
    let reply =
        Family::open("netdev")?.request(NETDEV_CMD_DEV_GET, &[attribute(NETDEV_A_DEV_IFINDEX, link.to_ne_bytes())])?;
    let bits = |kind| find(&reply, kind).and_then(|bits| parse_u64(bits).ok());
    let features = bits(NETDEV_A_DEV_XDP_FEATURES).ok_or(io::ErrorKind::InvalidData)?;
    let metadata = bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES);
    let reports = |bit| metadata.map(|bits| bits & bit != 0);
    Ok(XdpSupport {
        driver: features & BASIC != 0,
        zero_copy: features & ZERO_COPY != 0,
        hash: reports(METADATA_HASH),
        time: reports(METADATA_TIMESTAMP),
        vlan_tag: reports(METADATA_VLAN_TAG),
    })
}
