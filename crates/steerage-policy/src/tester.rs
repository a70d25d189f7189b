use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;

use crate::limits::REFINE_EVERY;
use crate::packing::equal_shares;
use crate::policy::{CpuLoad, GroupLoad, GroupStart, Policy, Window};
use steerage_flow::Timestamp;

/// The number of samples in a measuring window, and of packets of a busy CPU: large enough for
/// every policy.
const MANY: u64 = 100_000;

/// Runs a policy on one group of CPUs, without packets. The test sets the work in each bucket, and
/// the tester computes the load of the CPUs from the policy's map. CPU 0 polls.
///
/// ```
/// use steerage_policy::{Hash, PolicyTester}; // steerage::policy
///
/// let mut tester = PolicyTester::new(Hash, 4);
/// tester.work()[7] = 0.9;
/// assert_eq!(tester.check(), None, "Hash does not look at the load");
/// assert_eq!((0..4).map(|cpu| tester.buckets_of(cpu)).collect::<Vec<_>>(), [1024; 4]);
/// assert_eq!(tester.busy(tester.map()[7]), 0.9);
/// ```
#[derive(Debug)]
pub struct PolicyTester<P> {
    policy: P,
    order: Vec<u16>,
    map: Box<[u16; BUCKETS]>,
    work: Box<[f64; BUCKETS]>,
    now: Timestamp,
}

impl<P: Policy> PolicyTester<P> {
    /// Creates a group with the CPUs 0 to `cpus - 1`, and assigns the buckets by the policy's plan.
    ///
    /// # Panics
    /// Panics if the plan contains a CPU that the group does not have, or if `cpus` is 0.
    pub fn new(mut policy: P, cpus: u16) -> Self {
        let order: Vec<u16> = (0..cpus).collect();
        let plan = policy.plan(&GroupStart::new(&order, 1, &[]));
        assert!(plan.order.iter().all(|cpu| order.contains(cpu)), "the plan names a CPU that does not exist: {plan:?}");
        let map = equal_shares(&plan.choose(&order));
        Self { policy, order, map, work: Box::new([0.0; BUCKETS]), now: Timestamp::ZERO }
    }

    /// The share of a CPU's time that each bucket takes, for the test to set, and 0 at first.
    pub fn work(&mut self) -> &mut [f64; BUCKETS] {
        &mut self.work
    }

    /// Lets the policy check the load after one interval. Returns the reason if buckets moved.
    ///
    /// # Panics
    /// Panics if the policy requests a CPU that the group does not have.
    pub fn check(&mut self) -> Option<MoveCause> {
        self.now = self.now + self.policy.refine_every().unwrap_or(REFINE_EVERY);
        let load = |cpu: &u16| {
            let busy = self.busy(*cpu);
            CpuLoad { busy, full: busy.min(1.0), packets: (busy * MANY as f64) as u64, ..CpuLoad::default() }
        };
        let cpus: Vec<CpuLoad> = self.order.iter().map(load).collect();
        let apart = vec![None; cpus.len()];
        let window = Window::new(&cpus, &self.work[..], MANY);
        let load = GroupLoad { now: self.now, ..GroupLoad::new(&self.order, 1, &self.map, &cpus, &apart) };
        let request = self.policy.refine(&load.with_window(window))?;
        let strangers: Vec<_> = request.map.iter().filter(|cpu| !self.order.contains(cpu)).collect();
        assert!(strangers.is_empty(), "the policy requests CPUs that do not exist: {strangers:?}");
        self.map = request.map;
        Some(request.cause)
    }

    /// The CPU of each bucket.
    pub fn map(&self) -> &[u16; BUCKETS] {
        &self.map
    }

    /// Returns the number of buckets that a CPU has.
    pub fn buckets_of(&self, cpu: u16) -> usize {
        self.map.iter().filter(|owner| **owner == cpu).count()
    }

    /// Returns the work of a CPU's buckets, as a share of its time (above 1: too much).
    pub fn busy(&self, cpu: u16) -> f64 {
        self.map.iter().zip(self.work.iter()).filter(|(owner, _)| **owner == cpu).map(|(_, work)| work).sum()
    }

    /// Returns the policy itself, for example to read its findings.
    pub fn policy(&self) -> &P {
        &self.policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarded::Guarded;
    use crate::policy::MapRequest;
    use steerage_core::placement::Plan;

    /// A policy that moves the heaviest bucket to the last CPU. All variants except `Good` do
    /// something wrong.
    #[derive(Clone, Copy, Debug)]
    enum Last {
        Good,
        PlansStrangers,
        PlanPanics,
        WishesStrangers,
        WishPanics,
    }

    impl Policy for Last {
        fn name(&self) -> &'static str {
            "last"
        }

        fn fresh(&self) -> Box<dyn Policy> {
            Box::new(*self)
        }

        fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
            match self {
                Self::PlansStrangers => Plan { order: vec![77, 78], active: 2 },
                Self::PlanPanics => panic!("a fault of the policy"),
                _ => Plan { order: group.order.to_vec(), active: 1 },
            }
        }

        fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
            let window = load.window?;
            let heaviest = (0..BUCKETS).max_by(|a, b| window.buckets[*a].total_cmp(&window.buckets[*b]))?;
            let last = match self {
                Self::WishesStrangers => 9,
                Self::WishPanics => panic!("a fault of the policy"),
                _ => *load.order.last()?,
            };
            let mut map = Box::new(*load.map);
            map[heaviest] = last;
            (map[..] != load.map[..]).then(|| MapRequest::new(map, MoveCause::Balance))
        }
    }

    #[test]
    fn a_policy_is_tested_without_packets() {
        let mut tester = PolicyTester::new(Last::Good, 3);
        tester.work().fill(0.0001);
        tester.work()[5] = 0.8;
        assert_eq!((tester.check(), tester.map()[5], tester.busy(2)), (Some(MoveCause::Balance), 2, 0.8));
        assert_eq!((tester.check(), tester.buckets_of(0)), (None, BUCKETS - 1));
    }

    #[test]
    fn a_policy_that_fails_is_replaced_by_equal_shares() {
        use Last::{PlanPanics, PlansStrangers, WishPanics, WishesStrangers};
        for fault in [PlansStrangers, PlanPanics] {
            let mut tester = PolicyTester::new(Guarded::new(fault), 4);
            assert_eq!(tester.buckets_of(3), BUCKETS / 4, "{fault:?}");
            assert_eq!(tester.check(), None, "{fault:?} is not called again");
        }
        for fault in [WishesStrangers, WishPanics] {
            let mut tester = PolicyTester::new(Guarded::new(fault), 4);
            assert_eq!(tester.buckets_of(0), BUCKETS);
            assert_eq!((tester.check(), tester.buckets_of(3)), (Some(MoveCause::Balance), BUCKETS / 4), "{fault:?}");
            assert_eq!(tester.check(), None, "{fault:?} is not called again");
        }
        let mut good = PolicyTester::new(Guarded::new(Last::Good), 3);
        good.work()[5] = 0.8;
        assert_eq!((good.check(), good.map()[5]), (Some(MoveCause::Balance), 2));
    }
}
