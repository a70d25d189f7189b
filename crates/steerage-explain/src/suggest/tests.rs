//! Tests with made-up loads, whose figures can be checked by hand.

use steerage::{CpuMask, limits::BUCKETS};

use super::cpu_count::{Assignment, AssumedCosts, Choice};
use super::*;
use crate::analysis::Volume;
use crate::candidates::CandidateCpus;

/// Puts 100 packets in each bucket, and adds `elephant` times the sum of all buckets to the first
/// bucket.
fn buckets(elephant: f64) -> Box<[Volume; BUCKETS]> {
    let mut buckets = Box::new([Volume { packets: 100, bytes: 0 }; BUCKETS]);
    buckets[0].packets += (elephant * 100.0 * BUCKETS as f64) as u64;
    buckets
}

fn choice(candidates: &CandidateCpus, elephant: f64, work_ns: f64, rate: Option<f64>) -> Choice {
    Choice::make(&buckets(elephant), candidates, &AssumedCosts::of(false).with_work(work_ns), rate, BUSY_MAX)
}

/// Returns the busiest CPU's time per packet in nanoseconds.
fn load_ns(way: &Assignment) -> f64 {
    1e9 / way.throughput
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-9
}

#[test]
fn the_fewest_cpus_that_keep_up() {
    let candidates = CandidateCpus::even(8);
    // In this calculation, a CPU needs 4.9 ns to receive a packet, and 1000 ns to handle it.
    for (rate, cpus) in [(0.1e6, 1), (0.69e6, 1), (0.7e6, 2), (1e6, 2), (1.4e6, 3), (3e6, 5)] {
        let choice = choice(&candidates, 0.0, 1000.0, Some(rate));
        assert_eq!((choice.best.cpus.len(), choice.is_enough), (cpus, Some(true)), "{rate}");
        assert!(close(load_ns(&choice.one), 1004.9));
    }
    let two = choice(&candidates, 0.0, 1000.0, Some(1e6)).best;
    // The receiving CPU hands over one half of the packets and handles the other half, in 7.7 +
    // 1.05 + 500 ns per packet.
    assert!(close(load_ns(&two), 508.75) && two.receiver_is_busiest, "{two:?}");
    assert!(close(two.load(Some(1e6)).unwrap(), 0.50875));
    assert_eq!(two.mask.to_list(), "0-1");
    // The machine has not enough CPUs for 20 million packets per second.
    let most = choice(&candidates, 0.0, 1000.0, Some(20e6));
    assert_eq!((most.best.cpus.len(), most.is_enough), (8, Some(false)));
}

#[test]
fn work_that_is_too_light_is_not_handed_over() {
    for rate in [None, Some(1e6), Some(200e6)] {
        let choice = choice(&CandidateCpus::even(8), 0.0, 0.5, rate);
        assert_eq!((choice.best.cpus.len(), choice.best.mask.is_empty()), (1, true), "{rate:?}");
    }
}

#[test]
fn the_regimes_are_predicted_by_the_costs() {
    let regimes = |work_ns| {
        let all = Regime::all(&choice(&CandidateCpus::even(2), 0.0, work_ns, None));
        all.iter().map(|regime| (regime.regime, regime.cpus, regime.predicted.round())).collect::<Vec<_>>()
    };
    // A packet takes 508.75 ns if the receiving CPU also handles half of the packets (spread),
    // 1004.9 ns with one CPU (inline), and 1002.4 ns for the CPU that handles all packets of a
    // collector.
    assert_eq!(regimes(1000.0), [("spread", 2, 1_965_602.0), ("inline", 1, 995_124.0), ("collector", 2, 997_606.0)]);
    // A single CPU needs 5.4 ns per packet. Receiving a packet and handing it over takes 7 ns.
    assert_eq!(regimes(0.5), [("inline", 1, 185_185_185.0), ("collector", 2, 142_857_143.0)]);
}

#[test]
fn who_receives_for_many_does_nothing_else() {
    let choice = choice(&CandidateCpus::even(16), 0.0, 100.0, None);
    // Receiving a packet and handing it over takes 9.8 ns. Ten CPUs handle a packet in 10.24 ns,
    // less than a tenth more than the receiving CPU needs.
    assert_eq!((choice.best.cpus.len(), choice.best.mask.to_list()), (11, "1-10".to_owned()), "{choice:?}");
    assert!(close(choice.best.busiest, 410.0 / 4096.0), "{choice:?}");
}

#[test]
fn an_elephant_bounds_what_cpus_can_do() {
    // Half of the packets are in one bucket, so eight CPUs are only 1.75 times as fast as one CPU.
    // Four CPUs are at most a tenth slower than eight.
    let choice = choice(&CandidateCpus::even(8), 1.0, 1000.0, Some(10e6));
    assert_eq!((choice.best.cpus.len(), choice.is_enough), (4, Some(false)), "{choice:?}");
    // Before balancing, the CPU with the large bucket also has a quarter of the other buckets.
    // After balancing, this CPU has no other bucket.
    assert!(close(choice.best.balanced, 409_700.0 / 819_200.0), "{choice:?}");
    assert!(choice.best.busiest > 0.6 && load_ns(&choice.best) > 500.0, "{choice:?}");
}

#[test]
fn what_is_far_costs_more() {
    let two: CpuMask = CpuMask::parse_list("0-1", 2).unwrap();
    let mut far = CandidateCpus::even(2);
    far.distances.far = CpuMask::parse_list("1", 2).unwrap();
    assert_eq!(far.order.iter().copied().collect::<CpuMask>(), two);
    let loads = [CandidateCpus::even(2), far].map(|candidates| load_ns(&choice(&candidates, 0.0, 100.0, None).best));
    // Two CPUs that share a cache need `7.7 + (100 + 2.1) / 2` ns. Without a shared cache, the two
    // CPUs need `7.7 + (100 + 8.1) / 2` ns.
    assert!(close(loads[0], 58.75) && close(loads[1], 61.75), "{loads:?}");
}

#[test]
fn machines_are_what_their_topology_tells() {
    let root = std::env::temp_dir().join(format!("steerage-suggest-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = root.join("sys/devices/system/cpu").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    // The machine has two caches, each of which two cores share. The first core has two hardware
    // threads.
    write("online", "0-4");
    for (cpu, siblings, cache) in
        [(0, "0,4", "0-1,4"), (1, "1", "0-1,4"), (2, "2", "2-3"), (3, "3", "2-3"), (4, "0,4", "0-1,4")]
    {
        write(&format!("cpu{cpu}/topology/thread_siblings_list"), siblings);
        write(&format!("cpu{cpu}/cache/index3/level"), "3");
        write(&format!("cpu{cpu}/cache/index3/shared_cpu_list"), cache);
    }
    let candidates = CandidateCpus::of(&steerage::topology::Topology::below(&root, None), 8, None);
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(candidates.order.iter().map(|cpu| cpu.0).collect::<Vec<_>>(), [0, 1, 4, 2, 3]);
    assert_eq!((candidates.distances.far.to_list(), candidates.siblings.to_list()), ("2-3".to_owned(), "4".to_owned()));
    assert!(candidates.distances.is_known && candidates.distances.measured.is_none());
    assert!(!CandidateCpus::even(2).distances.is_known);
}
