//! Facts that a snapshot's numbers alone do not show.

use crate::limits::{HANDLER_SLOW, HASHES_FEW, HASHES_SAMPLE};
use crate::reasons::DropReason;
use crate::records::QueueInfo;
use crate::snapshot::{CpuSnapshot, QueueSnapshot};

pub(crate) fn notes(queues: &[QueueSnapshot], cpus: &[CpuSnapshot], infos: &[QueueInfo]) -> Vec<String> {
    let lost = |reason| queues.iter().map(|queue| queue.dropped.get(reason)).sum::<u64>();
    let lost = lost(DropReason::Device) + lost(DropReason::BacklogFull);
    let of_cpus = cpus.iter().flat_map(|cpu| [of_rebuilt(cpu), of_slow(cpu, lost)]);
    let of_queues = queues.iter().zip(infos).map(|(queue, info)| of_hashes(queue, info));
    of_cpus.chain(of_queues).flatten().collect()
}

/// Returns a note about handlers that were created again, and so lost the state of the old
/// handlers.
fn of_rebuilt(cpu: &CpuSnapshot) -> Option<String> {
    let CpuSnapshot { cpu, panics, deaths, .. } = cpu;
    let why = match (panics, deaths) {
        (0, 0) => return None,
        (_, 0) => format!("panicked {}", times(*panics)),
        (0, _) => format!("did not return in time {}", times(*deaths)),
        _ => format!("panicked {} and did not return in time {}", times(*panics), times(*deaths)),
    };
    Some(format!(
        "CPU {cpu}: the handler {why} and was made again, so its report covers only the packets after the last time"
    ))
}

fn of_slow(cpu: &CpuSnapshot, lost: u64) -> Option<String> {
    let (longest, cpu) = (cpu.longest_batch, cpu.cpu);
    (lost > 0 && longest >= HANDLER_SLOW).then(|| {
        format!(
            "CPU {cpu}: one batch took {:.3} s, in which the CPU received nothing, and the run lost {lost} packets as device \
             or backlog_full: a handler must not wait, so keep such packets and finish them on another thread",
            longest.as_secs_f64()
        )
    })
}

/// A note about a device whose hashes hardly differ in the upper 12 bits, which choose the bucket.
fn of_hashes(queue: &QueueSnapshot, info: &QueueInfo) -> Option<String> {
    if queue.hash != "device" || queue.received < HASHES_SAMPLE {
        return None;
    }
    let (used, all) =
        info.ledger.buckets.read().fold((0, 0), |(used, all), load| (used + usize::from(load > 0), all + 1));
    (used > 0 && used * HASHES_FEW < all).then(|| {
        format!(
            "{} queue {}: the device's hashes fill {used} of {all} buckets. Unless there are as few flows, the upper 12 bits of \
             the hashes differ too little to spread packets: let steerage compute the hash (Builder::device_hash), or let the \
             device use FlowHash::from_low_bits",
            queue.device, queue.queue
        )
    })
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}
