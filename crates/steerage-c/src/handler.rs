//! The handler of a CPU, which keeps the states of the CPU's buckets.

use std::sync::Arc;

use steerage::{Batch, BucketId, Cpu, CpuId, Handler, limits::BUCKETS};

use crate::ffi::{Callbacks, CpuPointer, State, View};

/// The states of the buckets that are on a CPU.
#[derive(Default)]
pub(crate) struct States {
    /// By group and bucket. A group without a state has an empty list.
    groups: Vec<Vec<Option<State>>>,
}

impl States {
    /// The slot of a bucket, in which its state is.
    pub(crate) fn slot(&mut self, bucket: BucketId) -> &mut Option<State> {
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

    fn take(&mut self, bucket: BucketId) -> Option<State> {
        self.groups.get_mut(usize::from(bucket.group))?.get_mut(usize::from(bucket.bucket))?.take()
    }
}

/// Calls the program's functions on one CPU.
pub(crate) struct CpuHandler {
    // States are dropped before the CPU's pointer.
    states: States,
    cpu: CpuPointer,
    callbacks: Arc<Callbacks>,
}

impl CpuHandler {
    pub(crate) fn new(callbacks: &Arc<Callbacks>, cpu: CpuId) -> Self {
        let cpu = CpuPointer::new(callbacks, u32::from(cpu.0));
        Self { states: States::default(), cpu, callbacks: Arc::clone(callbacks) }
    }
}

impl Handler for CpuHandler {
    type Moved = State;
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let mut view = View::new(batch, &mut self.states, &self.cpu, &self.callbacks);
        self.callbacks.batch(&self.cpu, &mut view);
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<State> {
        self.states.take(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: State) {
        self.callbacks.moved(&self.cpu, bucket, &state);
        match self.states.slot(bucket) {
            Some(present) => self.callbacks.merged(&self.cpu, present, &state),
            empty => *empty = Some(state),
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}
