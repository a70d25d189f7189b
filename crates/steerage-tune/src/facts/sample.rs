use std::collections::BTreeMap;

use steerage::CpuId;

use super::interrupts;
use crate::root::Root;

/// The columns of /proc/net/softnet_stat (`softnet_seq_show` in net/core/net-procfs.c). The kernel
/// omits the rows of offline CPUs, and since Linux 5.10 shows the CPU's number in a column.
const PROCESSED: usize = 0;
const DROPPED: usize = 1;
const TIME_SQUEEZE: usize = 2;
const RECEIVED_RPS: usize = 9;
const FLOW_LIMIT: usize = 10;
const CPU: usize = 12;

/// The columns of a CPU in /proc/stat (proc_stat(5)). `SYSTEM` excludes interrupts.
const SYSTEM: usize = 2;
const IDLE: [usize; 2] = [3, 4];
const INTERRUPT: usize = 5;
const SOFTIRQ: usize = 6;
/// The number of columns up to `steal`. The columns up to `steal` already include the times in the
/// columns after `steal`.
const COLUMNS: usize = 8;

const TICK_NS: f64 = 1e7;

/// If interrupts took fewer clock ticks than this, the error of the time per packet exceeds a
/// tenth.
const TICKS_MIN: u64 = 20;

/// The interface's counters of packets that arrived but were lost (the kernel's
/// Documentation/networking/statistics.rst).
pub(super) const LOST: [&str; 4] = ["rx_dropped", "rx_missed_errors", "rx_over_errors", "rx_fifo_errors"];

/// The counters of a CPU. Times are in ticks of /proc/stat: 100 per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounts {
    /// The packets of all interfaces that the CPU handled.
    pub processed: u64,
    /// The packets that were dropped because the CPU's backlog was full.
    pub dropped: u64,
    /// How often the CPU used up its budget, and stopped polling although more packets were
    /// waiting.
    pub time_squeeze: u64,
    /// The number of interrupts (IPIs) from other CPUs that steered packets to this CPU.
    pub received_rps: u64,
    /// The packets that the kernel's flow limit dropped.
    pub flow_limit: u64,
    /// The number of interrupts of the interface that the CPU handled.
    pub interrupts: u64,
    /// The CPU's time in hard and soft interrupts.
    pub softirq: u64,
    /// The CPU's time in the kernel outside of interrupts, which includes the threads of threaded
    /// NAPI.
    pub system: u64,
    /// The time in which the CPU was not idle.
    pub busy: u64,
    /// The total time of the CPU, busy or idle.
    pub all: u64,
}

/// The values of the kernel's counters at one time, or the differences between two times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time since the machine started, in hundredths of a second, or 0 if unknown.
    pub uptime: u64,
    /// The packets that the interface received.
    pub packets: u64,
    /// The packets that were lost before they reached the kernel's protocols.
    pub lost: u64,
    /// The counters of each online CPU.
    pub cpus: BTreeMap<CpuId, CpuCounts>,
}

impl Sample {
    /// Reads the counters of the machine and of an interface. Counters that cannot be read are 0.
    pub fn read(root: &Root, interface: &str) -> Self {
        let counter = |name: &str| counter(root, interface, name);
        let mut cpus = BTreeMap::new();
        times(&root.read("/proc/stat").unwrap_or_default(), &mut cpus);
        softnet(&root.read("/proc/net/softnet_stat").unwrap_or_default(), &mut cpus);
        for (cpu, count) in interrupts(root, interface) {
            cpus.entry(cpu).or_default().interrupts = count;
        }
        let lost: u64 = LOST.iter().map(|name| counter(name)).sum();
        // /proc/uptime has two decimal places: `350735.47 234388.90`.
        let uptime = root.read("/proc/uptime").ok();
        let uptime = uptime.and_then(|text| text.split(' ').next()?.replace('.', "").parse().ok());
        Self { uptime: uptime.unwrap_or(0), packets: counter("rx_packets"), lost, cpus }
    }

    /// Returns the average time in interrupts per packet, over all interfaces, in nanoseconds.
    /// `None` if the time was too short to be measured.
    pub fn softirq_ns(&self) -> Option<f64> {
        let sum = |count: fn(&CpuCounts) -> u64| self.cpus.values().map(count).sum::<u64>();
        let (ticks, packets) = (sum(|cpu| cpu.softirq), sum(|cpu| cpu.processed));
        (ticks >= TICKS_MIN && packets > 0).then(|| ticks as f64 * TICK_NS / packets as f64)
    }

    /// Returns the differences since an earlier sample. A counter that is lower than before, for
    /// example after a reset of the card, counts as 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let cpus = self.cpus.iter().map(|(cpu, now)| {
            let then = earlier.cpus.get(cpu).copied().unwrap_or(*now);
            let difference = CpuCounts {
                processed: now.processed.saturating_sub(then.processed),
                dropped: now.dropped.saturating_sub(then.dropped),
                time_squeeze: now.time_squeeze.saturating_sub(then.time_squeeze),
                received_rps: now.received_rps.saturating_sub(then.received_rps),
                flow_limit: now.flow_limit.saturating_sub(then.flow_limit),
                interrupts: now.interrupts.saturating_sub(then.interrupts),
                softirq: now.softirq.saturating_sub(then.softirq),
                system: now.system.saturating_sub(then.system),
                busy: now.busy.saturating_sub(then.busy),
                all: now.all.saturating_sub(then.all),
            };
            (*cpu, difference)
        });
        Self {
            uptime: self.uptime.saturating_sub(earlier.uptime),
            packets: self.packets.saturating_sub(earlier.packets),
            lost: self.lost.saturating_sub(earlier.lost),
            cpus: cpus.collect(),
        }
    }
}

/// Returns a counter of the interface, or 0 if it cannot be read.
pub(super) fn counter(root: &Root, interface: &str, name: &str) -> u64 {
    root.number(&format!("/sys/class/net/{interface}/statistics/{name}")).unwrap_or(0)
}

fn times(table: &str, cpus: &mut BTreeMap<CpuId, CpuCounts>) {
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let cpu = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        let Some(cpu) = cpu else { continue };
        let ticks: Vec<u64> = words.take(COLUMNS).map(|ticks| ticks.parse().unwrap_or(0)).collect();
        let at = |column: usize| ticks.get(column).copied().unwrap_or(0);
        let all: u64 = ticks.iter().sum();
        let counts: &mut CpuCounts = cpus.entry(CpuId(cpu)).or_default();
        (counts.softirq, counts.system) = (at(INTERRUPT) + at(SOFTIRQ), at(SYSTEM));
        (counts.all, counts.busy) = (all, all - at(IDLE[0]) - at(IDLE[1]));
    }
}

fn softnet(table: &str, cpus: &mut BTreeMap<CpuId, CpuCounts>) {
    for (row, line) in (0..).zip(table.lines()) {
        let words: Vec<u64> = line.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap_or(0)).collect();
        let at = |column: usize| words.get(column).copied().unwrap_or(0);
        let cpu = words.get(CPU).and_then(|cpu| u16::try_from(*cpu).ok()).unwrap_or(row);
        let counts = cpus.entry(CpuId(cpu)).or_default();
        (counts.processed, counts.dropped, counts.time_squeeze) = (at(PROCESSED), at(DROPPED), at(TIME_SQUEEZE));
        (counts.received_rps, counts.flow_limit) = (at(RECEIVED_RPS), at(FLOW_LIMIT));
    }
}
