//! What becomes of a packet that is looked at, and how often.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of a packet.
/// [`Forwarding`](super::Forwarding) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Fate {
    /// Sent on.
    Forwarded,
    /// The kernel's: to an address of this machine, a multicast or broadcast frame.
    Local,
    /// The kernel's: neither IPv4 nor IPv6, such as ARP or a frame with a VLAN tag.
    NotIp,
    /// For another machine on the link: seen only because the interface is promiscuous.
    OtherHost,
    /// Version, header length or total length cannot be, or the frame is shorter than they say.
    BadHeader,
    /// The IPv4 header's checksum is wrong.
    BadChecksum,
    /// From an address that nobody has: loopback, unspecified, multicast, broadcast, reserved.
    MartianSource,
    /// To such an address.
    MartianDestination,
    /// From or to a link-local address, which stays on its link (RFC 3927, RFC 4291).
    LinkLocal,
    /// Its time to live or hop limit is used up.
    TtlExpired,
    /// No route leads there by an interface that takes part.
    NoRoute,
    /// A route says that it is to be dropped, or refused.
    Prohibited,
    /// The next hop's link address is not known yet: the kernel is asked to find it.
    Unresolved,
    /// The next hop does not answer.
    HostUnreachable,
    /// Longer than the MTU of the interface that it would leave by.
    TooBig,
    /// Longer than the MTU of the interface that it came by: several packets, merged by an offload.
    Merged,
    /// The interface that it would leave by is down.
    Down,
    /// There was no page to write it in.
    NoRoom,
}

impl Fate {
    /// All of them, in order.
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

    /// Its name in reports.
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

    /// Whether it was left to others, and was nothing for us to forward.
    pub fn is_not_ours(self) -> bool {
        matches!(self, Self::Local | Self::NotIp | Self::OtherHost)
    }

    /// Whether it is a packet that should have been forwarded, and was dropped.
    pub fn is_drop(self) -> bool {
        self != Self::Forwarded && !self.is_not_ours()
    }
}

const FATES: usize = Fate::ALL.len();

/// What was counted.
/// [`Forwarding`](super::Forwarding) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    fates: [u64; FATES],
    /// ICMP errors sent.
    pub icmp_sent: u64,
    /// ICMP errors that were due, and were not sent because there had been so many.
    pub icmp_suppressed: u64,
}

impl Forwarded {
    /// How many packets met that fate.
    pub fn get(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }

    /// Those that should have been forwarded, and were dropped.
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

/// One CPU's counts, to be read by others.
#[derive(Debug, Default)]
pub(super) struct Shared {
    fates: [AtomicU64; FATES],
    icmp_sent: AtomicU64,
    icmp_suppressed: AtomicU64,
}

impl Shared {
    /// Shows what was counted so far. Only one thread does so, once a batch.
    pub(super) fn show(&self, counted: &Forwarded) {
        // Relaxed, as the loads in `read` that pair with these: plain counts that make nothing else visible.
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
