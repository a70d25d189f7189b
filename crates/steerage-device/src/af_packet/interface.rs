//! Reads the properties of an interface before the device listens to it.

use std::io;

use steerage::{DeviceError, LinkType};

use super::sys::Socket;

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_PPP: u16 = 512;
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_TUNNEL: u16 = 768;
const ARPHRD_TUNNEL6: u16 = 769;
const ARPHRD_LOOPBACK: u16 = 772;
const ARPHRD_SIT: u16 = 776;
const ARPHRD_IPGRE: u16 = 778;
const ARPHRD_IP6GRE: u16 = 823;
const ARPHRD_NONE: u16 = 0xfffe;

/// An Ethernet header and two VLAN tags, which precede the bytes that the MTU counts.
const LINK_BYTES: usize = 14 + 2 * 4;

/// An interface, as it was when it was read.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) link: LinkType,
    /// Whether the link headers of its frames are of no use, so that the kernel removes them.
    pub(super) cooked: bool,
    pub(super) loopback: bool,
    pub(super) up: bool,
    /// The longest frame that the interface sends, in bytes.
    pub(super) frame_bytes_max: usize,
    /// Whether the interface merges received packets, by generic and by large receive offload.
    pub(super) merges: (bool, bool),
}

impl Interface {
    /// Reads the interface's properties. Any packet socket can request them.
    pub(super) fn look(name: &str, socket: &Socket) -> Result<Self, DeviceError> {
        let cannot = |cause| DeviceError::new(name, "look at the interface", cause).advise(GONE);
        let index = index_of(name).ok_or_else(|| cannot(io::Error::from_raw_os_error(libc::ENODEV)))?;
        let hardware = socket.hardware_type(name).map_err(cannot)?;
        let (link, cooked) = match hardware {
            ARPHRD_ETHER | ARPHRD_LOOPBACK => (LinkType::ETHERNET, false),
            ARPHRD_NONE | ARPHRD_RAWIP | ARPHRD_TUNNEL | ARPHRD_TUNNEL6 | ARPHRD_SIT => (LinkType::RAW, false),
            ARPHRD_PPP | ARPHRD_IPGRE | ARPHRD_IP6GRE => (LinkType::RAW, true),
            other => {
                let cause = io::Error::other(format!("its type, {other} in if_arp.h, is not supported"));
                let advice = "use the Ethernet or IP interface above it, or tcpdump -w - | steerage ... -";
                return Err(DeviceError::new(name, "listen to the interface", cause).advise(advice));
            }
        };
        Ok(Self {
            name: name.to_owned(),
            index,
            link,
            cooked,
            loopback: hardware == ARPHRD_LOOPBACK,
            up: socket.is_up(name).map_err(cannot)?,
            frame_bytes_max: socket.mtu(name).map_err(cannot)? + LINK_BYTES,
            // If the kernel does not report this, print no hint.
            merges: socket.merges(name).unwrap_or_default(),
        })
    }

    /// The names of all interfaces that are up and that a socket can listen to.
    pub(super) fn listenable(socket: &Socket) -> io::Result<Vec<String>> {
        let interfaces = nix::net::if_::if_nameindex()?;
        let names = interfaces.iter().filter_map(|interface| interface.name().to_str().ok());
        let usable = names.filter(|name| Self::look(name, socket).is_ok_and(|interface| interface.up));
        Ok(usable.map(str::to_owned).collect())
    }

    /// Hints for the user about the interface. `whole` means that merged packets stay whole.
    pub(super) fn notes(&self, whole: bool) -> Vec<String> {
        let name = &self.name;
        let mut notes = Vec::new();
        let offloads = match self.merges {
            // Loopback has no wire to compare the packets with.
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

const GONE: &str = "`ip link` lists the interfaces there are";

/// The index of the interface called `name`, if it exists.
pub(super) fn index_of(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}
