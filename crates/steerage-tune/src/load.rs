use steerage::{CpuId, CpuMask};

use crate::facts::{Sample, receivers};
use crate::root::Root;

/// The number of clock ticks of /proc/stat in a second.
const TICKS_A_SECOND: f64 = 100.0;

const MASK_CPUS_MAX: usize = 8192;

/// The load that an interface's packets cause between two readings of the counters.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelLoad {
    /// The name of the interface.
    pub interface: String,
    /// The time between the two readings of the counters.
    pub seconds: f64,
    /// The packets that the interface received.
    pub packets: u64,
    /// The CPU that receives the packets, if known.
    pub receiver: Option<CpuId>,
    /// The online CPUs.
    pub cpus: Vec<CpuLoad>,
    /// This interface's share of the packets of all interfaces, from 0 to 1.
    pub share: f64,
    /// The average time in interrupts per packet in nanoseconds, or `None` if the time is too short
    /// to be measured.
    pub packet_ns: Option<f64>,
    /// The names and masks (`rps_cpus`) of the receive queues whose mask is not empty.
    pub masks: Vec<(String, CpuMask)>,
    /// The packets of all interfaces that were dropped because a backlog was full.
    pub dropped: u64,
    /// How often a CPU used up its budget, and stopped polling although more packets were waiting.
    pub time_squeeze: u64,
}

/// The load of a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuLoad {
    /// The number of the CPU.
    pub cpu: CpuId,
    /// The share of the time in which the CPU was not idle.
    pub busy: f64,
    /// The share of the CPU's time in hard and soft interrupts.
    pub softirq: f64,
    /// The packets of all interfaces that the CPU handled.
    pub packets: u64,
    /// The number of interrupts of the interface that the CPU handled.
    pub interrupts: u64,
}

impl KernelLoad {
    /// Returns the load between two readings of the counters.
    pub fn between(root: &Root, interface: &str, earlier: &Sample, now: &Sample) -> Self {
        let used = now.since(earlier);
        let online: CpuMask = used.cpus.keys().copied().collect();
        let of = |(cpu, counts): (&CpuId, &crate::facts::CpuCounts)| {
            let share = |ticks: u64| ticks as f64 / counts.all.max(1) as f64;
            let (busy, softirq) = (share(counts.busy), share(counts.softirq));
            CpuLoad { cpu: *cpu, busy, softirq, packets: counts.processed, interrupts: counts.interrupts }
        };
        let processed: u64 = used.cpus.values().map(|cpu| cpu.processed).sum();
        let ticks = used.cpus.values().map(|cpu| cpu.all).max().unwrap_or(0);
        Self {
            interface: interface.to_owned(),
            seconds: ticks as f64 / TICKS_A_SECOND,
            packets: used.packets,
            receiver: receivers(&used, &online).first().copied(),
            share: (used.packets as f64 / processed.max(1) as f64).min(1.0),
            packet_ns: used.softirq_ns(),
            masks: masks(root, interface),
            dropped: used.cpus.values().map(|cpu| cpu.dropped).sum(),
            time_squeeze: used.cpus.values().map(|cpu| cpu.time_squeeze).sum(),
            cpus: used.cpus.iter().map(of).collect(),
        }
    }

    /// Returns the CPU with the most time in interrupts.
    pub fn busiest(&self) -> Option<CpuLoad> {
        self.cpus.iter().copied().max_by(|one, other| one.softirq.total_cmp(&other.softirq))
    }

    /// Returns the share of a CPU's time that it spends on the interface's packets.
    pub fn softirq_of(&self, cpu: &CpuLoad) -> f64 {
        cpu.softirq * self.share
    }

    /// Returns the mask of the receive queues, or `None` if their masks differ.
    pub fn mask(&self) -> Option<&CpuMask> {
        let (_, first) = self.masks.first()?;
        self.masks.iter().all(|(_, mask)| mask == first).then_some(first)
    }
}

fn masks(root: &Root, interface: &str) -> Vec<(String, CpuMask)> {
    let mask = |queue: String| {
        let text = root.read(&format!("/sys/class/net/{interface}/queues/{queue}/rps_cpus")).ok()?;
        let mask = CpuMask::parse_bitmap(&text, MASK_CPUS_MAX).ok().filter(|mask| !mask.is_empty())?;
        Some((queue, mask))
    };
    root.queues(interface, "rx-").into_iter().filter_map(mask).collect()
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::scratch::Scratch;

    use super::*;

    fn machine(directory: &Scratch, stat: [&str; 2], softnet: [u64; 2], packets: u64) -> Root {
        directory.write("proc/stat", &format!("cpu 0\ncpu0 {}\ncpu1 {}\n", stat[0], stat[1]));
        let row = |cpu: usize| format!("{:08x} 00000003 00000002 0 0 0 0 0 0 0 0 0 {cpu:08x}\n", softnet[cpu]);
        directory.write("proc/net/softnet_stat", &(row(0) + &row(1)));
        directory.write("sys/class/net/veth0/statistics/rx_packets", &packets.to_string());
        directory.write("sys/class/net/veth0/queues/rx-0/rps_cpus", "3\n");
        directory.write("sys/class/net/veth0/queues/rx-1/rps_cpus", "0\n");
        Root::below(&**directory)
    }

    /// The values are from a real flood of packets: CPU 1 was busy for 98 % of its time, and in
    /// softirq for 45 %.
    #[test]
    fn a_flooded_cpu_is_seen() {
        let directory = Scratch::new();
        let root = machine(&directory, ["0 0 0 1000 0 0 0 0", "0 0 0 1000 0 0 0 0"], [500, 500], 1000);
        let before = Sample::read(&root, "veth0");
        let root = machine(&directory, ["300 0 70 1130 0 0 0 0", "100 0 165 1010 0 0 225 0"], [500, 950_500], 761_000);
        let load = KernelLoad::between(&root, "veth0", &before, &Sample::read(&root, "veth0"));
        let idle = KernelLoad::between(&root, "veth0", &before, &before);
        let busiest = load.busiest().unwrap();
        assert_eq!((busiest.cpu, busiest.softirq, busiest.busy, busiest.packets), (CpuId(1), 0.45, 0.98, 950_000));
        // Four of five packets of the machine came from this interface.
        assert!(load.share == 0.8 && (load.softirq_of(&busiest) - 0.36).abs() < 1e-9);
        assert_eq!((load.seconds, load.packets, load.receiver), (5.0, 760_000, Some(CpuId(1))));
        assert_eq!(load.packet_ns.map(f64::round), Some(2368.0));
        assert_eq!(load.mask().map(CpuMask::to_list).as_deref(), Some("0-1"));
        assert_eq!((load.masks.len(), load.dropped), (1, 0));
        assert_eq!((idle.packet_ns, idle.packets, idle.busiest().unwrap().softirq), (None, 0, 0.0));
    }
}
