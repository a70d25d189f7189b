//! The trait [`Policy`], its input and its output, and the simplest policy: [`Hash`](struct@Hash).
//!
//! A policy decides which CPU should have each bucket. The core moves the buckets there without reordering packets. Each steering
//! group has its own policy. The control asks it for a plan when the group begins. Later, at the interval
//! that the policy wants, the control passes the load of that interval and asks for a map.

use std::fmt;
use std::time::Duration;

use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_core::placement::{Findings, Plan};
use steerage_flow::Timestamp;

use crate::limits::REFINE_EVERY;

/// The load of one CPU. Times are shares of the interval: 1 is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CpuLoad {
    /// Busy time of any kind. Above 1 if the backlog overflowed: it then includes the time that the dropped packets would have
    /// taken.
    pub busy: f64,
    /// The part of `busy` that was spent on receiving: polling, hashing and handing over.
    pub receive: f64,
    /// The number of rounds whose receiving was timed, on average: `receive` is extrapolated from them, so it may be wrong by one part in
    /// so many.
    pub timed: f64,
    /// The share of rounds that were full, that is, found at least as much work as one round takes. A CPU without full rounds keeps
    /// up, however busy it seems, since small batches take more time per packet.
    pub full: f64,
    /// The group's packets that the CPU finished.
    pub packets: u64,
    /// The share of the CPU's time that other programs or other guests of the hypervisor took. It is 0 if the
    /// system does not say.
    pub others: f64,
    /// The share that they would take if we left the CPU to them. It is more than `others` if we compete with them.
    pub others_want: f64,
}

/// A measurement that is long enough to compare buckets. No bucket moved during it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Window<'a> {
    /// The load of each CPU over the whole window.
    pub cpus: &'a [CpuLoad],
    /// The share of a CPU's time that each bucket takes. The sum is the time that the CPUs were busy with the group's packets.
    pub buckets: &'a [f64],
    /// The number of samples behind these shares.
    pub samples: u64,
}

/// A steering group as its policy sees it. CPUs are identified by their index among the instance's CPUs, from 0.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupLoad<'a> {
    /// The present time.
    pub now: Timestamp,
    /// The time since the last look. It is longer than [`Policy::refine_every`] if nothing was received, or if the caller of the
    /// control came late.
    pub elapsed: Duration,
    /// The usable CPUs of the mask, in the order in which they should join. Not empty.
    pub order: &'a [u16],
    /// The number of CPUs at the front of `order` that poll a queue of the group. At least 1: if no CPU does, the first one counts.
    pub owners: usize,
    /// The CPU of each bucket.
    pub map: &'a [u16; BUCKETS],
    /// The load of each CPU since the last look.
    pub cpus: &'a [CpuLoad],
    /// How long a cache line takes from the first CPU of `order` to each CPU, by the last measurement. `None` if it was not
    /// measured.
    pub apart: &'a [Option<Duration>],
    /// A longer measurement that includes the buckets. It is present in some looks only.
    pub window: Option<Window<'a>>,
    /// Whether the devices wait until there is room, as files do. Then nothing is lost while the CPUs are short of time.
    pub can_wait: bool,
}

impl<'a> GroupLoad<'a> {
    /// The load at the start of the clock, over one interval of [`REFINE_EVERY`], without a longer measurement: for tests of policies.
    /// `cpus` and `apart` have an entry for each CPU.
    pub fn new(
        order: &'a [u16],
        owners: usize,
        map: &'a [u16; BUCKETS],
        cpus: &'a [CpuLoad],
        apart: &'a [Option<Duration>],
    ) -> Self {
        Self {
            now: Timestamp::ZERO,
            elapsed: REFINE_EVERY,
            order,
            owners,
            map,
            cpus,
            apart,
            window: None,
            can_wait: false,
        }
    }
}

/// A steering group that begins, or that gets another policy. CPUs are identified by their index among the instance's CPUs, from 0.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupStart<'a> {
    /// The usable CPUs of the mask, in the order in which they should join. Not empty.
    pub order: &'a [u16],
    /// The number of CPUs at the front of `order` that poll a queue of the group. At least 1: if no CPU does, the first one counts.
    pub owners: usize,
    /// The CPUs that have buckets now. Empty while the instance is built.
    pub active: &'a [u16],
    /// The time that a cache line takes from the first CPU of `order` to the CPU that would join first. `None` if it was not
    /// measured, or if both are threads of one core.
    pub apart: Option<Duration>,
    /// Whether the devices wait until there is room, as files do. Then nothing is lost while the CPUs are short of time.
    pub can_wait: bool,
}

impl<'a> GroupStart<'a> {
    /// A group whose devices cannot wait, and whose CPUs were not measured: for tests of policies.
    pub fn new(order: &'a [u16], owners: usize, active: &'a [u16]) -> Self {
        Self { order, owners, active, apart: None, can_wait: false }
    }
}

/// The map that a policy wants.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MapRequest {
    /// The CPU of each bucket. Each must be one of the usable CPUs.
    pub map: Box<[u16; BUCKETS]>,
    /// Why buckets should move.
    pub cause: MoveCause,
}

impl MapRequest {
    /// The map with the CPU of each bucket, by its index among the instance's CPUs, and the reason for the change.
    pub fn new(map: Box<[u16; BUCKETS]>, cause: MoveCause) -> Self {
        Self { map, cause }
    }
}

/// Decides which CPU should have each bucket.
///
/// A policy is asked twice: for a [`plan`](Self::plan) when its group begins, and for a map at each [`refine`](Self::refine) at the load.
/// It is called outside of the packet path, so it may take its time: packets go by the last map meanwhile. A policy that panics
/// is not called again, and the buckets stay where they are.
///
/// # Example
///
/// A policy that uses one more CPU when a CPU has less than a fifth of its time left, and one fewer when half of the time of all would
/// be enough. All CPUs in use have equal shares of the buckets. Programs import these names from `steerage`.
///
/// ```
/// use steerage_core::ids::MoveCause;
/// use steerage_core::limits::BUCKETS;
/// use steerage_policy::{GroupStart, CpuLoad, GroupLoad, Plan, Policy, MapRequest};
///
/// #[derive(Clone, Debug, Default)]
/// struct Stairs {
///     /// How many looks in a row found that one CPU fewer would do.
///     quiet_looks: u32,
/// }
///
/// impl Policy for Stairs {
///     fn name(&self) -> &'static str {
///         "stairs"
///     }
///
///     fn fresh(&self) -> Box<dyn Policy> {
///         Box::new(Self::default())
///     }
///
///     // Begins with the CPUs that poll. If one of the CPUs in use fails, the next one of the order takes its place at once.
///     fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
///         Plan { order: group.order.to_vec(), active: group.active.len().max(group.owners) }
///     }
///
///     fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
///         let busy = |cpu: &u16| load.cpus[usize::from(*cpu)].busy;
///         let in_use = load.order.iter().filter(|cpu| load.map.contains(cpu)).count();
///         let busiest = load.order.iter().map(busy).fold(0.0, f64::max);
///         let all: f64 = load.order.iter().map(busy).sum();
///         let is_quiet = in_use > load.owners && all < 0.5 * (in_use - 1) as f64;
///         self.quiet_looks = if is_quiet { self.quiet_looks + 1 } else { 0 };
///         let (wanted, cause) = match () {
///             () if busiest > 0.8 && in_use < load.order.len() => (in_use + 1, MoveCause::Joined),
///             () if self.quiet_looks >= 100 => (in_use - 1, MoveCause::Left),
///             () => return None,
///         };
///         self.quiet_looks = 0;
///         let mut map = Box::new(*load.map);
///         for (bucket, cpu) in map.iter_mut().enumerate() {
///             *cpu = load.order[bucket * wanted / BUCKETS];
///         }
///         Some(MapRequest::new(map, cause))
///     }
/// }
///
/// let mut stairs = Stairs::default();
/// assert_eq!(stairs.plan(&GroupStart::new(&[0, 1, 2], 1, &[])).active, 1);
/// let mut cpus = [CpuLoad::default(); 3];
/// cpus[0].busy = 0.95;
/// let request = stairs.refine(&GroupLoad::new(&[0, 1, 2], 1, &[0; BUCKETS], &cpus, &[None; 3])).unwrap();
/// assert_eq!((request.map[0], request.map[BUCKETS - 1]), (0, 1));
/// ```
pub trait Policy: Send + fmt::Debug {
    /// The name of the policy, in one word.
    fn name(&self) -> &'static str;

    /// A new policy with the same settings that has measured nothing yet.
    fn fresh(&self) -> Box<dyn Policy>;

    /// The CPUs that get buckets, in this order, and how many of them have buckets now. It is called when the
    /// group begins, and when this policy replaces another policy. The CPUs of the plan get equal shares of
    /// the buckets, with as few moves as possible.
    ///
    /// The plan stays with the core. Whenever a CPU fails or the mask changes, the core places buckets by it, without asking. The
    /// plan that follows from the map is in force after each [`MapRequest`]: the CPUs that have buckets, in the order of the group, and then
    /// the other CPUs. A group that splits off from another group inherits its plan until the next look.
    /// While the instance is built, a fresh policy of each group may be asked twice, and must answer the
    /// same.
    fn plan(&mut self, group: &GroupStart<'_>) -> Plan;

    /// The core has placed buckets by the plan since the last look: the mask has changed, or a CPU failed or is back. Measurements
    /// that compare CPUs across this moment are void.
    fn cpus_changed(&mut self) {}

    /// The interval at which the policy wants to see the load. `None`: never, and nothing is measured then. While nothing is received,
    /// the interval grows up to [`REFINE_EVERY_MAX`](crate::REFINE_EVERY_MAX).
    fn refine_every(&self) -> Option<Duration> {
        Some(REFINE_EVERY)
    }

    /// Looks at the load, and returns another map if buckets should move. Not called while buckets move.
    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest>;

    /// Whether polling may move to another CPU of the group if the CPU that polls is slowed by other programs, interrupts or guests.
    fn moves_receivers(&self) -> bool {
        false
    }

    /// The CPU whose distance to the first CPU of the order should be measured after this look. A measurement takes a few
    /// microseconds of both CPUs, and wakes up the other one. So a pair is measured at most once per [`REFINE_EVERY`], and less often
    /// while its distance stays the same. Nothing is measured
    /// if the CPUs are not CPUs of this machine, as in the simulator.
    fn asks_distance(&self) -> Option<u16> {
        None
    }

    /// The findings of the policy, for the report.
    fn findings(&self) -> Findings {
        Findings::default()
    }
}

impl Policy for Box<dyn Policy> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn fresh(&self) -> Box<dyn Policy> {
        (**self).fresh()
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        (**self).plan(group)
    }

    fn cpus_changed(&mut self) {
        (**self).cpus_changed();
    }

    fn refine_every(&self) -> Option<Duration> {
        (**self).refine_every()
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        (**self).refine(load)
    }

    fn moves_receivers(&self) -> bool {
        (**self).moves_receivers()
    }

    fn asks_distance(&self) -> Option<u16> {
        (**self).asks_distance()
    }

    fn findings(&self) -> Findings {
        (**self).findings()
    }
}

/// Gives all CPUs of the mask equal shares of the hash, whatever the load, as Linux does.
///
/// ```
/// use steerage_policy::{GroupStart, Hash, Policy};
///
/// // There are four CPUs, and the first receives. All four have packets to handle from the beginning.
/// assert!(Hash.plan(&GroupStart::new(&[0, 1, 2, 3], 1, &[])).active >= 4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash;

impl Policy for Hash {
    fn name(&self) -> &'static str {
        "hash"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn plan(&mut self, _group: &GroupStart<'_>) -> Plan {
        Plan::all()
    }

    fn refine_every(&self) -> Option<Duration> {
        None
    }

    fn refine(&mut self, _load: &GroupLoad<'_>) -> Option<MapRequest> {
        None
    }
}
