/// The virtual times of CPUs. Finding the earliest time takes constant time, and changing a time
/// takes logarithmic time.
#[derive(Debug)]
pub(crate) struct Turns {
    times: Vec<u64>,
    /// A tournament tree of CPUs: of the CPUs at `2n` and `2n + 1`, the entry at `n` is the CPU
    /// with the earlier time. The leaves begin at `times.len()`, which is a power of two.
    winners: Vec<u16>,
}

const NEVER: u64 = u64::MAX;

impl Turns {
    /// Creates entries for at most 65,536 CPUs, none of which has a time at first.
    pub(crate) fn new(cpus: usize) -> Self {
        let leaves = cpus.next_power_of_two();
        let mut winners: Vec<u16> = vec![0; 2 * leaves];
        (0..leaves).for_each(|cpu| winners[leaves + cpu] = cpu as u16);
        (1..leaves).rev().for_each(|at| winners[at] = winners[2 * at]);
        Self { times: vec![NEVER; leaves], winners }
    }

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

    /// The first of the CPUs with the earliest time.
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
