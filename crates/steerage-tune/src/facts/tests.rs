use std::fmt::Write as _;

use steerage_fixtures::scratch::Scratch;

use super::*;

const CPUS: usize = 128;
const QUEUES: usize = 64;

/// Creates the files of a large machine. CPU 5 is offline, and CPUs 126 and 127 are isolated. Queue
/// N interrupts CPU N + 1.
fn large() -> Scratch {
    let tree = Scratch::new();
    tree.write("sys/devices/system/cpu/online", "0-4,6-127\n");
    tree.write("sys/devices/system/cpu/isolated", "126-127\n");
    let online: Vec<usize> = (0..CPUS).filter(|cpu| *cpu != 5).collect();
    let (mut stat, mut softnet) = ("cpu  1 2 3 4 5 6 7 8 0 0\n".to_owned(), String::new());
    let mut table = format!("    {}\n", online.iter().map(|cpu| format!("CPU{cpu} ")).collect::<String>());
    for cpu in &online {
        let _ = writeln!(stat, "cpu{cpu} 10 0 20 1000 30 {cpu} 7 0 0 0");
        let _ =
            writeln!(softnet, "{:08x} 00000002 00000003 0 0 0 0 0 0 {:08x} 00000004 0 {cpu:08x} 0 0", 1000 + cpu, 9);
    }
    for queue in 0..QUEUES {
        tree.write(&format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "0\n");
        tree.write(&format!("sys/class/net/eth0/queues/tx-{queue}/xps_cpus"), "0\n");
        tree.write(&format!("sys/class/net/eth0/device/msi_irqs/{}", 200 + queue), "msix\n");
        let counts: String = online.iter().map(|cpu| format!("{} ", u32::from(*cpu == queue + 1) * 5)).collect();
        let _ = writeln!(table, " {}: {counts} IR-PCI-MSI eth0-TxRx-{queue}", 200 + queue);
    }
    let _ = writeln!(table, " 9: {} IO-APIC 2-edge timer", "7 ".repeat(online.len()));
    tree.write("proc/interrupts", &table);
    tree.write("proc/stat", &format!("{stat}intr 5 5\n"));
    tree.write("proc/net/softnet_stat", &softnet);
    for (counter, value) in [("rx_packets", 1_000_000), ("rx_dropped", 4), ("rx_missed_errors", 3)] {
        tree.write(&format!("sys/class/net/eth0/statistics/{counter}"), &format!("{value}\n"));
    }
    tree.write("proc/uptime", "350735.47 234388.90\n");
    tree.write("sys/class/net/eth0/threaded", "0\n");
    tree.write("proc/sys/net/core/rps_sock_flow_entries", "32768\n");
    tree.link("sys/class/net/eth0/device/driver", "../../drivers/ice");
    tree
}

#[test]
fn a_machine_of_128_cpus() {
    let tree = large();
    let root = Root::below(&*tree);
    let sample = Sample::read(&root, "eth0");
    assert_eq!((sample.packets, sample.lost, sample.cpus.len(), sample.uptime), (1_000_000, 7, 127, 35_073_547));
    let cpu = sample.cpus[&CpuId(100)];
    // CPU 5 is offline and has no row in softnet_stat, so row numbers are not CPU numbers.
    assert_eq!((cpu.processed, cpu.dropped, cpu.time_squeeze), (1100, 2, 3));
    assert_eq!((cpu.received_rps, cpu.flow_limit, cpu.interrupts), (9, 4, 0));
    assert_eq!((cpu.softirq, cpu.system, cpu.busy, cpu.all), (107, 20, 137, 1167));
    assert!(!sample.cpus.contains_key(&CpuId(5)));

    let features = Features { on: vec!["rx-hashing".to_owned(), "hw-tc-offload".to_owned()], changeable: Vec::new() };
    let card = Card { channels: Some(Channels { combined: 64, ..Channels::default() }), features: Some(features) };
    let facts = Facts::read(&root, "eth0", card, &sample, None);
    assert_eq!((facts.queues, facts.driver.as_deref()), ((64, 64), Some("ice")));
    assert_eq!(facts.cpus.to_list(), "0-4,6-125");
    // CPU 5, which gets the interrupts of queue 4, is offline and not in `receivers`.
    assert_eq!(facts.receivers.len(), 63);
    assert_eq!((facts.threaded, facts.sock_flow_entries), (Some(false), 32_768));
    assert!(facts.is_hashed_by_card() && facts.forwards_in_hardware());
    let text = facts.to_string();
    assert!(
        text.contains(
            "lost since the machine started: rx_dropped 4, rx_missed_errors 3, netdev_max_backlog 254, flow_limit 508\n"
        ),
        "{text}"
    );
    assert!(text.contains("rounds that ended early: 381 ") && text.contains("flows: not seen: "), "{text}");
    // CPUs 0 to 3 are not listed, because they spend too little time in interrupts. CPU 127 spends
    // 134 of 1,194 ticks in interrupts.
    assert_eq!(facts.interrupted.len(), 123);
    let times = "time in interrupts since the machine started: 666948 ns for a packet, CPU 127 11 %, CPU 126 11 %, ";
    assert!(text.contains(times) && text.contains(", CPU 120 11 %, and 115 CPUs less\n"), "{text}");
    assert!(
        text.contains("64 receive and 64 transmit queues") && text.contains("ethtool -K eth0 rxhash off"),
        "{text}"
    );
}

#[test]
fn what_passed_while_tune_listened_counts_more() {
    let tree = large();
    let root = Root::below(&*tree);
    let ever = Sample::read(&root, "eth0");
    let busy = |softirq| CpuCounts { processed: 1_000, softirq, all: 1_000, ..CpuCounts::default() };
    let lately = |softirq| Sample { cpus: [(CpuId(3), busy(softirq))].into(), ..Sample::default() };
    let read = |lately: &Sample| Facts::read(&root, "eth0", Card::default(), &ever, Some(lately));
    let facts = read(&lately(450));
    assert_eq!((facts.softirq_ns, &facts.interrupted[..]), (Some(4.5e6), &[(CpuId(3), 0.45)][..]));
    let text = facts.to_string();
    assert!(text.contains("time in interrupts while tune listened: 4500000 ns for a packet, CPU 3 45 %\n"), "{text}");
    assert!(text.contains("lost since the machine started: rx_dropped 4"), "{text}");
    assert_eq!(read(&lately(5)).interrupted, read(&Sample::default()).interrupted);
}

#[test]
fn differences_are_never_negative() {
    let tree = large();
    let root = Root::below(&*tree);
    let before = Sample::read(&root, "eth0");
    tree.write("sys/class/net/eth0/statistics/rx_packets", "1000500\n");
    tree.write("sys/class/net/eth0/statistics/rx_dropped", "0\n");
    tree.write("proc/stat", "cpu3 10 0 25 1100 30 3 50 0\ncpu5 1 1 1 1 1 1 1 1\n");
    let passed = Sample::read(&root, "eth0").since(&before);
    assert_eq!((passed.packets, passed.lost), (500, 0));
    let cpu = passed.cpus[&CpuId(3)];
    assert_eq!((cpu.softirq, cpu.system, cpu.busy, cpu.all), (43, 5, 48, 148));
    assert_eq!(passed.cpus[&CpuId(5)], CpuCounts::default());
}

#[test]
fn a_veth_has_no_interrupts_and_an_empty_machine_no_facts() {
    let tree = Scratch::new();
    tree.write("sys/devices/system/cpu/online", "0-1\n");
    tree.write("sys/class/net/veth0/queues/rx-0/rps_cpus", "0\n");
    let steered = "00000500 0 0 0 0 0 0 0 0 00000007 0 0 00000000\n";
    tree.write("proc/net/softnet_stat", &format!("{steered}00000300 0 0 0 0 0 0 0 0 00000000 0 0 00000001\n"));
    let root = Root::below(&*tree);
    let facts = Facts::read(&root, "veth0", Card::default(), &Sample::read(&root, "veth0"), None);
    // CPU 0 handled more packets, but other CPUs had steered them to CPU 0.
    assert_eq!((facts.receivers, facts.queues.0, facts.threaded), (vec![CpuId(1)], 1, None));

    let nothing = Root::below("/nonexistent");
    assert_eq!(Sample::read(&nothing, "eth0"), Sample::default());
    assert_eq!(Facts::read(&nothing, "eth0", Card::default(), &Sample::default(), None).queues, (1, 1));
}
