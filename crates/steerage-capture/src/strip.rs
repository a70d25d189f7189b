use steerage::LinkType;
use steerage::flow::wire::{ethernet, ethertype};
use steerage::flow::{Header, HeaderKind, Layers, dissect};

use super::inner::Inner;

/// Finds the innermost frame of a packet in tunnels (VXLAN, Geneve, GRE, ERSPAN, TZSP and MPLS).
/// Returns `None` if there is no tunnel, or if the type of the tunnel's contents is unknown. For an
/// IP packet in an Ethernet frame, the result keeps the Ethernet addresses.
///
/// IP fragments after the first fragment stay unchanged, because they have no inner headers.
///
/// ```
/// use steerage::LinkType;
/// use steerage_capture::{Inner, strip_tunnels};
///
/// // An Ethernet frame with an MPLS label of 100, and below it an IPv4 header.
/// let mut frame = [0; 60];
/// frame[..12].copy_from_slice(b"to....from..");
/// frame[12..19].copy_from_slice(&[0x88, 0x47, 0x00, 0x06, 0x41, 64, 0x45]);
/// let inner = strip_tunnels(&frame, LinkType::ETHERNET).expect("a label");
/// assert_eq!(Some(inner), Inner::new(LinkType::ETHERNET, 18).with_front(b"to....from..\x08\x00"));
/// ```
pub fn strip_tunnels(frame: &[u8], link: LinkType) -> Option<Inner> {
    let found = dissect(frame, link, Layers::Inner);
    // The packet that an ICMP error quotes is not a tunnel's inner packet.
    let quotes = |header: &Header| matches!(header.kind, HeaderKind::Icmp | HeaderKind::Icmp6);
    let (mut ethernet, mut in_tunnel, mut inner) = (None, false, None);
    for header in found.headers().take_while(|header| !quotes(header)) {
        let at = header.offset as usize;
        let was_in_tunnel = std::mem::replace(&mut in_tunnel, is_stripped(header.kind));
        match header.kind {
            HeaderKind::Ethernet => {
                ethernet = Some(at);
                if was_in_tunnel {
                    inner = Some(Inner::new(LinkType::ETHERNET, at));
                }
            }
            // A Cisco metadata header is between the header of a tunnel and the tunnel's contents.
            HeaderKind::CiscoMetadata => in_tunnel = was_in_tunnel,
            HeaderKind::Ipv4 if was_in_tunnel => inner = below(frame, ethernet, at, ethertype::IPV4),
            HeaderKind::Ipv6 if was_in_tunnel => inner = below(frame, ethernet, at, ethertype::IPV6),
            _ => {}
        }
    }
    inner
}

fn is_stripped(kind: HeaderKind) -> bool {
    use HeaderKind::{Erspan, Geneve, Gre, Mpls, Tzsp, Vxlan};
    matches!(kind, Vxlan | Geneve | Gre | Erspan | Tzsp | Mpls)
}

/// The result has the MAC addresses of the Ethernet header at offset `ethernet`, if there is one.
fn below(frame: &[u8], ethernet: Option<usize>, at: usize, ethertype: u16) -> Option<Inner> {
    let Some(ethernet) = ethernet else { return Some(Inner::new(LinkType::RAW, at)) };
    let mut front: [u8; ethernet::BYTES] = *frame.get(ethernet..)?.first_chunk()?;
    front[ethernet::TYPE_AT..].copy_from_slice(&ethertype.to_be_bytes());
    Inner::new(LinkType::ETHERNET, at).with_front(&front)
}

#[cfg(test)]
mod tests {
    use steerage::flow::wire::protocol::{GRE, UDP};
    use steerage::flow::wire::{FrameBuilder, icmp};

    use super::*;

    fn ipv4(protocol: u8) -> FrameBuilder {
        FrameBuilder::ip([10, 0, 0, 1], [10, 0, 0, 2], protocol).stations(*b"from..", *b"to....")
    }

    #[test]
    fn the_innermost_frame_is_handed_on() {
        // GRE with a key, followed by IPv4 and UDP.
        let inner = ipv4(UDP).packet(&[0; 8]);
        let gre = [&[0x20, 0, 0x08, 0, 0, 0, 0, 7], &inner[..]].concat();
        let frame = ipv4(GRE).frame(&gre);
        let found = strip_tunnels(&frame, LinkType::ETHERNET).unwrap();
        assert_eq!(Some(found), Inner::new(LinkType::ETHERNET, 42).with_front(b"to....from..\x08\x00"));
        // Strips a GRE packet that has no link header, and a GRE packet inside a VXLAN tunnel.
        let raw = ipv4(GRE).packet(&gre);
        assert_eq!(strip_tunnels(&raw, LinkType::RAW), Some(Inner::new(LinkType::RAW, 28)));
        let vxlan = [&[0x20, 0, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 7, 0], &frame[..]].concat();
        let deep = ipv4(UDP).frame(&vxlan);
        let found = strip_tunnels(&deep, LinkType::ETHERNET).unwrap();
        assert_eq!(Some(found), Inner::new(LinkType::ETHERNET, 92).with_front(b"to....from..\x08\x00"));
    }

    #[test]
    fn mirrored_frames_are_handed_on() {
        let mirrored = ipv4(UDP).frame(&[0; 8]);
        let erspan = [&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 5, 0, 0, 0, 0], &mirrored[..]].concat();
        let frame = ipv4(GRE).frame(&erspan);
        let expected = Inner::new(LinkType::ETHERNET, 50);
        assert_eq!(strip_tunnels(&frame, LinkType::ETHERNET), Some(expected));
        // TZSP without tags, on UDP port 37008.
        let tzsp = [&[0x20, 0, 0x90, 0x90, 0, 0, 0, 0, 1, 0, 0, 1, 1], &mirrored[..]].concat();
        let frame = ipv4(UDP).frame(&tzsp);
        assert_eq!(strip_tunnels(&frame, LinkType::ETHERNET), Some(Inner::new(LinkType::ETHERNET, 47)));
    }

    #[test]
    fn what_is_in_no_tunnel_stays_as_it_is() {
        let plain = ipv4(UDP).frame(&[0; 8]);
        assert_eq!(strip_tunnels(&plain, LinkType::ETHERNET), None);
        assert_eq!(strip_tunnels(&plain[..13], LinkType::ETHERNET), None);
        assert_eq!(strip_tunnels(&[], LinkType::RAW), None);
        // A GRE header without contents, and a GRE header with an unknown type of payload.
        for gre in [vec![0, 0, 0x08, 0], [&[0, 0, 0x88, 0xcc][..], &[0; 40]].concat()] {
            let frame = ipv4(GRE).frame(&gre);
            assert_eq!(strip_tunnels(&frame, LinkType::ETHERNET), None);
        }
        // An ICMP error that quotes a packet in a tunnel.
        let quoted = ipv4(GRE).packet(&[&[0, 0, 0x08, 0][..], &ipv4(UDP).packet(&[])].concat());
        let error = FrameBuilder::icmp([10, 0, 0, 1], [10, 0, 0, 2], icmp::UNREACHABLE, 3).frame(&quoted);
        assert_eq!(strip_tunnels(&error, LinkType::ETHERNET), None);
    }
}
