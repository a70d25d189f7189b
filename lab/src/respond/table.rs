//! One CPU's connections by bucket: all connections of a bucket move together.

use std::collections::{BTreeSet, HashMap};

use steerage::{BucketId, Timestamp};

use super::connection::Connection;
use super::packet::Key;

pub(super) type Bucket = HashMap<Key, Box<Connection>>;

/// Peers can choose the keys (addresses and ports), so the table uses the standard library's hash,
/// which has a secret key.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: HashMap<BucketId, Bucket>,
    /// The time of each connection's next check. If a packet postpones the check, this entry keeps
    /// the earlier time, and the check at that time schedules the next check.
    timers: BTreeSet<(Timestamp, BucketId, Key)>,
}

impl Table {
    #[inline]
    pub(super) fn get(&mut self, bucket: BucketId, key: &Key) -> Option<&mut Connection> {
        self.buckets.get_mut(&bucket)?.get_mut(key).map(Box::as_mut)
    }

    pub(super) fn insert(&mut self, bucket: BucketId, key: Key, connection: Box<Connection>) {
        self.timers.insert((connection.due, bucket, key));
        self.buckets.entry(bucket).or_default().insert(key, connection);
    }

    pub(super) fn remove(&mut self, bucket: BucketId, key: &Key) -> Option<Box<Connection>> {
        let connections = self.buckets.get_mut(&bucket)?;
        let connection = connections.remove(key)?;
        if connections.is_empty() {
            self.buckets.remove(&bucket);
        }
        self.timers.remove(&(connection.due, bucket, *key));
        Some(connection)
    }

    pub(super) fn look_by(&mut self, bucket: BucketId, key: &Key, due: Timestamp) {
        let Some(connection) = self.buckets.get_mut(&bucket).and_then(|bucket| bucket.get_mut(key)) else { return };
        if due < connection.due {
            self.timers.remove(&(connection.due, bucket, *key));
            self.timers.insert((due, bucket, *key));
            connection.due = due;
        }
    }

    #[inline]
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.timers.first().map(|(due, ..)| *due)
    }

    /// Returns a connection that is due for a check. The caller must schedule the connection's next
    /// check.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<(BucketId, Key)> {
        let (_, bucket, key) = self.timers.first().filter(|(due, ..)| *due <= now).copied()?;
        self.timers.pop_first();
        let never = Timestamp::from_nanos(u64::MAX);
        self.get(bucket, &key)?.due = never;
        self.timers.insert((never, bucket, key));
        Some((bucket, key))
    }

    pub(super) fn take(&mut self, bucket: BucketId) -> Option<Bucket> {
        let connections = self.buckets.remove(&bucket)?;
        for (key, connection) in &connections {
            self.timers.remove(&(connection.due, bucket, *key));
        }
        Some(connections)
    }

    pub(super) fn put(&mut self, bucket: BucketId, connections: Bucket) {
        self.timers.extend(connections.iter().map(|(key, connection)| (connection.due, bucket, *key)));
        self.buckets.entry(bucket).or_default().extend(connections);
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Connection>> {
        self.timers.clear();
        std::mem::take(&mut self.buckets).into_values().flat_map(Bucket::into_values)
    }
}
