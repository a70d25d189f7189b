//! The outcomes of packets and connections, and their counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fate {
    /// An answered ARP request.
    Arp,
    /// An answered neighbour solicitation.
    Neighbour,
    /// An answered ICMP or ICMPv6 echo request.
    IcmpEcho,
    /// A UDP datagram for the echo port, sent back.
    UdpEcho,
    /// An answered SYN, for which the responder kept no state.
    Syn,
    /// A TCP segment of a connection.
    Tcp,
    /// A TCP segment that was answered with a reset: there is no connection or no service, or the
    /// connection was [refused](Responded::refused).
    Reset,
    /// A later segment, which the peer resends, of a connection whose first segment has not
    /// arrived.
    Early,
    /// A TCP segment of no connection that gets no reply: a reset or, at a port with a service, a
    /// segment without ACK that cannot begin a connection.
    Stray,
    /// A packet for another address or a broadcast address, or of a protocol other than IP and ARP.
    NotOurs,
    /// A packet with an invalid length, version or flag, or with a source address that no host can
    /// have.
    BadHeader,
    /// A packet with a wrong checksum.
    BadChecksum,
    /// A fragment, or an echo request whose reply would need fragments.
    Fragment,
    /// A packet with IPv4 options or IPv6 extension headers.
    Options,
    /// A packet for a protocol or a UDP port without a service.
    Unserved,
    /// A packet without a reply, because no page was free for the reply.
    NoRoom,
}

impl Fate {
    /// All outcomes of packets, in the order of their numbers.
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

    /// Returns the name in reports.
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

    /// Returns true if the responder served the packet.
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
    /// The peer reset the connection, or did not acknowledge any retransmission.
    Aborted,
    /// The peer sent nothing for too long, and the responder reset the connection.
    Idle,
    /// The connection was open when the run ended.
    Stopped,
    /// The connection's handler panicked, or steerage declared the handler's CPU dead. The peer's
    /// next segment gets a reset.
    Lost,
}

impl End {
    /// All reasons for the end of a connection, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Closed, Self::Aborted, Self::Idle, Self::Stopped, Self::Lost];

    /// Returns the name in reports.
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

/// A responder's counts of packets and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responded {
    pub(super) fates: [u64; FATES],
    pub(super) ends: [u64; ENDS],
    /// Connections opened so far.
    pub opened: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Connections refused because of the limit for all connections or for one peer.
    pub refused: u64,
    /// Answered requests of all request services.
    pub transactions: u64,
    /// Payload bytes read from TCP connections.
    pub tcp_bytes_in: u64,
    /// Payload bytes written to TCP connections.
    pub tcp_bytes_out: u64,
    /// Packets merged into an earlier packet before the handler. For merged packets, no [`Fate`] is
    /// counted.
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
    pub(super) fn show(&self, counted: &Responded) {
        // `Relaxed` suffices, as in the loads of `add_to`: no other memory depends on the counters.
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
