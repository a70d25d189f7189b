use std::sync::atomic::{AtomicU64, Ordering};

/// The fate of a packet: forwarded, left to the kernel, or dropped for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fate {
    /// The router forwarded the packet.
    Forwarded,
    /// Left to the kernel: the packet is for this machine, or its frame is multicast or broadcast.
    Local,
    /// Left to the kernel: the packet is not IP, such as ARP and frames with a VLAN tag.
    NotIp,
    /// The frame is for another machine on the link (the interface is in promiscuous mode).
    OtherHost,
    /// The version or a length in the IP header is invalid, or the frame is too short.
    BadHeader,
    /// The IPv4 header's checksum is wrong.
    BadChecksum,
    /// The source address is a broadcast address, or an address that no host can have.
    MartianSource,
    /// The destination address is an address that no host can have.
    MartianDestination,
    /// An address is link-local: the packet must stay on its link (RFC 3927, RFC 4291).
    LinkLocal,
    /// The TTL or hop limit of the packet has expired.
    TtlExpired,
    /// The forwarding table has no route to the destination through the router's interfaces.
    NoRoute,
    /// A `blackhole` or `prohibit` route forbids forwarding the packet.
    Prohibited,
    /// The kernel is still resolving the link address of the next hop.
    Unresolved,
    /// The next hop does not answer the kernel's requests for its link address.
    HostUnreachable,
    /// The packet exceeds the MTU of the outgoing interface.
    TooBig,
    /// The packet exceeds the MTU of the incoming interface: an offload merged several packets.
    Merged,
    /// The outgoing interface is down.
    Down,
    /// No page was free, but the router needed one to rewrite the packet.
    NoRoom,
}

impl Fate {
    /// All fates of packets, in the order of their counters.
    pub const ALL: [Self; 18] = [
        Self::Forwarded,
        Self::Local,
        Self::NotIp,
        Self::OtherHost,
        Self::BadHeader,
        Self::BadChecksum,
        Self::MartianSource,
        Self::MartianDestination,
        Self::LinkLocal,
        Self::TtlExpired,
        Self::NoRoute,
        Self::Prohibited,
        Self::Unresolved,
        Self::HostUnreachable,
        Self::TooBig,
        Self::Merged,
        Self::Down,
        Self::NoRoom,
    ];

    /// Returns the name that reports use for this fate of a packet.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Local => "local",
            Self::NotIp => "not_ip",
            Self::OtherHost => "other_host",
            Self::BadHeader => "bad_header",
            Self::BadChecksum => "bad_checksum",
            Self::MartianSource => "martian_source",
            Self::MartianDestination => "martian_destination",
            Self::LinkLocal => "link_local",
            Self::TtlExpired => "ttl_expired",
            Self::NoRoute => "no_route",
            Self::Prohibited => "prohibited",
            Self::Unresolved => "unresolved",
            Self::HostUnreachable => "host_unreachable",
            Self::TooBig => "too_big",
            Self::Merged => "merged",
            Self::Down => "down",
            Self::NoRoom => "no_room",
        }
    }

    /// Returns true if the packet was for the kernel or for another host.
    pub fn is_not_ours(self) -> bool {
        matches!(self, Self::Local | Self::NotIp | Self::OtherHost)
    }

    /// Returns true if the packet should have been forwarded but was dropped.
    pub fn is_drop(self) -> bool {
        self != Self::Forwarded && !self.is_not_ours()
    }
}

const FATES: usize = Fate::ALL.len();

/// The counts of forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    fates: [u64; FATES],
    /// The number of ICMP errors that the router sent.
    pub icmp_sent: u64,
    /// The number of ICMP errors that the router did not send because of the rate limit.
    pub icmp_suppressed: u64,
}

impl Forwarded {
    /// Returns the number of packets with this fate.
    pub fn get(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }

    /// Returns the number of packets that should have been forwarded but were dropped.
    pub fn dropped(&self) -> u64 {
        Fate::ALL.iter().filter(|fate| fate.is_drop()).map(|fate| self.get(*fate)).sum()
    }

    pub(super) fn count(&mut self, fate: Fate) {
        self.fates[fate as usize] += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.fates.iter_mut().zip(&other.fates).for_each(|(mine, other)| *mine += other);
        self.icmp_sent += other.icmp_sent;
        self.icmp_suppressed += other.icmp_suppressed;
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    fates: [AtomicU64; FATES],
    icmp_sent: AtomicU64,
    icmp_suppressed: AtomicU64,
}

impl Shared {
    /// Only the thread of this CPU calls `show`, once per batch.
    pub(super) fn show(&self, counted: &Forwarded) {
        // `Relaxed`, like the loads in `read`, because the counts publish no other memory.
        let show = |to: &AtomicU64, count: u64| to.store(count, Ordering::Relaxed);
        self.fates.iter().zip(counted.fates).for_each(|(to, count)| show(to, count));
        show(&self.icmp_sent, counted.icmp_sent);
        show(&self.icmp_suppressed, counted.icmp_suppressed);
    }

    pub(super) fn read(&self) -> Forwarded {
        let read = |from: &AtomicU64| from.load(Ordering::Relaxed);
        Forwarded {
            fates: std::array::from_fn(|at| read(&self.fates[at])),
            icmp_sent: read(&self.icmp_sent),
            icmp_suppressed: read(&self.icmp_suppressed),
        }
    }
}
