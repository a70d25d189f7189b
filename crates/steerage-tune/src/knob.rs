//! A *knob* is a kernel or card setting that `tune` can change, identified by its name.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use steerage_text::shell_word;

/// The names of ethtool's knobs begin with this prefix and the interface.
pub(crate) const CARDS: &str = "/ethtool/";

/// In the name of an ethtool feature's knob (such as GRO), this text follows the interface.
pub(crate) const FEATURES: &str = "features/";

/// In the name of a steering rule's knob, this text follows the interface: `rules/1023` is the rule
/// at location 1023. A free location has the value `NO_RULE`.
pub(crate) const RULES: &str = "rules/";
pub(crate) const NO_RULE: &str = "none";

/// The knob of the flow dissector: a BPF program that finds the flow of each packet in this network
/// namespace (`steerage_device::af_xdp::flow_dissector`). The next two constants are the values of
/// this knob.
pub(crate) const DISSECTOR: &str = "/bpf/flow_dissector";
pub(crate) const OUR_DISSECTOR: &str = "steerage";
pub(crate) const NO_DISSECTOR: &str = "none";

/// The kernel's files that contain CPU masks.
const MASKS: [&str; 5] = ["rps_cpus", "xps_cpus", "smp_affinity", "flow_limit_cpu_bitmap", "rps_default_mask"];

/// The name of a knob: the path of a file in /sys or /proc, or a value of ethtool such as
/// `/ethtool/eth0/rings/rx`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Knob(pub String);

impl Knob {
    /// Returns the interface and the name of an ethtool value, or `None` for a file.
    pub(crate) fn of_card(&self) -> Option<(&str, &str)> {
        self.0.strip_prefix(CARDS)?.split_once('/')
    }

    /// Returns true if the knob belongs to the interface. Knobs that belong to no interface affect
    /// the whole machine.
    pub(crate) fn is_of(&self, interface: &str) -> bool {
        let rest = self.0.strip_prefix("/sys/class/net/").or_else(|| self.0.strip_prefix(CARDS));
        rest.and_then(|rest| rest.strip_prefix(interface)).is_some_and(|rest| rest.starts_with('/'))
    }

    pub(crate) fn is_rule(&self) -> bool {
        self.of_card().is_some_and(|(_, name)| name.starts_with(RULES))
    }

    pub(crate) fn is_mask(&self) -> bool {
        MASKS.iter().any(|end| self.0.ends_with(end))
    }

    /// Returns the shell command that sets this knob to `value`.
    pub fn command(&self, value: &str) -> String {
        match self.of_card().map(|(interface, name)| (shell_word(interface), name)) {
            Some((interface, "channels/combined")) => format!("ethtool -L {interface} combined {value}"),
            Some((interface, "channels/rx")) => format!("ethtool -L {interface} rx {value}"),
            Some((interface, "rings/rx")) => format!("ethtool -G {interface} rx {value}"),
            Some((interface, "rings/tx")) => format!("ethtool -G {interface} tx {value}"),
            Some((interface, name)) if name.starts_with(FEATURES) => {
                format!("ethtool -K {interface} {} {value}", option(&name[FEATURES.len()..]))
            }
            Some((interface, name)) if name.starts_with(RULES) => match (value, &name[RULES.len()..]) {
                (NO_RULE, location) => format!("ethtool -N {interface} delete {location}"),
                (rule, location) => format!("ethtool -N {interface} {rule} loc {location}"),
            },
            Some((interface, "rss/key")) => format!("ethtool -X {interface} hkey {value}"),
            Some((interface, "rss/table")) => match queues_in_turn(value) {
                Some(queues) => format!("ethtool -X {interface} equal {queues}"),
                None => format!("ethtool -X {interface} weight {}", weights(value)),
            },
            _ if self.0 == DISSECTOR && value == NO_DISSECTOR => {
                "bpftool prog detach name steerage_flow flow_dissector".to_owned()
            }
            _ if self.0 == DISSECTOR => "bpftool prog attach name steerage_flow flow_dissector".to_owned(),
            _ => format!("echo {value} > {}", shell_word(&self.0)),
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the name that `ethtool -K` uses for a feature. For old features, `ethtool -K` uses other
/// names than the kernel.
pub(crate) fn option(feature: &str) -> &str {
    const OPTIONS: [(&str, &str); 6] = [
        ("rx-gro", "gro"),
        ("rx-lro", "lro"),
        ("tx-tcp-segmentation", "tso"),
        ("tx-generic-segmentation", "gso"),
        ("rx-vlan-hw-parse", "rxvlan"),
        ("rx-ntuple-filter", "ntuple"),
    ];
    OPTIONS.iter().find(|(name, _)| *name == feature).map_or(feature, |(_, option)| option)
}

/// Returns a hash key as long as `key`, with which both directions of a connection have the same
/// hash (Woo and Park, "Scalable TCP session monitoring with symmetric receive-side scaling",
/// 2012).
pub(crate) fn symmetric(key: &str) -> String {
    let bytes: Vec<&str> = key.split(':').enumerate().map(|(at, _)| ["6d", "5a"][at % 2]).collect();
    bytes.join(":")
}

/// Returns the number of queues if an indirection table lists the queues in turn, such as `0 1 2 0
/// 1 2 0`.
fn queues_in_turn(table: &str) -> Option<usize> {
    let entries: Vec<usize> = table.split(' ').filter_map(|entry| entry.parse().ok()).collect();
    let queues = entries.iter().max()? + 1;
    entries.iter().enumerate().all(|(nth, queue)| nth % queues == *queue).then_some(queues)
}

fn weights(table: &str) -> String {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    table.split(' ').filter_map(|entry| entry.parse().ok()).for_each(|queue| *counts.entry(queue).or_default() += 1);
    let last = counts.last_key_value().map_or(0, |(queue, _)| *queue);
    let weights: Vec<String> = (0..=last).map(|queue| counts.get(&queue).unwrap_or(&0).to_string()).collect();
    weights.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel allows an interface to be called `$(id)`.
    #[test]
    fn a_shell_does_not_execute_the_name_of_an_interface() {
        for (knob, command) in [
            ("/ethtool/$(id)/rings/rx", "ethtool -G '$(id)' rx 1"),
            ("/ethtool/$(id)/features/rx-gro", "ethtool -K '$(id)' gro 1"),
            ("/sys/class/net/$(id)/queues/rx-0/rps_cpus", "echo 1 > '/sys/class/net/$(id)/queues/rx-0/rps_cpus'"),
        ] {
            assert_eq!(Knob(knob.to_owned()).command("1"), command);
        }
    }
}
