//! The description of a simulated machine: its CPUs, its caches, and the costs of the receive path.

use serde::Deserialize;
use steerage::policy::PathCosts;

/// The costs of the receive path, in nanoseconds, from `lab/scale/*.toml`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The machine that was measured.
    pub name: String,
    /// The cost of receiving a packet, without hashing.
    pub receive: f64,
    /// The cost of hashing a packet and choosing its CPU.
    pub hash: f64,
    /// The cost of handing a packet over to a near CPU, and the cost for a far CPU.
    pub hand_over: [f64; 2],
    /// The cost of taking a packet over from a near CPU, and the cost for a far CPU.
    pub take_over: [f64; 2],
    /// The fixed cost of a round. For full rounds, `receive` and `take_over` include this cost.
    pub round: f64,
    /// The time that a cache line takes between near CPUs, and the time between far CPUs.
    pub line: [f64; 2],
    /// The time that a CPU needs to wake another CPU.
    pub wake: f64,
    /// The time from the wake-up of a CPU until this CPU runs.
    pub woken: f64,
}

impl Profile {
    /// Returns a profile in which only the packet function takes time.
    pub fn free() -> Self {
        Self { name: "free".to_owned(), ..Self::default() }
    }

    /// Returns a profile in which all costs are multiplied by `by`.
    pub fn slowed(&self, by: f64) -> Self {
        let pair = |pair: [f64; 2]| pair.map(|nanos| nanos * by);
        Self {
            name: self.name.clone(),
            receive: self.receive * by,
            hash: self.hash * by,
            hand_over: pair(self.hand_over),
            take_over: pair(self.take_over),
            round: self.round * by,
            line: pair(self.line),
            wake: self.wake * by,
            woken: self.woken * by,
        }
    }

    /// Returns the costs per packet, which a policy uses for its predictions.
    pub fn path(&self) -> PathCosts {
        PathCosts { receive: self.receive, hash: self.hash, hand_over: self.hand_over, take_over: self.take_over }
    }

    /// Parses a profile.
    ///
    /// # Errors
    /// Returns the number of the wrong line and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }
}

/// The CPUs of a simulated machine, numbered by package, and by cache within a package. The first
/// hardware threads of all cores have the lower numbers.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The number of packages.
    pub packages: usize,
    /// The number of last-level caches in a package. Each cache belongs to one NUMA node.
    pub caches: usize,
    /// The number of cores that share a last-level cache.
    pub cores: usize,
    /// The number of threads of a core, 1 or 2.
    pub threads: usize,
    /// The factor by which a hardware thread is slower while the other thread of its core works.
    pub smt_slowdown: f64,
    /// The share of each CPU's time that the hypervisor or other programs take.
    pub stolen: f64,
    /// The length in microseconds of each interval in which other programs have the CPU.
    pub stolen_slice: f64,
    /// The bursts in which frames arrive, for experiments with bursts.
    #[serde(default)]
    pub bursts: Bursts,
}

/// Bursts of frames. Between two bursts, no frame arrives.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// The rate at which the frames of a burst arrive, as a multiple of the average rate.
    pub rate: f64,
    /// The mean number of frames of a burst in each queue.
    pub frames: f64,
}

impl Default for Bursts {
    /// A burst has twice as many frames as the default ring of common network cards.
    fn default() -> Self {
        Self { rate: 4.0, frames: 1024.0 }
    }
}

impl Machine {
    /// Parses a description of a machine.
    ///
    /// # Errors
    /// Returns the number of the wrong line and the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let machine: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let is_possible = machine.cpus() > 0
            && machine.threads <= 2
            && machine.smt_slowdown >= 1.0
            && (0.0..1.0).contains(&machine.stolen)
            && machine.stolen_slice > 0.0
            && machine.bursts.rate >= 1.0
            && machine.bursts.frames >= 1.0;
        is_possible.then_some(machine).ok_or_else(|| {
            "a machine needs a CPU, at most 2 threads per core, smt_slowdown >= 1, 0 <= stolen < 1, stolen_slice > 0, and bursts with rate and frames >= 1"
                .to_owned()
        })
    }

    /// Returns a machine whose CPUs share one last-level cache, with one thread per core.
    pub fn of_one_cache(cpus: usize) -> Self {
        Self {
            packages: 1,
            caches: 1,
            cores: cpus,
            threads: 1,
            smt_slowdown: 1.0,
            stolen: 0.0,
            stolen_slice: 1.0,
            bursts: Bursts::default(),
        }
    }

    /// A machine of two far CPUs.
    pub fn of_two_far() -> Self {
        Self { caches: 2, ..Self::of_one_cache(1) }
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> usize {
        self.first_threads() * self.threads
    }

    fn first_threads(&self) -> usize {
        self.packages * self.caches * self.cores
    }

    /// Returns true if the two CPUs share no last-level cache.
    pub fn is_far(&self, one: usize, other: usize) -> bool {
        let cache = |cpu: usize| cpu % self.first_threads() / self.cores;
        cache(one) != cache(other)
    }

    /// Returns the other hardware thread of a CPU's core.
    pub fn sibling(&self, cpu: usize) -> Option<usize> {
        (self.threads == 2).then(|| (cpu + self.first_threads()) % self.cpus())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_numbered_by_cache_and_threads_last() {
        let machine = Machine { packages: 2, caches: 2, cores: 4, threads: 2, ..Machine::of_one_cache(1) };
        assert_eq!(machine.cpus(), 32);
        assert!(!machine.is_far(0, 3) && machine.is_far(3, 4) && machine.is_far(0, 8));
        assert_eq!([machine.sibling(1), machine.sibling(17)], [Some(17), Some(1)]);
        assert!(!machine.is_far(1, 17) && machine.is_far(1, 20));
        assert_eq!(Machine::of_one_cache(2).sibling(0), None);
    }

    #[test]
    fn a_wrong_description_is_refused() {
        let text =
            "packages = 1\ncaches = 1\ncores = 4\nthreads = 2\nsmt_slowdown = 1.6\nstolen = 0.0\nstolen_slice = 1.0";
        assert_eq!(Machine::parse(text).map(|machine| machine.cpus()), Ok(8));
        for (from, to) in [("threads = 2", "threads = 3"), ("cores = 4", "cores = 0"), ("stolen = 0.0", "stolen = 1.0")]
        {
            assert!(Machine::parse(&text.replace(from, to)).is_err(), "{to}");
        }
        assert!(Machine::parse(&text.replace("cores", "kernels")).is_err());
        let with_bursts = |rate| Machine::parse(&format!("{text}\n[bursts]\nrate = {rate}\nframes = 64.0"));
        assert_eq!(with_bursts("2.0").map(|machine| machine.bursts), Ok(Bursts { rate: 2.0, frames: 64.0 }));
        assert!(with_bursts("0.5").is_err());
        assert!(Profile::parse("name = \"x\"").is_err());
    }
}
