//! Finds the CPU that must run next in the simulation, which is the CPU with the earliest time.

/// The times of a set of CPUs. The CPU with the earliest time is found in constant time. To change
/// a CPU's time, the number of steps grows with the logarithm of the number of CPUs.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The time of each CPU, or [`NEVER`] if the CPU has no time.
    times: Vec<u64>,
    /// A tournament tree, in which each entry is a CPU. Of the two CPUs at the indices `2n` and
    /// `2n + 1`, the entry at index `n` is the CPU with the earlier time. The leaves of the tree are
    /// the CPUs themselves. They begin at the index `times.len()`, which is a power of two.
    winners: Vec<u16>,
}

const NEVER: u64 = u64::MAX;

impl Turns {
    /// Creates a `Turns` for `cpus` CPUs, at most 65,536. The CPUs have no times yet.
    pub(crate) fn new(cpus: usize) -> Self {
        let leaves = cpus.next_power_of_two();
        let mut winners: Vec<u16> = vec![0; 2 * leaves];
        (0..leaves).for_each(|cpu| winners[leaves + cpu] = cpu as u16);
        (1..leaves).rev().for_each(|at| winners[at] = winners[2 * at]);
        Self { times: vec![NEVER; leaves], winners }
    }

    /// Sets the time of a CPU.
    pub(crate) fn set(&mut self, cpu: usize, time: Option<u64>) {
        let Self { times, winners } = self;
        times[cpu] = time.unwrap_or(NEVER);
        let mut at = (times.len() + cpu) / 2;
        while at > 0 {
            let (left, right) = (winners[2 * at], winners[2 * at + 1]);
            winners[at] = if times[usize::from(right)] < times[usize::from(left)] { right } else { left };
            at /= 2;
        }
    }

    /// The earliest time and its CPU. If several CPUs have the earliest time, the result is the
    /// first of these CPUs.
    pub(crate) fn first(&self) -> Option<(u64, usize)> {
        let cpu = usize::from(self.winners[1]);
        (self.times[cpu] != NEVER).then(|| (self.times[cpu], cpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    #[test]
    fn the_earliest_time_comes_first() {
        for cpus in [1, 2, 3, 64, 100, 1024] {
            let (mut turns, mut times) = (Turns::new(cpus), vec![None; cpus]);
            let mut chance = Chance::new(cpus as u64);
            assert_eq!(turns.first(), None);
            for _ in 0..2000 {
                let cpu = chance.below(cpus as u64) as usize;
                times[cpu] = (!chance.once_in(5)).then(|| chance.below(50));
                turns.set(cpu, times[cpu]);
                let first = (0..cpus).filter_map(|cpu| Some((times[cpu]?, cpu))).min();
                assert_eq!(turns.first(), first);
            }
        }
    }
}
