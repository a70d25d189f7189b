//! What the kernel spends on an interface, and whether another mask would help: one sentence, the
//! command, and the figures.

use std::fmt::Write as _;

use serde::Serialize;
use steerage_tune::KernelLoad;

use super::suggest::Suggestion;
use crate::units::{counted, grouped};

/// The most CPUs that the table lists, those with the most time in softirq.
const ROWS_MAX: usize = 16;

/// Smaller shares are written as "less than 1 %".
const SHARE_MIN: f64 = 0.01;

/// The verdict on the kernel's steering.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) sentence: String,
    /// The commands that change the kernel's steering. Empty if nothing should change.
    pub(super) commands: Vec<String>,
}

/// The figures behind the verdict, for JSON.
#[derive(Debug, Serialize)]
pub(super) struct KernelJson {
    #[serde(flatten)]
    verdict: Verdict,
    seconds: f64,
    packets: u64,
    receive_cpu: Option<u16>,
    /// Nanoseconds in softirq for a packet; `null` if the time was too short to be counted.
    packet_ns: Option<f64>,
    cpus: Vec<CpuJson>,
    /// The queues with a mask, and their CPUs.
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

impl Verdict {
    pub(super) fn of(load: &KernelLoad, suggestion: Option<&Suggestion>) -> Self {
        let nothing_to_do = |sentence: String| Self { sentence, commands: Vec::new() };
        let interface = &load.interface;
        let (Some(hot), Some(suggestion)) = (load.busiest().filter(|_| load.packets > 0), suggestion) else {
            return nothing_to_do(format!("No packets arrived on {interface} in {:.0} s", load.seconds));
        };
        let spends = format!("CPU {} spends {} in softirq for {interface}", hot.cpu, percents(load.softirq_of(&hot)));
        let all = percents(hot.busy);
        let in_force = load.mask().filter(|mask| mask.len() > 1);
        if let Some(mask) = in_force.filter(|mask| suggestion.cpus == 1 || **mask == suggestion.mask_cpus) {
            return nothing_to_do(format!(
                "{spends} and is {all} busy: the kernel spreads the packets over CPUs {} already",
                mask.to_list()
            ));
        }
        if suggestion.cpus > 1 {
            let instead = in_force.map_or(String::new(), |mask| format!(" instead of {}", mask.to_list()));
            let to = percents(suggestion.load.unwrap_or(0.0));
            return Self {
                sentence: format!("{spends}; spreading over CPUs {}{instead} would bring it to {to}", suggestion.mask_cpus.to_list()),
                commands: suggestion.kernel_commands().to_vec(),
            };
        }
        let why = match (suggestion.is_enough(), suggestion.largest_flow(), suggestion.of) {
            (true, ..) => return nothing_to_do(format!("{spends} and is {all} busy: no steering is needed")),
            (_, Some((flow, share)), _) => format!("{flow} has {} of the packets, and a flow stays on one CPU", percents(share)),
            (_, None, 1) => "this program may use only one CPU".to_owned(),
            _ => "handing a packet over would take longer than the work on it".to_owned(),
        };
        nothing_to_do(format!("{spends} and is {all} busy, and spreading would not help: {why}"))
    }

    /// The verdict as the first lines of the page.
    pub(super) fn page(&self) -> String {
        let mut page = format!("{}\n", self.sentence);
        for command in &self.commands {
            let _ = writeln!(page, "  {command}");
        }
        page + "\n"
    }
}

/// The figures as lines of the page.
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
            let masks: Vec<String> = masks.iter().map(|(queue, mask)| format!("{queue} CPUs {}", mask.to_list())).collect();
            writeln!(page, "  rps_cpus: {}", masks.join(", "))
        }
    };
    if load.dropped + load.time_squeeze > 0 {
        let dropped = counted(load.dropped, "packet");
        let squeezed = counted(load.time_squeeze, "round");
        let _ = writeln!(page, "  {dropped} found a full backlog, {squeezed} of receiving ended early, of all interfaces");
    }
    page
}

pub(super) fn json(load: &KernelLoad, suggestion: Option<&Suggestion>) -> KernelJson {
    let cpu = |cpu: &steerage_tune::CpuLoad| CpuJson {
        cpu: cpu.cpu.0,
        busy: cpu.busy,
        softirq: cpu.softirq,
        packets: cpu.packets,
        interrupts: cpu.interrupts,
    };
    KernelJson {
        verdict: Verdict::of(load, suggestion),
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
