//! Finds the majority flow of a bucket in constant memory (Boyer and Moore, 1981).

use steerage_core::ids::BucketId;
use steerage_flow::FlowKey;

use crate::limits::MIN_SAMPLES;

#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    bucket: BucketId,
    flow: Option<FlowKey>,
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

    fn winner(&self) -> Option<FlowKey> {
        self.flow.filter(|_| self.votes >= MIN_SAMPLES && self.votes >= self.seen / 3)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Elephants(Vec<Candidate>);

impl Elephants {
    pub(crate) fn follow(&mut self, wanted: Vec<BucketId>) {
        let known = std::mem::take(&mut self.0);
        let candidate = |bucket: BucketId| {
            let old = known.iter().find(|candidate| candidate.bucket == bucket).cloned();
            old.unwrap_or(Candidate { bucket, flow: None, votes: 0, seen: 0 })
        };
        self.0 = wanted.into_iter().map(candidate).collect();
    }

    pub(crate) fn buckets(&self) -> Vec<BucketId> {
        self.0.iter().map(|candidate| candidate.bucket).collect()
    }

    pub(crate) fn note(&mut self, bucket: BucketId, flow: FlowKey) {
        if let Some(candidate) = self.0.iter_mut().find(|candidate| candidate.bucket == bucket) {
            candidate.vote(flow);
        }
    }

    pub(crate) fn flow_in(&self, bucket: BucketId) -> Option<FlowKey> {
        self.0.iter().find(|candidate| candidate.bucket == bucket)?.winner()
    }
}
