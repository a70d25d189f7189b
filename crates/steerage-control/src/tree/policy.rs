//! The attribute for the steering policy. As in the file `scheduler` of a block device, the current
//! value is in brackets.

use std::fmt::Write;
use std::time::Instant;

use steerage::policy::{POLICIES, Policy, UnknownPolicy};
use steerage::{CpuMask, Snapshot};

use super::{Change, Tree};
use crate::error::AttributeError;

pub(super) fn shown(policy: &str) -> String {
    let name = |name: &&str| if *name == policy { format!("[{name}]") } else { (*name).to_owned() };
    let mut names: Vec<String> = POLICIES.iter().map(name).collect();
    if !POLICIES.contains(&policy) {
        // The program that uses the library has set its own policy.
        names.insert(0, format!("[{policy}]"));
    }
    names.join(" ") + "\n"
}

/// Returns one line for each steering group (queues that share a mask), with pairs of keys and
/// values.
pub(super) fn steering(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for group in &snapshot.groups {
        let active: CpuMask = group.active.iter().copied().collect();
        let queues: Vec<String> = group.queues.iter().map(usize::to_string).collect();
        let found = &group.findings;
        let _ = write!(text, "policy {} queues {} active {active}", group.policy, queues.join(","));
        let _ = write!(text, " joined {} left {}", found.joined, found.left);
        if let Some(uneven) = found.uneven {
            let _ = write!(text, " uneven {uneven:.3}");
        }
        if let Some(apart) = found.apart {
            let _ = write!(text, " apart_ns {}", apart.as_nanos());
        }
        if !found.regimes.is_empty() {
            let _ = write!(text, " regime {} reason {}", found.regime, found.reason);
        }
        for one in &found.regimes {
            let _ = write!(text, " rate {}:{}:{:.0}", one.regime, one.cpus, one.rate);
        }
        for cost in &found.costs {
            let _ = write!(text, " cost_ns {}:{:.1}", cost.step, cost.nanos);
        }
        if let Some(buckets) = found.would_move {
            let _ = write!(text, " would_move {buckets}");
        }
        for (bucket, load) in &found.elephants {
            let _ = write!(text, " elephant {bucket}:{load:.2}");
        }
        text.push('\n');
    }
    text
}

impl Tree {
    pub(super) fn store_policy(&self, text: &str) -> Result<Option<Change>, AttributeError> {
        let name = text.trim();
        let from = self.handle.policy();
        let policy: Box<dyn Policy> = name.parse().map_err(|error: UnknownPolicy| AttributeError::invalid(error))?;
        if name == from {
            return Ok(None);
        }
        let (start, before) = (Instant::now(), self.handle.snapshot().moves.buckets);
        self.handle.set_policy(policy);
        self.settle(start)?;
        let buckets = self.handle.snapshot().moves.buckets - before;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Some(Change { from: from.to_owned(), to: name.to_owned(), buckets, seconds }))
    }
}
