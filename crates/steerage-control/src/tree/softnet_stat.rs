//! The attribute `/proc/net/softnet_stat`. The file has a line for each CPU. Each line has 15
//! columns of eight hex digits, as in the kernel's `softnet_seq_show` (Linux,
//! net/core/net-procfs.c).

use std::fmt::Write;

use steerage::{Snapshot, stats::DropReason};

/// Returns the text of the file. Each count in the file has 32 bits. A count that exceeds 32 bits
/// continues at 0.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for cpu in &snapshot.cpus {
        let columns = [
            cpu.processed,
            // The column of dropped packets includes drops by the flow limit, as in the kernel.
            cpu.dropped.get(DropReason::BacklogFull) + cpu.dropped.get(DropReason::FlowLimit),
            cpu.time_squeeze,
            // These six columns belong to kernel mechanisms that Linux no longer has, so they are
            // 0.
            0,
            0,
            0,
            0,
            0,
            0,
            // The column `received_rps` contains the number of times that another CPU woke this
            // CPU.
            cpu.wakes_received,
            cpu.dropped.get(DropReason::FlowLimit),
            cpu.backlog,
            u64::from(cpu.cpu.0),
            // The kernel's backlog has two queues: one for waiting packets, and one for packets
            // being processed. The backlog of steerage is a single queue, so the column for packets
            // being processed is 0.
            cpu.backlog,
            0,
        ];
        let columns = columns.map(|column| format!("{:08x}", column as u32));
        let _ = writeln!(text, "{}", columns.join(" "));
    }
    text
}
