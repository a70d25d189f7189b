use steerage::{BucketId, limits::BUCKETS};

/// The C program's states of the buckets that are on one CPU.
pub(crate) struct States<S> {
    /// The states, by steering group and by the number of the bucket. If the CPU has no state of a
    /// steering group, the group's list is empty.
    groups: Vec<Vec<Option<S>>>,
}

impl<S> States<S> {
    pub(crate) fn new() -> Self {
        Self { groups: Vec::new() }
    }

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
