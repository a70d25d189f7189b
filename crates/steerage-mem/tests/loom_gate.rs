//! loom explores every interleaving of the gate: see `loom.rs`.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use steerage_mem::gate::{Dead, Gate};

struct Shared {
    gate: Gate,
    done: UnsafeCell<u64>,
    /// loom tries another order of two threads only if one thread accesses an atomic whose last
    /// access was by the other thread. Without `turns`, a thread's own read of the gate would be
    /// the last access before it changes the gate.
    turns: AtomicU64,
}

// SAFETY: the tests find out whether two threads access the cell at the same time. If they do, loom
// fails.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: Gate::default(), done: UnsafeCell::new(0), turns: AtomicU64::new(0) })
    }

    fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    fn sign(&self) -> u64 {
        self.turn();
        self.gate.sign()
    }

    fn write(&self) -> u64 {
        // SAFETY: as above.
        self.done.with_mut(|done| unsafe {
            *done += 1;
            *done
        })
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.done.with(|done| unsafe { *done })
    }
}

/// Tests G1 and G2. At the end of its batch, the dead CPU detects that it was declared dead.
#[test]
fn what_was_done_before_the_batch_is_seen_by_who_declares_it_dead() {
    loom::model(|| {
        let shared = Shared::new();
        let cpu = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for batch in 1..=2 {
                    assert_eq!(shared.write(), batch);
                    shared.gate.enter(0).expect("it is not declared dead outside of its handler");
                    shared.turn();
                    if shared.gate.leave() == Err(Dead) {
                        return batch;
                    }
                }
                0
            })
        };
        let died_in = if shared.gate.declare_dead(shared.sign()) { shared.read() } else { 0 };
        assert_eq!(cpu.join().unwrap(), died_in);
    });
}

/// A batch counts, or its CPU is declared dead. If both happened, two CPUs would handle the
/// packets, and if neither happened, none. [`Gate::sign`] differs in each batch.
#[test]
fn a_batch_counts_or_its_cpu_is_dead() {
    loom::model(|| {
        let shared = Shared::new();
        let cpu = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut counted = 0;
                for _ in 0..2 {
                    shared.gate.enter(0).expect("it is not declared dead outside of its handler");
                    shared.turn();
                    match shared.gate.leave() {
                        Ok(()) => counted += 1,
                        Err(Dead) => break,
                    }
                }
                counted
            })
        };
        let sign = shared.sign();
        shared.turn();
        let died = shared.gate.declare_dead(sign).then_some(sign >> 2);
        assert_eq!(died.unwrap_or(2), cpu.join().unwrap());
    });
}

#[test]
fn a_cpu_dies_once_and_rises() {
    loom::model(|| {
        let shared = Shared::new();
        shared.gate.enter(0).unwrap();
        let sign = shared.gate.sign();
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.gate.declare_dead(sign))
        };
        let here = shared.gate.declare_dead(sign);
        let there = other.join().unwrap();
        assert!(here != there, "one of the two declared it dead");
        assert_eq!(shared.gate.leave(), Err(Dead));
        shared.gate.revive();
        shared.gate.enter(0).unwrap();
        assert!(!shared.gate.declare_dead(sign), "a sign from before its death");
        shared.gate.leave().unwrap();
    });
}
