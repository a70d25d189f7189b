//! The advice as commands.

use std::fs;

use serde::Serialize;

use super::Circumstances;
use super::model::Way;
use crate::function::Function;

/// How long a CPU of the kernel's may be away while packets come: a time slice, at 250 ticks a second the shortest.
const AWAY_S: f64 = 0.004;

/// Linux's default, and ours.
const BACKLOG_DEFAULT: u64 = steerage::BACKLOG_DEFAULT as u64;

/// What an interface is called where none was named.
const SOME_INTERFACE: &str = "IFACE";

/// An interface that packets came from.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// How many receive queues it has; 1 where that cannot be read.
    pub(crate) queues: usize,
}

impl Interface {
    /// One of this machine.
    pub(crate) fn read(name: &str) -> Self {
        let entries = fs::read_dir(format!("/sys/class/net/{name}/queues")).into_iter().flatten().flatten();
        let is_rx = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("rx-");
        Self { name: name.to_owned(), queues: entries.filter(is_rx).count().max(1) }
    }
}

/// A `netdev_max_backlog` that is more than the default.
#[derive(Clone, Copy, Debug)]
pub(super) struct BacklogMax(pub(super) u64);

impl BacklogMax {
    /// What comes for the busiest CPU while it is away, if the default has no room for that.
    pub(super) fn of(rate: Option<f64>, busiest: f64) -> Option<Self> {
        let packets = (rate? * busiest * AWAY_S).ceil() as u64;
        (packets > BACKLOG_DEFAULT).then(|| Self(packets.next_power_of_two().min(steerage::BACKLOG_MAX as u64)))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Commands {
    pub(super) steerage: Vec<String>,
    pub(super) kernel: Vec<String>,
}

impl Commands {
    /// `stuck`: an elephant is more than a CPU can do. `torn`: the usual hash of cards would tear flows' directions apart.
    pub(super) fn of(
        circumstances: &Circumstances,
        way: &Way,
        backlog: Option<BacklogMax>,
        stuck: bool,
        torn: bool,
    ) -> Self {
        // One CPU has no backlog.
        let backlog = backlog.filter(|_| way.cpus.len() > 1);
        let stuck = stuck && way.cpus.len() > 1;
        let mask = way.mask.to_bitmap(circumstances.machine.nr_cpu_ids);
        Self {
            steerage: for_steerage(circumstances, way, &mask, backlog, stuck),
            kernel: for_the_kernel(circumstances, way, &mask, backlog, stuck, torn),
        }
    }
}

fn for_steerage(
    circumstances: &Circumstances,
    way: &Way,
    mask: &str,
    backlog: Option<BacklogMax>,
    stuck: bool,
) -> Vec<String> {
    let devices: Vec<String> = circumstances.devices.iter().map(|device| quoted(device)).collect();
    let mut run = format!("{} --cpus {}", command(circumstances, &devices.join(" ")), way.cpus);
    if way.cpus.len() > 1 {
        run += &format!(" --rx-cpu {} --rps-cpus {mask}", circumstances.machine.order[0]);
    }
    if let Some(BacklogMax(packets)) = backlog {
        run += &format!(" --backlog {packets}");
    }
    let mut commands = vec![run];
    // A run on an interface can be changed while it goes on; a file is read before anybody has typed that.
    for Interface { name, .. } in &circumstances.interfaces {
        commands.push(format!("steerage set sys/class/net/{name}/queues/rx-0/rps_cpus {mask}"));
    }
    if stuck {
        commands.push(format!("steerage set proc/sys/net/core/flow_limit_cpu_bitmap {mask}"));
    }
    commands
}

/// The command and its devices. What only its user knows stands in capitals.
fn command(circumstances: &Circumstances, devices: &str) -> String {
    let name = circumstances.function.name();
    let interfaces: Vec<&str> = circumstances.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let interfaces = if interfaces.is_empty() { SOME_INTERFACE.to_owned() } else { interfaces.join(" ") };
    match circumstances.function {
        Function::Count | Function::Meter => format!("steerage {name} {devices}"),
        Function::Fanout => format!("steerage {name} {devices} --to OUTPUT"),
        Function::Forward => format!("steerage {name} {interfaces}"),
        Function::Respond => format!("steerage {name} {interfaces} --address ADDRESS"),
    }
}

fn for_the_kernel(
    circumstances: &Circumstances,
    way: &Way,
    mask: &str,
    backlog: Option<BacklogMax>,
    stuck: bool,
    torn: bool,
) -> Vec<String> {
    let some = [Interface { name: SOME_INTERFACE.to_owned(), queues: 1 }];
    let interfaces = if circumstances.interfaces.is_empty() { &some[..] } else { &circumstances.interfaces };
    let mut commands: Vec<String> = interfaces.iter().map(|interface| write_mask(interface, mask)).collect();
    if way.cpus.len() > 1 && torn {
        commands.extend(interfaces.iter().map(|interface| format!("sudo ethtool -K {} rxhash off", interface.name)));
    }
    if let Some(BacklogMax(packets)) = backlog {
        commands.push(format!("sudo sysctl net.core.netdev_max_backlog={packets}"));
    }
    if stuck {
        commands.push(format!("echo {mask} | sudo tee /proc/sys/net/core/flow_limit_cpu_bitmap"));
    }
    commands
}

fn write_mask(interface: &Interface, mask: &str) -> String {
    let queues = format!("/sys/class/net/{}/queues", interface.name);
    match interface.queues {
        1 => format!("echo {mask} | sudo tee {queues}/rx-0/rps_cpus"),
        _ => format!("for q in {queues}/rx-*; do echo {mask} | sudo tee $q/rps_cpus; done"),
    }
}

/// As a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("synthetic:flows=10,mix=udp4+tcp6"), "synthetic:flows=10,mix=udp4+tcp6");
        assert_eq!([quoted("it's; rm"), quoted(""), quoted("a b")], [r"'it'\''s; rm'", "''", "'a b'"]);
    }

    #[test]
    fn a_backlog_has_room_for_a_time_slice() {
        let most = |rate, busiest| BacklogMax::of(rate, busiest).map(|backlog| backlog.0);
        assert_eq!((most(None, 1.0), most(Some(1e6), 0.25)), (None, None));
        // 4,000 and 250,000 packets; more than there can be.
        assert_eq!((most(Some(2e6), 0.5), most(Some(1e8), 0.625)), (Some(4096), Some(262_144)));
        assert_eq!(most(Some(1e12), 1.0), Some(steerage::BACKLOG_MAX as u64));
    }

    #[test]
    fn each_queue_gets_the_mask() {
        let interface = |queues| Interface { name: "eth1".to_owned(), queues };
        assert_eq!(write_mask(&interface(1), "f"), "echo f | sudo tee /sys/class/net/eth1/queues/rx-0/rps_cpus");
        assert_eq!(
            write_mask(&interface(4), "f"),
            "for q in /sys/class/net/eth1/queues/rx-*; do echo f | sudo tee $q/rps_cpus; done"
        );
        assert_eq!(Interface::read("no-such-interface").queues, 1);
    }
}
