//! The files in a device's directory `statistics`, named by the fields of the kernel's
//! `rtnl_link_stats64` (Linux, include/uapi/linux/if_link.h).
//!
//! A count is 0 if its event cannot happen in steerage. A count that steerage does not know has no
//! file.

use steerage::{
    Snapshot,
    stats::{DropReason, Drops, QueueSnapshot},
};

use super::devices::Device;

/// Computes a count of a device.
pub(super) type Statistic = fn(&Device, &Snapshot) -> u64;

/// The count of an event that cannot happen in steerage.
const NEVER: Statistic = |_, _| 0;

const ALWAYS: &[(&str, Statistic)] = &[
    // The packets that the device delivered to steerage.
    ("rx_packets", |device, now| sum(device, now, |queue| queue.received - queue.dropped.get(DropReason::Device))),
    ("rx_bytes", |device, now| sum(device, now, |queue| queue.received_bytes)),
    // The packets that steerage received and then dropped.
    ("rx_dropped", |device, now| sum(device, now, |queue| lost_by_us(&queue.dropped))),
    ("rx_missed_errors", |device, now| sum(device, now, |queue| queue.dropped.get(DropReason::Device))),
    // `rx_nohandler` is 0, because every packet has a handler in steerage. Linux counts compressed
    // packets only on slow serial lines.
    ("rx_nohandler", NEVER),
    ("rx_compressed", NEVER),
    ("tx_packets", |device, now| device.outputs.iter().map(|at| now.outputs[*at].packets).sum()),
    ("tx_bytes", |device, now| device.outputs.iter().map(|at| now.outputs[*at].bytes).sum()),
    ("tx_compressed", NEVER),
];

/// Packets that an output did not send are counted at the queue that received them. The number of
/// packets that one output did not send is known only if the instance has a single output.
/// `tx_dropped` counts the packets that were dropped because the output was full.
const LOST_BY_THE_ONLY_OUTPUT: [(&str, Statistic); 2] = [
    ("tx_dropped", |_, now| now.dropped().get(DropReason::TxFull)),
    ("tx_errors", |_, now| by_outputs(&now.dropped()) - now.dropped().get(DropReason::TxFull)),
];

/// Counts of receive errors on the wire, which a driver does not report to steerage. Files and
/// synthetic traffic have no errors on the wire.
const RX_OF_A_WIRE: &[&str] =
    &["rx_errors", "rx_crc_errors", "rx_frame_errors", "rx_fifo_errors", "rx_length_errors", "rx_over_errors"];

const TX_OF_A_WIRE: &[&str] = &[
    "collisions",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
];

pub(super) type QueueCount = fn(&QueueSnapshot) -> u64;

/// The counts of a receive queue's page pool, in pages, with the names of ENA's driver (`lpc_*`, in
/// `ethtool -S`) and of the kernel's page_pool.
pub(super) const OF_A_QUEUE: &[(&str, QueueCount)] = &[
    ("alloc_empty", |queue| queue.pool.alloc_empty),
    ("alloc_fast", |queue| queue.pool.alloc_fast),
    ("alloc_slow", |queue| queue.pool.alloc_slow),
    ("kept", |queue| queue.pool.kept),
    ("lpc_full", |queue| queue.pool.lpc_full),
    ("lpc_passed_by", |queue| queue.pool.lpc_passed_by),
    ("lpc_warm_up", |queue| queue.pool.lpc_warm_up),
    ("lpc_wrong_numa", |queue| queue.pool.lpc_wrong_numa),
    ("recycle_cache_full", |queue| queue.pool.recycle_cache_full),
    ("recycle_cached", |queue| queue.pool.recycle_cached),
    ("recycle_kept", |queue| queue.pool.recycle_kept),
    ("rx_copybreak", |queue| queue.pool.rx_copybreak),
];

/// `outputs` is the number of outputs of the whole instance.
pub(super) fn of_device(device: &Device, outputs: usize) -> Vec<(&'static str, Statistic)> {
    let mut all = ALWAYS.to_vec();
    if !device.is_interface {
        all.extend(RX_OF_A_WIRE.iter().map(|name| (*name, NEVER)));
    }
    if !device.is_interface || device.outputs.is_empty() {
        all.extend(TX_OF_A_WIRE.iter().map(|name| (*name, NEVER)));
    }
    match (device.outputs.len(), outputs) {
        (0, _) => all.extend([("tx_dropped", NEVER), ("tx_errors", NEVER)]),
        (1, 1) => all.extend(LOST_BY_THE_ONLY_OUTPUT),
        _ => {}
    }
    all.sort_by_key(|(name, _)| *name);
    all
}

fn sum(device: &Device, now: &Snapshot, count: fn(&QueueSnapshot) -> u64) -> u64 {
    device.queues.iter().map(|at| count(&now.queues[*at])).sum()
}

/// Returns the number of packets that were dropped between a queue and its handler, without losses
/// in devices or at outputs.
fn lost_by_us(dropped: &Drops) -> u64 {
    dropped.total() - dropped.get(DropReason::Device) - by_outputs(dropped)
}

fn by_outputs(dropped: &Drops) -> u64 {
    DropReason::OF_OUTPUTS.iter().map(|reason| dropped.get(*reason)).sum()
}
