//! Limits of the number of headers that are read in a frame, and of the number of fragmented
//! datagrams that are stored.

use std::time::Duration;

/// The maximum number of headers that are read in a frame: twice as many as the deepest frames in
/// use have (with two VLAN tags, MPLS labels and three IP headers). Each layer may add tags and
/// extension headers.
pub const FLOW_HEADERS_MAX: usize = 32;

/// The maximum number of VLAN tags that are read: twice as many as frames in use have.
pub const VLAN_TAGS_MAX: usize = 8;

/// The number of VLAN identifiers that a dissection stores, beginning with the outermost tag.
pub const VLAN_IDS: usize = 2;

/// The maximum number of MPLS labels that are read: twice as many as MPLS routers create.
pub const MPLS_LABELS_MAX: usize = 16;

/// The maximum number of nested IP headers: three tunnels, and the flow inside.
pub const IP_LAYERS_MAX: usize = 4;

/// The maximum number of IPv6 extension headers after an IP header. A packet needs at most seven
/// (RFC 8200, 4.1). The limit of eight also allows a sender that does not follow RFC 8200. If a
/// packet has more than eight extension headers, the protocol in its flow key is the type of the
/// ninth.
pub const IPV6_EXTENSIONS_MAX: usize = 8;

/// The maximum number of GTP-U extension headers. 5G uses one (3GPP TS 38.415).
pub const GTP_EXTENSIONS_MAX: usize = 4;

/// The maximum number of tags in a TZSP header. A TZSP sensor writes about ten tags.
pub const TZSP_TAGS_MAX: usize = 32;

/// The maximum number of UDP ports that a user can choose for VXLAN. The dissector compares a
/// packet's destination port with each chosen port.
pub const VXLAN_PORTS_MAX: usize = 4;

/// The time for which the fragment table waits for the fragments of a datagram, as in Linux
/// (`ipfrag_time`).
pub const FRAGMENT_TIME: Duration = Duration::from_secs(30);

/// The number of entries in each set of the fragment table.
pub const FRAGMENT_WAYS: usize = 4;

/// The number of sets of the fragment table. The table of a receive queue has room for 1024
/// datagrams: this suffices for 100,000 datagrams per second, if 10 ms pass between the first and
/// the last fragment of a datagram. A datagram with a lost fragment keeps its entry for
/// [`FRAGMENT_TIME`].
pub const FRAGMENT_SETS: usize = 1024 / FRAGMENT_WAYS;

/// The number of latest packets that the flow limit counts, as in Linux (`FLOW_LIMIT_HISTORY`).
pub const FLOW_LIMIT_HISTORY: usize = 128;

const _: () = assert!(FLOW_LIMIT_HISTORY <= u8::MAX as usize);
