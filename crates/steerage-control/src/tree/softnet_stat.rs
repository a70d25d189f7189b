//! `/proc/net/softnet_stat`: 15 columns of eight hex digits, a line for each CPU, as `softnet_seq_show` prints them (Linux,
//! net/core/net-procfs.c).

use std::fmt::Write;

use steerage::{Snapshot, stats::DropReason};

/// Counts are 32 bits wide there, and start over when these are full.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for cpu in &snapshot.cpus {
        let columns = [
            cpu.processed,
            // Those by the flow limit are among them, as in the kernel.
            cpu.dropped.get(DropReason::BacklogFull) + cpu.dropped.get(DropReason::FlowLimit),
            cpu.time_squeeze,
            // Columns of mechanisms that Linux has no longer.
            0,
            0,
            0,
            0,
            0,
            0,
            // received_rps: times that another CPU woke this one.
            cpu.wakes_received,
            // flow_limit_count.
            cpu.dropped.get(DropReason::FlowLimit),
            cpu.backlog,
            u64::from(cpu.cpu.0),
            // The backlog once more, in its two queues: what waits to be taken, and what is being worked off. Ours is one.
            cpu.backlog,
            0,
        ];
        let columns = columns.map(|column| format!("{:08x}", column as u32));
        let _ = writeln!(text, "{}", columns.join(" "));
    }
    text
}
