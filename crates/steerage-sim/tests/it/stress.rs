//! Runs the tests of `history` on real threads.
//!
//! CI executes many small runs. `STEERAGE_SEEDS` sets the number of small runs. For one long run,
//! use `STEERAGE_SECONDS=60 cargo test --release -p steerage-sim --test it stress::one_long_run`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use steerage::{Builder, CpuId, CpuMask, Handle, Hash, Outcome, stats::DropReason};
use steerage_fixtures::quiet_panics;
use steerage_sim::{Chance, Mood, TrafficOptions, Wire, Witness};

use crate::seeds::seeds;

/// A run takes milliseconds, or seconds on a busy machine.
const HANG_AFTER: Duration = Duration::from_secs(300);

struct Run {
    seed: u64,
    cpus: usize,
    traffic: TrafficOptions,
    mood: Mood,
    pause_between_masks: Duration,
    /// True if the receive path checks arrival numbers. Without this check, only the witnesses
    /// (test handlers) detect packets that are out of order.
    check_order: bool,
}

impl Run {
    fn small(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        Self {
            seed,
            cpus: [1, 2, 4, 16][chance.below(4) as usize],
            traffic: TrafficOptions {
                queues: [1, 4][chance.below(2) as usize],
                flows: 300,
                zipf: 1.0,
                frames: 4_000,
                can_wait: chance.below(2) == 0,
                chained_once_in: 4,
                gap: Duration::ZERO,
                seed,
            },
            mood: Mood {
                panics_once_in: [0, 60][chance.below(2) as usize],
                panics_in_moves_once_in: 0,
                keeps_once_in: [0, 40][chance.below(2) as usize],
                changes_once_in: 6,
                discards_once_in: 20,
                transmits_once_in: [0, 3][chance.below(2) as usize],
                sleeps_up_to: Duration::from_micros(300),
                sleeps_once_in: [0, 100][chance.below(2) as usize],
            },
            pause_between_masks: Duration::from_micros(chance.below(300)),
            check_order: chance.below(2) == 0,
        }
    }

    fn play(&self, limit: Option<Duration>) -> u64 {
        let witness = Witness::new(self.mood);
        let (for_handlers, seed) = (Arc::clone(&witness), self.seed);
        let wire = Arc::new(Wire::default());
        let outputs = wire.outputs(self.traffic.queues, 0, self.seed);
        let builder = outputs.into_iter().fold(Builder::new(), Builder::output);
        let running = builder
            .virtual_cpus(self.cpus)
            .backlog(100)
            .kept_max(2_000)
            .check_order(self.check_order)
            .policy(Hash)
            .input(self.traffic.input())
            .build(move |cpu| for_handlers.handler(cpu, seed))
            .unwrap()
            .start()
            .unwrap();
        let handle = running.handle();
        let mut chance = Chance::new(self.seed ^ 0xA5A5);
        let start = Instant::now();
        while !handle.is_finished() && !handle.is_stopping() {
            assert!(start.elapsed() < HANG_AFTER, "seed {}: it does not end: {:#?}", self.seed, handle.snapshot());
            self.change_a_mask(&handle, &mut chance);
            let live = handle.snapshot();
            assert_eq!(live.received(), live.delivered() + live.dropped().total() + live.in_flight());
            std::thread::sleep(self.pause_between_masks);
            if limit.is_some_and(|limit| start.elapsed() > limit) {
                handle.stop();
            }
        }
        let received = self.check(&handle, running.join(), &witness);
        let (sent, late) = (wire.sent.load(Ordering::SeqCst), wire.late.load(Ordering::SeqCst));
        assert_eq!((sent, late), (handle.snapshot().verdicts().transmitted, 0), "seed {}", self.seed);
        received
    }

    fn change_a_mask(&self, handle: &Handle, chance: &mut Chance) {
        let mut mask: CpuMask = (0..self.cpus as u16).filter(|_| chance.below(2) == 0).map(CpuId).collect();
        mask.insert(CpuId(chance.below(self.cpus as u64) as u16));
        handle.set_rps_cpus(&mask).unwrap();
    }

    fn check(&self, handle: &Handle, outcome: Outcome<u64>, witness: &Witness) -> u64 {
        let (seed, ledger) = (self.seed, outcome.snapshot);
        assert_eq!((outcome.left_behind.len(), outcome.failed.len()), (0, 0), "seed {seed}");
        let ledger = if ledger.pages_free == ledger.pages { ledger } else { handle.snapshot() };
        assert_eq!((ledger.in_flight(), handle.held()), (0, 0), "seed {seed}");
        assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total(), "seed {seed}");
        assert_eq!(ledger.reordered(), self.check_order.then_some(0), "seed {seed}");
        assert_eq!(ledger.pages_free, ledger.pages, "seed {seed}: pages are not home");
        assert_eq!(ledger.cpus.iter().map(|cpu| cpu.polled).sum::<u64>(), ledger.received(), "seed {seed}");
        assert_eq!(
            ledger.cpus.iter().map(|cpu| cpu.handed_in + cpu.inline).sum::<u64>(),
            ledger.cpus.iter().map(|cpu| cpu.processed).sum::<u64>(),
            "seed {seed}"
        );
        if self.mood.panics_once_in == 0 {
            witness.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            assert_eq!(witness.seen.load(Ordering::SeqCst), ledger.delivered(), "seed {seed}");
        }
        if self.traffic.can_wait {
            let lost = ledger.dropped();
            assert_eq!(lost.total(), lost.get(DropReason::HandlerPanicked), "seed {seed}: {lost:?}");
            if self.mood.panics_once_in == 0 {
                assert_eq!(witness.gaps.load(Ordering::SeqCst), 0, "seed {seed}: state did not come along");
            }
        }
        ledger.received()
    }
}

#[test]
fn many_small_runs() {
    quiet_panics();
    let (mut received, mut expected) = (0, 0);
    for seed in seeds(80) {
        let run = Run::small(seed);
        expected += run.traffic.frames * run.traffic.queues as u64;
        received += run.play(None);
    }
    assert_eq!(received, expected);
}

/// Runs for half a second in CI, and for a minute by hand.
#[test]
fn one_long_run() {
    quiet_panics();
    let seconds: f64 = std::env::var("STEERAGE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0.5);
    for (cpus, queues, can_wait) in [(4, 4, false), (16, 4, true)] {
        let run = Run {
            seed: 42,
            cpus,
            traffic: TrafficOptions {
                queues,
                flows: 10_000,
                zipf: 1.0,
                frames: u64::MAX,
                can_wait,
                chained_once_in: 4,
                gap: Duration::ZERO,
                seed: 42,
            },
            mood: Mood {
                panics_once_in: 5_000,
                panics_in_moves_once_in: 5_000,
                keeps_once_in: 100,
                changes_once_in: 10,
                discards_once_in: 100,
                transmits_once_in: 3,
                sleeps_up_to: Duration::from_millis(2),
                sleeps_once_in: 1_000,
            },
            pause_between_masks: Duration::from_millis(1),
            check_order: true,
        };
        assert!(run.play(Some(Duration::from_secs_f64(seconds / 2.0))) > 0);
    }
}
