//! Facts about the machine and the interface, such as load, queues, drops and hash, read below a
//! [`Root`]. Facts that the process cannot read are omitted.

mod sample;

use std::collections::BTreeMap;
use std::fmt;

use steerage::topology::{Topology, card_interrupts};
use steerage::{CpuId, CpuMask};
use steerage_netlink::ethtool::{Channels, Ethtool, Features};
use steerage_text::shell_word;

use crate::root::Root;
pub use sample::{CpuCounts, Sample};

/// The maximum number of CPU columns that are read from /proc/interrupts.
const CPUS_MAX: usize = 8_192;

/// `interrupted` lists a CPU if its share of time in interrupts is at least `LISTED_MIN`.
const LISTED_MIN: f64 = 0.01;
const SHOWN_MAX: usize = 8;

/// The values that ethtool reports about an interface.
#[derive(Clone, Debug, Default)]
pub struct Card {
    /// The number of queues of each kind (the *channels* of ethtool).
    pub channels: Option<Channels>,
    /// The offloads of the interface.
    pub features: Option<Features>,
}

impl Card {
    /// Reads the values of an interface. Values that the kernel does not report are `None`.
    pub fn read(interface: &str) -> Self {
        let Ok(mut ethtool) = Ethtool::open() else { return Self::default() };
        Self { channels: ethtool.channels(interface).ok(), features: ethtool.features(interface).ok() }
    }
}

/// The facts about a machine and an interface that `tune` uses to choose candidates.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The name of the interface.
    pub interface: String,
    /// The driver, or `None` for a virtual interface.
    pub driver: Option<String>,
    /// The numbers of receive and transmit queues.
    pub queues: (usize, usize),
    /// The values that ethtool reports about the interface.
    pub card: Card,
    /// The caches and NUMA nodes of the machine.
    pub topology: Topology,
    /// The CPUs that steering may use: the online CPUs that are not isolated.
    pub cpus: CpuMask,
    /// The CPUs that receive the interface's packets, the busiest first.
    pub receivers: Vec<CpuId>,
    /// True if threaded NAPI is on. `None` if the kernel has no file for this setting.
    pub threaded: Option<bool>,
    /// The value of `rps_sock_flow_entries`. 0 turns RFS off for all interfaces.
    pub sock_flow_entries: u64,
    /// The value of `rps_flow_cnt` of the first receive queue. 0 turns RFS off for the queue.
    pub queue_flow_entries: u64,
    /// The average nanoseconds in interrupts per packet, if enough packets were counted.
    pub softirq_ns: Option<f64>,
    /// The CPUs with at least 1 % of their time in interrupts, and this share, busiest first.
    pub interrupted: Vec<(CpuId, f64)>,
    /// True if `interrupted` covers the time during which `tune` listened, and false if it covers
    /// the time since the machine started.
    pub is_recent: bool,
    /// The values of `napi_defer_hard_irqs` and `gro_flush_timeout`, or `None` if the kernel lacks
    /// these files.
    pub deferral: Option<(u64, u64)>,
    /// The names and values of the counters of lost packets that are not 0.
    pub drops: Vec<(&'static str, u64)>,
    /// How often a CPU used up its budget, and stopped polling although more packets were waiting.
    pub time_squeeze: u64,
    /// The flows that arrived while `tune` listened.
    pub flows: Flows,
}

/// The flows that the kernel's flow hash can distinguish.
#[derive(Clone, Debug, PartialEq)]
pub enum Flows {
    /// `tune` has seen flows.
    Seen {
        /// The number of flows, at least 1.
        count: usize,
        /// The largest flow's share of all packets, from 0 to 1.
        largest: f64,
    },
    /// `tune` has seen no flows, for the reason in the text.
    NotSeen(String),
}

impl Facts {
    /// Reads the facts. `lately` contains the increases of the counters while `tune` listened.
    /// `ever` contains the counters since the machine started. The load is computed from `lately`,
    /// or from `ever` if too few packets arrived.
    pub fn read(root: &Root, interface: &str, card: Card, ever: &Sample, lately: Option<&Sample>) -> Self {
        let lately = lately.filter(|lately| lately.softirq_ns().is_some());
        let used = lately.unwrap_or(ever);
        let at = |file: &str| format!("/sys/class/net/{interface}/{file}");
        let queues = |kind: &str| root.queues(interface, kind).len().max(1);
        let topology = Topology::below(root.directory(), None);
        let isolated = topology.isolated().clone();
        let cpus: CpuMask = topology.online().iter().filter(|cpu| !isolated.contains(*cpu)).collect();
        Self {
            interface: interface.to_owned(),
            driver: root.link(&at("device/driver")),
            queues: (queues("rx-"), queues("tx-")),
            card,
            receivers: receivers(used, &cpus),
            cpus,
            topology,
            threaded: root.number(&at("threaded")).map(|threaded: u64| threaded != 0),
            sock_flow_entries: root.number("/proc/sys/net/core/rps_sock_flow_entries").unwrap_or(0),
            queue_flow_entries: root.number(&at("queues/rx-0/rps_flow_cnt")).unwrap_or(0),
            softirq_ns: used.softirq_ns(),
            deferral: root.number(&at("napi_defer_hard_irqs")).zip(root.number(&at("gro_flush_timeout"))),
            interrupted: interrupted(used),
            is_recent: lately.is_some(),
            drops: drops(root, interface, ever),
            time_squeeze: ever.cpus.values().map(|cpu| cpu.time_squeeze).sum(),
            flows: Flows::NotSeen("nobody has listened".to_owned()),
        }
    }

    /// Returns true if the card computes a hash for each packet (`rx-hashing`). RPS uses a card's
    /// hash that includes the ports, and does not read the inner headers of tunnels.
    pub fn is_hashed_by_card(&self) -> bool {
        self.has("rx-hashing")
    }

    /// Returns true if the card may forward flows in hardware. The kernel never sees packets that
    /// the card has forwarded.
    pub fn forwards_in_hardware(&self) -> bool {
        self.has("hw-tc-offload")
    }

    fn has(&self, feature: &str) -> bool {
        self.card.features.as_ref().is_some_and(|features| features.is_on(feature))
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_deref().unwrap_or("none, it is virtual");
        let (rx, tx) = self.queues;
        writeln!(f, "{}: driver {driver}, {rx} receive and {tx} transmit queues", self.interface)?;
        if let Some(channels) = &self.card.channels {
            let (receive, send) = (channels.receiving(), channels.sending());
            writeln!(f, "channels: {receive} receive, {send} transmit")?;
        }
        let receivers: CpuMask = self.receivers.iter().copied().collect();
        writeln!(f, "CPUs: {}; receiving: {}", self.cpus, or_unknown(&receivers))?;
        if self.is_hashed_by_card() {
            let off = format!("sudo ethtool -K {} rxhash off", shell_word(&self.interface));
            writeln!(f, "hash: the card's, which RPS uses and which does not look into tunnels; {off} changes that")?;
        } else {
            writeln!(f, "hash: the kernel's own")?;
        }
        if self.forwards_in_hardware() {
            writeln!(f, "offload: the card may forward flows by itself, and steering does not see these packets")?;
        }
        if let Some(nanos) = self.softirq_ns {
            let since = if self.is_recent { "while tune listened" } else { "since the machine started" };
            let (shown, rest) = self.interrupted.split_at(self.interrupted.len().min(SHOWN_MAX));
            let cpus = shown.iter().map(|(cpu, share)| format!(", CPU {cpu} {:.0} %", 100.0 * share));
            let more = if rest.is_empty() { String::new() } else { format!(", and {} CPUs less", rest.len()) };
            writeln!(f, "time in interrupts {since}: {nanos:.0} ns for a packet{}{more}", cpus.collect::<String>())?;
        }
        if !self.drops.is_empty() {
            let drops: Vec<String> = self.drops.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(f, "lost since the machine started: {}", drops.join(", "))?;
        }
        if self.time_squeeze > 0 {
            writeln!(f, "rounds that ended early: {} (netdev_budget)", self.time_squeeze)?;
        }
        match &self.flows {
            Flows::Seen { count, largest } => {
                writeln!(f, "flows: {count}, the largest with {:.1} % of the packets", 100.0 * largest)
            }
            Flows::NotSeen(why) => writeln!(f, "flows: not seen: {why}"),
        }
    }
}

/// Returns the counters of lost packets, of the interface and of all CPUs' backlogs, without zeros.
fn drops(root: &Root, interface: &str, used: &Sample) -> Vec<(&'static str, u64)> {
    let backlogs = |count: fn(&CpuCounts) -> u64| used.cpus.values().map(count).sum();
    let own = sample::LOST.iter().map(|name| (*name, sample::counter(root, interface, name)));
    let shared = [("netdev_max_backlog", backlogs(|cpu| cpu.dropped)), ("flow_limit", backlogs(|cpu| cpu.flow_limit))];
    own.chain(shared).filter(|(_, count)| *count > 0).collect()
}

fn interrupted(used: &Sample) -> Vec<(CpuId, f64)> {
    let share = |counts: &CpuCounts| counts.softirq as f64 / counts.all.max(1) as f64;
    let mut shares: Vec<_> = used.cpus.iter().map(|(cpu, counts)| (*cpu, share(counts))).collect();
    shares.retain(|(_, share)| *share >= LISTED_MIN);
    shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    shares
}

fn or_unknown(cpus: &CpuMask) -> String {
    if cpus.is_empty() { "unknown".to_owned() } else { cpus.to_list() }
}

/// Returns the CPUs that handle the interface's interrupts. If the interface has no interrupts,
/// returns the CPU that handled the most packets, and prefers CPUs to which RPS did not steer
/// packets.
pub(crate) fn receivers(used: &Sample, cpus: &CpuMask) -> Vec<CpuId> {
    let by = |count: &dyn Fn(&CpuCounts) -> u64| {
        let counted = used.cpus.iter().map(|(cpu, counts)| (count(counts), *cpu));
        let mut counted: Vec<_> = counted.filter(|(count, cpu)| *count > 0 && cpus.contains(*cpu)).collect();
        counted.sort_by_key(|(count, cpu)| (std::cmp::Reverse(*count), cpu.0));
        counted.into_iter().map(|(_, cpu)| cpu).collect::<Vec<_>>()
    };
    let interrupted = by(&|counts| counts.interrupts);
    if !interrupted.is_empty() {
        return interrupted;
    }
    let mut busiest = by(&|counts| if counts.received_rps == 0 { counts.processed } else { 0 });
    if busiest.is_empty() {
        busiest = by(&|counts| counts.processed);
    }
    busiest.truncate(1);
    busiest
}

fn interrupts(root: &Root, interface: &str) -> BTreeMap<CpuId, u64> {
    let ours = card_interrupts(root.directory(), interface);
    let mut found = BTreeMap::new();
    let Ok(table) = root.read("/proc/interrupts") else { return found };
    let mut lines = table.lines();
    let header = lines.next().unwrap_or_default().split_whitespace();
    let cpus: Vec<CpuId> =
        header.take(CPUS_MAX).filter_map(|cpu| cpu.strip_prefix("CPU")?.parse().ok().map(CpuId)).collect();
    for line in lines {
        let Some((irq, row)) = line.split_once(':') else { continue };
        if irq.trim().parse().is_ok_and(|irq| ours.contains(&irq)) {
            let counts = row.split_whitespace().map_while(|count| count.parse::<u64>().ok());
            cpus.iter().zip(counts).for_each(|(cpu, count)| *found.entry(*cpu).or_default() += count);
        }
    }
    found
}

#[cfg(test)]
mod tests;
