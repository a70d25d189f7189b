//! Buckets over CPUs by their load: near the best that the buckets allow, by few moves.

use crate::limits::BUCKETS;

/// What is known before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads<'a> {
    /// For each bucket its CPU.
    pub(crate) map: &'a [u16; BUCKETS],
    /// What each bucket takes of a CPU, in any unit.
    pub(crate) buckets: &'a [f64],
    /// What each CPU has to do besides, in the same unit.
    pub(crate) base: &'a [f64],
    /// The CPUs that are to have buckets. Not empty.
    pub(crate) active: &'a [u16],
}

impl Loads<'_> {
    /// What each CPU has to do as the map is.
    pub(crate) fn of_cpus(&self) -> Vec<f64> {
        let mut cpus = self.base.to_vec();
        for (cpu, load) in self.map.iter().zip(self.buckets) {
            cpus[usize::from(*cpu)] += load;
        }
        cpus
    }

    /// The load that the busiest of the active CPUs has at least, however buckets are spread: a bucket cannot be cut.
    pub(crate) fn best(&self) -> f64 {
        let mut base: Vec<f64> = self.active.iter().map(|cpu| self.base[usize::from(*cpu)]).collect();
        base.sort_by(f64::total_cmp);
        let total: f64 = self.buckets.iter().sum();
        // As water finds its level: filled up from the least busy on, as many CPUs as stand below it.
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

    /// The load of the busiest of the active CPUs that have buckets.
    pub(crate) fn busiest(&self) -> f64 {
        let cpus = self.of_cpus();
        self.map.iter().map(|cpu| cpus[usize::from(*cpu)]).fold(0.0, f64::max)
    }

    /// Another map on the active CPUs, of which the busiest is within this factor of the best, or as near as single moves
    /// get. What is on other CPUs moves in any case.
    pub(crate) fn spread(&self, within: f64) -> Box<[u16; BUCKETS]> {
        let mut spreading = Spreading::new(self);
        spreading.evacuate();
        spreading.level(self.best() * within);
        spreading.map
    }
}

/// A map in the making.
struct Spreading<'a> {
    loads: &'a Loads<'a>,
    map: Box<[u16; BUCKETS]>,
    /// What a bucket counts at least, so that those that nothing came for are spread, too.
    least: f64,
    /// Of each CPU.
    busy: Vec<f64>,
    /// Of each active CPU its buckets, the lightest first.
    held: Vec<Vec<u16>>,
}

impl<'a> Spreading<'a> {
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
        Self { loads, map: Box::new(*loads.map), least, busy, held }
    }

    fn load(&self, bucket: u16) -> f64 {
        self.loads.buckets[usize::from(bucket)].max(self.least)
    }

    fn least_busy(&self) -> usize {
        let active = self.loads.active.iter().map(|cpu| usize::from(*cpu));
        active.min_by(|a, b| self.busy[*a].total_cmp(&self.busy[*b])).unwrap_or(0)
    }

    fn give(&mut self, bucket: u16, from: usize, to: usize) {
        let load = self.load(bucket);
        self.busy[from] -= load;
        self.busy[to] += load;
        self.map[usize::from(bucket)] = to as u16;
        let at = self.held[to].partition_point(|held| self.load(*held) <= load);
        self.held[to].insert(at, bucket);
    }

    /// Away from the CPUs that are to have none; the heaviest first, while there is most room.
    fn evacuate(&mut self) {
        let mut leaving = Vec::new();
        for cpu in 0..self.held.len() {
            if !self.loads.active.contains(&(cpu as u16)) {
                leaving.extend(self.held[cpu].drain(..).map(|bucket| (bucket, cpu)));
            }
        }
        leaving.sort_by(|a, b| self.load(a.0).total_cmp(&self.load(b.0)));
        while let Some((bucket, from)) = leaving.pop() {
            let to = self.least_busy();
            self.give(bucket, from, to);
        }
    }

    /// From the busiest to the least busy, each time the largest bucket that fits, until none is above `target`.
    fn level(&mut self, target: f64) {
        // Those whose buckets fit nowhere: a flow that is too large for any CPU stays where it is.
        let mut stuck = vec![false; self.busy.len()];
        loop {
            let movable = self.loads.active.iter().map(|cpu| usize::from(*cpu));
            let movable = movable.filter(|cpu| !stuck[*cpu] && !self.held[*cpu].is_empty());
            let Some(from) = movable.max_by(|a, b| self.busy[*a].total_cmp(&self.busy[*b])) else { return };
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

    /// Which bucket of `from` goes to `to`: the largest that is not more than has to go, else the smallest; if that makes the
    /// busier of the two less busy. Large ones first, though the other may be too busy then and has to give of its own: that
    /// takes fewer flows than to make up for them with many small ones.
    fn that_fits(&self, from: usize, to: usize, target: f64) -> Option<usize> {
        let held = &self.held[from];
        let (most, excess) = (self.busy[from] - self.busy[to], self.busy[from] - target);
        // A little more than has to go may go, or the last bit would go in many small ones.
        let step = self.busy[from] / 64.0;
        let fits = (most - step).min(excess + step);
        let above = held.partition_point(|bucket| self.load(*bucket) <= fits);
        let at = above.saturating_sub(1);
        (self.load(*held.get(at)?) < most - step).then_some(at)
    }
}
