//! The counts of `forward`, as text and as a part of the JSON report.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steerage_router::{Fate, Forwarded, Forwarding};
use steerage_text::{counted, grouped};

/// The number of packets for each name of a [`Fate`] (what `forward` did with a packet).
type ByFate = BTreeMap<Cow<'static, str>, u64>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ForwardReport {
    forwarded: u64,
    /// For each reason, the number of dropped packets that should have been forwarded.
    dropped: ByFate,
    /// The number of packets that steerage did not have to forward, by reason.
    left: ByFate,
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
            dropped: by_fate(&counts, |fate| fate.is_drop() && counts.get(fate) > 0),
            left: by_fate(&counts, Fate::is_not_ours),
            icmp_sent: counts.icmp_sent,
            icmp_suppressed: counts.icmp_suppressed,
            routes: table.routes.len(),
            neighbours: table.neighbours.values().filter(|neighbour| neighbour.mac.is_some()).count(),
        }
    }

    /// Returns counts without empty lists, for a test.
    #[cfg(test)]
    pub(super) fn filled() -> Self {
        let of = |fate: Fate| ByFate::from([(fate.name().into(), 1)]);
        Self { dropped: of(Fate::NoRoute), left: of(Fate::Local), ..Self::default() }
    }

    /// Returns lines of text, each with its label.
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
        for fate in Fate::ALL.into_iter().filter(|fate| fate.is_drop() && count(&self.dropped, *fate) > 0) {
            lines.push((label, format!("{} {}: {}", fate.name(), grouped(count(&self.dropped, fate)), advice(fate))));
            label = "";
        }
        let left: Vec<String> = Fate::ALL
            .into_iter()
            .filter(|fate| fate.is_not_ours() && count(&self.left, *fate) > 0)
            .map(|fate| format!("{} {}", fate.name(), grouped(count(&self.left, fate))))
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

fn by_fate(counts: &Forwarded, has: impl Fn(Fate) -> bool) -> ByFate {
    let fates = Fate::ALL.into_iter().filter(|fate| has(*fate));
    fates.map(|fate| (fate.name().into(), counts.get(fate))).collect()
}

fn count(counts: &ByFate, fate: Fate) -> u64 {
    counts.get(fate.name()).copied().unwrap_or(0)
}

/// Explains a drop reason, or suggests a remedy. docs/forward.md contains more details.
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
