//! The candidate settings that `--global`, `--irq` and `--allow-reset` permit.

use steerage::CpuMask;
use steerage::flow::wire::port;

use crate::candidates::Candidate;
use crate::facts::Sample;
use crate::knob::{Knob, OUR_DISSECTOR, symmetric};
use crate::machine::Machine;
use crate::plan::{Stages, Value, Wish};
use crate::stage::Scope;

/// The size of the receive ring of a candidate setting, in descriptors. Most cards have a ring of
/// 256 or 512 descriptors by default.
const RING: u64 = 1024;
/// The UDP ports of tunnels whose inner headers the flow dissector reads.
const TUNNELS: [u16; 3] = [port::VXLAN, port::VXLAN_LINUX, port::GTP_U];

/// Returns the permitted candidates for interrupts, XPS, and the settings of the machine and the
/// card.
pub fn candidates(machine: &mut Machine, interface: &str, stages: &Stages, cpus: &CpuMask) -> Vec<Candidate> {
    let mut found = Vec::new();
    if stages.has(Scope::Irq) {
        let wish = Wish::default().set("smp_affinity", Value::Spread(cpus.clone()));
        found.push(Candidate::new("an interrupt on each CPU", wish, None));
    }
    if stages.has(Scope::Interface) && xps_is_possible(machine, interface) {
        let wish = Wish::default().set("xps_cpus", Value::Spread(cpus.clone()));
        found.push(Candidate::new("XPS: a transmit queue for each CPU", wish, None));
    }
    if stages.has(Scope::Global) {
        if ends_tunnels(machine) {
            let wish = Wish::default().set("flow_dissector", Value::Text(OUR_DISSECTOR.to_owned()));
            found.push(Candidate::new("the flows inside VXLAN and GTP-U", wish, None));
        }
        found.push(Candidate::new("settings of the machine", global(machine, interface, cpus), None));
    }
    if stages.has(Scope::Reset) {
        found.push(Candidate::new("settings of the card", card(machine, interface, cpus), None));
    }
    found
}

/// Returns true if a tunnel ends on this machine, that is, if a socket is bound to a UDP port of
/// VXLAN or GTP-U.
fn ends_tunnels(machine: &Machine) -> bool {
    let is_tunnel = |row: &str| {
        let port = row.split_whitespace().nth(1)?.rsplit_once(':')?.1;
        u16::from_str_radix(port, 16).ok().filter(|port| TUNNELS.contains(port))
    };
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|table| machine.root().read(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).any(|row| is_tunnel(row).is_some())
}

fn xps_is_possible(machine: &Machine, interface: &str) -> bool {
    machine.root().queues(interface, "tx-").len() > 1
}

/// Returns an indirection table as long as `table` that lists the queues in turn, such as `0 1 2 0
/// 1 2`, or `None` if the queues already have equal shares.
fn evened(table: &str, queues: usize) -> Option<String> {
    let entries: Vec<usize> = table.split(' ').map(|entry| entry.parse().ok()).collect::<Option<_>>()?;
    let count = |queue: usize| entries.iter().filter(|entry| **entry == queue).count();
    let counts: Vec<usize> = (0..queues).map(count).collect();
    let is_even = counts.iter().max()? - counts.iter().min()? <= 1 && entries.iter().all(|queue| *queue < queues);
    (!is_even).then(|| (0..entries.len()).map(|at| (at % queues).to_string()).collect::<Vec<_>>().join(" "))
}

fn global(machine: &mut Machine, interface: &str, cpus: &CpuMask) -> Wish {
    let counted = Sample::read(machine.root(), interface).cpus;
    let mut wish = Wish::default()
        .set("flow_limit_cpu_bitmap", Value::Cpus(cpus.clone()))
        .set("rps_default_mask", Value::Cpus(cpus.clone()));
    let mut doubled = |stage: &'static str| {
        let now = machine.read(&Knob(format!("/proc/sys/net/core/{stage}"))).ok();
        if let Some(now) = now.and_then(|now| now.parse::<u64>().ok()) {
            wish = std::mem::take(&mut wish).set(stage, Value::Number(now.saturating_mul(2)));
        }
    };
    if counted.values().any(|cpu| cpu.dropped > 0) {
        doubled("netdev_max_backlog");
    }
    if counted.values().any(|cpu| cpu.time_squeeze > 0) {
        doubled("netdev_budget");
        doubled("netdev_budget_usecs");
    }
    wish
}

fn card(machine: &mut Machine, interface: &str, cpus: &CpuMask) -> Wish {
    let numbers = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    let mut wish = Wish::default();
    let mut queues = machine.root().queues(interface, "rx-").len();
    let mut number = |name: &str| machine.read(&Knob(format!("/ethtool/{interface}/{name}"))).ok();
    for (now, stage) in [("channels/combined", "channels"), ("channels/rx", "channels_rx")] {
        let most = number(now).and(numbers(number(&format!("{now}_max"))));
        if let Some(most) = most {
            queues = most.min(cpus.len() as u64).max(1) as usize;
            wish = wish.set(stage, Value::Number(queues as u64));
        }
    }
    if let Some(table) = number("rss/table").and_then(|table| evened(&table, queues)) {
        wish = wish.set("rss_table", Value::Text(table));
    }
    if let (Some(now), Some(most)) = (numbers(number("rings/rx")), numbers(number("rings/rx_max"))) {
        wish = wish.set("rings_rx", Value::Number(now.max(RING).min(most)));
    }
    if let Some(key) = number("rss/key").filter(|key| !key.is_empty()) {
        wish = wish.set("rss_key", Value::Text(symmetric(&key)));
    }
    wish
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_evened_only_if_it_is_uneven() {
        assert_eq!(evened("0 1 2 0 1", 3), None);
        assert_eq!(evened("0 0 0 1 1 2", 3).as_deref(), Some("0 1 2 0 1 2"));
        // The indirection table `0 1 0 1` lacks queue 2. The table `0 1 2 3` has a queue 3,
        // although there are only queues 0 to 2.
        assert_eq!(evened("0 1 0 1", 3).as_deref(), Some("0 1 2 0"));
        assert_eq!(evened("0 1 2 3", 3).as_deref(), Some("0 1 2 0"));
        assert_eq!((evened("", 3), evened("0 x", 2), evened("0 1", 0)), (None, None, None));
    }
}
