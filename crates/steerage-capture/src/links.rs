use std::borrow::Cow;

use steerage::LinkType;

/// The names of common link types, by tcpdump's numbers (<https://www.tcpdump.org/linktypes.html>).
const NAMES: [(u16, &str); 21] = [
    (0, "null"),
    (1, "ethernet"),
    (8, "slip"),
    (9, "ppp"),
    (50, "ppp-hdlc"),
    (51, "pppoe"),
    (101, "raw-ip"),
    (104, "cisco-hdlc"),
    (105, "802.11"),
    (107, "frame-relay"),
    (108, "loop"),
    (113, "linux-sll"),
    (127, "802.11-radiotap"),
    (192, "ppi"),
    (195, "802.15.4"),
    (220, "usb-linux"),
    (228, "ipv4"),
    (229, "ipv6"),
    (239, "nflog"),
    (253, "netlink"),
    (276, "linux-sll2"),
];

/// Returns the name of a link type, or `link-type-` and the number if it has no name.
///
/// ```
/// use steerage::LinkType;
/// use steerage_capture::link_name;
///
/// assert_eq!(link_name(LinkType(147)), "link-type-147");
/// ```
pub fn link_name(link: LinkType) -> Cow<'static, str> {
    match NAMES.binary_search_by_key(&link.0, |(number, _)| *number) {
        Ok(at) => NAMES[at].1.into(),
        Err(_) => format!("link-type-{}", link.0).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_number() {
        assert!(NAMES.is_sorted());
        for (number, name) in NAMES {
            assert_eq!(link_name(LinkType(number)), name);
        }
        assert_eq!(link_name(LinkType(147)), "link-type-147");
    }
}
