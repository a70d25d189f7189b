//! Assigns buckets to CPUs by load, close to the best possible map, with few moves.

use std::collections::BTreeSet;

use steerage_core::limits::BUCKETS;

/// Searching a list of 1,024 CPUs for each bucket would take milliseconds.
pub(crate) fn members(cpus: &[u16]) -> impl Fn(&u16) -> bool + use<> {
    let mut is_in = vec![false; cpus.iter().max().map_or(0, |most| usize::from(*most) + 1)];
    cpus.iter().for_each(|cpu| is_in[usize::from(*cpu)] = true);
    move |cpu| is_in.get(usize::from(*cpu)).is_some_and(|is_in| *is_in)
}

/// Returns a map in which all of these CPUs have equal shares of the buckets.
pub(crate) fn equal_shares(cpus: &[u16]) -> Box<[u16; BUCKETS]> {
    Box::new(std::array::from_fn(|bucket| cpus[bucket * cpus.len() / BUCKETS]))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads<'a> {
    pub(crate) map: &'a [u16; BUCKETS],
    pub(crate) buckets: &'a [f64],
    pub(crate) base: &'a [f64],
    pub(crate) active: &'a [u16],
}

impl Loads<'_> {
    pub(crate) fn of_cpus(&self) -> Vec<f64> {
        let mut cpus = self.base.to_vec();
        for (cpu, load) in self.map.iter().zip(self.buckets) {
            cpus[usize::from(*cpu)] += load;
        }
        cpus
    }

    /// A lower bound for the load of the busiest active CPU. A bucket cannot be divided.
    pub(crate) fn best(&self) -> f64 {
        let mut base: Vec<f64> = self.active.iter().map(|cpu| self.base[usize::from(*cpu)]).collect();
        base.sort_by(f64::total_cmp);
        let total: f64 = self.buckets.iter().sum();
        // The bound assumes that work can be divided freely: the least busy CPUs are filled evenly.
        let (mut level, mut below) = (f64::INFINITY, 0.0);
        for (nth, own) in base.iter().enumerate() {
            if *own > level {
                break;
            }
            below += own;
            level = (total + below) / (nth + 1) as f64;
        }
        let largest = self.buckets.iter().copied().fold(0.0, f64::max);
        level.max(base[0] + largest)
    }

    pub(crate) fn busiest(&self) -> f64 {
        let cpus = self.of_cpus();
        self.map.iter().map(|cpu| cpus[usize::from(*cpu)]).fold(0.0, f64::max)
    }

    /// Returns a map in which the load of the busiest CPU is at most `within` times the best
    /// possible load, or as close as moves of single buckets allow. Buckets on CPUs that are not
    /// active always move.
    pub(crate) fn pack(&self, within: f64) -> Box<[u16; BUCKETS]> {
        let mut packing = Packing::new(self);
        packing.evacuate();
        packing.level(self.best() * within);
        packing.map
    }
}

struct Packing<'a> {
    loads: &'a Loads<'a>,
    map: Box<[u16; BUCKETS]>,
    /// The assumed minimum load of a bucket, so that buckets without packets are distributed too.
    least: f64,
    busy: Vec<f64>,
    held: Vec<Vec<u16>>,
    places: Vec<Option<usize>>,
    /// The active CPUs by load, and by position in `active`.
    by_load: BTreeSet<(i64, usize)>,
}

/// Returns an integer for a load, with the order of [`f64::total_cmp`].
fn rank(load: f64) -> i64 {
    let bits = load.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

impl<'a> Packing<'a> {
    fn new(loads: &'a Loads<'a>) -> Self {
        let total: f64 = loads.buckets.iter().sum();
        let least = (total / BUCKETS as f64 / 64.0).max(f64::MIN_POSITIVE);
        let mut held = vec![Vec::new(); loads.base.len()];
        let mut busy = loads.base.to_vec();
        let mut by_load: Vec<u16> = (0..BUCKETS as u16).collect();
        by_load.sort_by(|a, b| loads.buckets[usize::from(*a)].total_cmp(&loads.buckets[usize::from(*b)]));
        for bucket in by_load {
            let cpu = usize::from(loads.map[usize::from(bucket)]);
            busy[cpu] += loads.buckets[usize::from(bucket)].max(least);
            held[cpu].push(bucket);
        }
        let mut places = vec![None; loads.base.len()];
        loads.active.iter().enumerate().for_each(|(place, cpu)| places[usize::from(*cpu)] = Some(place));
        let ranked = loads.active.iter().enumerate().map(|(place, cpu)| (rank(busy[usize::from(*cpu)]), place));
        let by_load = ranked.collect();
        Self { loads, map: Box::new(*loads.map), least, busy, held, places, by_load }
    }

    fn load(&self, bucket: u16) -> f64 {
        self.loads.buckets[usize::from(bucket)].max(self.least)
    }

    fn at(&self, place: usize) -> usize {
        usize::from(self.loads.active[place])
    }

    fn least_busy(&self) -> usize {
        self.by_load.first().map_or(0, |(_, place)| self.at(*place))
    }

    fn add(&mut self, cpu: usize, load: f64) {
        let before = self.busy[cpu];
        self.busy[cpu] += load;
        if let Some(place) = self.places[cpu] {
            self.by_load.remove(&(rank(before), place));
            self.by_load.insert((rank(self.busy[cpu]), place));
        }
    }

    fn give(&mut self, bucket: u16, from: usize, to: usize) {
        let load = self.load(bucket);
        self.add(from, -load);
        self.add(to, load);
        self.map[usize::from(bucket)] = to as u16;
        let at = self.held[to].partition_point(|held| self.load(*held) <= load);
        self.held[to].insert(at, bucket);
    }

    fn evacuate(&mut self) {
        let (mut leaving, stays) = (Vec::new(), members(self.loads.active));
        for cpu in 0..self.held.len() {
            if !stays(&(cpu as u16)) {
                leaving.extend(self.held[cpu].drain(..).map(|bucket| (bucket, cpu)));
            }
        }
        leaving.sort_by(|a, b| self.load(a.0).total_cmp(&self.load(b.0)));
        while let Some((bucket, from)) = leaving.pop() {
            let to = self.least_busy();
            self.give(bucket, from, to);
        }
    }

    /// Moves buckets from the busiest to the least busy CPU until no load is above `target`.
    fn level(&mut self, target: f64) {
        // A flow whose load is too large for any CPU stays on its CPU.
        let mut stuck = vec![false; self.busy.len()];
        loop {
            let mut busiest = self.by_load.iter().rev().map(|(_, place)| self.at(*place));
            let Some(from) = busiest.find(|cpu| !stuck[*cpu] && !self.held[*cpu].is_empty()) else { return };
            if self.busy[from] <= target {
                return;
            }
            let to = self.least_busy();
            match self.that_fits(from, to, target) {
                Some(at) if to != from => {
                    let bucket = self.held[from].remove(at);
                    self.give(bucket, from, to);
                }
                _ => stuck[from] = true,
            }
        }
    }

    /// Returns the index of the largest bucket that is not larger than the excess load of `from`,
    /// or of the smallest bucket if all are larger. Returns `None` if moving this bucket does not
    /// help. Large buckets move even if the CPU `to` then has to pass on other buckets, because one
    /// large bucket has fewer flows than many small buckets.
    fn that_fits(&self, from: usize, to: usize, target: f64) -> Option<usize> {
        let held = &self.held[from];
        let (most, excess) = (self.busy[from] - self.busy[to], self.busy[from] - target);
        // One bucket that is slightly too large moves instead of many small buckets.
        let step = self.busy[from] / 64.0;
        let fits = (most - step).min(excess + step);
        let above = held.partition_point(|bucket| self.load(*bucket) <= fits);
        let at = above.saturating_sub(1);
        (self.load(*held.get(at)?) < most - step).then_some(at)
    }
}
