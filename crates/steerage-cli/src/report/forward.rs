//! The counts of `forward`, as text and as a part of the JSON report.

use serde::{Serialize, Serializer};
use steerage_router::{Fate, Forwarded, Forwarding};

use crate::units::{counted, grouped};

/// The counts of `forward`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ForwardReport {
    forwarded: u64,
    /// Packets that should have been forwarded and were dropped, by reason.
    #[serde(serialize_with = "drops")]
    dropped: Forwarded,
    /// Packets that were not ours to forward, by reason.
    #[serde(serialize_with = "left")]
    left: Forwarded,
    icmp_sent: u64,
    icmp_suppressed: u64,
    routes: usize,
    neighbours: usize,
}

impl ForwardReport {
    pub(crate) fn of(forwarding: &Forwarding) -> Self {
        let (counts, table) = (forwarding.so_far(), forwarding.table());
        Self {
            forwarded: counts.get(Fate::Forwarded),
            dropped: counts,
            left: counts,
            icmp_sent: counts.icmp_sent,
            icmp_suppressed: counts.icmp_suppressed,
            routes: table.routes.len(),
            neighbours: table.neighbours.values().filter(|neighbour| neighbour.mac.is_some()).count(),
        }
    }

    /// The lines of the report, each with its label.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![(
            "forwarded",
            format!(
                "{}, by {} and {}",
                counted(self.forwarded, "packet"),
                counted(self.routes as u64, "route"),
                counted(self.neighbours as u64, "neighbour")
            ),
        )];
        let mut label = "not";
        for fate in Fate::ALL.into_iter().filter(|fate| fate.is_drop() && self.dropped.get(*fate) > 0) {
            lines.push((label, format!("{} {}: {}", fate.name(), grouped(self.dropped.get(fate)), advice(fate))));
            label = "";
        }
        let left: Vec<String> = Fate::ALL
            .into_iter()
            .filter(|fate| fate.is_not_ours() && self.left.get(*fate) > 0)
            .map(|fate| format!("{} {}", fate.name(), grouped(self.left.get(fate))))
            .collect();
        if !left.is_empty() {
            lines.push(("left", format!("to the kernel: {}", left.join(", "))));
        }
        if self.icmp_sent + self.icmp_suppressed > 0 {
            let (sent, suppressed) = (counted(self.icmp_sent, "error"), grouped(self.icmp_suppressed));
            lines.push(("icmp", format!("{sent} sent, {suppressed} suppressed by the limit")));
        }
        lines
    }
}

fn drops<S: Serializer>(counts: &Forwarded, serializer: S) -> Result<S::Ok, S::Error> {
    let counted = Fate::ALL.iter().filter(|fate| fate.is_drop() && counts.get(**fate) > 0);
    serializer.collect_map(counted.map(|fate| (fate.name(), counts.get(*fate))))
}

fn left<S: Serializer>(counts: &Forwarded, serializer: S) -> Result<S::Ok, S::Error> {
    let counted = Fate::ALL.iter().filter(|fate| fate.is_not_ours());
    serializer.collect_map(counted.map(|fate| (fate.name(), counts.get(*fate))))
}

/// The meaning of the reason, or the remedy. docs/forward.md has more.
fn advice(fate: Fate) -> &'static str {
    match fate {
        Fate::BadHeader => "lengths or version cannot be",
        Fate::BadChecksum => "the IPv4 header's checksum is wrong",
        Fate::MartianSource => "from an address that nobody has",
        Fate::MartianDestination => "to an address that nobody has",
        Fate::LinkLocal => "link-local addresses stay on their link",
        Fate::TtlExpired => "been round for too long, or a traceroute",
        Fate::NoRoute => "see `ip route`, and the interfaces given",
        Fate::Prohibited => "a route says so",
        Fate::Unresolved => "the kernel was asked for the next hop",
        Fate::HostUnreachable => "the next hop does not answer",
        Fate::TooBig => "longer than the next link's MTU",
        Fate::Merged => "by an offload: ethtool -K IFACE gro off lro off, and tso off at a veth's other end",
        Fate::Down => "the interface they would leave by is down",
        Fate::NoRoom => "no page was free",
        _ => "see `steerage help forward`",
    }
}
