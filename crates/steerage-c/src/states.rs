//! The states of the buckets that are on a CPU.

use steerage::{BucketId, limits::BUCKETS};

/// The states of the buckets that are on a CPU.
pub(crate) struct States<S> {
    /// By group and bucket. A group without a state has an empty list.
    groups: Vec<Vec<Option<S>>>,
}

impl<S> States<S> {
    pub(crate) fn new() -> Self {
        Self { groups: Vec::new() }
    }

    /// The slot of a bucket, in which its state is.
    pub(crate) fn slot(&mut self, bucket: BucketId) -> &mut Option<S> {
        let group = usize::from(bucket.group);
        if self.groups.len() <= group {
            self.groups.resize_with(group + 1, Vec::new);
        }
        let states = &mut self.groups[group];
        if states.is_empty() {
            states.resize_with(BUCKETS, || None);
        }
        &mut states[usize::from(bucket.bucket)]
    }

    pub(crate) fn take(&mut self, bucket: BucketId) -> Option<S> {
        self.groups.get_mut(usize::from(bucket.group))?.get_mut(usize::from(bucket.bucket))?.take()
    }
}
