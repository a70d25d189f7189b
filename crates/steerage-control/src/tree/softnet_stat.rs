//! The attribute `/proc/net/softnet_stat`. The file `softnet_stat` has one line for each CPU. Each
//! line has 15 columns of eight hex digits, as in the kernel's `softnet_seq_show` (Linux,
//! net/core/net-procfs.c).

use std::fmt::Write;

use steerage::{Snapshot, stats::DropReason};

/// Returns the text of the file. Each count in the file has 32 bits. If a count exceeds 32 bits, it
/// wraps around to 0.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for cpu in &snapshot.cpus {
        let columns = [
            cpu.processed,
            // As in the kernel, the column of dropped packets includes packets that the flow limit
            // dropped.
            cpu.dropped.get(DropReason::BacklogFull) + cpu.dropped.get(DropReason::FlowLimit),
            cpu.time_squeeze,
            // The six columns after `time_squeeze` are 0, because they belong to kernel mechanisms
            // that Linux no longer has.
            0,
            0,
            0,
            0,
            0,
            0,
            // The column `received_rps` counts how often another CPU woke the CPU of this line.
            cpu.wakes_received,
            cpu.dropped.get(DropReason::FlowLimit),
            cpu.backlog,
            u64::from(cpu.cpu.0),
            // The kernel's backlog has two queues: one for waiting packets, and one for packets
            // being processed. In steerage, the backlog is a single queue, so the column for
            // packets being processed is 0.
            cpu.backlog,
            0,
        ];
        let columns = columns.map(|column| format!("{:08x}", column as u32));
        let _ = writeln!(text, "{}", columns.join(" "));
    }
    text
}
