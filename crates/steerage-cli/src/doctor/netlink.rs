//! Reads the features of an interface by generic netlink: its offloads (ethtool) and its support for XDP (netdev).
//!
//! Messages and attributes are documented in the kernel:
//! Documentation/networking/ethtool-netlink.rst and Documentation/netlink/specs/netdev.yaml. Any
//! user may request both. Kernels without these interfaces report nothing.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::netlink::GENERIC;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// How long to wait for a reply. The kernel replies at once or never.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest reply: features take some kilobytes.
const ANSWER_BYTES_MAX: usize = 32 << 10;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_HEADER_BYTES: usize = 16;
const GENL_HEADER_BYTES: usize = 4;
/// The flags in an attribute's type: NLA_F_NESTED, NLA_F_NET_BYTEORDER.
const ATTRIBUTE_FLAGS: u16 = 0xc000;
const NESTED: u16 = 0x8000;

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
/// `NETDEV_XDP_RX_METADATA_HASH`.
const METADATA_HASH: u64 = 2;

/// The features of an interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Features {
    /// The enabled features, by ethtool's names such as `rx-gro`.
    pub(super) on: Option<Vec<String>>,
    /// The features that cannot be changed.
    pub(super) fixed: Vec<String>,
    /// `NETDEV_XDP_ACT_` bits.
    pub(super) xdp: Option<u64>,
    /// Whether the driver gives XDP programs the card's hash.
    pub(super) xdp_hash: Option<bool>,
}

/// Reads the features of an interface.
pub(super) fn features_of(interface: &str) -> Option<Features> {
    let socket = GenericNetlink::open().ok()?;
    let (on, fixed) = socket.switched(interface).map_or((None, Vec::new()), |(on, fixed)| (Some(on), fixed));
    let device = socket.device(interface).unwrap_or_default();
    let number = |kind| Some(u64::from_ne_bytes(find(&device, kind)?.try_into().ok()?));
    let xdp_hash = number(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES).map(|bits| bits & METADATA_HASH != 0);
    Some(Features { on, fixed, xdp: number(NETDEV_A_DEV_XDP_FEATURES), xdp_hash })
}

struct GenericNetlink(OwnedFd);

impl GenericNetlink {
    fn open() -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self(socket))
    }

    /// The enabled features, and those that cannot be changed.
    fn switched(&self, interface: &str) -> Option<(Vec<String>, Vec<String>)> {
        let family = self.family("ethtool")?;
        let name = attribute(ETHTOOL_A_HEADER_DEV_NAME, &zero_ended(interface));
        let header = attribute(ETHTOOL_A_FEATURES_HEADER | NESTED, &name);
        let answer = self.ask(family, ETHTOOL_MSG_FEATURES_GET, &header)?;
        let fixed = find(&answer, ETHTOOL_A_FEATURES_NOCHANGE).map(bit_names).unwrap_or_default();
        Some((bit_names(find(&answer, ETHTOOL_A_FEATURES_ACTIVE)?), fixed))
    }

    /// The attributes of the device.
    fn device(&self, interface: &str) -> Option<Vec<u8>> {
        let index = name_to_index(&self.0, interface).ok()?;
        let family = self.family("netdev")?;
        self.ask(family, NETDEV_CMD_DEV_GET, &attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()))
    }

    fn family(&self, name: &str) -> Option<u16> {
        let answer =
            self.ask(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &attribute(CTRL_ATTR_FAMILY_NAME, &zero_ended(name)))?;
        Some(u16::from_ne_bytes(find(&answer, CTRL_ATTR_FAMILY_ID)?.try_into().ok()?))
    }

    /// The attributes of the reply.
    fn ask(&self, family: u16, command: u8, attributes: &[u8]) -> Option<Vec<u8>> {
        let length = (NLMSG_HEADER_BYTES + GENL_HEADER_BYTES + attributes.len()) as u32;
        let mut message = Vec::with_capacity(length as usize);
        message.extend(length.to_ne_bytes());
        message.extend(family.to_ne_bytes());
        message.extend(NLM_F_REQUEST.to_ne_bytes());
        // The sequence and port numbers are 0, because there is only one request at a time.
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend(attributes);
        send(&self.0, &message, SendFlags::empty()).ok()?;
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        let (read, _) = recv(&self.0, &mut answer[..], RecvFlags::empty()).ok()?;
        answer.truncate(read);
        payload(&answer).map(<[u8]>::to_vec)
    }
}

/// The names of the set bits in a bitset.
fn bit_names(bitset: &[u8]) -> Vec<String> {
    let bits = Attributes(find(bitset, ETHTOOL_A_BITSET_BITS).unwrap_or_default());
    let bits = bits.filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS_BIT);
    bits.filter_map(|(_, bit)| Some(text(find(bit, ETHTOOL_A_BITSET_BIT_NAME)?))).collect()
}

/// The data after the headers of a reply, unless the reply is an error.
fn payload(answer: &[u8]) -> Option<&[u8]> {
    let length = u32::from_ne_bytes(answer.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind == NLMSG_ERROR { None } else { answer.get(NLMSG_HEADER_BYTES + GENL_HEADER_BYTES..length) }
}

fn zero_ended(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

/// An attribute: length, type and value, padded to a multiple of 4.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len().next_multiple_of(4));
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    Attributes(attributes).find(|(other, _)| *other == kind).map(|(_, value)| value)
}

/// Consecutive attributes, up to the first that is cut off.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = u16::from_ne_bytes(self.0.get(..2)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?) & !ATTRIBUTE_FLAGS;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back() {
        let all = [attribute(1, b"abc"), attribute(2 | NESTED, &attribute(3, &[7]))].concat();
        assert_eq!(find(&all, 1), Some(&b"abc"[..]));
        assert_eq!(find(find(&all, 2).unwrap(), 3), Some(&[7][..]));
        assert_eq!(find(&all, 4), None);
        assert_eq!(text(b"rx-gro\0"), "rx-gro");
    }

    #[test]
    fn what_is_cut_off_ends_the_list() {
        for cut in 0..8 {
            let all = attribute(1, b"abcd");
            assert_eq!(Attributes(&all[..cut]).count(), 0, "{cut}");
        }
        // A length that is too short for the header.
        assert_eq!(Attributes(&[2, 0, 1, 0, 9, 9, 9, 9]).count(), 0);
        assert_eq!(payload(&[20, 0, 0, 0, 2, 0]), None);
        assert_eq!(payload(&[255, 0, 0, 0, 16, 0, 0, 0]), None);
    }

    /// Every namespace has a loopback interface. Every kernel that reports features reports those
    /// of the loopback interface.
    #[test]
    fn the_loopback_interface_is_known() {
        if let Some(on) = features_of("lo").and_then(|features| features.on) {
            assert!(on.iter().any(|name| name == "loopback"), "{on:?}");
        }
        assert!(features_of("no-such-if").unwrap().on.is_none());
    }
}
