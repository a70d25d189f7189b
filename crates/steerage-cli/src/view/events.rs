//! The events between two snapshots of a run.

use std::collections::BTreeSet;
use std::time::Duration;

use steerage::policy::is_same_distance;
use steerage::stats::{DropReason, Drops, MoveCause};
use steerage::{CpuId, CpuMask, Snapshot};
use steerage_text::counted;

use super::names;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) what: String,
    /// True if packets were lost because of the event, or will be lost.
    pub(crate) is_bad: bool,
}

/// The drop reasons for which an event names the queue. For a drop reason that is not in this list,
/// the event names the CPU.
const OF_QUEUES: [DropReason; 3] = [DropReason::Device, DropReason::NoPage, DropReason::Moving];

/// Returns events in the order of the report's queues and CPUs. `dropping` contains one entry for
/// each queue (or CPU) and drop reason for which drops continue. If drops continue, only their
/// start and their end are events.
pub(crate) fn between(before: &Snapshot, now: &Snapshot, dropping: &mut BTreeSet<String>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |what: String, is_bad| events.push(Event { at: now.elapsed, what, is_bad });
    for (old, new) in before.queues.iter().zip(&now.queues) {
        if old.rps_cpus != new.rps_cpus {
            let (from, to) = (mask(&old.rps_cpus), mask(&new.rps_cpus));
            add(format!("{}: mask {from} is now {to}", names::queue(new)), false);
        }
    }
    for cause in MoveCause::ALL {
        let moved = now.moves.of(cause).saturating_sub(before.moves.of(cause));
        if moved > 0 {
            add(format!("{} moved ({cause})", counted(moved, "bucket")), false);
        }
    }
    if let (Some(old), Some(new)) = (apart(before), apart(now))
        && !is_same_distance(old, new)
    {
        let (old, new) = (old.as_nanos(), new.as_nanos());
        add(format!("CPUs were moved: a cache line takes {new} ns, not {old}"), false);
    }
    let risen = rising(before, now);
    risen.difference(dropping).for_each(|what| add(format!("drops began: {what}"), true));
    dropping.difference(&risen).for_each(|what| add(format!("drops ended: {what}"), false));
    *dropping = risen;
    for (old, new) in before.cpus.iter().zip(&now.cpus) {
        if new.panics > old.panics {
            add(format!("CPU {}: the packet function panicked", new.cpu), true);
        }
        if new.deaths > old.deaths {
            add(format!("CPU {}: declared dead", new.cpu), true);
        }
    }
    if before.reordered().unwrap_or(0) < now.reordered().unwrap_or(0) {
        add("packets were handled out of order: please report it".to_owned(), true);
    }
    events
}

/// Returns the drops between the two snapshots, each with its queue or CPU and its reason.
fn rising(before: &Snapshot, now: &Snapshot) -> BTreeSet<String> {
    let rose = |old: &Drops, new: &Drops, of_queues: bool| -> Vec<DropReason> {
        let reasons = new.iter().filter(|(reason, packets)| *packets > old.get(*reason)).map(|(reason, _)| reason);
        reasons.filter(|reason| OF_QUEUES.contains(reason) == of_queues).collect()
    };
    let queues = before.queues.iter().zip(&now.queues).flat_map(|(old, new)| {
        let of = names::queue(new);
        rose(&old.dropped, &new.dropped, true).into_iter().map(move |reason| format!("{reason}, {of}"))
    });
    let cpus = before.cpus.iter().zip(&now.cpus).flat_map(|(old, new)| {
        rose(&old.dropped, &new.dropped, false).into_iter().map(|reason| format!("{reason}, CPU {}", new.cpu))
    });
    queues.chain(cpus).collect()
}

/// Returns the longest distance (measured latency between two CPUs) in any steering group. A group
/// measures from its receiving CPU to the CPU that joined last or will join next.
pub(crate) fn apart(snapshot: &Snapshot) -> Option<Duration> {
    snapshot.groups.iter().filter_map(|group| group.findings.apart).max()
}

/// Returns the CPUs as a list such as `0-3,8`.
pub(crate) fn mask(cpus: &[CpuId]) -> String {
    or_none(&cpus.iter().copied().collect::<CpuMask>().to_list()).to_owned()
}

pub(crate) fn or_none(list: &str) -> &str {
    if list.is_empty() { "none" } else { list }
}
