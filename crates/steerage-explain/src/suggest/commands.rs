use serde::Serialize;
use steerage_text::shell_word;

use super::cpu_count::Assignment;
use crate::basis::{AdviceBasis, InterfaceQueues, Operands, RateFrom};
use crate::explained::TrafficExplanation;
use crate::shares::Shares;

/// How long, in seconds, other work may keep a CPU busy while packets for this CPU arrive: a time
/// slice of the kernel's scheduler, at least 4 ms at 250 ticks per second.
const AWAY_S: f64 = 0.004;

const BACKLOG_DEFAULT: u64 = steerage::limits::BACKLOG_DEFAULT as u64;

/// The word that stands for the interface if the user named no interface.
const SOME_INTERFACE: &str = "IFACE";

/// Returns a value for `netdev_max_backlog` that leaves room for the busiest CPU's packets in a time
/// slice, or `None` if the default is enough.
pub(super) fn backlog_max(rate: Option<f64>, busiest: f64) -> Option<u64> {
    let packets = (rate? * busiest * AWAY_S).ceil() as u64;
    (packets > BACKLOG_DEFAULT).then(|| packets.next_power_of_two().min(steerage::limits::BACKLOG_MAX as u64))
}

/// Returns the backlog to set in the kernel, or `None` if the present one is large enough.
fn raised(wanted: Option<u64>, now: Option<u64>) -> Option<u64> {
    wanted.filter(|wanted| now.is_none_or(|now| now < *wanted))
}

#[derive(Debug, Serialize)]
pub(super) struct Commands {
    pub(super) steerage: Vec<String>,
    /// The commands that set the kernel's steering. The list is empty for a capture that one CPU
    /// can handle.
    pub(super) kernel: Vec<String>,
    pub(super) parallel: Option<Parallel>,
}

/// `steerage parallel` divides a capture among copies of a tool.
#[derive(Debug, Serialize)]
pub(super) struct Parallel {
    pub(super) command: String,
    /// The maximum speed-up over one copy of the tool.
    pub(super) speed_up: f64,
}

impl Parallel {
    fn of(traffic: &TrafficExplanation) -> Option<Self> {
        let AdviceBasis { devices, candidates, rate, .. } = &traffic.basis;
        rate.filter(|rate| rate.from == RateFrom::Recording)?;
        let devices: Vec<String> = devices.iter().map(|device| shell_word(device)).collect();
        let jobs = candidates.order.len();
        let speed_up = Shares::even(&traffic.survey.buckets, jobs).speed_up();
        Some(Self { command: format!("steerage parallel {} -j {jobs} -- TOOL", devices.join(" ")), speed_up })
    }
}

impl Commands {
    /// `stuck` is true if one flow has more packets than a CPU can handle. `torn` is true if the
    /// default hash of network cards would put the two directions of some flows on different
    /// queues.
    pub(super) fn of(
        traffic: &TrafficExplanation,
        way: &Assignment,
        backlog: Option<u64>,
        stuck: bool,
        torn: bool,
    ) -> Self {
        let (basis, parallel) = (&traffic.basis, Parallel::of(traffic));
        // With a single CPU, no packet waits in a backlog.
        let backlog = backlog.filter(|_| way.cpus.len() > 1);
        let stuck = stuck && way.cpus.len() > 1;
        let mask = way.mask.to_bitmap(basis.candidates.nr_cpu_ids);
        // For a capture, the interface is not known. If the input is an interface, the verdict on
        // the kernel's steering already has the commands.
        let kernel = match (parallel.is_some() || basis.kernel.is_some(), way.cpus.len()) {
            (true, 1) => Vec::new(),
            _ => for_the_kernel(basis, way, &mask, backlog, stuck, torn),
        };
        Self { steerage: for_steerage(basis, way, &mask, backlog, stuck), kernel, parallel }
    }
}

fn for_steerage(basis: &AdviceBasis, way: &Assignment, mask: &str, backlog: Option<u64>, stuck: bool) -> Vec<String> {
    let devices: Vec<String> = basis.devices.iter().map(|device| shell_word(device)).collect();
    let mut run = format!("{} --cpus {}", command(basis, &devices.join(" ")), way.cpus);
    if way.cpus.len() > 1 {
        run += &format!(" --rx-cpu {} --rps-cpus {mask}", basis.candidates.order[0]);
    }
    if let Some(packets) = backlog {
        run += &format!(" --backlog {packets}");
    }
    let mut commands = vec![run];
    // Only a run on an interface lasts long enough for the user to change its settings with a
    // command.
    for InterfaceQueues { name, .. } in &basis.interfaces {
        let path = format!("sys/class/net/{name}/queues/rx-0/rps_cpus");
        commands.push(format!("steerage set {} {mask}", shell_word(&path)));
    }
    if stuck {
        commands.push(format!("steerage set proc/sys/net/core/flow_limit_cpu_bitmap {mask}"));
    }
    commands
}

/// Words in capitals, such as `OUTPUT`, are for the user to replace.
fn command(basis: &AdviceBasis, devices: &str) -> String {
    let name = basis.command.name;
    let interfaces: Vec<String> = basis.interfaces.iter().map(|interface| shell_word(&interface.name)).collect();
    let interfaces = if interfaces.is_empty() { SOME_INTERFACE.to_owned() } else { interfaces.join(" ") };
    match basis.command.operands {
        Operands::Inputs => format!("steerage {name} {devices}"),
        Operands::InputsAndOutput => format!("steerage {name} {devices} --to OUTPUT"),
        Operands::Interfaces => format!("steerage {name} {interfaces}"),
    }
}

fn for_the_kernel(
    basis: &AdviceBasis,
    way: &Assignment,
    mask: &str,
    backlog: Option<u64>,
    stuck: bool,
    torn: bool,
) -> Vec<String> {
    let some = [InterfaceQueues { name: SOME_INTERFACE.to_owned(), queues: 1 }];
    let interfaces = if basis.interfaces.is_empty() { &some[..] } else { &basis.interfaces };
    let mut commands: Vec<String> = interfaces.iter().map(|interface| write_mask(interface, mask)).collect();
    if way.cpus.len() > 1 && torn {
        let off = |interface: &InterfaceQueues| format!("sudo ethtool -K {} rxhash off", shell_word(&interface.name));
        commands.extend(interfaces.iter().map(off));
    }
    if let Some(packets) = raised(backlog, basis.kernel_backlog) {
        commands.push(format!("sudo sysctl net.core.netdev_max_backlog={packets}"));
    }
    if stuck {
        commands.push(format!("echo {mask} | sudo tee /proc/sys/net/core/flow_limit_cpu_bitmap"));
    }
    commands
}

fn write_mask(interface: &InterfaceQueues, mask: &str) -> String {
    let queues = shell_word(&format!("/sys/class/net/{}/queues", interface.name));
    match interface.queues {
        1 => format!("echo {mask} | sudo tee {queues}/rx-0/rps_cpus"),
        _ => format!("for q in {queues}/rx-*; do echo {mask} | sudo tee $q/rps_cpus; done"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_has_room_for_a_time_slice() {
        let most = |rate, busiest| backlog_max(rate, busiest);
        assert_eq!((most(None, 1.0), most(Some(1e6), 0.25)), (None, None));
        // The first two expected limits are 4,000 and 250,000 packets, rounded up to powers of two.
        assert_eq!((most(Some(2e6), 0.5), most(Some(1e8), 0.625)), (Some(4096), Some(262_144)));
        assert_eq!(most(Some(1e12), 1.0), Some(steerage::limits::BACKLOG_MAX as u64));
    }

    #[test]
    fn the_kernels_backlog_is_not_lowered() {
        assert_eq!([raised(Some(4096), None), raised(Some(4096), Some(1000))], [Some(4096); 2]);
        assert_eq!([raised(Some(4096), Some(300_000)), raised(None, Some(1000))], [None; 2]);
    }

    #[test]
    fn each_queue_gets_the_mask() {
        let interface = |queues| InterfaceQueues { name: "eth1".to_owned(), queues };
        assert_eq!(write_mask(&interface(1), "f"), "echo f | sudo tee /sys/class/net/eth1/queues/rx-0/rps_cpus");
        assert_eq!(
            write_mask(&interface(4), "f"),
            "for q in /sys/class/net/eth1/queues/rx-*; do echo f | sudo tee $q/rps_cpus; done"
        );
        // The kernel accepts an interface name such as `$(id)`, and a shell must not execute the
        // name.
        let hostile = InterfaceQueues { name: "$(id)".to_owned(), queues: 1 };
        assert_eq!(write_mask(&hostile, "f"), "echo f | sudo tee '/sys/class/net/$(id)/queues'/rx-0/rps_cpus");
        assert_eq!(InterfaceQueues::read("no-such-interface").queues, 1);
    }
}
