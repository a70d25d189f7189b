//! The attribute `/proc/net/softnet_stat` has, for each CPU, 15 columns of eight hex digits, as in
//! the kernel's `softnet_seq_show` (Linux, net/core/net-procfs.c).

use std::fmt::Write;

use steerage::{Snapshot, stats::DropReason};

/// Returns the text of the file. The counts in the file wrap around at 32 bits.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for cpu in &snapshot.cpus {
        let columns = [
            cpu.processed,
            // As in the kernel, this column also counts drops by the flow limit.
            cpu.dropped.get(DropReason::BacklogFull) + cpu.dropped.get(DropReason::FlowLimit),
            cpu.time_squeeze,
            // The six zeros are the columns of mechanisms that Linux no longer has.
            0,
            0,
            0,
            0,
            0,
            0,
            // The column `received_rps` counts how often other CPUs have woken this CPU.
            cpu.wakes_received,
            cpu.dropped.get(DropReason::FlowLimit),
            cpu.backlog,
            u64::from(cpu.cpu.0),
            // Unlike the kernel, steerage has no second queue for packets that are being processed,
            // so this column is 0.
            cpu.backlog,
            0,
        ];
        let columns = columns.map(|column| format!("{:08x}", column as u32));
        let _ = writeln!(text, "{}", columns.join(" "));
    }
    text
}
