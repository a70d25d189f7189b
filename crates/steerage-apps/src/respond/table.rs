//! One CPU's connections: by bucket, since they move by bucket; and when each is to be looked at.

use std::collections::{BTreeSet, HashMap};

use steerage::{BucketId, Timestamp};

use super::connection::Connection;
use super::packet::Key;

/// A bucket's connections.
pub(super) type Bucket = HashMap<Key, Box<Connection>>;

/// A CPU's. Keys of connections are a stranger's to choose: std's hash is keyed.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: HashMap<BucketId, Bucket>,
    /// Each connection once, by when it is to be looked at. A connection that is due later than is noted here is looked at too
    /// early, and noted anew: so a packet that puts its time off, as each does, costs nothing.
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

    /// Has a connection looked at by then.
    pub(super) fn look_by(&mut self, bucket: BucketId, key: &Key, due: Timestamp) {
        let Some(connection) = self.buckets.get_mut(&bucket).and_then(|bucket| bucket.get_mut(key)) else { return };
        if due < connection.due {
            self.timers.remove(&(connection.due, bucket, *key));
            self.timers.insert((due, bucket, *key));
            connection.due = due;
        }
    }

    /// When the first is to be looked at.
    #[inline]
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.timers.first().map(|(due, ..)| *due)
    }

    /// One that is to be looked at by now. It has to be noted anew.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<(BucketId, Key)> {
        let (_, bucket, key) = self.timers.first().filter(|(due, ..)| *due <= now).copied()?;
        self.timers.pop_first();
        let never = Timestamp::from_nanos(u64::MAX);
        self.get(bucket, &key)?.due = never;
        self.timers.insert((never, bucket, key));
        Some((bucket, key))
    }

    /// All of a bucket.
    pub(super) fn take(&mut self, bucket: BucketId) -> Option<Bucket> {
        let connections = self.buckets.remove(&bucket)?;
        for (key, connection) in &connections {
            self.timers.remove(&(connection.due, bucket, *key));
        }
        Some(connections)
    }

    /// The same, put in.
    pub(super) fn put(&mut self, bucket: BucketId, connections: Bucket) {
        self.timers.extend(connections.iter().map(|(key, connection)| (connection.due, bucket, *key)));
        self.buckets.entry(bucket).or_default().extend(connections);
    }

    /// All of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Connection>> {
        self.timers.clear();
        std::mem::take(&mut self.buckets).into_values().flat_map(Bucket::into_values)
    }
}
