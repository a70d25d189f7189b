//! A table of flow state that moves to another CPU with the flow's bucket.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use steerage_core::ids::BucketId;
use steerage_core::limits::BUCKETS;
use steerage_flow::{Timestamp, WallTime};

/// A time in a [`Table`]: [`Timestamp`] (the clock of the CPUs) or [`WallTime`] (of packets).
pub trait Moment: Copy + Ord {
    /// Returns the time from `earlier` to `self`, or 0 if `earlier` is later than `self`.
    fn since(self, earlier: Self) -> Duration;
}

impl Moment for Timestamp {
    fn since(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl Moment for WallTime {
    fn since(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// The entries of one bucket, which move to another CPU together with the bucket.
pub struct Part<K, V, T = Timestamp>(HashMap<K, (V, T)>);

impl<K, V, T> Default for Part<K, V, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K, V, T> fmt::Debug for Part<K, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part of {} entries", self.0.len())
    }
}

impl<K, V, T> Part<K, V, T> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no entry in the bucket.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the bucket's values for writing.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.values_mut().map(|(value, _)| value)
    }
}

/// A table of a handler's values by key, grouped by bucket, so that the state of a bucket moves in
/// one step. Unused entries expire after some time, and the number of entries is limited.
///
/// ```
/// # mod steerage { pub use {steerage_core::{handler::*, ids::*, packet::*}, steerage_flow::*, steerage_testing as testing}; pub mod flow { pub use steerage_handler::table::*; } }
/// use std::time::Duration;
///
/// use steerage::flow::{Part, Table};
/// use steerage::{Batch, BucketId, Cpu, FlowKey, Handler, Timestamp};
///
/// /// Counts packets by flow. A flow ends after 30 seconds without a packet.
/// struct Flows {
///     table: Table<FlowKey, u64>,
///     ended: u64,
/// }
///
/// impl Handler for Flows {
///     type Moved = Part<FlowKey, u64>;
///     type Report = (u64, usize);
///
///     fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
///         for packet in batch.iter_mut() {
///             let Some(flow) = packet.flow_key() else { continue };
///             if let Some(packets) = self.table.entry(packet.bucket(), flow.both_directions(), cpu.now()) {
///                 *packets += 1;
///             }
///         }
///     }
///
///     fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
///         self.table.expire(cpu.now(), 1000, |_flow, _packets| self.ended += 1);
///         Some(cpu.now() + Duration::from_millis(100))
///     }
///
///     fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
///         self.table.leave(bucket)
///     }
///
///     fn bucket_arrives(&mut self, bucket: BucketId, flows: Self::Moved) {
///         self.table.arrive(bucket, flows);
///     }
///
///     fn finish(self, _cpu: &mut Cpu) -> (u64, usize) {
///         (self.ended, self.table.len())
///     }
/// }
///
/// let make = |_cpu| Flows { table: Table::new(100_000, Duration::from_secs(30)), ended: 0 };
/// assert_eq!(steerage::testing::run(make, [[0; 60]]).report, (0, 0));
/// ```
pub struct Table<K, V, T = Timestamp> {
    /// The entries, by group of queues and then by bucket. A group's list is empty until the group
    /// has an entry.
    groups: Vec<Vec<Part<K, V, T>>>,
    len: usize,
    limit: usize,
    idle: Duration,
    /// The bucket that `expire` checked last, as an index into the buckets of all groups.
    next: usize,
}

impl<K, V, T> fmt::Debug for Table<K, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table of {} of at most {} entries", self.len, self.limit)
    }
}

impl<K: Eq + Hash, V, T: Moment> Table<K, V, T> {
    /// Creates a table for at most `limit` entries, which expire after `idle` without use.
    pub fn new(limit: usize, idle: Duration) -> Self {
        Self { groups: Vec::new(), len: 0, limit, idle, next: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no entry in the table.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value of a key, or adds the default value, and marks the entry as used at `now`.
    /// If the table is full, it drops the expired entries of the bucket, which
    /// [`expire`](Self::expire) then does not report. Returns `None` if the table is still full.
    pub fn entry(&mut self, bucket: BucketId, key: K, now: T) -> Option<&mut V>
    where
        V: Default,
    {
        self.entry_with(bucket, key, now, V::default)
    }

    /// Like [`entry`](Self::entry), but `make` creates the initial value.
    pub fn entry_with(&mut self, bucket: BucketId, key: K, now: T, make: impl FnOnce() -> V) -> Option<&mut V> {
        let (limit, idle, at) = (self.limit, self.idle, usize::from(bucket.group));
        if self.groups.len() <= at {
            self.groups.resize_with(at + 1, Vec::new);
        }
        let group = &mut self.groups[at];
        if group.is_empty() {
            group.resize_with(BUCKETS, Part::default);
        }
        let part = &mut group.get_mut(usize::from(bucket.bucket))?.0;
        if self.len >= limit && !part.contains_key(&key) {
            let before = part.len();
            part.retain(|_, (_, used)| now.since(*used) < idle);
            self.len -= before - part.len();
            if self.len >= limit {
                return None;
            }
        }
        Some(match part.entry(key) {
            Entry::Occupied(entry) => {
                let (value, used) = entry.into_mut();
                *used = now.max(*used);
                value
            }
            Entry::Vacant(place) => {
                self.len += 1;
                &mut place.insert((make(), now)).0
            }
        })
    }

    fn part(&mut self, bucket: BucketId) -> Option<&mut Part<K, V, T>> {
        self.groups.get_mut(usize::from(bucket.group))?.get_mut(usize::from(bucket.bucket))
    }

    /// Returns the value of a key, without marking the entry as used.
    pub fn get_mut(&mut self, bucket: BucketId, key: &K) -> Option<&mut V> {
        self.part(bucket)?.0.get_mut(key).map(|(value, _)| value)
    }

    /// Removes a key.
    pub fn remove(&mut self, bucket: BucketId, key: &K) -> Option<V> {
        let (value, _) = self.part(bucket)?.0.remove(key)?;
        self.len -= 1;
        Some(value)
    }

    /// Removes and returns the entries of a bucket that leaves (`Handler::bucket_leaves`), if any.
    pub fn leave(&mut self, bucket: BucketId) -> Option<Part<K, V, T>> {
        let part = std::mem::take(self.part(bucket)?);
        self.len -= part.len();
        (!part.is_empty()).then_some(part)
    }

    /// Adds the entries of a bucket that arrives (`Handler::bucket_arrives`). Of two entries with
    /// the same key, the entry that was used last remains. A table with more entries than its limit
    /// accepts no new keys.
    pub fn arrive(&mut self, bucket: BucketId, part: Part<K, V, T>) {
        self.arrive_with(bucket, part, |here, arrived| {
            if here.1 < arrived.1 {
                *here = arrived;
            }
        });
    }

    /// Like [`arrive`](Self::arrive), but if two entries have the same key, `merge` gets both
    /// values, each with the time of its last use.
    pub fn arrive_with(&mut self, bucket: BucketId, part: Part<K, V, T>, merge: impl Fn(&mut (V, T), (V, T))) {
        if self.part(bucket).is_none() {
            let at = usize::from(bucket.group);
            self.groups.resize_with(self.groups.len().max(at + 1), Vec::new);
            self.groups[at].resize_with(BUCKETS, Part::default);
        }
        let Some(here) = self.part(bucket) else { return };
        let before = here.len();
        if here.is_empty() {
            *here = part;
        } else {
            for (key, arrived) in part.0 {
                match here.0.get_mut(&key) {
                    Some(mine) => merge(mine, arrived),
                    None => drop(here.0.insert(key, arrived)),
                }
            }
        }
        let added = here.len() - before;
        self.len += added;
    }

    /// Removes entries that were not used for the idle time, and calls `each` for each of them. One
    /// call checks about `most` entries, so that a handler's tick stays short. The next call of
    /// `expire` continues with the entries that this call did not check.
    pub fn expire(&mut self, now: T, most: usize, mut each: impl FnMut(&K, &mut V)) {
        let (idle, buckets) = (self.idle, self.groups.len() * BUCKETS);
        let mut read = 0;
        for _ in 0..buckets {
            if read >= most {
                break;
            }
            self.next = (self.next + 1) % buckets;
            let Some(part) = self.groups[self.next / BUCKETS].get_mut(self.next % BUCKETS) else { continue };
            read += part.len();
            let before = part.len();
            part.0.retain(|key, (value, used)| {
                let is_over = now.since(*used) >= idle;
                if is_over {
                    each(key, value);
                }
                !is_over
            });
            self.len -= before - part.len();
        }
    }

    /// Iterates over all keys and values, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.groups.iter().flatten().flat_map(|part| part.0.iter().map(|(key, (value, _))| (key, value)))
    }

    /// Iterates over all keys and values, in any order.
    pub fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.groups.into_iter().flatten().flat_map(|part| part.0).map(|(key, (value, _))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn bucket(group: u16, bucket: u16) -> BucketId {
        BucketId { group, bucket }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn expired(table: &mut Table<u32, u32>, now: u64, most: usize) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        table.expire(at(now), most, |key, value| found.push((*key, *value)));
        found.sort_unstable();
        found
    }

    #[test]
    fn entries_move_with_their_bucket() {
        let (mut one, mut other) = (Table::new(10, Duration::from_secs(5)), Table::new(10, Duration::from_secs(5)));
        for key in 0..4 {
            *one.entry(bucket(1, key as u16 % 2), key, at(1)).unwrap() += key;
        }
        assert!(one.leave(bucket(0, 7)).is_none() && one.leave(bucket(3, 0)).is_none());
        let part = one.leave(bucket(1, 1)).unwrap();
        assert_eq!((one.len(), part.len(), one.get_mut(bucket(1, 1), &1)), (2, 2, None));
        *other.entry(bucket(2, 1), 1, at(2)).unwrap() += 100;
        *other.entry(bucket(2, 1), 3, at(0)).unwrap() += 100;
        other.arrive(bucket(2, 1), part);
        assert_eq!((other.len(), other.get_mut(bucket(2, 1), &1)), (2, Some(&mut 100)));
        assert_eq!(other.remove(bucket(2, 1), &3), Some(3));
        assert_eq!(other.into_entries().collect::<Vec<_>>(), [(1, 100)]);
        assert_eq!(one.iter().map(|(key, value)| key + value).sum::<u32>(), 4);
    }

    #[test]
    fn a_full_table_takes_known_keys_and_room_of_the_expired() {
        let mut table = Table::new(2, Duration::from_secs(5));
        let here = bucket(0, 0);
        assert!(table.entry(here, 1, at(0)).is_some() && table.entry(here, 2, at(3)).is_some());
        assert!(table.entry(here, 3, at(4)).is_none(), "nothing has expired");
        assert!(table.entry(bucket(0, 1), 3, at(9)).is_none(), "nothing of this bucket has expired");
        assert_eq!(*table.entry_with(here, 1, at(4), || 9).unwrap(), 0, "the key is known");
        assert_eq!(*table.entry_with(here, 3, at(8), || 9).unwrap(), 9, "key 2 has expired");
        assert_eq!((table.len(), table.get_mut(here, &2)), (2, None));
    }

    #[test]
    fn entries_expire_in_parts() {
        let mut table = Table::new(1000, Duration::from_secs(5));
        for key in 0..100 {
            *table.entry(bucket(0, key as u16), key, at(u64::from(key % 2))).unwrap() = key;
        }
        assert_eq!(expired(&mut table, 4, 1000), []);
        let first = expired(&mut table, 5, 10);
        assert_eq!(first.len(), 5, "every second of the entries that were read");
        let rest = expired(&mut table, 5, 1000);
        let mut all = [first, rest].concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).step_by(2).map(|key| (key, key)).collect::<Vec<_>>());
        assert_eq!((table.len(), expired(&mut table, 6, 1000).len(), table.is_empty()), (50, 50, true));
    }
}
