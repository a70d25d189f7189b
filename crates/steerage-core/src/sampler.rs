//! Samples the CPU time of receiving and handling, if the policy measures load:
//!
//! - the time spent receiving, in one of [`RECEIVE_TIMED_ONCE_IN`] rounds;
//! - the time of the handler for a single packet, in one of [`TIMED_ONCE_IN`] batches;
//! - the load of the buckets, for which one frame represents all frames of a poll (in `steer`).
//!
//! The samples only decide which buckets move; the exactly measured work of CPUs decides whether
//! buckets move.

use std::time::Duration;

use steerage_flow::{FlowHash, LinkType, Timestamp, dissect, dissect::Layers};
use steerage_mem::ring::Hand;

use crate::cpu::Cpu;
use crate::ids::BucketId;
use crate::limits::{FLOWS_SEEN_MAX, RECEIVE_TIMED_ONCE_IN, TIMED_MAX, TIMED_ONCE_IN};
use crate::rps_map::bucket_of;
use crate::shared::Shared;
use steerage_ledger::CpuLedger;

pub(crate) struct Sampler {
    is_on: bool,
    nth_round: u32,
    nth_batch: u32,
    /// The packet that is timed: its start time, its queue, and its bucket (if known).
    timed: Option<(Timestamp, usize, Option<u16>)>,
    mean: u64,
    to_name: Vec<BucketId>,
}

impl Sampler {
    pub(crate) fn new() -> Self {
        let to_name = Vec::with_capacity(FLOWS_SEEN_MAX);
        Self { is_on: false, nth_round: 0, nth_batch: 0, timed: None, mean: 0, to_name }
    }

    pub(crate) fn follow(&mut self, is_on: bool, to_name: &[BucketId]) {
        self.is_on = is_on;
        self.to_name.clear();
        self.to_name.extend(to_name.iter().take(FLOWS_SEEN_MAX));
    }

    #[inline]
    pub(crate) fn wants_one_alone(&mut self) -> bool {
        self.nth_batch = self.nth_batch.wrapping_add(1);
        self.is_on && self.nth_batch % TIMED_ONCE_IN == 0
    }

    pub(crate) fn begin(&mut self, queue: usize, hand: &mut Hand<'_>, shared: &Shared, now: Timestamp) {
        let hash = hand.frames().next().and_then(|frame| frame.hash());
        if !self.to_name.is_empty() {
            name_flow(shared, queue, hand, &self.to_name);
        }
        self.timed = Some((now, queue, hash.map(|hash| bucket_of(FlowHash(hash)))));
    }

    #[inline]
    pub(crate) fn is_timing(&self) -> bool {
        self.timed.is_some()
    }

    #[inline]
    pub(crate) fn end(&mut self, shared: &Shared, now: Timestamp) {
        let Some((since, queue, Some(bucket))) = self.timed.take() else { return };
        let took = now.since(since).as_nanos() as u64;
        let took = if self.mean > 0 { took.min(self.mean * TIMED_MAX) } else { took };
        self.mean = if self.mean > 0 { (self.mean * 15 + took) / 16 } else { took };
        shared.ledgers.queues[queue].ledger.timed.add(bucket, took);
    }

    #[inline]
    pub(crate) fn times_receiving(&mut self) -> bool {
        if !self.is_on {
            return false;
        }
        self.nth_round = self.nth_round.wrapping_add(1);
        self.nth_round % RECEIVE_TIMED_ONCE_IN == 0
    }

    pub(crate) fn received_in(&self, took: Duration, ledger: &CpuLedger) {
        ledger.receive_nanos.add(took.as_nanos() as u64 * u64::from(RECEIVE_TIMED_ONCE_IN));
    }
}

/// Records the duration of a batch, which is the time since this CPU last read the clock.
#[inline(always)]
pub(crate) fn note_batch(ledger: &CpuLedger, cpu: &Cpu, now: Timestamp) {
    if ledger.note_batch(now.as_nanos().saturating_sub(cpu.now.as_nanos())) {
        let took = now.since(cpu.now);
        tracing::warn!(cpu = cpu.id.0, ?took, "a batch took long, and its CPU received nothing meanwhile");
    }
}

#[cold]
#[inline(never)]
fn name_flow(shared: &Shared, queue: usize, hand: &mut Hand<'_>, to_name: &[BucketId]) {
    let group = shared.ledgers.queues[queue].group();
    let Some(frame) = hand.frames().next() else { return };
    let Some(hash) = frame.hash() else { return };
    let bucket = BucketId { group, bucket: bucket_of(FlowHash(hash)) };
    if !to_name.contains(&bucket) {
        return;
    }
    let flow = dissect::dissect(frame.bytes(), LinkType::of_code(frame.link()), Layers::Inner).key;
    if let Some(mut state) = shared.steering.try_lock() {
        state.saw_flow(bucket, flow);
    }
}
