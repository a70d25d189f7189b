//! Limits on how much of a frame is read, and on how many fragmented datagrams are remembered.

use std::time::Duration;

/// The most headers of all kinds that are read of a frame. That is twice the number in the deepest stacks in use (two
/// tags, labels, three IP headers, two of them in UDP tunnels), because each layer may bring tags and extensions of
/// its own.
pub const FLOW_HEADERS_MAX: usize = 32;

/// The most VLAN tags that are read after an Ethernet header: an outer and an inner tag (IEEE 802.1ad).
pub const VLAN_TAGS_MAX: usize = 2;

/// The most MPLS labels that are read to find the payload: twice the deepest stacks that routers impose.
pub const MPLS_LABELS_MAX: usize = 16;

/// The most nested IP headers that are read: three tunnels inside each other, and the flow.
pub const IP_LAYERS_MAX: usize = 4;

/// The most extension headers that are skipped after an IP header. If there are more, the flow's key consists of the
/// addresses and the type of the header at which reading ended. RFC 8200, 4.1, has no use for more than seven; the
/// eighth is a reserve for senders that do not follow it.
pub const IPV6_EXTENSIONS_MAX: usize = 8;

/// The most GTP-U extension headers that are skipped. 5G uses one (3GPP TS 38.415), and the standard defines a
/// handful.
pub const GTP_EXTENSIONS_MAX: usize = 4;

/// The most tags of a TZSP header that are read. A sensor writes about ten; padding counts as well.
pub const TZSP_TAGS_MAX: usize = 32;

/// How long the table waits for the fragments of a datagram: Linux's `ipfrag_time`.
pub const FRAGMENT_TIME: Duration = Duration::from_secs(30);

/// The ways of each set: how many datagrams with the same index in the fragment table can be remembered at a time.
pub const FRAGMENT_WAYS: usize = 4;

/// How many sets the fragment table has, so that a queue can remember 1024 fragmented datagrams. At 100,000 datagrams
/// per second, that allows 10 ms from a datagram's first fragment to its last. A datagram with a lost fragment
/// occupies its entry for [`FRAGMENT_TIME`].
pub const FRAGMENT_SETS: usize = 1024 / FRAGMENT_WAYS;

/// Over how many of the last packets the flow limit counts flows: Linux's `FLOW_LIMIT_HISTORY`.
pub const FLOW_LIMIT_HISTORY: usize = 128;

const _: () = assert!(FLOW_LIMIT_HISTORY <= u8::MAX as usize);
