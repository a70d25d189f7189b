//! Limits on how many headers of a frame are read, and on how many fragmented datagrams are stored.

use std::time::Duration;

/// The maximum number of headers of all kinds that are read in a frame. The limit is twice the
/// number of headers of the most deeply nested frames in use, because each layer may add tags and
/// extension headers. The most deeply nested frames have two VLAN tags, MPLS labels, and three IP
/// headers. Two of the IP headers are in UDP tunnels.
pub const FLOW_HEADERS_MAX: usize = 32;

/// The maximum number of VLAN tags that are read after an Ethernet header. The limit is twice the
/// number of VLAN tags in the longest stacks in use: two providers each add a tag to a frame that
/// already has two tags.
pub const VLAN_TAGS_MAX: usize = 8;

/// The number of VLAN identifiers that a dissection stores: the identifiers of the two outermost
/// tags.
pub const VLAN_IDS: usize = 2;

/// The maximum number of MPLS labels that are read before the payload. The limit is twice the
/// number of MPLS labels in the longest stacks that routers create.
pub const MPLS_LABELS_MAX: usize = 16;

/// The maximum number of nested IP headers that are read: the headers of three nested tunnels, and
/// the header of the flow inside the tunnels.
pub const IP_LAYERS_MAX: usize = 4;

/// The maximum number of IPv6 extension headers that the dissector reads after an IP header. If a
/// packet has more extension headers, its flow key consists of the addresses and the type of the
/// header at which the dissection ended. According to RFC 8200, 4.1, a packet needs no more than
/// seven extension headers. An eighth extension header is allowed for senders that ignore the RFC.
pub const IPV6_EXTENSIONS_MAX: usize = 8;

/// The maximum number of GTP-U extension headers that are skipped. 5G uses one GTP-U extension
/// header (3GPP TS 38.415), and the GTP-U standard defines only a few.
pub const GTP_EXTENSIONS_MAX: usize = 4;

/// The maximum number of tags in a TZSP header that are read. A TZSP sensor writes about ten tags.
/// In TZSP headers, padding tags also count as tags.
pub const TZSP_TAGS_MAX: usize = 32;

/// The maximum number of UDP ports that a user can choose for VXLAN, in addition to VXLAN's two
/// usual ports. The UDP port of a packet is compared with the chosen VXLAN ports one after another.
pub const VXLAN_PORTS_MAX: usize = 4;

/// The time that the fragment table waits for the fragments of a datagram, as in Linux
/// (`ipfrag_time`).
pub const FRAGMENT_TIME: Duration = Duration::from_secs(30);

/// The number of ways (entries) in each set of the fragment table. The fragment table can store
/// this many datagrams whose hashes select the same set.
pub const FRAGMENT_WAYS: usize = 4;

/// The number of sets (groups of entries) in the fragment table. With this number of sets, the
/// table of a receive queue can store 1024 fragmented datagrams. At 100,000 datagrams per second,
/// 1024 stored datagrams are enough if at most 10 ms pass between a datagram's first and last
/// fragment. If a fragment of a datagram is lost, the datagram occupies its table entry for
/// [`FRAGMENT_TIME`].
pub const FRAGMENT_SETS: usize = 1024 / FRAGMENT_WAYS;

/// The number of latest packets among which the flow limit counts the packets of each flow, as in
/// Linux (`FLOW_LIMIT_HISTORY`).
pub const FLOW_LIMIT_HISTORY: usize = 128;

const _: () = assert!(FLOW_LIMIT_HISTORY <= u8::MAX as usize);
