use super::dissection::{End, HeaderKind};
use super::walk::{Stations, Step, Walk};
use crate::limits::{MPLS_LABELS_MAX, VLAN_TAGS_MAX};
use crate::link_type::LinkType;
use crate::wire::{be16, be32, checksum, ethernet, ethertype, ipv4, ipv6, ppp, vlan};

/// LLC and SNAP headers with the organisation code 0 (RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// Address families in BSD loopback headers. Each BSD system has its own number for IPv6
/// (<https://www.tcpdump.org/linktypes/LINKTYPE_NULL.html>).
const FAMILY_IPV4: u32 = 2;
const FAMILIES_IPV6: [u32; 3] = [24, 28, 30];
/// Device types (FRAD, radiotap, netlink) whose protocol field in a Linux cooked header is not an
/// EtherType (<https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL.html>). For the device type IP
/// in GRE (778), the field is GRE's protocol type, which equals the EtherType for IP and MPLS.
const ARPHRD_OTHERWISE: [u16; 3] = [770, 803, 824];
/// MACsec flags (IEEE 802.1AE, 9.5): the sender's identifier is present; the payload is encrypted
/// or changed.
const MACSEC_SENDER: u8 = 0x20;
const MACSEC_CHANGED: u8 = 0x08 | 0x04;
/// MPLS labels *explicit null* of IPv4 and IPv6, which state the type of the payload (RFC 3032).
const MPLS_EXPLICIT_NULL: [u32; 2] = [0, 2];
/// The maximum number of bytes after an IPv6 packet: the frame's checksum, or padding.
const TRAILER_MAX: usize = 4;

impl Walk<'_> {
    pub(super) fn link(&mut self, link: LinkType) -> Result<Step, End> {
        if link != LinkType::ETHERNET {
            self.stations = Some(Stations::default());
        }
        match link {
            LinkType::ETHERNET => Ok(Step::Ethernet),
            LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => Ok(Step::Ip),
            LinkType::IPV4 => Ok(Step::Ipv4),
            LinkType::IPV6 => Ok(Step::Ipv6),
            LinkType::LINUX_SLL => self.linux_cooked(),
            LinkType::LINUX_SLL2 => self.linux_cooked_2(),
            LinkType::PPP | LinkType::PPP_HDLC => self.hdlc(),
            LinkType::C_HDLC => self.cisco_hdlc(),
            LinkType::NULL => self.bsd_loopback(true),
            LinkType::LOOP => self.bsd_loopback(false),
            _ => Err(End::UnknownLink),
        }
    }

    pub(super) fn ethernet(&mut self) -> Result<Step, End> {
        let header = self.take::<{ ethernet::BYTES }>(HeaderKind::Ethernet)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *header;
        if self.stations.is_none() {
            let (source, destination) = ([s0, s1, s2, s3, s4, s5], [d0, d1, d2, d3, d4, d5]);
            self.stations = Some(Stations { source, destination, ..Stations::default() });
        }
        self.tags = 0;
        Ok(Step::EtherType(be16(header, 12)))
    }

    pub(super) fn ethertype(&mut self, ethertype: u16) -> Result<Step, End> {
        if let Some(stations) = self.outer_stations() {
            stations.holds = if ethertype < ethertype::MIN { ethertype::LLC } else { ethertype };
        }
        match ethertype {
            ethertype::IPV4 => Ok(Step::Ipv4),
            ethertype::IPV6 => Ok(Step::Ipv6),
            ethertype::VLAN | ethertype::VLAN_SERVICE | ethertype::VLAN_QINQ => self.vlan(),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => Ok(Step::Mpls),
            ethertype::PPPOE_SESSION => self.pppoe(),
            ethertype::METADATA => self.metadata(),
            ethertype::BRIDGED => Ok(Step::Ethernet),
            ethertype::PPP => Ok(Step::Ppp),
            ethertype::BACKBONE => self.backbone(),
            ethertype::MACSEC => self.macsec(),
            ethertype::NSH => self.nsh(),
            _ if ethertype < ethertype::MIN && self.peek() == Some(&SNAP) => {
                let header = self.take::<8>(HeaderKind::Snap)?;
                // In the SNAP header, a number below `MIN` is not a valid EtherType, and is
                // replaced by `MIN - 1`.
                Ok(Step::EtherType(be16(header, 6).max(ethertype::MIN - 1)))
            }
            _ if ethertype < ethertype::MIN => Err(End::UnknownLlc),
            _ => Err(End::UnknownEtherType(ethertype)),
        }
    }

    fn vlan(&mut self) -> Result<Step, End> {
        if self.tags == VLAN_TAGS_MAX {
            return Err(End::TooDeep);
        }
        let tag = self.take::<{ vlan::BYTES }>(HeaderKind::Vlan)?;
        if self.is_outermost() {
            // VLAN tags of a customer's frame may follow the tag of a provider backbone.
            if let Some(id) = self.out.vlans.iter_mut().find(|id| id.is_none()) {
                *id = Some(be16(tag, 0) & vlan::ID);
            }
        }
        self.tags += 1;
        Ok(Step::EtherType(be16(tag, 2)))
    }

    /// Reads a backbone tag (IEEE 802.1ah): priority and flags, service identifier, then a whole
    /// Ethernet frame.
    fn backbone(&mut self) -> Result<Step, End> {
        let tag = self.take::<4>(HeaderKind::Backbone)?;
        self.enter(HeaderKind::Backbone, Some(be32(tag, 0) & 0x00ff_ffff));
        Ok(Step::Ethernet)
    }

    /// Reads a MACsec header (IEEE 802.1AE): flags, short length, packet number, and optionally the
    /// sender's identifier.
    fn macsec(&mut self) -> Result<Step, End> {
        let tag = self.take::<6>(HeaderKind::Macsec)?;
        if tag[0] & MACSEC_CHANGED != 0 {
            return Err(End::Encrypted);
        }
        self.skip(if tag[0] & MACSEC_SENDER != 0 { 8 } else { 0 });
        let ethertype = *self.peek::<2>().ok_or(End::Truncated)?;
        self.skip(2);
        Ok(Step::EtherType(u16::from_be_bytes(ethertype)))
    }

    /// Reads MPLS labels (RFC 3032). MPLS does not state the type of its payload. The payload
    /// counts as IP if the first four bits are an IP version, and as a pseudowire if it looks like
    /// Ethernet. Many Ethernet addresses begin like an IP header, so a payload that could be both
    /// is IP only if its IP header has a correct checksum or length.
    pub(super) fn mpls(&mut self) -> Result<Step, End> {
        let first = self.take::<4>(HeaderKind::Mpls)?;
        let (first, mut label) = (be32(first, 0), be32(first, 0));
        for _ in 1..MPLS_LABELS_MAX {
            if label & 0x100 != 0 {
                break;
            }
            label = be32(self.peek::<4>().ok_or(End::Truncated)?, 0);
            self.skip(4);
        }
        let number = label >> 12;
        self.enter(HeaderKind::Mpls, Some(number));
        if let Some(stations) = self.outer_stations() {
            stations.labels = Some((first >> 12, number));
        }
        if label & 0x100 == 0 {
            return Err(End::TooDeep);
        }
        let [byte] = self.peek::<1>().ok_or(End::Truncated)?;
        let [null4, null6] = MPLS_EXPLICIT_NULL;
        let may_be_ip = || !self.is_ethernet(self.offset()) || self.ip_fits();
        match byte >> 4 {
            4 if number == null4 || number != null6 && may_be_ip() => Ok(Step::Ipv4),
            6 if number == null6 || number != null4 && may_be_ip() => Ok(Step::Ipv6),
            _ => self.pseudowire(),
        }
    }

    fn ip_fits(&self) -> bool {
        let rest = self.rest();
        match rest.first_chunk::<{ ipv4::BYTES }>() {
            Some(header) if header[0] >> 4 == 4 => {
                let header = rest.get(..usize::from(header[0] & 0x0f) * 4).unwrap_or_default();
                header.len() >= ipv4::BYTES && checksum::finish(checksum::sum(header, 0)) == 0
            }
            Some(header) => {
                let bytes = ipv6::BYTES + usize::from(be16(header, 4));
                (bytes..=bytes + TRAILER_MAX).contains(&rest.len())
            }
            None => false,
        }
    }

    /// Reads a PPPoE header (RFC 2516).
    fn pppoe(&mut self) -> Result<Step, End> {
        let header = self.take::<6>(HeaderKind::Pppoe)?;
        if header[0] != 0x11 || header[1] != 0 {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Pppoe, Some(be16(header, 2).into()));
        Ok(Step::Ppp)
    }

    /// Reads a PPP header (RFC 1661 and RFC 1662). A protocol number has one byte if this byte is
    /// odd, and otherwise two bytes.
    pub(super) fn ppp(&mut self) -> Result<Step, End> {
        let start = self.offset();
        if self.peek() == Some(&ppp::IN_HDLC) {
            self.skip(ppp::IN_HDLC.len());
        }
        let number = match (self.peek::<1>(), self.peek::<2>()) {
            (Some([odd]), _) if odd & 1 != 0 => {
                self.skip(1);
                u16::from(*odd)
            }
            (_, Some(bytes)) => {
                self.skip(2);
                u16::from_be_bytes(*bytes)
            }
            _ => return Err(End::Truncated),
        };
        self.note(HeaderKind::Ppp, start)?;
        if let Some(stations) = self.outer_stations() {
            stations.holds = number;
        }
        match number {
            ppp::IPV4 => Ok(Step::Ipv4),
            ppp::IPV6 => Ok(Step::Ipv6),
            ppp::MPLS | ppp::MPLS_MULTICAST => Ok(Step::Mpls),
            other => Err(End::UnknownPpp(other)),
        }
    }

    /// Reads Cisco's HDLC: an address byte for unicast or multicast, a zero byte, and an EtherType.
    fn hdlc(&mut self) -> Result<Step, End> {
        match self.peek::<4>() {
            Some([0x0f | 0x8f, 0, ..]) => self.cisco_hdlc(),
            _ => Ok(Step::Ppp),
        }
    }

    fn cisco_hdlc(&mut self) -> Result<Step, End> {
        let header = self.take::<4>(HeaderKind::Hdlc)?;
        Ok(Step::EtherType(be16(header, 2)))
    }

    fn linux_cooked(&mut self) -> Result<Step, End> {
        let header = self.take::<16>(HeaderKind::LinuxCooked)?;
        self.cooked(
            be16(header, 14),
            be16(header, 2),
            [header[6], header[7], header[8], header[9], header[10], header[11]],
        )
    }

    fn linux_cooked_2(&mut self) -> Result<Step, End> {
        let header = self.take::<20>(HeaderKind::LinuxCooked)?;
        let source = [header[12], header[13], header[14], header[15], header[16], header[17]];
        self.cooked(be16(header, 0), be16(header, 8), source)
    }

    fn cooked(&mut self, protocol: u16, device: u16, source: [u8; 6]) -> Result<Step, End> {
        self.stations = Some(Stations { source, holds: protocol, ..Stations::default() });
        if ARPHRD_OTHERWISE.contains(&device) {
            return Err(End::UnknownLink);
        }
        Ok(Step::EtherType(protocol))
    }

    /// Reads a BSD loopback header, in the byte order of the machine that wrote the capture or, for
    /// `LOOP`, in big-endian order.
    fn bsd_loopback(&mut self, either_order: bool) -> Result<Step, End> {
        let header = self.take::<4>(HeaderKind::BsdLoopback)?;
        let big = u32::from_be_bytes(*header);
        let is = |family| big == family || (either_order && big.swap_bytes() == family);
        if is(FAMILY_IPV4) {
            return Ok(Step::Ipv4);
        }
        if FAMILIES_IPV6.into_iter().any(is) { Ok(Step::Ipv6) } else { Err(End::UnknownPayload) }
    }

    /// The EtherType is at the end of Cisco's security group tag, but at the tag's beginning inside
    /// GRE (as in Wireshark).
    fn metadata(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::CiscoMetadata)?;
        let (tag, ethertype) = if self.is_outermost() { (0, be16(header, 6)) } else { (2, be16(header, 0)) };
        if (header[tag], header[tag + 1]) != (1, 1) {
            return Err(End::Malformed);
        }
        Ok(Step::EtherType(ethertype))
    }

    pub(super) fn ip(&mut self) -> Result<Step, End> {
        match self.peek::<1>() {
            None => Err(End::Truncated),
            Some([byte]) if byte >> 4 == 4 => Ok(Step::Ipv4),
            Some([byte]) if byte >> 4 == 6 => Ok(Step::Ipv6),
            Some(_) => Err(End::UnknownPayload),
        }
    }
}
