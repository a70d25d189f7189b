//! Masks written without a pause while packets come as fast as they can.
#![allow(clippy::print_stdout, reason = "how fast it went is shown, and is no mark")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Direct, Instance, Way};
use steerage::DropReason;
use steerage_control::CpuView;

/// Writes, and how long one is to take: 1,000 a second, where the machine is fast enough.
const WRITES: u32 = 1_000;
const EACH: Duration = Duration::from_millis(1);

/// Where it is not, it is enough after so long.
const ENOUGH: Duration = Duration::from_secs(10);

/// Writes masks to two queues in turn; how many it were, and how long it took.
fn write_masks(instance: &Instance) -> (u32, Duration) {
    let mut tree = Direct(Arc::clone(&instance.tree));
    let paths = [0, 1].map(|queue| format!("sys/class/net/synthetic/queues/rx-{queue}/rps_cpus"));
    let start = Instant::now();
    for nth in 0..WRITES {
        // Each mask but none, in an order that has them differ by many CPUs.
        let mask = format!("{:x}", nth * 7 % 15 + 1);
        let path = &paths[(nth % 2) as usize];
        tree.write(path, mask.as_bytes()).unwrap();
        assert_eq!(tree.read(path).unwrap().trim(), mask);
        std::thread::sleep((start + EACH * nth).saturating_duration_since(Instant::now()));
        if start.elapsed() > ENOUGH {
            return (nth + 1, start.elapsed());
        }
    }
    (WRITES, start.elapsed())
}

fn masks_under(input: &str) {
    let instance = Instance::new(input, 4, CpuView::new(4));
    let (writes, took) = write_masks(&instance);
    let handle = instance.handle().clone();
    let ledger = instance.end().snapshot;
    let per_second = f64::from(writes) / took.as_secs_f64();
    println!("{input}: {per_second:.0} masks/s, {} packets, {:?}", ledger.received(), ledger.moves);
    // Each mask but the first differs from the one before it.
    assert!(ledger.received() > 0 && ledger.moves.slices >= u64::from(writes) / 2, "{writes}, {:?}", ledger.moves);
    assert_eq!(ledger.reordered(), Some(0));
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!((ledger.in_flight(), handle.held()), (0, 0));
    assert_eq!(ledger.dropped().get(DropReason::HandlerPanicked), 0);
}

/// A source that waits loses nothing.
#[test]
fn nothing_is_reordered_at_full_load() {
    masks_under("synthetic:queues=2,flows=1000");
}

/// One that doesn't wait drops what has no room: counted, and in order.
#[test]
fn nothing_is_reordered_when_packets_come_by_themselves() {
    masks_under("synthetic:queues=2,flows=1000,rate=400000");
}
