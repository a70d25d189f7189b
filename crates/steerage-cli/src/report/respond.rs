//! The counts of `respond`, as text and as a part of the JSON report.

use serde::{Serialize, Serializer};
use steerage::Snapshot;
use steerage_apps::respond::{End, Fate, Responded, Responding};

use crate::units::{counted, grouped};

/// The counts of `respond`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RespondReport {
    /// Packets that were answered, by kind.
    #[serde(serialize_with = "served")]
    served: Responded,
    /// The other packets, by reason.
    #[serde(serialize_with = "others")]
    others: Responded,
    connections: Connections,
    transactions: u64,
    tcp_bytes_in: u64,
    tcp_bytes_out: u64,
    /// Packets that the host originated, apart from replies in place: sent packets, and dropped
    /// packets.
    originated: u64,
    originated_dropped: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Connections {
    opened: u64,
    open: u64,
    refused: u64,
    most: usize,
    #[serde(serialize_with = "ends")]
    ended: Responded,
}

impl RespondReport {
    pub(crate) fn of(responding: &Responding, snapshot: &Snapshot) -> Self {
        let counts = responding.so_far();
        let of_all = |count: fn(&steerage::stats::CpuSnapshot) -> u64| snapshot.cpus.iter().map(count).sum();
        Self {
            served: counts,
            others: counts,
            connections: Connections {
                opened: counts.opened,
                open: counts.open,
                refused: counts.refused,
                most: responding.config().connections_most(),
                ended: counts,
            },
            transactions: counts.transactions,
            tcp_bytes_in: counts.tcp_bytes_in,
            tcp_bytes_out: counts.tcp_bytes_out,
            originated: of_all(|cpu| cpu.originated),
            originated_dropped: of_all(|cpu| cpu.originated_dropped),
        }
    }

    /// The lines of the report, each with its label.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let names = |is_served| {
            let of =
                Fate::ALL.into_iter().filter(move |fate| fate.is_served() == is_served && self.served.get(*fate) > 0);
            of.map(|fate| (fate.name(), self.served.get(fate))).collect::<Vec<_>>()
        };
        let ends = End::ALL.into_iter().map(|end| (end.name(), self.served.ended(end)));
        let ends: Vec<_> = ends.filter(|(_, count)| *count > 0).collect();
        let served = names(true);
        let mut lines = vec![("answered", if served.is_empty() { "nothing yet".to_owned() } else { listed(&served) })];
        let others = names(false);
        if !others.is_empty() {
            lines.push(("not", listed(&others)));
        }
        if self.connections.opened > 0 {
            let Connections { opened, open, refused, .. } = self.connections;
            let refused = if refused > 0 { format!(", {} refused", grouped(refused)) } else { String::new() };
            let ended = if ends.is_empty() { String::new() } else { format!("; {}", listed(&ends)) };
            let counts = format!("{} opened, {} open{refused}{ended}", grouped(opened), grouped(open));
            lines.push(("connections", counts));
            let (read, written) = (counted(self.tcp_bytes_in, "byte"), counted(self.tcp_bytes_out, "byte"));
            let transactions = counted(self.transactions, "transaction");
            lines.push(("tcp", format!("{transactions}, {read} in, {written} out")));
        }
        if self.originated + self.originated_dropped > 0 {
            let (sent, lost) = (counted(self.originated, "packet"), grouped(self.originated_dropped));
            lines.push(("own", format!("{sent} besides answers in place, {lost} more not sent")));
        }
        lines
    }
}

fn listed(counts: &[(&str, u64)]) -> String {
    counts.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect::<Vec<_>>().join(", ")
}

fn served<S: Serializer>(counts: &Responded, serializer: S) -> Result<S::Ok, S::Error> {
    let of = Fate::ALL.iter().filter(|fate| fate.is_served());
    serializer.collect_map(of.map(|fate| (fate.name(), counts.get(*fate))))
}

fn others<S: Serializer>(counts: &Responded, serializer: S) -> Result<S::Ok, S::Error> {
    let of = Fate::ALL.iter().filter(|fate| !fate.is_served());
    serializer.collect_map(of.map(|fate| (fate.name(), counts.get(*fate))))
}

fn ends<S: Serializer>(counts: &Responded, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(End::ALL.iter().map(|end| (end.name(), counts.ended(*end))))
}
