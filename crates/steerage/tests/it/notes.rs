//! Tests `Outcome::notes`: problems of a run that the numbers do not show.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use steerage::device::{Capabilities, Completions, DeviceError, Filled, Polled, RxQueue};
use steerage::flow::FlowHash;
use steerage::testing;
use steerage::{Affinity, Batch, Builder, Cpu, CpuId, Handler, Hash, Input};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::quiet_panics;

/// A handler that panics once in a hundred batches, or waits in the first batch.
struct Bad {
    panics: bool,
    batches: Arc<AtomicUsize>,
}

impl Handler for Bad {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let nth = self.batches.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics || nth % 100 != 99, "every hundredth batch");
        if !self.panics && nth == 0 {
            thread::sleep(Duration::from_millis(30));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// A device that reports a lost frame in each poll, and hashes that are small numbers.
struct Small(u64);

impl RxQueue for Small {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).hashes(Affinity::BothDirections)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = budget.min(self.0 as usize);
        let mut hash = 0;
        out.fill(count, |_| {
            hash += 1;
            Some(Filled::whole(60).with_hash(Some(FlowHash(hash))))
        });
        self.0 -= count as u64;
        out.lost(1);
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }
}

#[test]
fn reports_after_a_panic_are_marked() {
    quiet_panics();
    let input = testing::input(vec![[0; 60]; 64 * 250]);
    let batches = Arc::<AtomicUsize>::default();
    let builder = Builder::new().virtual_cpus(2).rps_cpus([CpuId(0)].into_iter().collect()).input(input);
    let outcome =
        builder.build(move |_| Bad { panics: true, batches: batches.clone() }).unwrap().start().unwrap().join();
    assert!(outcome.snapshot.cpus[0].panics >= 2);
    assert_eq!(outcome.partial, [CpuId(0)]);
    let [note] = &outcome.notes()[..] else { panic!("{:?}", outcome.notes()) };
    assert!(note.starts_with("CPU 0: the handler panicked ") && note.contains("only the packets after"), "{note}");
    assert_eq!(*note, outcome.snapshot.notes[0]);
}

#[test]
fn a_handler_that_waits_is_named_if_input_was_lost() {
    let run = |input| {
        let batches = Arc::<AtomicUsize>::default();
        let builder = Builder::new().virtual_cpus(1).device_hash(false).input(input);
        builder.build(move |_| Bad { panics: false, batches: batches.clone() }).unwrap().start().unwrap().join()
    };
    let outcome = run(Input::new("small", "test", vec![Box::new(Small(1000))]));
    assert!(outcome.snapshot.cpus[0].longest_batch >= Duration::from_millis(30));
    let [note] = &outcome.notes()[..] else { panic!("{:?}", outcome.notes()) };
    assert!(note.starts_with("CPU 0: one batch took 0.") && note.contains("a handler must not wait"), "{note}");
    // This input waits for the handler, so no packets were lost, and there is no note.
    let outcome = run(testing::input(vec![[0; 60]; 1000]));
    assert!(outcome.snapshot.cpus[0].longest_batch >= Duration::from_millis(30) && outcome.notes().is_empty());
}

#[test]
fn hashes_that_fill_few_buckets_are_named() {
    let run = |packets| {
        let input = Input::new("small", "test", vec![Box::new(Small(packets))]);
        Builder::new().virtual_cpus(2).policy(Hash).input(input).build(|_| Nothing).unwrap().start().unwrap().join()
    };
    let notes = run(20_000).snapshot.notes;
    let named = "small queue 0: the device's hashes fill 1 of 4096 buckets";
    assert!(notes.iter().any(|note| note.starts_with(named)), "{notes:?}");
    let few = run(5000).snapshot.notes;
    assert!(!few.iter().any(|note| note.starts_with(named)), "too few packets to tell: {few:?}");
}
