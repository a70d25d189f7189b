//! Finds events between two snapshots.

use std::collections::BTreeSet;
use std::time::Duration;

use steerage::policy::is_same_distance;

use super::snapshot::{ByName, Snapshot};
use crate::terminal::printable;
use crate::units::counted;

/// An event, with its time in the run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) seconds: f64,
    pub(super) what: String,
    /// Whether packets were lost because of the event, or will be.
    pub(super) is_bad: bool,
}

/// The drop reasons that belong to a queue. All other reasons are reported for the CPU, which is
/// more informative.
const OF_QUEUES: [&str; 3] = ["device", "no_page", "moving"];

/// The events, in the order of the report. `dropping` has the places and reasons of continuing
/// drops, of which only the start and the end are events.
pub(super) fn between(before: &Snapshot, now: &Snapshot, dropping: &mut BTreeSet<String>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |what: String, is_bad| events.push(Event { seconds: now.seconds, what, is_bad });
    for (old, new) in before.queues.iter().zip(&now.queues) {
        if old.rps_cpus_list != new.rps_cpus_list {
            let (from, to) = (mask(&old.rps_cpus_list), mask(&new.rps_cpus_list));
            add(format!("{}: mask {from} is now {to}", new.name()), false);
        }
    }
    for (cause, buckets) in &now.moves.by_cause {
        let moved = buckets.saturating_sub(count(&before.moves.by_cause, cause));
        if moved > 0 {
            add(format!("{} moved ({})", counted(moved, "bucket"), printable(cause)), false);
        }
    }
    if let (Some(old), Some(new)) = (before.apart_ns(), now.apart_ns())
        && !is_same_distance(Duration::from_nanos(old), Duration::from_nanos(new))
    {
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
    if before.reordered.unwrap_or(0) < now.reordered.unwrap_or(0) {
        add("packets were handled out of order: please report it".to_owned(), true);
    }
    events
}

/// The places where packets were dropped in between, and the reasons.
fn rising(before: &Snapshot, now: &Snapshot) -> BTreeSet<String> {
    let rose = |old: &ByName, new: &ByName, of_queues: bool| -> Vec<String> {
        let is_of = |reason: &str| OF_QUEUES.contains(&reason) == of_queues;
        let more = new.iter().filter(|(reason, packets)| is_of(reason) && **packets > count(old, reason));
        more.map(|(reason, _)| printable(reason)).collect()
    };
    let queues = before.queues.iter().zip(&now.queues).flat_map(|(old, new)| {
        let of = new.name();
        rose(&old.dropped, &new.dropped, true).into_iter().map(move |reason| format!("{reason}, {of}"))
    });
    let cpus = before.cpus.iter().zip(&now.cpus).flat_map(|(old, new)| {
        rose(&old.dropped, &new.dropped, false).into_iter().map(|reason| format!("{reason}, CPU {}", new.cpu))
    });
    queues.chain(cpus).collect()
}

fn count(counts: &ByName, name: &str) -> u64 {
    counts.get(name).copied().unwrap_or(0)
}

/// A mask as text.
pub(super) fn mask(list: &str) -> &str {
    if list.is_empty() { "none" } else { list }
}
