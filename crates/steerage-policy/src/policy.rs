//! The trait [`Policy`], its input and its output, and the simplest policy: [`Hash`](struct@Hash).
//!
//! A policy chooses a CPU for each bucket, and the core moves the buckets without reordering. Each
//! group of queues has its own policy, which supplies a plan at first and a bucket map at load
//! checks.

use std::fmt;
use std::time::Duration;

use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_core::placement::{Findings, Plan};
use steerage_flow::Timestamp;

use crate::limits::REFINE_EVERY;

/// The load of one CPU. Times are shares of the interval between two load checks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CpuLoad {
    /// The time for which the CPU was busy, plus the time that dropped packets would have taken.
    /// With dropped packets, `busy` can be above 1.
    pub busy: f64,
    /// The part of `busy` that was spent on receiving: polling, hashing and handing over packets.
    pub receive: f64,
    /// The rounds in which `receive` was measured. The relative error of `receive` is about 1 /
    /// `timed`.
    pub timed: f64,
    /// The share of rounds that found at least as much work as one round takes. A CPU without such
    /// rounds keeps up with its packets, even if it appears busy, because a packet takes more time
    /// in small batches.
    pub full: f64,
    /// The number of packets of the group that the CPU has finished.
    pub packets: u64,
    /// The share of the CPU's time that other programs or guests took, or 0 if unknown.
    pub others: f64,
    /// The share that other programs would take without steerage: `others`, or more.
    pub others_want: f64,
}

/// A measuring window: a time without moves, long enough to compare the loads of buckets.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Window<'a> {
    /// The load of each CPU over the whole measuring window.
    pub cpus: &'a [CpuLoad],
    /// For each bucket, the share of a CPU's time. The sum of the shares is the time for the
    /// group's packets.
    pub buckets: &'a [f64],
    /// The number of samples from which `buckets` was computed.
    pub samples: u64,
}

impl<'a> Window<'a> {
    /// Creates a window, for tests of policies. `cpus` has one entry for each CPU, and `buckets`
    /// one for each bucket.
    pub fn new(cpus: &'a [CpuLoad], buckets: &'a [f64], samples: u64) -> Self {
        Self { cpus, buckets, samples }
    }
}

/// The load of a group of queues. CPUs are indices among the instance's CPUs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupLoad<'a> {
    /// The present time.
    pub now: Timestamp,
    /// The time since the last load check, which is longer if no packets arrive or if the call was
    /// late.
    pub elapsed: Duration,
    /// The usable CPUs of the mask (at least one), in the order in which they should get buckets.
    pub order: &'a [u16],
    /// The number of CPUs at the front of `order` that poll a queue of the group, at least 1:
    /// without a polling CPU, the first CPU counts as polling.
    pub owners: usize,
    /// The CPU of each bucket.
    pub map: &'a [u16; BUCKETS],
    /// The load of each CPU since the last load check.
    pub cpus: &'a [CpuLoad],
    /// The time that a cache line takes from the first CPU of `order` to each CPU, if measured.
    pub apart: &'a [Option<Duration>],
    /// The measuring window that has just ended. Most load checks have no window (`None`).
    pub window: Option<Window<'a>>,
    /// True if the devices can wait for room, as files can, and lose no packets.
    pub can_wait: bool,
}

impl<'a> GroupLoad<'a> {
    /// Creates a load for tests of policies, at time 0, with an interval of [`REFINE_EVERY`] and no
    /// measuring window. `cpus` and `apart` (the distances of the CPUs) have one entry for each
    /// CPU.
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

    /// Adds a measuring window to the load, for tests of policies that compare buckets.
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

/// A group that begins, or gets another policy. CPUs are indices among the instance's CPUs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupStart<'a> {
    /// The usable CPUs of the mask (at least one), in the order in which they should get buckets.
    pub order: &'a [u16],
    /// The number of CPUs at the front of `order` that poll a queue of the group, at least 1:
    /// without a polling CPU, the first CPU counts as polling.
    pub owners: usize,
    /// The CPUs that have buckets of the group. Empty while the instance is built.
    pub active: &'a [u16],
    /// The time that a cache line takes from the first CPU of `order` to the next CPU to get
    /// buckets. `None` if it was not measured, or if both CPUs are threads of one core.
    pub apart: Option<Duration>,
    /// True if the devices can wait for room, as files can, and lose no packets.
    pub can_wait: bool,
}

impl<'a> GroupStart<'a> {
    /// Creates a group for tests of policies. The devices cannot wait for room (as files can), and
    /// the distance between CPUs is unknown.
    pub fn new(order: &'a [u16], owners: usize, active: &'a [u16]) -> Self {
        Self { order, owners, active, apart: None, can_wait: false }
    }
}

/// The map of buckets to CPUs that a policy requests.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MapRequest {
    /// For each bucket, its CPU, which must be one of the usable CPUs.
    pub map: Box<[u16; BUCKETS]>,
    /// The reason why buckets should move.
    pub cause: MoveCause,
}

impl MapRequest {
    /// Creates a request from the CPU index of each bucket and the reason for the change.
    pub fn new(map: Box<[u16; BUCKETS]>, cause: MoveCause) -> Self {
        Self { map, cause }
    }
}

/// A policy chooses a CPU for each bucket.
///
/// A policy supplies a [`plan`](Self::plan) when its group begins, and may supply a map at each
/// load check ([`refine`](Self::refine)). A policy may take long for its plan and its maps, because
/// packets are steered by the last map until the policy returns. If `plan` or `refine` panics, or
/// chooses a CPU that the group does not have, [`Hash`](struct@Hash) replaces the policy. If any
/// other function panics, the policy is not called again, and the buckets stay where they are.
///
/// # Example
///
/// This policy uses one more CPU if a CPU has less than a fifth of its time left, and one CPU fewer
/// if half of the time would be enough. All CPUs in use get equal shares of the buckets. In a real
/// program, import the names from the crate `steerage`.
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
    /// The name of the policy, which is a single word.
    fn name(&self) -> &'static str;

    /// Creates a policy that has the same settings but has not measured anything yet.
    fn fresh(&self) -> Box<dyn Policy>;

    /// Returns the order in which CPUs get buckets, and how many CPUs get equal shares at first.
    /// `plan` is called when the group begins or this policy replaces another. While the instance
    /// is built, `plan` of a new policy may be called twice, with the same result.
    ///
    /// Whenever a CPU fails or the mask changes, the core places buckets according to the plan,
    /// without calling the policy. Each [`MapRequest`] replaces the plan: the CPUs that have
    /// buckets come first, then all other CPUs, in the order of the group. If a group splits in
    /// two, the new group keeps the plan of the old group until the next load check.
    fn plan(&mut self, group: &GroupStart<'_>) -> Plan;

    /// Called after the core has placed buckets by the plan. Measurements before and after this
    /// call must not be compared.
    fn cpus_changed(&mut self) {}

    /// The interval between load checks, or `None` if the policy needs no load checks. While no
    /// packets arrive, the interval grows up to [`REFINE_EVERY_MAX`](crate::REFINE_EVERY_MAX).
    fn refine_every(&self) -> Option<Duration> {
        Some(REFINE_EVERY)
    }

    /// Checks the load, while no bucket moves, and returns a new map if buckets should move.
    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest>;

    /// Returns true if another CPU of the group may take over the polling of a queue whose CPU is
    /// slowed by other programs, interrupts or guests of the hypervisor.
    fn moves_receivers(&self) -> bool {
        false
    }

    /// Returns a CPU whose distance to the group's first CPU should be measured. A measurement
    /// takes some microseconds on both CPUs, at most once per [`REFINE_EVERY`], and less often if
    /// the distance is constant.
    fn asks_distance(&self) -> Option<u16> {
        None
    }

    /// Returns the findings of the policy about the group, for reports.
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

/// Gives all CPUs of the mask equal shares of the flow hash, as Linux does.
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
