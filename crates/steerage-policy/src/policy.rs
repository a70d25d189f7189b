//! The trait [`Policy`], its input and its output, and the simplest policy: [`Hash`](struct@Hash).
//!
//! A policy chooses a CPU for each bucket. The core moves the buckets to these CPUs without
//! reordering packets. Each steering group has its own policy. The control requests a plan from the
//! policy when the group begins. Later, at the interval that the policy wants, the control passes
//! the load of the interval and requests a map.

use std::fmt;
use std::time::Duration;

use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_core::placement::{Findings, Plan};
use steerage_flow::Timestamp;

use crate::limits::REFINE_EVERY;

/// The load of one CPU. Times are shares of the interval: 1 is the whole interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CpuLoad {
    /// The time for which the CPU was busy. Above 1 if the backlog overflowed, because it then
    /// includes the time that the dropped packets would have taken.
    pub busy: f64,
    /// The part of `busy` that was spent on receiving: polling, hashing and handing over.
    pub receive: f64,
    /// The number of rounds whose receiving was timed. `receive` is extrapolated from these rounds,
    /// so its relative error is about 1 / `timed`.
    pub timed: f64,
    /// The share of full rounds: rounds that found at least as much work as one round takes. A CPU
    /// without full rounds keeps up, however busy it appears, since small batches take more time
    /// per packet.
    pub full: f64,
    /// The group's packets that the CPU finished.
    pub packets: u64,
    /// The share of the CPU's time that other programs or other guests of the hypervisor took. 0 if
    /// the system does not report this share.
    pub others: f64,
    /// The share that other programs would take if steerage left the CPU to them. The share is more
    /// than `others` if steerage competes with other programs.
    pub others_want: f64,
}

/// A measurement that is long enough to compare buckets. No bucket moved during it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Window<'a> {
    /// The load of each CPU over the whole window.
    pub cpus: &'a [CpuLoad],
    /// The share of a CPU's time that each bucket takes. The sum is the time for which the CPUs
    /// were busy with the group's packets.
    pub buckets: &'a [f64],
    /// The number of samples on which these shares are based.
    pub samples: u64,
}

impl<'a> Window<'a> {
    /// A window, for tests of policies. `cpus` has an entry for each CPU, and `buckets` for each of
    /// the 4,096 buckets.
    pub fn new(cpus: &'a [CpuLoad], buckets: &'a [f64], samples: u64) -> Self {
        Self { cpus, buckets, samples }
    }
}

/// A steering group as its policy sees it. CPUs are identified by index.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupLoad<'a> {
    /// The present time.
    pub now: Timestamp,
    /// The time since the last load check. The time is longer than [`Policy::refine_every`] if no
    /// packets arrived, or if the caller of the control was late.
    pub elapsed: Duration,
    /// The usable CPUs of the mask, in the order in which they should join. Not empty.
    pub order: &'a [u16],
    /// The number of CPUs at the front of `order` that poll a queue of the group. The number is at
    /// least 1: if no CPU polls, the first CPU counts as polling.
    pub owners: usize,
    /// The CPU of each bucket.
    pub map: &'a [u16; BUCKETS],
    /// The load of each CPU since the last load check.
    pub cpus: &'a [CpuLoad],
    /// How long a cache line takes from the first CPU of `order` to each CPU, by the last
    /// measurement. `None` if the time was not measured.
    pub apart: &'a [Option<Duration>],
    /// A longer measurement that includes the buckets. Only some load checks have a window.
    pub window: Option<Window<'a>>,
    /// True if the devices wait until there is room, as files do. If so, no packet is lost while
    /// the CPUs are short of time.
    pub can_wait: bool,
}

impl<'a> GroupLoad<'a> {
    /// The load at the start of the clock, over one interval of [`REFINE_EVERY`], without a window:
    /// for tests of policies. `cpus` and `apart` have an entry for each CPU.
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

    /// The load with a window, for tests of policies that compare buckets.
    ///
    /// ```
    /// use steerage_core::limits::BUCKETS;
    /// use steerage_policy::{Balance, CpuLoad, GroupLoad, Policy, Window};
    ///
    /// // CPU 0 has all buckets, and the first two take half of its time each.
    /// let mut buckets = [0.0; BUCKETS];
    /// (buckets[0], buckets[1]) = (0.5, 0.5);
    /// let mut cpus = [CpuLoad::default(); 2];
    /// (cpus[0].busy, cpus[0].packets) = (1.0, 1_000_000);
    /// let load = GroupLoad::new(&[0, 1], 1, &[0; BUCKETS], &cpus, &[None; 2]);
    /// let mut policy = Balance::dry_run();
    /// policy.refine(&load.with_window(Window::new(&cpus, &buckets, 10_000)));
    /// assert!(policy.findings().would_move.is_some());
    /// ```
    pub fn with_window(self, window: Window<'a>) -> Self {
        Self { window: Some(window), ..self }
    }
}

/// A steering group that begins, or that gets another policy. CPUs are identified by their index
/// among the instance's CPUs, from 0.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupStart<'a> {
    /// The usable CPUs of the mask, in the order in which they should join. Not empty.
    pub order: &'a [u16],
    /// The number of CPUs at the front of `order` that poll a queue of the group. The number is at
    /// least 1: if no CPU polls, the first CPU counts as polling.
    pub owners: usize,
    /// The CPUs that currently have buckets. Empty while the instance is built.
    pub active: &'a [u16],
    /// The time that a cache line takes from the first CPU of `order` to the CPU that would join
    /// first. `None` if the time was not measured, or if both are threads of one core.
    pub apart: Option<Duration>,
    /// True if the devices wait until there is room, as files do. If so, no packet is lost while
    /// the CPUs are short of time.
    pub can_wait: bool,
}

impl<'a> GroupStart<'a> {
    /// A group whose devices cannot wait, and whose CPUs were not measured: for tests of policies.
    pub fn new(order: &'a [u16], owners: usize, active: &'a [u16]) -> Self {
        Self { order, owners, active, apart: None, can_wait: false }
    }
}

/// The map that a policy requests.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MapRequest {
    /// The CPU of each bucket. Each CPU must be one of the usable CPUs.
    pub map: Box<[u16; BUCKETS]>,
    /// The reason why buckets should move.
    pub cause: MoveCause,
}

impl MapRequest {
    /// A map with the CPU of each bucket, by index, and the reason for the change.
    pub fn new(map: Box<[u16; BUCKETS]>, cause: MoveCause) -> Self {
        Self { map, cause }
    }
}

/// Chooses a CPU for each bucket.
///
/// A policy supplies a [`plan`](Self::plan) when its group begins, and may supply a map at each
/// load check ([`refine`](Self::refine)). The calls are outside of the packet path and may take
/// long, because packets follow the last map until the policy returns. A policy that panics in one
/// of these calls, or chooses a CPU that the group does not have, is replaced by
/// [`Hash`](struct@Hash). If another function of it panics, it is not called again, and the buckets
/// stay where they are.
///
/// # Example
///
/// This policy uses one more CPU when a CPU has less than a fifth of its time left, and one CPU
/// fewer when half of the time of all CPUs would be enough. All CPUs in use have equal shares of
/// the buckets. Programs import these names from `steerage`.
///
/// ```
/// use steerage_core::ids::MoveCause;
/// use steerage_core::limits::BUCKETS;
/// use steerage_policy::{GroupStart, CpuLoad, GroupLoad, Plan, Policy, MapRequest};
///
/// #[derive(Clone, Debug, Default)]
/// struct Stairs {
///     /// How many checks in a row found that one CPU fewer would do.
///     quiet_checks: u32,
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
///         self.quiet_checks = if is_quiet { self.quiet_checks + 1 } else { 0 };
///         let (wanted, cause) = match () {
///             () if busiest > 0.8 && in_use < load.order.len() => (in_use + 1, MoveCause::Joined),
///             () if self.quiet_checks >= 100 => (in_use - 1, MoveCause::Left),
///             () => return None,
///         };
///         self.quiet_checks = 0;
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

    /// The CPUs that get buckets, in this order, and how many of them have buckets at first. The
    /// control calls this function when the group begins, and when this policy replaces another
    /// policy. The CPUs of the plan get equal shares of the buckets, with as few moves as possible.
    ///
    /// The plan stays with the core. Whenever a CPU fails or the mask changes, the core places
    /// buckets by the plan, without calling the policy. After each [`MapRequest`], the plan that
    /// follows from the map is in force: the CPUs that have buckets, in the order of the group, and
    /// then the other CPUs. A group that splits off from another group inherits the other group's
    /// plan until the next load check. While the instance is built, `plan` of a new policy may be
    /// called twice, and must return the same plan.
    fn plan(&mut self, group: &GroupStart<'_>) -> Plan;

    /// The core has placed buckets by the plan since the last load check, because the mask has
    /// changed, or because a CPU failed or can be used again. Measurements that compare CPUs before
    /// and after the change are void.
    fn cpus_changed(&mut self) {}

    /// The interval at which the policy wants to check the load. `None`: never, and the load is not
    /// measured then. While no packets arrive, the interval grows up to
    /// [`REFINE_EVERY_MAX`](crate::REFINE_EVERY_MAX).
    fn refine_every(&self) -> Option<Duration> {
        Some(REFINE_EVERY)
    }

    /// Checks the load, and returns another map if buckets should move. Not called while buckets
    /// move.
    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest>;

    /// Returns true if polling may move to another CPU of the group if the CPU that polls is slowed
    /// by other programs, interrupts or guests.
    fn moves_receivers(&self) -> bool {
        false
    }

    /// The CPU whose distance to the first CPU of the order should be measured after this load
    /// check. A measurement takes a few microseconds of both CPUs, and wakes the CPU if it sleeps.
    /// So a pair is measured at most once per [`REFINE_EVERY`], and less often while its distance
    /// stays the same. Distances are not measured if the CPUs are not CPUs of this machine, as in
    /// the simulator.
    fn asks_distance(&self) -> Option<u16> {
        None
    }

    /// The findings of the policy, for reports.
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
