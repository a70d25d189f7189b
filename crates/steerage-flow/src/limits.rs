//! Limits on the number of headers that are read, and on the number of fragmented datagrams that
//! are remembered.

use std::time::Duration;

/// The most headers of all kinds that are read in a frame. The limit is twice the number of headers
/// in the deepest stacks in use (two tags, labels, three IP headers, two of them in UDP tunnels),
/// because each layer may add tags and extension headers.
pub const FLOW_HEADERS_MAX: usize = 32;

/// The most VLAN tags that are read after an Ethernet header: twice the number in the deepest
/// stacks in use, in which two providers each add a tag to a frame with two.
pub const VLAN_TAGS_MAX: usize = 8;

/// The number of VLAN identifiers that a dissection has: those of the outermost two tags.
pub const VLAN_IDS: usize = 2;

/// The most MPLS labels that are read before the payload: twice the number in the deepest stacks
/// that routers impose.
pub const MPLS_LABELS_MAX: usize = 16;

/// The most nested IP headers that are read: three nested tunnels, and the flow inside them.
pub const IP_LAYERS_MAX: usize = 4;

/// The most extension headers that are skipped after an IP header. If there are more, the flow's
/// key consists of the addresses and the type of the header at which dissection ended. RFC 8200,
/// 4.1, has no use for more than seven extension headers. The eighth is a reserve for senders that
/// ignore the RFC.
pub const IPV6_EXTENSIONS_MAX: usize = 8;

/// The most GTP-U extension headers that are skipped. 5G uses one (3GPP TS 38.415), and the
/// standard defines a handful.
pub const GTP_EXTENSIONS_MAX: usize = 4;

/// The most tags of a TZSP header that are read. A sensor writes about ten tags. Padding tags count
/// as well.
pub const TZSP_TAGS_MAX: usize = 32;

/// The most UDP ports that a user can choose for VXLAN, besides its two usual ports. The ports are
/// compared one after the other.
pub const VXLAN_PORTS_MAX: usize = 4;

/// The longest time for which the table waits for the fragments of a datagram, as in Linux
/// (`ipfrag_time`).
pub const FRAGMENT_TIME: Duration = Duration::from_secs(30);

/// The ways of each set in the fragment table: the number of datagrams with the same index that the
/// table can hold at the same time.
pub const FRAGMENT_WAYS: usize = 4;

/// The number of sets of the fragment table, chosen so that a queue can hold 1024 fragmented
/// datagrams. At 100,000 datagrams per second, the table allows 10 ms between a datagram's first
/// and last fragment. A datagram with a lost fragment occupies its entry for [`FRAGMENT_TIME`].
pub const FRAGMENT_SETS: usize = 1024 / FRAGMENT_WAYS;

/// The number of latest packets among which the flow limit counts, as in Linux
/// (`FLOW_LIMIT_HISTORY`).
pub const FLOW_LIMIT_HISTORY: usize = 128;

const _: () = assert!(FLOW_LIMIT_HISTORY <= u8::MAX as usize);
