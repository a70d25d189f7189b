//! Handlers that do not return: memory stays below its maximum, the other CPUs continue, and a CPU
//! that does not release its buckets is declared dead.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Hash, Running, Snapshot,
    stats::{DropReason, MoveCause},
};
use steerage_fixtures::in_own_process;
use steerage_sim::TrafficOptions;

#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Door {
    fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

struct Stalls {
    door: Arc<Door>,
    first_stalled: u16,
}

impl Handler for Stalls {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, cpu: &mut Cpu) {
        if cpu.id().0 >= self.first_stalled {
            self.door.pass();
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

const CAP_BYTES: usize = 64 << 20;

fn start(cpus: usize, first_stalled: u16, door: &Arc<Door>) -> Running<()> {
    let endless = TrafficOptions {
        queues: 1,
        flows: 1_000,
        zipf: 0.0,
        frames: u64::MAX,
        can_wait: false,
        chained_once_in: 4,
        gap: Duration::ZERO,
        seed: 1,
    };
    let door = Arc::clone(door);
    let workers: CpuMask = (1..cpus as u16).map(CpuId).collect();
    Builder::new()
        .virtual_cpus(cpus)
        .rps_cpus(workers)
        .check_order(true)
        .policy(Hash)
        .memory_max(CAP_BYTES)
        .input_on(endless.input(), &[CpuId(0)], None)
        .build(move |_| Stalls { door: Arc::clone(&door), first_stalled })
        .unwrap()
        .start()
        .unwrap()
}

/// Waits until `so` returns true for a snapshot. If `so` never returns true, the test hangs.
fn wait_until(handle: &Handle, so: impl Fn(&Snapshot) -> bool) -> Snapshot {
    loop {
        let now = handle.snapshot();
        if so(&now) {
            return now;
        }
        std::thread::yield_now();
    }
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn end(running: Running<()>, handle: &Handle) -> Snapshot {
    handle.stop();
    let outcome = running.join();
    assert_eq!((outcome.left_behind.len(), outcome.failed.len()), (0, 0));
    let ledger = outcome.snapshot;
    assert_eq!((ledger.in_flight(), handle.held()), (0, 0));
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!(ledger.reordered(), Some(0));
    assert_eq!(ledger.pages_free, ledger.pages);
    ledger
}

#[test]
fn memory_stays_under_its_cap_with_every_worker_stalled() {
    // The resident memory is that of the process, in which no other test may run.
    if !in_own_process("stalled::memory_stays_under_its_cap_with_every_worker_stalled") {
        return;
    }
    let door = Arc::new(Door::default());
    let before = resident_bytes();
    let running = start(5, 0, &door);
    let handle = running.handle();
    let stalled = wait_until(&handle, |now| now.received() > 1_000_000);
    assert!(stalled.memory_bytes <= CAP_BYTES as u64);
    assert!(stalled.in_flight() <= 4 * 1000 + 64, "{}", stalled.in_flight());
    assert_eq!(stalled.dropped().total(), stalled.dropped().get(DropReason::BacklogFull));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < CAP_BYTES as u64, "grew by {grown} bytes");
    door.open();
    end(running, &handle);
}

#[test]
fn a_stalled_cpu_costs_its_own_packets_only() {
    let door = Arc::new(Door::default());
    let running = start(3, 2, &door);
    let handle = running.handle();
    let now = wait_until(&handle, |now| now.cpus[1].processed > 200_000 && now.cpus[2].dropped.total() > 0);
    assert!(now.cpus[2].processed == 0);
    door.open();
    end(running, &handle);
}

#[test]
fn a_cpu_that_does_not_return_is_declared_dead_and_comes_back() {
    let door = Arc::new(Door::default());
    let running = start(3, 2, &door);
    let handle = running.handle();
    wait_until(&handle, |now| now.cpus[2].backlog > 0 && now.cpus[2].dropped.total() > 0);
    // CPU 2 does not respond, so the move ends only when CPU 2 is declared dead.
    handle.set_rps_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    wait_until(&handle, |_| handle.is_settled());
    let moved = wait_until(&handle, |now| now.moves.buckets == 2048);
    assert_eq!(moved.cpus[2].processed, 0);
    assert_eq!(moved.moves.of(MoveCause::CpuDied), 2048);
    door.open();
    wait_until(&handle, |now| now.cpus[2].deaths == 1 && now.cpus[2].backlog == 0);
    // A snapshot reads dropped packets before processed packets. The two counts agree only in a
    // snapshot that begins after CPU 2 has processed its last packet.
    let back = handle.snapshot();
    assert_eq!(back.cpus[2].dropped.get(DropReason::Revoked), back.cpus[2].processed);
    handle.set_rps_cpus(&[CpuId(2)].into_iter().collect()).unwrap();
    wait_until(&handle, |now| now.cpus[2].processed > back.cpus[2].processed + 100_000);
    end(running, &handle);
}

/// Buckets of a dead CPU move away, and some move back when the CPU is alive again.
#[test]
fn moves_are_counted_by_their_cause() {
    let door = Arc::new(Door::default());
    let running = start(3, 2, &door);
    let handle = running.handle();
    wait_until(&handle, |now| now.cpus[2].backlog > 0);
    handle.set_rps_cpus(&(0..3).map(CpuId).collect()).unwrap();
    let dead = wait_until(&handle, |now| now.moves.of(MoveCause::CpuDied) >= 2048);
    assert_eq!(dead.moves.of(MoveCause::CpuBack), 0);
    door.open();
    wait_until(&handle, |now| now.moves.of(MoveCause::CpuBack) > 0);
    let before = handle.snapshot().moves.of(MoveCause::Mask);
    handle.set_rps_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    wait_until(&handle, |now| now.moves.of(MoveCause::Mask) > before);
    let moves = end(running, &handle).moves;
    assert_eq!(moves.buckets, MoveCause::ALL.into_iter().map(|cause| moves.of(cause)).sum::<u64>());
}

#[test]
fn a_cap_that_full_backlogs_could_pass_is_refused() {
    let traffic = TrafficOptions {
        queues: 4,
        flows: 1,
        zipf: 0.0,
        frames: 1,
        can_wait: true,
        chained_once_in: 0,
        gap: Duration::ZERO,
        seed: 1,
    };
    let door = Arc::new(Door::default());
    let refused = Builder::new()
        .virtual_cpus(64)
        .memory_max(1 << 20)
        .input(traffic.input())
        .build(move |_| Stalls { door: Arc::clone(&door), first_stalled: 0 });
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("4 queue(s) x 64 CPU(s) x a backlog of 64") && !text.contains('\n'), "{text}");
}
