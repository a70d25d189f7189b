//! Assigns buckets to CPUs by load. The resulting map is close to the best possible map, and only
//! few buckets move.

use std::collections::BTreeSet;

use steerage_core::limits::BUCKETS;

/// Returns a function that returns true if a CPU is in the list `cpus`. With 1,024 CPUs, it would
/// take milliseconds to search the list itself for each bucket.
pub(crate) fn members(cpus: &[u16]) -> impl Fn(&u16) -> bool + use<> {
    let mut is_in = vec![false; cpus.iter().max().map_or(0, |most| usize::from(*most) + 1)];
    cpus.iter().for_each(|cpu| is_in[usize::from(*cpu)] = true);
    move |cpu| is_in.get(usize::from(*cpu)).is_some_and(|is_in| *is_in)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads<'a> {
    pub(crate) map: &'a [u16; BUCKETS],
    pub(crate) buckets: &'a [f64],
    /// The load of each CPU without the load of its buckets, in the same unit as the loads of
    /// buckets.
    pub(crate) base: &'a [f64],
    /// The CPUs that should have buckets. Not empty.
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

    /// Returns a lower bound for the load of the busiest active CPU. In every map, the busiest CPU
    /// has at least this load, because a bucket cannot be divided.
    pub(crate) fn best(&self) -> f64 {
        let mut base: Vec<f64> = self.active.iter().map(|cpu| self.base[usize::from(*cpu)]).collect();
        base.sort_by(f64::total_cmp);
        let total: f64 = self.buckets.iter().sum();
        // The loop treats the work as if it could be divided freely. It gives work to the least
        // busy CPUs until all CPUs with work are equally busy.
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

    /// Returns a map of the buckets to the active CPUs. In the returned map, the load of the
    /// busiest CPU is at most `within` times the best possible load. If moving single buckets
    /// cannot reach the factor `within`, the map comes as close to it as such moves allow. Buckets
    /// on CPUs that are not active always move.
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
    /// The minimum load that is assumed for a bucket, so that buckets without packets are
    /// distributed too.
    least: f64,
    busy: Vec<f64>,
    held: Vec<Vec<u16>>,
    /// The position of each CPU among the active CPUs. `None` for other CPUs.
    places: Vec<Option<usize>>,
    /// The active CPUs, sorted by their load. CPUs with equal loads are sorted by their position in
    /// `active`.
    by_load: BTreeSet<(i64, usize)>,
}

/// Orders loads in the same way as [`f64::total_cmp`].
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

    /// Moves all buckets away from CPUs that are not active. The heaviest bucket moves first,
    /// because the CPUs have the most free time at the beginning.
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

    /// Moves buckets from the busiest CPU to the least busy CPU until no CPU's load is above
    /// `target`. Each move takes the largest bucket that fits.
    fn level(&mut self, target: f64) {
        // True for each CPU whose buckets fit on no other CPU. A flow whose load is too large for
        // any CPU stays on its CPU.
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

    /// Returns the index of the bucket that should move from `from` to `to`. This is the largest
    /// bucket whose load is at most the excess load of `from`, or else the smallest bucket. Returns
    /// `None` if the move of this bucket does not reduce the load of the busier of the two CPUs.
    /// Large buckets move first, even if this makes `to` too busy. The CPU `to` then has to pass on
    /// some of its own buckets. The move of one large bucket moves fewer flows than the moves of
    /// many small buckets.
    fn that_fits(&self, from: usize, to: usize, target: f64) -> Option<usize> {
        let held = &self.held[from];
        let (most, excess) = (self.busy[from] - self.busy[to], self.busy[from] - target);
        // The load of the chosen bucket may be slightly larger than the excess load. A slightly too
        // large bucket avoids the moves of many small buckets.
        let step = self.busy[from] / 64.0;
        let fits = (most - step).min(excess + step);
        let above = held.partition_point(|bucket| self.load(*bucket) <= fits);
        let at = above.saturating_sub(1);
        (self.load(*held.get(at)?) < most - step).then_some(at)
    }
}
