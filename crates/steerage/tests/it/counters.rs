use std::time::Duration;

use steerage::device::{Capabilities, Completions, DeviceError, Filled, Polled, RxQueue};
use steerage::flow::FlowHash;
use steerage::stats::{CounterError, CounterSnapshot, Counters, CpuCounter};
use steerage::testing::HandlerTester;
use steerage::{Affinity, Batch, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Input};
use steerage_fixtures::{HANG, assert_at_rest, quiet_panics, until};

struct AllBuckets(u32);

impl RxQueue for AllBuckets {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).hashes(Affinity::BothDirections).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |_| {
            self.0 = self.0.wrapping_add(0x9E37_79B9);
            Some(Filled::whole(60).with_hash(Some(FlowHash(self.0))))
        });
        Ok(Polled::More)
    }
}

/// A handler that panics at every 500th packet of its CPU.
struct Panics {
    seen: CpuCounter,
    bytes: CpuCounter,
}

impl Panics {
    const EVERY: u64 = 500;
}

impl Handler for Panics {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            self.seen.add(1);
            self.bytes.add(packet.total_len() as u64);
            assert!(self.seen.get() % Self::EVERY != 0, "planted");
            packet.discard();
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn only(cpu: u16) -> CpuMask {
    [CpuId(cpu)].into_iter().collect()
}

#[test]
fn counts_add_up_while_buckets_move_and_handlers_panic() {
    quiet_panics();
    let input = Input::new("endless", "test", vec![Box::new(AllBuckets(0))]);
    let builder = Builder::new().virtual_cpus(3).policy(Hash).rps_cpus(only(1)).input_on(input, &[CpuId(0)], None);
    let seen = builder.counters().add("seen", "Packets that the function saw.", "packets").unwrap();
    let bytes = builder.counters().add("seen_length", "Their length.", "bytes").unwrap();
    let of_test = seen.clone();
    let make = move |cpu| Panics { seen: seen.on(cpu), bytes: bytes.on(cpu) };
    let running = builder.build(make).unwrap().start().unwrap();
    let handle = running.handle();
    let mut before = 0;
    for turn in 0..6_u16 {
        handle.set_rps_cpus(&only(1 + turn % 2)).unwrap();
        assert!(handle.wait_settled(HANG), "turn {turn}");
        let counted = of_test.total();
        until("the next CPU counts", || of_test.total() >= counted + 2 * Panics::EVERY);
        let now = handle.counters();
        assert!(now[0].total >= before + 2 * Panics::EVERY, "{now:?}");
        assert_eq!(now[0].total, now[0].by_cpu.iter().sum::<u64>());
        before = now[0].total;
    }
    handle.stop();
    let snapshot = running.join().snapshot;
    let panics: u64 = snapshot.cpus.iter().map(|cpu| cpu.panics).sum();
    let [seen, bytes] = &snapshot.counters[..] else { panic!("{:?}", snapshot.counters) };
    // A packet at which the handler panics is counted by the counter `seen`, but is not delivered.
    assert_eq!(seen.total, snapshot.delivered() + panics);
    assert!(panics >= 12, "{panics}");
    assert_eq!((bytes.total, &*bytes.unit), (60 * seen.total, "bytes"));
    assert_eq!(seen.by_cpu[0], 0, "CPU 0 only receives");
    assert!(seen.by_cpu[1] >= 3 * Panics::EVERY && seen.by_cpu[2] >= 3 * Panics::EVERY, "{seen:?}");
    assert_eq!(handle.counters(), snapshot.counters);
    assert_at_rest(&snapshot);
}

#[test]
fn a_run_without_counters_has_none() {
    let input = steerage::testing::input([[0; 60]; 10]);
    let builder = Builder::new().virtual_cpus(1).input(input);
    let snapshot = builder.build(|_| steerage_fixtures::handlers::Nothing).unwrap().start().unwrap().join().snapshot;
    assert_eq!(snapshot.counters, Vec::<CounterSnapshot>::new());
}

#[test]
fn a_tested_handler_counts_too() -> Result<(), CounterError> {
    let counters = Counters::new();
    let [seen, bytes] = [counters.add("seen", "", "")?, counters.add("bytes", "", "")?];
    let (of_test, of_bytes) = (seen.clone(), bytes.clone());
    let mut tester = HandlerTester::new(move |cpu| Panics { seen: seen.on(cpu), bytes: bytes.on(cpu) });
    tester.handle(vec![[0; 60]; 100]);
    tester.advance(Duration::from_secs(1));
    assert_eq!((of_test.total(), of_bytes.total()), (100, 6000));
    Ok(())
}
