//! The buckets that have recently come from another CPU.

use std::collections::HashSet;
use std::mem;
use std::time::Duration;

use steerage::{BucketId, Timestamp};

/// The time for which a bucket counts as recently arrived after the move has ended. At the end of
/// the move, the packets that waited are in this CPU's rings. This CPU's other packets may have much
/// later timestamps, because a capture is read faster than it was recorded. The CPU handles the
/// packets of its rings within milliseconds.
const FOLLOWED_FOR: Duration = Duration::from_secs(1);

/// The buckets whose flows must not time out yet, although packets of other flows may have much
/// later times.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The buckets that arrived after the time `since`.
    young: HashSet<BucketId>,
    /// The buckets that arrived before the time `since`.
    old: HashSet<BucketId>,
    since: Option<Timestamp>,
}

impl Arrivals {
    pub(super) fn add(&mut self, bucket: BucketId) {
        self.young.insert(bucket);
    }

    /// Starts the time of all buckets anew. Called while buckets move.
    pub(super) fn wait(&mut self) {
        self.young.extend(self.old.drain());
        self.since = None;
    }

    /// Removes each bucket from the set after a time of one to two times [`FOLLOWED_FOR`].
    #[inline]
    pub(super) fn pass(&mut self, now: Timestamp) {
        if self.young.is_empty() && self.old.is_empty() {
            return;
        }
        if now.since(*self.since.get_or_insert(now)) >= FOLLOWED_FOR {
            self.old = mem::take(&mut self.young);
            self.since = (!self.old.is_empty()).then_some(now);
        }
    }

    pub(super) fn has(&self, bucket: BucketId) -> bool {
        self.young.contains(&bucket) || self.old.contains(&bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_stays_for_a_second_and_not_for_ever() {
        let bucket = |bucket| BucketId { group: 0, bucket };
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut arrivals = Arrivals::default();
        arrivals.pass(at(0));
        // In this test, the CPU had nothing to do for an hour before the bucket arrived.
        arrivals.add(bucket(1));
        arrivals.pass(at(3_600_000));
        arrivals.pass(at(3_600_900));
        arrivals.add(bucket(2));
        arrivals.pass(at(3_601_000));
        assert!(arrivals.has(bucket(1)) && arrivals.has(bucket(2)) && !arrivals.has(bucket(3)));
        arrivals.pass(at(3_602_000));
        assert!(!arrivals.has(bucket(1)) && !arrivals.has(bucket(2)));
        // A move that takes long.
        arrivals.add(bucket(3));
        arrivals.pass(at(3_603_000));
        arrivals.pass(at(3_604_000));
        arrivals.wait();
        arrivals.pass(at(3_700_000));
        arrivals.pass(at(3_700_900));
        assert!(arrivals.has(bucket(3)));
    }
}
