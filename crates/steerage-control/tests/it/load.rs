//! Tests masks that are written without a pause while packets arrive at full speed.
#![allow(clippy::print_stdout, reason = "how fast it went is shown, and is no mark")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use steerage::{Batch, Builder, Cpu, Handler, Hash, stats::DropReason};
use steerage_control::{CpuView, Options, Tree};
use steerage_fixtures::HANG;

use crate::common::{ByFiles, Direct, Instance, Way, owner};

/// The number of writes of a mask. A fast machine makes 1,000 writes per second.
const WRITES: u32 = 1_000;
const EACH: Duration = Duration::from_millis(1);

/// A slow machine stops writing after this time.
const ENOUGH: Duration = Duration::from_secs(5);

fn write_masks(instance: &Instance, cpus: u32) -> (u32, Duration) {
    let mut tree = Direct(Arc::clone(&instance.tree));
    let paths = [0, 1].map(|queue| format!("sys/class/net/synthetic/queues/rx-{queue}/rps_cpus"));
    let start = Instant::now();
    for nth in 0..WRITES {
        // The loop writes every mask except the empty mask. Consecutive masks differ in many CPUs.
        let mask = format!("{:x}", nth * 7 % ((1 << cpus) - 1) + 1);
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

fn masks_under(input: &str, cpus: u32) {
    let instance = Instance::new(input, cpus as usize, CpuView::new(cpus as usize));
    let (writes, took) = write_masks(&instance, cpus);
    let handle = instance.handle().clone();
    let ledger = instance.end().snapshot;
    let per_second = f64::from(writes) / took.as_secs_f64();
    println!("{input} on {cpus} CPUs: {per_second:.0} masks/s, {} packets, {:?}", ledger.received(), ledger.moves);
    assert!(ledger.received() > 0 && ledger.moves.slices >= u64::from(writes) / 2, "{writes}, {:?}", ledger.moves);
    assert_eq!(ledger.reordered(), Some(0));
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!((ledger.in_flight(), handle.held()), (0, 0));
    assert_eq!(ledger.dropped().get(DropReason::HandlerPanicked), 0);
}

/// With a source that can wait, such as a capture file, no packet is lost.
#[test]
fn nothing_is_reordered_at_full_load() {
    masks_under("synthetic:queues=2,flows=1000", 2);
}

/// Four CPUs are more than a small machine has, so several threads share a CPU of the machine.
#[test]
fn nothing_is_reordered_at_full_load_on_more_cpus() {
    masks_under("synthetic:queues=2,flows=1000", 4);
}

/// A source that cannot wait loses packets, and the remaining packets stay in order.
#[test]
fn nothing_is_reordered_when_packets_come_by_themselves() {
    masks_under("synthetic:queues=2,flows=1000,rate=400000", 4);
}

#[test]
fn files_are_written_under_load_while_a_reader_hangs() {
    let instance = Instance::new("synthetic:queues=2,flows=1000", 4, CpuView::new(4));
    let Some(mut files) = ByFiles::new(&instance.tree) else { return };
    let mut hung = File::open(files.at("proc/net/softnet_stat")).unwrap();
    hung.read_exact(&mut [0]).unwrap();
    let mask = "sys/class/net/synthetic/queues/rx-1/rps_cpus";
    for nth in 0..20 {
        let value = ["3", "c", "f", "5"][nth % 4];
        files.write(mask, value.as_bytes()).unwrap();
        assert_eq!(files.read(mask).unwrap().trim(), value);
    }
    let received = instance.handle().snapshot().received();
    let start = Instant::now();
    while instance.handle().snapshot().received() == received {
        assert!(start.elapsed() < HANG, "packets don't come any more");
        std::thread::yield_now();
    }
    // A reader that paused in the middle of the attribute's file still gets the old content.
    let mut rest = String::new();
    hung.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.lines().count(), rest.len()), (4, 4 * 15 * 9 - 1));
    drop(files);
    let ledger = instance.end().snapshot;
    assert_eq!((ledger.reordered(), ledger.in_flight()), (Some(0), 0));
}

/// A handler that does not return while its flag is set, so no bucket can finish its move.
struct Hangs(Arc<AtomicBool>);

impl Handler for Hangs {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {
        while self.0.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn a_write_that_does_not_come_into_force_is_taken_back() {
    let hangs = Arc::new(AtomicBool::new(true));
    let for_handlers = Arc::clone(&hangs);
    let input = steerage_device::open("synthetic").unwrap();
    let builder = Builder::new().virtual_cpus(2).input(input).policy(Hash).backlog(256).check_order(true);
    let running = builder.build(move |_cpu| Hangs(Arc::clone(&for_handlers))).unwrap().start().unwrap();
    let tree_within = |settle_max| {
        let options = Options { machine: CpuView::new(2), uid: owner(), queues_off: Vec::new(), settle_max };
        Arc::new(Tree::new(running.handle(), options))
    };
    let tree = tree_within(Duration::from_millis(200));
    let mut way = Direct(Arc::clone(&tree));
    let [mask, buckets] = ["rps_cpus", "buckets"].map(|name| format!("sys/class/net/synthetic/queues/rx-0/{name}"));
    let start = Instant::now();
    while running.handle().snapshot().received() == 0 {
        assert!(start.elapsed() < HANG);
        std::thread::yield_now();
    }
    let before = way.read(&buckets).unwrap();
    assert_eq!(way.write(&mask, b"1"), Err("ETIMEDOUT".to_owned()));
    assert_eq!((way.read(&mask).unwrap().as_str(), tree.events_since(0).len()), ("3\n", 0));
    hangs.store(false, Ordering::Relaxed);
    while !running.handle().is_settled() {
        assert!(start.elapsed() < HANG);
        std::thread::yield_now();
    }
    assert_eq!(shares(&way.read(&buckets).unwrap()), shares(&before));
    // The handlers no longer hang, but on a loaded machine, this change may take longer than 200 ms.
    Direct(tree_within(HANG)).write(&mask, b"1").unwrap();
    running.handle().stop();
    assert_eq!(running.join().snapshot.reordered(), Some(0));
}

fn shares(buckets: &str) -> BTreeSet<String> {
    buckets.lines().filter_map(|line| line.split_once(' ')).map(|(_, cpu)| cpu.to_owned()).collect()
}
