use std::io;

use libc::{
    ARPHRD_ETHER, ARPHRD_IPGRE, ARPHRD_LOOPBACK, ARPHRD_NONE, ARPHRD_PPP, ARPHRD_SIT, ARPHRD_TUNNEL, ARPHRD_TUNNEL6,
};
use steerage::flow::wire::ethernet;
use steerage::{DeviceError, LinkType};
use steerage_netlink::ethtool::Ethtool;
use steerage_netlink::{Link, Rtnetlink};

/// Constants of linux/if_arp.h that the crate `libc` does not have.
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) link: LinkType,
    /// True if the kernel should remove the link headers, which steerage cannot use.
    pub(super) cooked: bool,
    pub(super) loopback: bool,
    pub(super) up: bool,
    /// The longest frame that the interface sends, in bytes.
    pub(super) frame_bytes_max: usize,
    /// Whether the interface merges received packets by GRO, and whether by LRO.
    pub(super) merges: (bool, bool),
}

impl Interface {
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

    #[cfg_attr(not(feature = "capture"), allow(dead_code, reason = "for several devices at once"))]
    pub(super) fn listenable() -> io::Result<Vec<String>> {
        let mut kernel = Rtnetlink::open()?;
        let interfaces = nix::net::if_::if_nameindex()?;
        let names = interfaces.iter().filter_map(|interface| interface.name().to_str().ok());
        let mut is_usable = |name: &str| kernel.link(name).is_ok_and(|link| link.up && frames_of(&link).is_some());
        Ok(names.filter(|name| is_usable(name)).map(str::to_owned).collect())
    }

    /// Returns hints for the user. `whole`: merged packets are delivered whole.
    pub(super) fn notes(&self, whole: bool) -> Vec<String> {
        let name = &self.name;
        let mut notes = Vec::new();
        let offloads = match self.merges {
            // Packets on the loopback interface are never on a wire.
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

/// Returns the link type of supported interfaces, and true if the kernel removes the link headers.
fn frames_of(interface: &Link) -> Option<(LinkType, bool)> {
    match interface.hardware {
        ARPHRD_ETHER | ARPHRD_LOOPBACK => Some((LinkType::ETHERNET, false)),
        ARPHRD_NONE | ARPHRD_RAWIP | ARPHRD_TUNNEL | ARPHRD_TUNNEL6 | ARPHRD_SIT => Some((LinkType::RAW, false)),
        ARPHRD_PPP | ARPHRD_IPGRE | ARPHRD_IP6GRE => Some((LinkType::RAW, true)),
        _ => None,
    }
}

fn merges(name: &str) -> (bool, bool) {
    let features = Ethtool::open().and_then(|mut ethtool| ethtool.features(name)).unwrap_or_default();
    (features.is_on("rx-gro"), features.is_on("rx-lro"))
}

const GONE: &str = "`ip link` lists the interfaces there are";
