//! Each frame's hash, its CPU, and its slot in that CPU's ring.

use steerage_mem::Completion;
use steerage_mem::hash::FlowHash;
use steerage_mem::ring::{LISTS_MAX, Producer};

use super::OwnedQueue;
use crate::hashing::FrameBatch;
use crate::ledger::DropReason;
use crate::limits::{BUCKET_SHIFT, BUCKETS};
use crate::platform::Timestamp;
use crate::rps_map::{CpuIndex, bucket_of};
use crate::rx::LinkType;

/// Over how many rings a table spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spread {
    /// Nothing to choose, so nothing to hash.
    One,
    /// No more than [`LISTS_MAX`].
    Few,
    Many,
}

impl Spread {
    pub(super) fn of(table: &[CpuIndex; BUCKETS]) -> Self {
        let mut seen = [table[0]; LISTS_MAX];
        let mut rings = 1;
        for ring in table {
            if !seen.contains(ring) {
                let Some(free) = seen.get_mut(rings) else { return Self::Many };
                *free = *ring;
                rings += 1;
            }
        }
        if rings == 1 { Self::One } else { Self::Few }
    }
}

impl OwnedQueue {
    /// Chooses each frame's CPU and writes its slot to that CPU's ring, unseen yet.
    pub(crate) fn steer(&mut self, now: Timestamp) {
        self.hash(now);
        self.count_load();
        if !self.flow_limits.is_empty() {
            self.limit_flows();
        }
        let mut frames = std::mem::take(&mut self.frames);
        let (polled, first) = (frames.len(), self.arrivals + 1);
        self.arrivals += polled as u64;
        let Self { targets, table, pool, prefetch, .. } = self;
        let target = |frame: &Completion| usize::from(table[(frame.hash_or_zero() >> BUCKET_SHIFT) as usize]);
        // One page with each frame: all at once would fill the CPU's line buffers, and it would wait.
        let prefetch = |nth| {
            if nth < *prefetch {
                pool.prefetch(nth);
            }
        };
        match self.spread {
            Spread::One => targets[usize::from(table[0])].stage_all(&mut frames, first, prefetch),
            Spread::Few => Producer::stage_lists(targets, &mut frames, first, target, prefetch),
            Spread::Many => {}
        }
        let staged = polled - frames.len();
        // One by one, if there are more targets than lists pay for, or not all frames found room.
        for (nth, frame) in (staged..).zip(frames.drain(..)) {
            if nth < self.prefetch {
                self.pool.prefetch(nth);
            }
            let target = usize::from(self.table[(frame.hash_or_zero() >> BUCKET_SHIFT) as usize]);
            let arrival = first + nth as u64;
            if let Err(frame) = self.targets[target].stage(frame, arrival) {
                self.stage_slowly(target, frame, arrival);
            }
        }
        self.frames = frames;
        self.count_parked();
    }

    fn must_hash(&self) -> bool {
        self.spread != Spread::One || self.always_hash || !self.flow_limits.is_empty()
    }

    fn hash(&mut self, now: Timestamp) {
        if self.frames.is_empty() {
            return;
        }
        let link = self.rx.link();
        if link != LinkType::ETHERNET {
            self.frames.iter_mut().for_each(|frame| frame.set_link(link.code()));
        }
        let Some(hashing) = self.hashing.as_ref().filter(|_| self.must_hash()) else { return };
        let unhashed = FrameBatch { frames: &mut self.frames, memory: &self.memory, link, now };
        let unparsed = hashing.hash_batch(unhashed, &mut self.fragments);
        self.ledger.hashed(unparsed, self.fragments.take_counts());
    }

    /// One frame of a poll stands for all: which one, changes from poll to poll.
    #[inline]
    fn count_load(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        let frame = self.polls.checked_rem(self.frames.len()).and_then(|nth| self.frames.get(nth));
        if let Some(hash) = frame.and_then(Completion::hash) {
            self.ledger.buckets.add(bucket_of(hash), self.frames.len() as u64);
            self.ledger.samples.add(1);
        }
    }

    /// Drops what the flow limits do not let through. The last come first: those before them go on if only some may.
    #[cold]
    fn limit_flows(&mut self) {
        for at in 0..self.flow_limits.len() {
            if self.flow_limits[at].is_some() {
                self.reclaim(at);
            }
        }
        let mut frames = std::mem::take(&mut self.frames);
        for at in (0..frames.len()).rev() {
            let hash = frames[at].hash_or_zero();
            let target = usize::from(self.table[(hash >> BUCKET_SHIFT) as usize]);
            let Some(Some(limit)) = self.flow_limits.get_mut(target) else { continue };
            let ring = &self.targets[target];
            if ring.occupied() >= ring.limit() as u64 / 2 && limit.is_over(FlowHash(hash)) {
                self.ledger.dropped.add(DropReason::FlowLimit, 1);
                self.rings[target].by_producer.flow_limit.add(1);
                let frame = frames.remove(at);
                self.take_home(frame);
            }
        }
        self.frames = frames;
    }

    fn count_parked(&self) {
        if self.parked.is_some() {
            let lot = &self.targets[self.lot()];
            self.ledger.parked.raise_to(lot.tail());
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn stage_slowly(&mut self, target: usize, frame: Completion, arrival: u64) {
        self.reclaim(target);
        if let Err(frame) = self.targets[target].stage(frame, arrival) {
            if target == self.lot() {
                self.ledger.dropped.add(DropReason::Moving, 1);
            } else {
                self.ledger.dropped.add(DropReason::BacklogFull, 1);
                self.rings[target].by_producer.backlog_full.add(1);
            }
            self.take_home(frame);
        }
    }
}
