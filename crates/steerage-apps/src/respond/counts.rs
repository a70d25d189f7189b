//! What became of packets and connections, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a packet.
/// [`Responding`](super::Responding) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fate {
    /// An ARP request, answered.
    Arp,
    /// A neighbour solicitation, answered.
    Neighbour,
    /// An ICMP or ICMPv6 echo request, answered.
    IcmpEcho,
    /// A datagram for the echo port, sent back.
    UdpEcho,
    /// A SYN, answered; nothing is kept of it.
    Syn,
    /// A segment of a connection.
    Tcp,
    /// A TCP segment of no connection, for a port that nobody serves, or of a connection that was
    /// [refused](Responded::refused): answered by a reset.
    Reset,
    /// A later segment of a connection whose first has not come: it will be sent again.
    Early,
    /// A TCP reset of no connection.
    Stray,
    /// Not for us: another address, a broadcast, another protocol than IP or ARP.
    NotOurs,
    /// Lengths, version or flags that cannot be, or a sender that nobody is.
    BadHeader,
    /// A checksum is wrong.
    BadChecksum,
    /// A fragment.
    Fragment,
    /// With IPv4 options or IPv6 extension headers.
    Options,
    /// A protocol, or a UDP port, that nobody serves.
    Unserved,
    /// There was no page to write the answer in.
    NoRoom,
}

impl Fate {
    /// All of them, in order.
    pub const ALL: [Self; 16] = [
        Self::Arp,
        Self::Neighbour,
        Self::IcmpEcho,
        Self::UdpEcho,
        Self::Syn,
        Self::Tcp,
        Self::Reset,
        Self::Early,
        Self::Stray,
        Self::NotOurs,
        Self::BadHeader,
        Self::BadChecksum,
        Self::Fragment,
        Self::Options,
        Self::Unserved,
        Self::NoRoom,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arp => "arp",
            Self::Neighbour => "neighbour",
            Self::IcmpEcho => "icmp_echo",
            Self::UdpEcho => "udp_echo",
            Self::Syn => "syn",
            Self::Tcp => "tcp",
            Self::Reset => "reset",
            Self::Early => "early",
            Self::Stray => "stray",
            Self::NotOurs => "not_ours",
            Self::BadHeader => "bad_header",
            Self::BadChecksum => "bad_checksum",
            Self::Fragment => "fragment",
            Self::Options => "options",
            Self::Unserved => "unserved",
            Self::NoRoom => "no_room",
        }
    }

    /// Whether it was what we are here for.
    pub fn is_served(self) -> bool {
        matches!(self, Self::Arp | Self::Neighbour | Self::IcmpEcho | Self::UdpEcho | Self::Syn | Self::Tcp)
    }
}

/// How a connection ended.
/// [`Responding`](super::Responding) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum End {
    /// Both sides closed it.
    Closed,
    /// The peer reset it, or we gave up sending to it.
    Aborted,
    /// Nothing was heard of the peer for too long: it was reset.
    Idle,
    /// It was open when the run ended.
    Stopped,
    /// Its handler panicked, or its CPU was declared dead; what the peer sends next is answered by a reset.
    Lost,
}

impl End {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Closed, Self::Aborted, Self::Idle, Self::Stopped, Self::Lost];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Aborted => "aborted",
            Self::Idle => "idle",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
        }
    }
}

const FATES: usize = Fate::ALL.len();
const ENDS: usize = End::ALL.len();

/// What was counted.
/// [`Responding`](super::Responding) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responded {
    pub(super) fates: [u64; FATES],
    pub(super) ends: [u64; ENDS],
    /// Connections that there were.
    pub opened: u64,
    /// Those that there are.
    pub open: u64,
    /// Those that were refused because there were too many.
    pub refused: u64,
    /// Whole requests that were answered, of services that answer requests.
    pub transactions: u64,
    /// Bytes of TCP's payload that were read of connections.
    pub tcp_bytes_in: u64,
    /// And written to them.
    pub tcp_bytes_out: u64,
}

impl Responded {
    /// How many packets met that fate.
    pub fn get(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }

    /// How many connections ended that way.
    pub fn ended(&self, end: End) -> u64 {
        self.ends[end as usize]
    }

    pub(super) fn count(&mut self, fate: Fate) {
        self.fates[fate as usize] += 1;
    }
}

/// One CPU's counts of packets, to be read by others.
#[derive(Debug, Default)]
pub(super) struct Shared {
    fates: [AtomicU64; FATES],
    refused: AtomicU64,
    transactions: AtomicU64,
    tcp_bytes_in: AtomicU64,
    tcp_bytes_out: AtomicU64,
}

impl Shared {
    /// Shows what was counted so far. Only one thread does so, once a batch.
    pub(super) fn show(&self, counted: &Responded) {
        // Relaxed, as the loads in `add_to` that pair with these: plain counts that make nothing else visible.
        let show = |to: &AtomicU64, count: u64| to.store(count, Ordering::Relaxed);
        self.fates.iter().zip(counted.fates).for_each(|(to, count)| show(to, count));
        show(&self.refused, counted.refused);
        show(&self.transactions, counted.transactions);
        show(&self.tcp_bytes_in, counted.tcp_bytes_in);
        show(&self.tcp_bytes_out, counted.tcp_bytes_out);
    }

    pub(super) fn add_to(&self, all: &mut Responded) {
        let read = |from: &AtomicU64| from.load(Ordering::Relaxed);
        all.fates.iter_mut().zip(&self.fates).for_each(|(sum, count)| *sum += read(count));
        all.refused += read(&self.refused);
        all.transactions += read(&self.transactions);
        all.tcp_bytes_in += read(&self.tcp_bytes_in);
        all.tcp_bytes_out += read(&self.tcp_bytes_out);
    }
}

/// How many connections there are, of all CPUs: counted when one begins or ends, not by packets.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: AtomicU64,
    opened: AtomicU64,
    ends: [AtomicU64; ENDS],
}

impl Connections {
    /// Has one more, unless there are `most`.
    pub(super) fn open(&self, most: u64) -> bool {
        // Relaxed, here and below: a count. No other memory is reached by what it says.
        let more = |open: u64| (open < most).then_some(open + 1);
        let has_room = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.opened.fetch_add(u64::from(has_room), Ordering::Relaxed);
        has_room
    }

    /// Whether there are `most`.
    pub(super) fn are_full(&self, most: u64) -> bool {
        self.open.load(Ordering::Relaxed) >= most
    }

    pub(super) fn end(&self, end: End) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, all: &mut Responded) {
        // Ends are read first, so that there are never more than were opened.
        all.ends.iter_mut().zip(&self.ends).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        all.open = self.open.load(Ordering::Relaxed);
        all.opened = self.opened.load(Ordering::Relaxed);
    }
}
