//! Which CPU has which bucket: the compiled form of a mask.

use steerage_mem::hash::FlowHash;

use crate::limits::{BUCKET_SHIFT, BUCKETS};

/// The bucket that packets of this hash are in: its topmost 12 bits.
#[must_use]
#[inline(always)]
pub const fn bucket_of(hash: FlowHash) -> u16 {
    (hash.0 >> BUCKET_SHIFT) as u16
}

/// Which of `cpus` CPUs, by its place among them, has `bucket` where the buckets are cut into equal stretches: the map that
/// every mask begins with, `hash * cpus >> 32` as in Linux. 0 of none.
#[must_use]
pub const fn even_share(bucket: u16, cpus: usize) -> usize {
    bucket as usize * cpus / BUCKETS
}

/// A CPU's place among the instance's CPUs. (Their numbers may have gaps.)
pub(crate) type CpuIndex = u16;

/// For each bucket its CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RpsMap(pub(crate) Box<[CpuIndex; BUCKETS]>);

impl RpsMap {
    /// Cuts the buckets into equal stretches, one for each of `cpus`: `cpus[hash * n >> 32]`, as Linux selects.
    pub(crate) fn even(cpus: &[CpuIndex]) -> Self {
        let mut map = Box::new([0; BUCKETS]);
        for (bucket, cpu) in map.iter_mut().enumerate() {
            *cpu = cpus[even_share(bucket as u16, cpus.len())];
        }
        Self(map)
    }

    /// An even share for each of `cpus`, by as few moves as can be: only what a CPU has over its share moves, and what
    /// stood on CPUs that are not among them.
    pub(crate) fn with_cpus(&self, cpus: &[CpuIndex]) -> Self {
        let mut map = self.clone();
        let Some(top) = cpus.iter().chain(map.0.iter()).max() else { return map };
        let mut held = vec![0usize; usize::from(*top) + 1];
        for cpu in map.0.iter() {
            held[usize::from(*cpu)] += 1;
        }
        let mut share = vec![0usize; held.len()];
        // Where the buckets do not divide evenly, the CPUs that hold most now get the odd ones: nothing moves for them.
        let mut by_held = cpus.to_vec();
        by_held.sort_by_key(|cpu| (std::cmp::Reverse(held[usize::from(*cpu)]), *cpu));
        for (i, cpu) in by_held.iter().enumerate() {
            share[usize::from(*cpu)] = BUCKETS / cpus.len() + usize::from(i < BUCKETS % cpus.len());
        }
        // Those with less than their share, each as often as it lacks a bucket.
        let lacks = cpus.iter().flat_map(|cpu| {
            let at = usize::from(*cpu);
            std::iter::repeat_n(*cpu, share[at].saturating_sub(held[at]))
        });
        let mut lacks: std::vec::IntoIter<CpuIndex> = lacks.collect::<Vec<_>>().into_iter();
        for cpu in map.0.iter_mut() {
            let from = usize::from(*cpu);
            if held[from] > share[from] {
                let Some(target) = lacks.next() else { break };
                held[from] -= 1;
                *cpu = target;
            }
        }
        map
    }

    /// The CPUs that have buckets, lowest first.
    pub(crate) fn cpus(&self) -> Vec<CpuIndex> {
        // Each look asks, some hundred times a second; there are runs of the same CPU, and sorting takes 15 us.
        let mut cpus: Vec<CpuIndex> = Vec::new();
        for cpu in self.0.iter() {
            if cpus.last() != Some(cpu) && !cpus.contains(cpu) {
                cpus.push(*cpu);
            }
        }
        cpus.sort_unstable();
        cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(map: &RpsMap, cpus: usize) -> Vec<usize> {
        let mut shares = vec![0; cpus];
        for cpu in map.0.iter() {
            shares[usize::from(*cpu)] += 1;
        }
        shares
    }

    fn moved(a: &RpsMap, b: &RpsMap) -> usize {
        a.0.iter().zip(b.0.iter()).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn even_is_what_linux_selects() {
        for n in [1, 2, 3, 5, 16, 64] {
            let cpus: Vec<CpuIndex> = (0..n).collect();
            let map = RpsMap::even(&cpus);
            for hash in [0u32, 1, 0x7fff_ffff, 0x8000_0000, 0xdead_beef, u32::MAX] {
                let linux = ((u64::from(hash & 0xfff0_0000) * u64::from(n)) >> 32) as u16;
                assert_eq!(map.0[(hash >> 20) as usize], linux, "{hash:#x} of {n}");
            }
        }
    }

    #[test]
    fn a_cpu_that_joins_takes_its_share_and_no_more_moves() {
        let two = RpsMap::even(&[0, 1]);
        let three = two.with_cpus(&[0, 1, 2]);
        assert_eq!(shares(&three, 3).iter().sum::<usize>(), BUCKETS);
        assert!(shares(&three, 3).iter().all(|s| (1365..=1366).contains(s)));
        assert_eq!(moved(&two, &three), shares(&three, 3)[2]);
    }

    #[test]
    fn a_cpu_that_leaves_takes_only_its_own_along() {
        let four = RpsMap::even(&[0, 1, 2, 3]);
        let three = four.with_cpus(&[0, 1, 3]);
        assert_eq!(moved(&four, &three), BUCKETS / 4);
        assert_eq!(shares(&three, 4)[2], 0);
        let back = three.with_cpus(&[0, 1, 2, 3]);
        assert_eq!(shares(&back, 4), [1024; 4]);
    }

    #[test]
    fn masks_without_a_cpu_in_common_move_all() {
        let map = RpsMap::even(&[0, 1]).with_cpus(&[2]);
        assert!(map.0.iter().all(|cpu| *cpu == 2));
        assert_eq!(map.with_cpus(&[2]), map);
    }
}
