//! The outcomes of packets and connections, and counters of these outcomes.

use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fate {
    /// An ARP request. The responder sent a reply.
    Arp,
    /// A neighbour solicitation. The responder sent a reply.
    Neighbour,
    /// An ICMP or ICMPv6 echo request. The responder sent a reply.
    IcmpEcho,
    /// A UDP datagram for the echo port. The responder sent it back.
    UdpEcho,
    /// A SYN. The responder sent a reply to a SYN, and kept no state.
    Syn,
    /// A segment of a connection.
    Tcp,
    /// A TCP segment to which the responder replied with a reset: no connection exists, the port
    /// has no service, or the connection was [refused](Responded::refused).
    Reset,
    /// A later segment of a connection whose first segment has not arrived. The peer will send it
    /// again.
    Early,
    /// A TCP segment that belongs to no connection and gets no reply. The segment is a reset. Or
    /// the segment is for a port with a service, has no ACK, and cannot begin a connection.
    Stray,
    /// The packet is not for this host: it has another address or a broadcast address, or a
    /// protocol other than IP and ARP.
    NotOurs,
    /// In a header, a length, the version or the flags are invalid, or the source address is one
    /// that no host can have.
    BadHeader,
    /// A checksum is wrong.
    BadChecksum,
    /// A fragment, or an echo request whose reply would have to be sent in fragments.
    Fragment,
    /// A packet with IPv4 options or IPv6 extension headers.
    Options,
    /// A packet for a protocol or a UDP port without a service.
    Unserved,
    /// No page was free for the reply.
    NoRoom,
}

impl Fate {
    /// All outcomes, in order.
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

    /// Returns the name that this outcome has in reports.
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

    /// Returns true if this outcome means that the responder served the packet.
    pub fn is_served(self) -> bool {
        matches!(self, Self::Arp | Self::Neighbour | Self::IcmpEcho | Self::UdpEcho | Self::Syn | Self::Tcp)
    }
}

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum End {
    /// Both sides closed the connection.
    Closed,
    /// The peer reset the connection, or the responder stopped retransmitting because no
    /// acknowledgement arrived.
    Aborted,
    /// The responder reset the connection because the peer sent nothing for too long.
    Idle,
    /// The connection was open when the run ended.
    Stopped,
    /// The handler that had the connection panicked, or steerage declared the handler's CPU dead.
    /// After this loss of a connection, the responder replies to the peer's next segment with a
    /// reset.
    Lost,
}

impl End {
    /// All reasons, in order.
    pub const ALL: [Self; 5] = [Self::Closed, Self::Aborted, Self::Idle, Self::Stopped, Self::Lost];

    /// Returns the name that this reason has in reports.
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
pub(super) const ENDS: usize = End::ALL.len();

/// The counts of a responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responded {
    pub(super) fates: [u64; FATES],
    pub(super) ends: [u64; ENDS],
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were refused because there were too many connections in total, or too many
    /// from the same peer.
    pub refused: u64,
    /// Complete requests to which the responder replied, summed over all request services.
    pub transactions: u64,
    /// Payload bytes that were read from TCP connections.
    pub tcp_bytes_in: u64,
    /// Payload bytes that were written to TCP connections.
    pub tcp_bytes_out: u64,
    /// Packets that were merged into an earlier packet before the handler got them. A packet that
    /// was merged into an earlier packet is not counted by its outcome as well.
    pub merged: u64,
}

impl Responded {
    /// Returns the number of packets with this outcome.
    pub fn get(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }

    /// Returns the number of connections that ended for this reason.
    pub fn ended(&self, end: End) -> u64 {
        self.ends[end as usize]
    }

    pub(super) fn count(&mut self, fate: Fate) {
        self.fates[fate as usize] += 1;
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    fates: [AtomicU64; FATES],
    refused: AtomicU64,
    transactions: AtomicU64,
    tcp_bytes_in: AtomicU64,
    tcp_bytes_out: AtomicU64,
    merged: AtomicU64,
}

impl Shared {
    /// Publishes the counts. Only one thread calls `show`. The thread calls `show` once per batch
    /// of packets.
    pub(super) fn show(&self, counted: &Responded) {
        // The memory order of these stores is `Relaxed`, as in the loads of `add_to` that read the
        // same counters. The memory order `Relaxed` suffices: the values are only counters, and no
        // other memory depends on them.
        let show = |to: &AtomicU64, count: u64| to.store(count, Ordering::Relaxed);
        self.fates.iter().zip(counted.fates).for_each(|(to, count)| show(to, count));
        show(&self.refused, counted.refused);
        show(&self.transactions, counted.transactions);
        show(&self.tcp_bytes_in, counted.tcp_bytes_in);
        show(&self.tcp_bytes_out, counted.tcp_bytes_out);
        show(&self.merged, counted.merged);
    }

    pub(super) fn add_to(&self, all: &mut Responded) {
        let read = |from: &AtomicU64| from.load(Ordering::Relaxed);
        all.fates.iter_mut().zip(&self.fates).for_each(|(sum, count)| *sum += read(count));
        all.refused += read(&self.refused);
        all.transactions += read(&self.transactions);
        all.tcp_bytes_in += read(&self.tcp_bytes_in);
        all.tcp_bytes_out += read(&self.tcp_bytes_out);
        all.merged += read(&self.merged);
    }
}
