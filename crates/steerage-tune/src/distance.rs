//! How far CPUs are from the CPU that receives packets. `tune`, `doctor` and `explain` share this
//! module, so that their outputs never contradict each other.

use std::time::Duration;

use steerage::topology::Topology;
use steerage::{CpuId, CpuMask};

/// Two CPUs are far from each other if a cache line takes at least this time from one to the other.
/// In measurements, a cache line took 15 to 60 ns between CPUs that share a cache, and 80 to 200 ns
/// between other CPUs (docs/performance.md).
const FAR: Duration = Duration::from_nanos(100);

/// The number of attempts to measure a busy pair of CPUs. If 64 CPUs are busy, all attempts to
/// measure their distances together take 1.3 seconds.
const MEASURE_TRIES: usize = 8;

/// The distances of some CPUs from the receiving CPU. The distances are measured, or if the
/// measurement fails, reported by the kernel. A virtual machine's kernel may report a shared cache
/// that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distances {
    /// The CPUs that, by their distance, share no cache with the receiving CPU.
    pub far: CpuMask,
    /// The CPUs in `far` that share a cache with the receiving CPU according to the kernel.
    pub unlike_reported: CpuMask,
    /// The measured distances from the receiving CPU to the nearest and to the farthest CPU.
    pub measured: Option<(Duration, Duration)>,
    /// True if the distance of every CPU was measured or reported by the kernel.
    pub is_known: bool,
}

impl Distances {
    /// Measures the distances of `cpus` in a fraction of a second, and stores them in `topology`.
    pub fn measure(topology: &mut Topology, receiver: CpuId, cpus: &CpuMask) -> Self {
        let mut left = cpus.clone();
        for _ in 0..MEASURE_TRIES {
            topology.measure(receiver, &left);
            left = left.iter().filter(|cpu| *cpu != receiver && topology.latency(receiver, *cpu).is_none()).collect();
        }
        Self::of(topology, receiver, cpus)
    }

    /// Returns the distances that `topology` contains, without a new measurement.
    pub fn of(topology: &Topology, receiver: CpuId, cpus: &CpuMask) -> Self {
        let shares = |cpu| Some(topology.place(receiver)?.cache.as_ref()?.cpus.contains(cpu));
        Self::judged(receiver, cpus, |cpu| topology.latency(receiver, cpu), shares)
    }

    fn judged(
        receiver: CpuId,
        cpus: &CpuMask,
        measured: impl Fn(CpuId) -> Option<Duration>,
        shares: impl Fn(CpuId) -> Option<bool>,
    ) -> Self {
        let others = || cpus.iter().filter(|cpu| *cpu != receiver);
        let is_far = |cpu: &CpuId| measured(*cpu).map_or(shares(*cpu) == Some(false), |time| time >= FAR);
        let far: CpuMask = others().filter(is_far).collect();
        let times = || others().filter_map(&measured);
        Self {
            unlike_reported: far.iter().filter(|cpu| shares(*cpu) == Some(true)).collect(),
            far,
            measured: times().min().zip(times().max()),
            is_known: others().all(|cpu| measured(cpu).is_some() || shares(cpu).is_some()),
        }
    }

    /// Describes the distance of the CPUs in `others` from the receiving CPU in words, such as `the
    /// others share a cache with it`.
    pub fn of_others(&self, others: &CpuMask, receiver: CpuId) -> String {
        let far = self.far.and(others);
        let measured = self.measured.map_or(String::new(), |(nearest, farthest)| {
            let (nearest, farthest) = (nearest.as_nanos(), farthest.as_nanos());
            let range = if nearest == farthest { nearest.to_string() } else { format!("{nearest} to {farthest}") };
            format!(" (measured: a cache line takes {range} ns one way)")
        });
        let although =
            if far.and(&self.unlike_reported).is_empty() { "" } else { ", although the kernel reports a shared cache" };
        match (far.is_empty(), far == *others) {
            (true, _) if self.is_known => format!("the others share a cache with it{measured}"),
            (true, _) => "the others are assumed to share a cache with it".to_owned(),
            (_, true) => format!("the others are as far from it as CPUs that share no cache{although}{measured}"),
            _ => {
                let share = if far.len() == 1 { "CPU" } else { "CPUs" };
                let them = if far.len() == 1 { "is" } else { "are" };
                format!(
                    "{share} {far} {them} added last, as far from CPU {receiver} as CPUs that share no cache{although}{measured}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(list: &str) -> CpuMask {
        CpuMask::parse_list(list, 64).unwrap()
    }

    /// Returns the distances that follow from measured times. Assumes that the kernel reports a
    /// shared cache for CPUs 0 and 1 only.
    fn judged(times: [Option<u64>; 3]) -> Distances {
        let time = |cpu: CpuId| times[usize::from(cpu.0) - 1].map(Duration::from_nanos);
        Distances::judged(CpuId(0), &mask("0-3"), time, |cpu| Some(cpu.0 == 1))
    }

    #[test]
    fn what_was_measured_counts_more_than_what_the_kernel_reports() {
        let words = |found: &Distances, others: &str| found.of_others(&mask(others), CpuId(0));
        let reported = judged([None; 3]);
        assert_eq!((reported.far.to_list(), reported.unlike_reported.to_list()), ("2-3".to_owned(), String::new()));
        assert_eq!(words(&reported, "1"), "the others share a cache with it");
        assert_eq!(words(&reported, "1-3"), "CPUs 2-3 are added last, as far from CPU 0 as CPUs that share no cache");
        let moved = judged([Some(161), Some(60), None]);
        assert_eq!((moved.far.to_list(), moved.unlike_reported.to_list()), ("1,3".to_owned(), "1".to_owned()));
        assert_eq!(
            words(&moved, "1"),
            "the others are as far from it as CPUs that share no cache, although the kernel reports a shared cache \
             (measured: a cache line takes 60 to 161 ns one way)"
        );
        let unknown = Distances::judged(CpuId(0), &mask("0-1"), |_| None, |_| None);
        assert!(!unknown.is_known && words(&unknown, "1") == "the others are assumed to share a cache with it");
    }
}
