use crate::CpuIndex;

/// Divides the buckets into `cpus` equal ranges, and returns the index of the range of `bucket`, as
/// in Linux (`hash * cpus >> 32`).
#[must_use]
pub const fn even_share(bucket: usize, cpus: usize, buckets: usize) -> usize {
    bucket * cpus / buckets
}

/// Returns the CPUs that have buckets, in ascending order.
pub fn cpus_in(map: &[CpuIndex]) -> Vec<CpuIndex> {
    let mut cpus: Vec<CpuIndex> = map.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// Buffers for computing a map, so that a packet CPU does not allocate memory.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// The number of buckets that each CPU has, and the number that it should have.
    held: Vec<usize>,
    share: Vec<usize>,
    by_held: Vec<CpuIndex>,
    pub(crate) cpus: Vec<CpuIndex>,
    pub(crate) polls: Vec<CpuIndex>,
    pub(crate) marks: Vec<bool>,
}

impl Scratch {
    pub(crate) fn new(cpus: usize) -> Self {
        Self {
            held: vec![0; cpus],
            share: vec![0; cpus],
            by_held: Vec::with_capacity(cpus),
            cpus: Vec::with_capacity(cpus),
            polls: Vec::with_capacity(cpus),
            marks: vec![false; cpus],
        }
    }
}

/// Gives each of `cpus` an equal share of the buckets. A bucket moves only if its CPU has more than
/// its share, or is not in `cpus`. If `keep` is true and exactly the CPUs in `cpus` have buckets,
/// no bucket moves.
pub(crate) fn spread(map: &mut [CpuIndex], cpus: &[CpuIndex], keep: bool, scratch: &mut Scratch) {
    let Scratch { held, share, by_held, .. } = scratch;
    held.fill(0);
    share.fill(0);
    for cpu in map.iter() {
        held[usize::from(*cpu)] += 1;
    }
    let all_have = cpus.iter().all(|cpu| held[usize::from(*cpu)] > 0);
    let others_have = held.iter().enumerate().any(|(cpu, held)| *held > 0 && !cpus.contains(&(cpu as CpuIndex)));
    if keep && all_have && !others_have {
        return;
    }
    // If the shares cannot be equal, the CPUs that already have the most buckets get one bucket
    // more, so that fewer buckets move.
    by_held.clear();
    by_held.extend_from_slice(cpus);
    by_held.sort_unstable_by_key(|cpu| (std::cmp::Reverse(held[usize::from(*cpu)]), *cpu));
    for (nth, cpu) in by_held.iter().enumerate() {
        share[usize::from(*cpu)] = map.len() / cpus.len() + usize::from(nth < map.len() % cpus.len());
    }
    // A CPU that has its full share never loses a bucket in this loop, so `next`, the search for a
    // CPU with too few buckets, only moves forward.
    let mut next = 0;
    for cpu in map.iter_mut() {
        let from = usize::from(*cpu);
        if held[from] <= share[from] {
            continue;
        }
        while next < cpus.len() && held[usize::from(cpus[next])] >= share[usize::from(cpus[next])] {
            next += 1;
        }
        let Some(to) = cpus.get(next) else { return };
        held[from] -= 1;
        held[usize::from(*to)] += 1;
        *cpu = *to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: usize = 4096;

    fn even(cpus: &[CpuIndex]) -> Vec<CpuIndex> {
        (0..BUCKETS).map(|bucket| cpus[even_share(bucket, cpus.len(), BUCKETS)]).collect()
    }

    fn with(map: &[CpuIndex], cpus: &[CpuIndex]) -> Vec<CpuIndex> {
        let mut map = map.to_vec();
        spread(&mut map, cpus, false, &mut Scratch::new(8));
        map
    }

    fn shares(map: &[CpuIndex], cpus: usize) -> Vec<usize> {
        let mut shares = vec![0; cpus];
        map.iter().for_each(|cpu| shares[usize::from(*cpu)] += 1);
        shares
    }

    fn moved(a: &[CpuIndex], b: &[CpuIndex]) -> usize {
        a.iter().zip(b).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn a_cpu_that_joins_takes_its_share_and_no_more_moves() {
        let two = even(&[0, 1]);
        let three = with(&two, &[0, 1, 2]);
        assert_eq!(shares(&three, 3).iter().sum::<usize>(), BUCKETS);
        assert!(shares(&three, 3).iter().all(|share| (1365..=1366).contains(share)));
        assert_eq!(moved(&two, &three), shares(&three, 3)[2]);
    }

    #[test]
    fn a_cpu_that_leaves_takes_only_its_own_along() {
        let four = even(&[0, 1, 2, 3]);
        let three = with(&four, &[0, 1, 3]);
        assert_eq!(moved(&four, &three), BUCKETS / 4);
        assert_eq!(shares(&three, 4)[2], 0);
        let back = with(&three, &[0, 1, 2, 3]);
        assert_eq!(shares(&back, 4), [1024; 4]);
    }

    #[test]
    fn masks_without_a_cpu_in_common_move_all() {
        let map = with(&even(&[0, 1]), &[2]);
        assert!(map.iter().all(|cpu| *cpu == 2));
        assert_eq!(with(&map, &[2]), map);
        assert_eq!(cpus_in(&even(&[3, 1])), [1, 3]);
    }

    #[test]
    fn the_odd_bucket_stays_where_most_are_or_goes_to_the_first_cpu() {
        assert_eq!(with(&[1, 1, 0], &[0, 1]), [1, 1, 0]);
        assert_eq!(with(&[2, 2, 2], &[1, 0]), [1, 0, 0]);
    }

    #[test]
    fn without_a_cpu_to_choose_nothing_moves() {
        let map = even(&[0, 1]);
        assert_eq!(with(&map, &[]), map);
    }

    #[test]
    fn uneven_shares_stay_if_they_may_and_the_same_cpus_have_buckets() {
        let mut uneven = even(&[0, 1]);
        uneven[..1000].fill(1);
        let keep = |cpus: &[CpuIndex]| {
            let mut map = uneven.clone();
            spread(&mut map, cpus, true, &mut Scratch::new(8));
            map
        };
        assert_eq!(keep(&[1, 0]), uneven);
        assert_eq!(shares(&keep(&[0]), 2), [BUCKETS, 0], "another CPU had buckets");
        assert_eq!(shares(&keep(&[0, 1, 2]), 3).iter().max(), Some(&1366), "a CPU has none");
        assert_eq!(shares(&with(&uneven, &[0, 1]), 2), [2048; 2]);
    }
}
