use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steerage_core::ids::MoveCause;
use steerage_core::placement::{Findings, Plan};

use crate::packing::equal_shares;
use crate::policy::{GroupLoad, GroupStart, Hash, MapRequest, Policy};

/// A policy that is replaced by [`Hash`](struct@Hash) as soon as it panics or chooses a CPU that
/// the group does not have. The replacement is logged once for each policy.
#[derive(Debug)]
pub struct Guarded {
    policy: Box<dyn Policy>,
    has_failed: bool,
    /// True if the replacement of a policy has been logged, in any group of queues.
    is_reported: Arc<AtomicBool>,
}

impl Guarded {
    /// Guards `policy`, and the policies that it creates for groups.
    pub fn new(policy: impl Policy + 'static) -> Self {
        Self { policy: Box::new(policy), has_failed: false, is_reported: Arc::default() }
    }

    fn call<R>(
        &mut self,
        order: &[u16],
        call: impl FnOnce(&mut dyn Policy) -> R,
        find_fault: impl FnOnce(&R) -> Option<String>,
    ) -> Option<R> {
        if self.has_failed {
            return None;
        }
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *self.policy)));
        let fault = match &result {
            Ok(result) => find_fault(result),
            Err(_) => Some("it panicked".to_owned()),
        };
        let Some(fault) = fault else { return result.ok() };
        self.has_failed = true;
        // Relaxed, because no other memory depends on this flag.
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            let policy = self.policy.name();
            tracing::error!(policy, group_of_cpus = ?order, "a policy is replaced by hash: {fault}");
        }
        None
    }
}

fn stranger<'a>(order: &[u16], cpus: impl IntoIterator<Item = &'a u16>) -> Option<String> {
    let stranger = cpus.into_iter().find(|cpu| !order.contains(cpu))?;
    Some(format!(
        "it chose CPU {stranger} (numbers are indices among the instance's CPUs), which the group does not have"
    ))
}

impl Policy for Guarded {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn fresh(&self) -> Box<dyn Policy> {
        let is_reported = Arc::clone(&self.is_reported);
        Box::new(Self { policy: self.policy.fresh(), has_failed: false, is_reported })
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        let fault = |plan: &Plan| stranger(group.order, &plan.order);
        self.call(group.order, |policy| policy.plan(group), fault).unwrap_or_else(|| Hash.plan(group))
    }

    fn cpus_changed(&mut self) {
        let _ = self.call(&[], |policy| policy.cpus_changed(), |()| None);
    }

    fn refine_every(&self) -> Option<Duration> {
        self.policy.refine_every()
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        let had_failed = self.has_failed;
        let fault = |request: &Option<MapRequest>| stranger(load.order, request.as_ref()?.map.iter());
        let request = self.call(load.order, |policy| policy.refine(load), fault);
        if had_failed || !self.has_failed {
            return request.flatten();
        }
        Some(MapRequest::new(equal_shares(load.order), MoveCause::Balance))
    }

    fn moves_receivers(&self) -> bool {
        !self.has_failed && self.policy.moves_receivers()
    }

    fn asks_distance(&self) -> Option<u16> {
        self.policy.asks_distance().filter(|_| !self.has_failed)
    }

    fn findings(&self) -> Findings {
        self.policy.findings()
    }
}
