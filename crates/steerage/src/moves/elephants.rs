//! Which flow it is that fills a bucket: the majority of some packets, found in constant memory (Boyer and Moore, 1981).

use steerage_mem::hash::FlowKey;

use super::State;
use crate::handler::BucketId;
use crate::limits::ELEPHANT_VOTES;

/// A bucket with a load that is told, and the flow that most of its packets looked at are of.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    bucket: BucketId,
    flow: Option<FlowKey>,
    /// Packets of that flow beyond those of others.
    votes: u32,
    seen: u32,
}

impl Candidate {
    fn vote(&mut self, flow: FlowKey) {
        self.seen += 1;
        match self.flow {
            Some(known) if known == flow => self.votes += 1,
            Some(_) if self.votes > 0 => self.votes -= 1,
            _ => (self.flow, self.votes) = (Some(flow), 1),
        }
    }

    /// The flow, if about two of three packets are of it.
    fn winner(&self) -> Option<FlowKey> {
        self.flow.filter(|_| self.votes >= ELEPHANT_VOTES && self.votes >= self.seen / 3)
    }
}

impl<M> State<M> {
    /// Follows what the policies found.
    pub(crate) fn look_for_elephants(&mut self) {
        let told = |(group, state): (usize, &super::Group)| {
            let buckets = state.policy.findings().elephants.into_iter();
            buckets.map(move |(bucket, _)| BucketId { group: group as u16, bucket }).collect::<Vec<_>>()
        };
        let wanted: Vec<BucketId> = self.groups.iter().enumerate().flat_map(told).collect();
        if wanted.iter().eq(self.elephants.iter().map(|candidate| &candidate.bucket)) {
            return;
        }
        let known = std::mem::take(&mut self.elephants);
        let candidate = |bucket: BucketId| {
            let old = known.iter().find(|candidate| candidate.bucket == bucket).cloned();
            old.unwrap_or(Candidate { bucket, flow: None, votes: 0, seen: 0 })
        };
        self.elephants = wanted.into_iter().map(candidate).collect();
        self.changed = true;
    }

    /// The buckets of whose packets some should be looked at.
    pub(crate) fn buckets_to_name(&self) -> Vec<BucketId> {
        self.elephants.iter().map(|candidate| candidate.bucket).collect()
    }

    /// A packet of such a bucket is of this flow.
    pub(crate) fn note_flow(&mut self, bucket: BucketId, flow: FlowKey) {
        if let Some(candidate) = self.elephants.iter_mut().find(|candidate| candidate.bucket == bucket) {
            candidate.vote(flow);
        }
    }

    pub(super) fn flow_in(&self, bucket: BucketId) -> Option<FlowKey> {
        self.elephants.iter().find(|candidate| candidate.bucket == bucket)?.winner()
    }
}
