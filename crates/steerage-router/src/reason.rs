use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! fates {
    ($($(#[$doc:meta])* $fate:ident = $name:literal,)*) => {
        /// The fate of a packet: forwarded, left to the kernel, or dropped for a reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Fate {
            $($(#[$doc])* $fate,)*
        }

        impl Fate {
            /// All fates of packets, in the order of their counters.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$fate),*];

            /// Returns the name that reports use for this fate of a packet.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$fate => $name,)*
                }
            }
        }
    };
}

fates! {
    /// The router forwarded the packet.
    Forwarded = "forwarded",
    /// Left to the kernel: the packet is for this machine, or its frame is multicast or broadcast.
    Local = "local",
    /// Left to the kernel: the packet is not IP, such as ARP and frames with a VLAN tag.
    NotIp = "not_ip",
    /// The frame is for another machine on the link (the interface is in promiscuous mode).
    OtherHost = "other_host",
    /// The version or a length in the IP header is invalid, or the frame is too short.
    BadHeader = "bad_header",
    /// The IPv4 header's checksum is wrong.
    BadChecksum = "bad_checksum",
    /// The source address is a broadcast address, or an address that no host can have.
    MartianSource = "martian_source",
    /// The destination address is an address that no host can have.
    MartianDestination = "martian_destination",
    /// An address is link-local: the packet must stay on its link (RFC 3927, RFC 4291).
    LinkLocal = "link_local",
    /// The TTL or hop limit of the packet has expired.
    TtlExpired = "ttl_expired",
    /// The forwarding table has no route to the destination through the router's interfaces.
    NoRoute = "no_route",
    /// A `blackhole` or `prohibit` route forbids forwarding the packet.
    Prohibited = "prohibited",
    /// The kernel is still resolving the link address of the next hop.
    Unresolved = "unresolved",
    /// The next hop does not answer the kernel's requests for its link address.
    HostUnreachable = "host_unreachable",
    /// The packet exceeds the MTU of the outgoing interface.
    TooBig = "too_big",
    /// The packet exceeds the MTU of the incoming interface: an offload merged several packets.
    Merged = "merged",
    /// The outgoing interface is down.
    Down = "down",
    /// No page was free, but the router needed one to rewrite the packet.
    NoRoom = "no_room",
}

impl Fate {
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
