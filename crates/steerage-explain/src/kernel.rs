//! The CPU time that the kernel spends on an interface, and a *verdict* on its steering. The
//! verdict is one sentence about whether another RPS mask would help, with commands.

use std::fmt::Write as _;

use serde::Serialize;
use steerage::CpuMask;
use steerage_text::{counted, grouped};
use steerage_tune::{CpuLoad, KernelLoad};

/// The maximum number of rows in the table of the CPUs with the most time in softirq.
const ROWS_MAX: usize = 16;

/// Spreading packets over more CPUs is advised only if the busiest CPU's time in softirq falls to
/// this fraction of its current time, or below.
const GAIN_MIN: f64 = 0.8;

/// The smallest share of a CPU that is written as a number. A smaller share than `SHARE_MIN` is
/// written as "less than 1 %".
const SHARE_MIN: f64 = 0.01;

#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) sentence: String,
    /// The advised commands. The list is empty if the kernel's steering should not change.
    pub(super) commands: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct KernelJson {
    #[serde(flatten)]
    verdict: Verdict,
    seconds: f64,
    packets: u64,
    receive_cpu: Option<u16>,
    /// The nanoseconds in softirq per packet, or `null` if the time is too short to be measured.
    packet_ns: Option<f64>,
    cpus: Vec<CpuJson>,
    /// The queues that the kernel steers, with the CPUs in the RPS mask of each queue.
    rps_cpus: Vec<(String, String)>,
    dropped: u64,
    time_squeeze: u64,
}

#[derive(Debug, Serialize)]
struct CpuJson {
    cpu: u16,
    busy: f64,
    softirq: f64,
    packets: u64,
    interrupts: u64,
}

fn percents(share: f64) -> String {
    if share < SHARE_MIN { "less than 1 %".to_owned() } else { format!("{:.0} %", 100.0 * share) }
}

/// The advice that also applies to the kernel's own steering.
#[derive(Clone, Debug)]
pub(super) struct Advised {
    /// The advised number of CPUs. The machine has `of` CPUs.
    pub(super) cpus: usize,
    pub(super) of: usize,
    pub(super) mask: CpuMask,
    /// The load of the busiest of the advised CPUs.
    pub(super) load: Option<f64>,
    /// True if the advised CPUs keep up with the packet rate.
    pub(super) is_enough: bool,
    /// A flow with more than half of the packets, and the flow's share.
    pub(super) largest: Option<(String, f64)>,
    pub(super) commands: Vec<String>,
}

impl Verdict {
    pub(super) fn of(load: &KernelLoad, advised: Option<&Advised>) -> Self {
        let nothing_to_do = |sentence: String| Self { sentence, commands: Vec::new() };
        let interface = &load.interface;
        let (Some(hot), Some(advised)) = (load.busiest().filter(|_| load.packets > 0), advised) else {
            return nothing_to_do(format!("No packets arrived on {interface} in {:.0} s", load.seconds));
        };
        let spends = format!("CPU {} spends {} in softirq for {interface}", hot.cpu, percents(load.softirq_of(&hot)));
        let all = percents(hot.busy);
        let in_force = load.mask().filter(|mask| mask.len() > 1);
        if let Some(mask) = in_force.filter(|mask| advised.cpus == 1 || **mask == advised.mask) {
            return nothing_to_do(format!(
                "{spends} and is {all} busy: the kernel spreads the packets over CPUs {} already",
                mask.to_list()
            ));
        }
        let own = load.softirq_of(&hot);
        if advised.cpus > 1 && advised.load.is_some_and(|to| to > GAIN_MIN * own) {
            return nothing_to_do(format!("{spends} and is {all} busy, and spreading would not help"));
        }
        if advised.cpus > 1 {
            let instead = in_force.map_or(String::new(), |mask| format!(" instead of {}", mask.to_list()));
            let to = percents(advised.load.unwrap_or(0.0));
            return Self {
                sentence: format!(
                    "{spends}; spreading over CPUs {}{instead} would bring it to {to}",
                    advised.mask.to_list()
                ),
                commands: advised.commands.clone(),
            };
        }
        let why = match (advised.is_enough, &advised.largest, advised.of) {
            (true, ..) => return nothing_to_do(format!("{spends} and is {all} busy: no steering is needed")),
            (_, Some((flow, share)), _) => {
                format!("{flow} has {} of the packets, and a flow stays on one CPU", percents(*share))
            }
            (_, None, 1) => "this program may use only one CPU".to_owned(),
            _ => "handing a packet over would take longer than the work on it".to_owned(),
        };
        nothing_to_do(format!("{spends} and is {all} busy, and spreading would not help: {why}"))
    }

    pub(super) fn page(&self) -> String {
        let mut page = format!("{}\n", self.sentence);
        for command in &self.commands {
            let _ = writeln!(page, "  {command}");
        }
        page + "\n"
    }
}

pub(super) fn figures(load: &KernelLoad) -> String {
    let mut page = format!("\nkernel     {:>5} {:>8} {:>13} {:>11}\n", "busy", "softirq", "packets", "interrupts");
    let mut cpus: Vec<_> = load.cpus.iter().filter(|cpu| cpu.packets > 0 || cpu.softirq >= SHARE_MIN).collect();
    cpus.sort_by(|one, other| other.softirq.total_cmp(&one.softirq));
    for cpu in cpus.iter().take(ROWS_MAX) {
        let (busy, softirq) = (100.0 * cpu.busy, 100.0 * cpu.softirq);
        let (packets, interrupts) = (grouped(cpu.packets), grouped(cpu.interrupts));
        let name = format!("CPU {}", cpu.cpu);
        let _ = writeln!(page, "  {name:<8} {busy:>3.0} % {softirq:>6.0} % {packets:>13} {interrupts:>11}");
    }
    if let Some(nanos) = load.packet_ns {
        let _ = writeln!(page, "  {} ns in softirq for a packet, also while steerage listens", grouped(nanos as u64));
    }
    let _ = match load.masks.as_slice() {
        [] => writeln!(page, "  rps_cpus is 0 for all queues: the kernel does not spread"),
        masks => {
            let masks: Vec<String> =
                masks.iter().map(|(queue, mask)| format!("{queue} CPUs {}", mask.to_list())).collect();
            writeln!(page, "  rps_cpus: {}", masks.join(", "))
        }
    };
    if load.dropped + load.time_squeeze > 0 {
        let dropped = counted(load.dropped, "packet");
        let squeezed = counted(load.time_squeeze, "round");
        let _ =
            writeln!(page, "  {dropped} found a full backlog, {squeezed} of receiving ended early, of all interfaces");
    }
    page
}

pub(super) fn json(load: &KernelLoad, advised: Option<&Advised>) -> KernelJson {
    let cpu = |cpu: &CpuLoad| CpuJson {
        cpu: cpu.cpu.0,
        busy: cpu.busy,
        softirq: cpu.softirq,
        packets: cpu.packets,
        interrupts: cpu.interrupts,
    };
    KernelJson {
        verdict: Verdict::of(load, advised),
        seconds: load.seconds,
        packets: load.packets,
        receive_cpu: load.receiver.map(|cpu| cpu.0),
        packet_ns: load.packet_ns,
        cpus: load.cpus.iter().map(cpu).collect(),
        rps_cpus: load.masks.iter().map(|(queue, mask)| (queue.clone(), mask.to_list())).collect(),
        dropped: load.dropped,
        time_squeeze: load.time_squeeze,
    }
}

#[cfg(test)]
mod tests {
    use steerage::CpuId;

    use super::*;

    fn cpus(list: &str) -> CpuMask {
        CpuMask::parse_list(list, 8).unwrap()
    }

    /// CPU 1 handles 203,100 packets per second, as measured in a flood of veth0.
    fn load(busy: f64, mask: Option<&str>) -> KernelLoad {
        let cpu = |cpu, busy, softirq| CpuLoad { cpu: CpuId(cpu), busy, softirq, packets: 1_015_500, interrupts: 0 };
        KernelLoad {
            interface: "veth0".to_owned(),
            seconds: 5.0,
            packets: 1_015_500,
            receiver: Some(CpuId(1)),
            cpus: vec![cpu(0, 0.74, 0.01), cpu(1, busy, 0.45)],
            share: 1.0,
            packet_ns: Some(2_217.0),
            masks: mask.map(|mask| ("rx-0".to_owned(), cpus(mask))).into_iter().collect(),
            dropped: 0,
            time_squeeze: 2,
        }
    }

    fn advised(count: usize, is_enough: bool) -> Advised {
        let mask = if count == 1 { CpuMask::new() } else { cpus("0-1") };
        let commands = vec!["echo 3 | sudo tee /sys/class/net/veth0/queues/rx-0/rps_cpus".to_owned()];
        Advised { cpus: count, of: 2, mask, load: Some(0.24), is_enough, largest: None, commands }
    }

    #[test]
    fn the_verdict_is_one_sentence() {
        let of = |load: &KernelLoad, advised: Advised| {
            let verdict = Verdict::of(load, Some(&advised));
            (verdict.sentence, verdict.commands.len())
        };
        let (flood, spread) = (load(0.98, None), advised(2, true));
        assert_eq!(
            of(&flood, spread.clone()),
            ("CPU 1 spends 45 % in softirq for veth0; spreading over CPUs 0-1 would bring it to 24 %".to_owned(), 1)
        );
        let already = "CPU 1 spends 45 % in softirq for veth0 and is 98 % busy: the kernel spreads the packets over CPUs 0-1 already";
        assert_eq!(of(&load(0.98, Some("0-1")), spread.clone()), (already.to_owned(), 0));
        assert!(
            of(&load(0.98, Some("0,2")), spread).0.ends_with("over CPUs 0-1 instead of 0,2 would bring it to 24 %")
        );
        let enough = "CPU 1 spends 45 % in softirq for veth0 and is 50 % busy: no steering is needed";
        assert_eq!(of(&load(0.50, None), advised(1, true)), (enough.to_owned(), 0));
        let largest = Some(("udp 10.0.0.1:5 > 10.0.0.2:9".to_owned(), 0.93));
        let one_flow = of(&flood, Advised { largest, ..advised(1, false) }).0;
        assert!(one_flow.ends_with(
            "would not help: udp 10.0.0.1:5 > 10.0.0.2:9 has 93 % of the packets, and a flow stays on one CPU"
        ));
        assert!(of(&flood, Advised { of: 1, ..advised(1, false) }).0.ends_with("this program may use only one CPU"));
        let no_gain = of(&flood, Advised { load: Some(0.42), ..advised(2, true) });
        assert_eq!(
            no_gain,
            ("CPU 1 spends 45 % in softirq for veth0 and is 98 % busy, and spreading would not help".to_owned(), 0)
        );
        let idle = KernelLoad { packets: 0, ..load(0.5, None) };
        assert_eq!(of(&idle, advised(1, true)), ("No packets arrived on veth0 in 5 s".to_owned(), 0));
    }

    #[test]
    fn the_figures_name_the_cpus_and_the_masks() {
        let page = figures(&load(0.98, Some("0-1")));
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("  CPU")).collect();
        assert_eq!(
            rows,
            [
                "  CPU 1     98 %     45 %     1,015,500           0",
                "  CPU 0     74 %      1 %     1,015,500           0"
            ]
        );
        assert!(page.contains("  2,217 ns in softirq for a packet"), "{page}");
        assert!(page.contains("  rps_cpus: rx-0 CPUs 0-1\n") && page.contains("2 rounds of receiving"), "{page}");
        assert!(figures(&load(0.98, None)).contains("rps_cpus is 0 for all queues"));
    }
}
