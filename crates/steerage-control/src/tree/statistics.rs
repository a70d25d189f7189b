//! A device's `statistics`, by the names of the kernel's `rtnl_link_stats64` (Linux, include/uapi/linux/if_link.h).
//!
//! If steerage does not count something, the file reads 0 if that is true, and otherwise does not exist.

use steerage::{
    Snapshot,
    stats::{DropReason, Drops, QueueSnapshot},
};

use super::paths::Device;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Statistic {
    /// Received: all but what the device lost.
    RxPackets,
    RxBytes,
    /// Received and then lost by steerage.
    RxDropped,
    /// Lost by the device.
    RxMissed,
    TxPackets,
    TxBytes,
    /// Of the one output that there is.
    TxDropped,
    TxErrors,
    /// What cannot happen.
    Never,
}

use Statistic::{Never, RxBytes, RxDropped, RxMissed, RxPackets, TxBytes, TxDropped, TxErrors, TxPackets};

/// What every device has.
const ALWAYS: &[(&str, Statistic)] = &[
    ("rx_packets", RxPackets),
    ("rx_bytes", RxBytes),
    ("rx_dropped", RxDropped),
    ("rx_missed_errors", RxMissed),
    // Somebody handles every packet; and nothing is compressed as on a slow serial line.
    ("rx_nohandler", Never),
    ("rx_compressed", Never),
    ("tx_packets", TxPackets),
    ("tx_bytes", TxBytes),
    ("tx_compressed", Never),
];

/// What can go wrong on a wire that comes in: counted by an interface's driver, and not told us. A file and synthetic
/// traffic have no wire.
const RX_OF_A_WIRE: &[&str] =
    &["rx_errors", "rx_crc_errors", "rx_frame_errors", "rx_fifo_errors", "rx_length_errors", "rx_over_errors"];

/// The same on the way out.
const TX_OF_A_WIRE: &[&str] = &[
    "collisions",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
];

/// A number of a queue's part of the ledger.
pub(super) type QueueCount = fn(&QueueSnapshot) -> u64;

/// A queue's page pool, in pages: by the names of ENA's driver (`lpc_*`, of `ethtool -S`) and of the kernel's page_pool.
pub(super) const OF_A_QUEUE: &[(&str, QueueCount)] = &[
    ("alloc_empty", |queue| queue.pool.alloc_empty),
    ("alloc_fast", |queue| queue.pool.alloc_fast),
    ("alloc_slow", |queue| queue.pool.alloc_slow),
    ("kept", |queue| queue.pool.kept),
    ("lpc_passed_by", |queue| queue.pool.lpc_passed_by),
    ("lpc_warm_up", |queue| queue.pool.lpc_warm_up),
    ("lpc_wrong_numa", |queue| queue.pool.lpc_wrong_numa),
    ("recycle_cache_full", |queue| queue.pool.recycle_cache_full),
    ("recycle_cached", |queue| queue.pool.recycle_cached),
    ("recycle_kept", |queue| queue.pool.recycle_kept),
    ("rx_copybreak", |queue| queue.pool.rx_copybreak),
];

/// What a device has. `outputs`: of the whole instance.
pub(super) fn of_device(device: &Device, outputs: usize) -> Vec<(&'static str, Statistic)> {
    let mut all = ALWAYS.to_vec();
    if !device.is_interface {
        all.extend(RX_OF_A_WIRE.iter().map(|name| (*name, Never)));
    }
    if !device.is_interface || device.outputs.is_empty() {
        all.extend(TX_OF_A_WIRE.iter().map(|name| (*name, Never)));
    }
    // What was not sent is counted by the queue that it came from. With one output it is that one's.
    match (device.outputs.len(), outputs) {
        (0, _) => all.extend([("tx_dropped", Never), ("tx_errors", Never)]),
        (1, 1) => all.extend([("tx_dropped", TxDropped), ("tx_errors", TxErrors)]),
        _ => {}
    }
    all.sort_by_key(|(name, _)| *name);
    all
}

impl Statistic {
    /// What it comes to now.
    pub(super) fn of(self, device: &Device, snapshot: &Snapshot) -> u64 {
        let sum = |count: fn(&QueueSnapshot) -> u64| device.queues.iter().map(|at| count(&snapshot.queues[*at])).sum();
        let outputs = || device.outputs.iter().map(|at| &snapshot.outputs[*at]);
        match self {
            RxPackets => sum(|queue| queue.received - queue.dropped.get(DropReason::Device)),
            RxBytes => sum(|queue| queue.received_bytes),
            RxDropped => sum(|queue| lost_by_us(&queue.dropped)),
            RxMissed => sum(|queue| queue.dropped.get(DropReason::Device)),
            TxPackets => outputs().map(|output| output.packets).sum(),
            TxBytes => outputs().map(|output| output.bytes).sum(),
            TxDropped => snapshot.dropped().get(DropReason::TxFull),
            TxErrors => snapshot.dropped().get(DropReason::TxRefused) + snapshot.dropped().get(DropReason::TxLost),
            Never => 0,
        }
    }
}

/// Lost on the way from a queue to its handler. The device's losses came before, an output's after that.
fn lost_by_us(dropped: &Drops) -> u64 {
    let others = [DropReason::Device, DropReason::TxFull, DropReason::TxRefused, DropReason::TxLost];
    dropped.total() - others.iter().map(|reason| dropped.get(*reason)).sum::<u64>()
}
