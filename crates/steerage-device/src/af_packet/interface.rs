//! Reads the properties of an interface before the device listens to it.

use std::io;

use libc::{
    ARPHRD_ETHER, ARPHRD_IPGRE, ARPHRD_LOOPBACK, ARPHRD_NONE, ARPHRD_PPP, ARPHRD_SIT, ARPHRD_TUNNEL, ARPHRD_TUNNEL6,
};
use steerage::flow::wire::ethernet;
use steerage::{DeviceError, LinkType};
use steerage_netlink::ethtool::Ethtool;
use steerage_netlink::{Link, Rtnetlink};

/// The `libc` crate does not have `ARPHRD_RAWIP` and the next constant of linux/if_arp.h.
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

/// The properties that an interface had when they were read.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) link: LinkType,
    /// True if the kernel should remove the link headers of the frames, because steerage cannot use
    /// these headers.
    pub(super) cooked: bool,
    pub(super) loopback: bool,
    pub(super) up: bool,
    /// The longest frame that the interface sends, in bytes.
    pub(super) frame_bytes_max: usize,
    /// Whether the interface merges received packets. Two values: true if the interface merges
    /// packets by generic receive offload (GRO), and true if it does so by large receive offload
    /// (LRO).
    pub(super) merges: (bool, bool),
}

impl Interface {
    /// Reads the interface's properties.
    pub(super) fn read(name: &str) -> Result<Self, DeviceError> {
        let cannot = |cause| DeviceError::new(name, "look at the interface", cause).advise(GONE);
        let interface = Rtnetlink::open().and_then(|mut kernel| kernel.link(name)).map_err(cannot)?;
        let (link, cooked) = frames_of(&interface).ok_or_else(|| {
            let cause = format!("its type, {} in if_arp.h, is not supported", interface.hardware);
            let advice = "use the Ethernet or IP interface above it, or tcpdump -w - | steerage ... -";
            DeviceError::new(name, "listen to the interface", io::Error::other(cause)).advise(advice)
        })?;
        Ok(Self {
            name: name.to_owned(),
            index: interface.index,
            link,
            cooked,
            loopback: interface.hardware == ARPHRD_LOOPBACK,
            up: interface.up,
            frame_bytes_max: interface.mtu.unwrap_or_default() + ethernet::TAGGED_BYTES,
            merges: merges(name),
        })
    }

    /// Returns the names of all interfaces that are up and that a socket can listen to.
    #[cfg_attr(not(feature = "capture"), allow(dead_code, reason = "for several devices at once"))]
    pub(super) fn listenable() -> io::Result<Vec<String>> {
        let mut kernel = Rtnetlink::open()?;
        let interfaces = nix::net::if_::if_nameindex()?;
        let names = interfaces.iter().filter_map(|interface| interface.name().to_str().ok());
        let mut is_usable = |name: &str| kernel.link(name).is_ok_and(|link| link.up && frames_of(&link).is_some());
        Ok(names.filter(|name| is_usable(name)).map(str::to_owned).collect())
    }

    /// Returns hints for the user about the interface. The argument `whole` is true if merged
    /// packets are delivered whole.
    pub(super) fn notes(&self, whole: bool) -> Vec<String> {
        let name = &self.name;
        let mut notes = Vec::new();
        let offloads = match self.merges {
            // Packets on the loopback interface are never on a wire, so the user needs no hint
            // about merging.
            _ if self.loopback || whole => "",
            (true, true) => "gro off lro off",
            (true, false) => "gro off",
            (false, true) => "lro off",
            (false, false) => "",
        };
        if !offloads.is_empty() {
            notes.push(format!("{name} may merge packets before they are seen here; to see them as on the wire: ethtool -K {name} {offloads}"));
        }
        if !self.up {
            notes.push(format!("{name} is down: nothing comes until it is up (ip link set {name} up)"));
        }
        notes
    }
}

/// Returns the link type of the interface's frames, and true if the kernel removes their link
/// headers. Returns `None` if the type of the interface is not supported.
fn frames_of(interface: &Link) -> Option<(LinkType, bool)> {
    match interface.hardware {
        ARPHRD_ETHER | ARPHRD_LOOPBACK => Some((LinkType::ETHERNET, false)),
        ARPHRD_NONE | ARPHRD_RAWIP | ARPHRD_TUNNEL | ARPHRD_TUNNEL6 | ARPHRD_SIT => Some((LinkType::RAW, false)),
        ARPHRD_PPP | ARPHRD_IPGRE | ARPHRD_IP6GRE => Some((LinkType::RAW, true)),
        _ => None,
    }
}

/// Returns two values: true if the interface merges packets by generic receive offload (GRO), and
/// true if it merges packets by large receive offload (LRO). If the kernel does not report the
/// offloads, both values are false, so that the user gets no note.
fn merges(name: &str) -> (bool, bool) {
    let features = Ethtool::open().and_then(|mut ethtool| ethtool.features(name)).unwrap_or_default();
    (features.is_on("rx-gro"), features.is_on("rx-lro"))
}

/// The advice to the user in the error message for a missing interface.
const GONE: &str = "`ip link` lists the interfaces there are";
