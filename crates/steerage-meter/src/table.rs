//! | part | purpose and use |
//! |---|---|
//! | `index` | maps a packet's hash to a flow's place: touched by every packet |
//! | `flows` | the flows themselves, two cache lines each: touched by every packet |
//! | `wheel` | schedules the checks of flows: touched when a flow begins, ends or is checked |
//! | `buckets` | lists the flows that move together: touched when a flow begins or ends |

use std::sync::Arc;

use steerage::{BucketId, limits::BUCKETS, memory::HugeVec};

use super::flow::Flow;
use super::flow_limit::{FlowLimit, FlowSlots};
use super::index::Index;
use super::key::Key;
use super::lists::Lists;
use super::timeouts::{LATE_MAX, Timeouts, nanos};
use super::wheel::Wheel;

/// A flow with a packet since its last check is skipped once, as in the CLOCK algorithm (Corbato,
/// 1968).
const EVICTION_LOOKS: usize = 32;

pub(super) struct Table {
    index: Index,
    flows: HugeVec<Flow>,
    /// The last slot to become free is used first, because it is still in the cache.
    free: Vec<u32>,
    len: usize,
    wheel: Wheel,
    buckets: Lists,
    slots: FlowSlots,
    timeouts: Timeouts,
}

#[derive(Debug)]
pub(super) struct Departed {
    pub(super) flows: Vec<Flow>,
    slots: FlowSlots,
}

fn list_of(bucket: BucketId) -> usize {
    usize::from(bucket.group) * BUCKETS + usize::from(bucket.bucket)
}

impl Table {
    pub(super) fn new(timeouts: Timeouts, limit: &Arc<FlowLimit>) -> Self {
        let flows_max = limit.flows_max();
        Self {
            index: Index::new(),
            flows: HugeVec::with_capacity(flows_max),
            free: Vec::new(),
            len: 0,
            wheel: Wheel::new(timeouts.inactive.saturating_add(nanos(LATE_MAX)), flows_max),
            buckets: Lists::new(0, flows_max),
            slots: FlowSlots::none(limit),
            timeouts,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn candidate(&self, hash: u32) -> u32 {
        self.index.candidate(hash)
    }

    #[inline(always)]
    pub(super) fn at(&self, place: u32) -> Option<&Flow> {
        self.flows.get(place as usize)
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, place: u32) -> Option<&mut Flow> {
        self.flows.get_mut(place as usize)
    }

    #[inline(always)]
    pub(super) fn prefetch_candidate(&self, hash: u32) {
        self.index.prefetch(hash);
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, place: u32) {
        self.flows.prefetch(place as usize);
    }

    pub(super) fn find(&self, key: &Key, hash: u32) -> Option<u32> {
        self.index.find(hash, |place| self.at(place).is_some_and(|flow| flow.key == *key))
    }

    /// Takes a slot for one more flow. If no slot is free, evicts and returns an idle flow.
    pub(super) fn make_room(&mut self) -> Option<Flow> {
        if self.slots.take() {
            return None;
        }
        let evicted = self.longest_idle()?;
        Some(self.take_out(evicted))
    }

    /// If all CPUs together exceed the limit, removes and returns an idle flow, but never the last
    /// flow of the table. The caller must repeat this call until it returns `None`.
    pub(super) fn shed(&mut self) -> Option<Flow> {
        if !self.slots.is_surplus() || self.len <= 1 {
            return None;
        }
        let idle = self.longest_idle()?;
        Some(self.remove(idle))
    }

    /// Call [`make_room`](Self::make_room) first. The flow must not be in the table.
    pub(super) fn insert(&mut self, flow: Flow) {
        let place = self.free.pop().unwrap_or_else(|| self.new_place());
        self.index.insert(flow.hash, place);
        self.wheel.put(place, self.end_of(&flow));
        let list = list_of(flow.bucket);
        if list >= self.buckets.len() {
            self.buckets.extend_to((usize::from(flow.bucket.group) + 1) * BUCKETS);
        }
        self.buckets.push(list, place);
        self.flows[place as usize] = flow;
        self.len += 1;
    }

    fn new_place(&mut self) -> u32 {
        self.flows.push(Flow::vacant());
        self.flows.len() as u32 - 1
    }

    pub(super) fn remove(&mut self, place: u32) -> Flow {
        self.slots.give();
        self.take_out(place)
    }

    fn take_out(&mut self, place: u32) -> Flow {
        let flow = std::mem::replace(&mut self.flows[place as usize], Flow::vacant());
        self.index.remove(flow.hash, place);
        self.wheel.remove(place);
        self.buckets.remove(place);
        self.free.push(place);
        self.len -= 1;
        flow
    }

    fn end_of(&self, flow: &Flow) -> u64 {
        flow.last.saturating_add(flow.timeout(&self.timeouts)).saturating_add(flow.late())
    }

    pub(super) fn reschedule(&mut self, place: u32) {
        if let Some(end) = self.at(place).map(|flow| self.end_of(flow)) {
            self.wheel.remove(place);
            self.wheel.put(place, end);
        }
    }

    /// A flow that has timed out is removed and returned. Returns `Some(None)` if the flow
    /// continues, and `None` if no check is due.
    pub(super) fn look(&mut self, now: u64) -> Option<Option<Flow>> {
        let place = self.wheel.due(now)?;
        let flow = *self.at(place)?;
        if flow.is_gone(now, &self.timeouts) {
            return Some(Some(self.remove(place)));
        }
        self.wheel.later(place, self.end_of(&flow));
        Some(None)
    }

    /// Returns the first flow in the timing wheel without a packet since its last check. If
    /// [`EVICTION_LOOKS`] flows had packets, returns the next flow.
    fn longest_idle(&mut self) -> Option<u32> {
        for _ in 0..EVICTION_LOOKS {
            let place = self.wheel.next()?;
            let flow = self.at_mut(place)?;
            if !flow.take_used() {
                return Some(place);
            }
            self.reschedule(place);
        }
        self.wheel.next()
    }

    pub(super) fn depart(&mut self, bucket: BucketId) -> Option<Departed> {
        let list = list_of(bucket);
        self.buckets.first(list)?;
        let mut flows = Vec::new();
        while let Some(place) = self.buckets.first(list) {
            flows.push(self.take_out(place));
        }
        let slots = self.slots.split(flows.len());
        Some(Departed { flows, slots })
    }

    /// If a flow of a bucket that arrives is already in this table, its two entries are merged.
    pub(super) fn arrive(&mut self, bucket: BucketId, departed: Departed) {
        self.slots.absorb(departed.slots);
        for mut flow in departed.flows {
            flow.bucket = bucket;
            match self.find(&flow.key, flow.hash).and_then(|place| self.at_mut(place)) {
                Some(here) => {
                    here.merge(&flow);
                    self.slots.give();
                }
                None => self.insert(flow),
            }
        }
    }

    pub(super) fn into_flows(self) -> HugeVec<Flow> {
        self.flows
    }
}
