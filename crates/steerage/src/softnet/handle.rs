//! A batch in the handler, and what becomes of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use steerage_mem::ring::Consumer;

use super::{Handled, Inbound, Softnet};
use crate::flow::{self, Layers};
use crate::gate::Dead;
use crate::handler::{BucketId, Handler};
use crate::ledger::{ConsumerLedger, DropReason};
use crate::limits::{HANDLE_BUDGET, TIMED_MAX, TIMED_ONCE_IN};
use crate::packet::{Actions, Batch, BatchContext};
use crate::platform::{Platform, Timestamp};
use crate::rps_map::bucket_of;
use crate::rx::LinkType;
use crate::shared::Shared;
use crate::tx::{OwnedTx, TxId, TxSource};

/// Counts what was done with the packets in hand, and sends those that are to be sent. Returns how many these were in all.
#[inline(never)]
fn act(
    actions: &Actions,
    frames: &mut Consumer,
    outputs: &mut [OwnedTx],
    when: (Timestamp, TxSource),
    counts: &ConsumerLedger,
) -> u64 {
    let tally = actions.tally(frames.in_hand());
    counts.discarded.add(tally.discarded);
    counts.kept.add(tally.kept);
    let mut acted = tally.discarded + tally.kept;
    for (nth, packets) in tally.transmitted.iter().enumerate().filter(|(_, packets)| **packets > 0) {
        let (to, packets) = (TxId(nth as u8), u64::from(*packets));
        acted += packets;
        let Some(output) = outputs.get_mut(nth) else {
            counts.dropped.add(DropReason::TxRefused, packets);
            continue;
        };
        let fate = output.send(packets, &mut actions.outgoing(frames.frames(), to, when));
        fate.dropped.iter().for_each(|(reason, packets)| counts.dropped.add(*reason, *packets));
        counts.transmitted.add(fate.sent);
    }
    acted
}

/// The packet in hand may be of an elephant.
#[cold]
#[inline(never)]
fn name_flow<M>(shared: &Shared<M>, ring: &mut Inbound, to_name: &[BucketId]) {
    let group = shared.core.queues[ring.queue].group.load(Ordering::Relaxed);
    let Some(frame) = ring.consumer.frames().next() else { return };
    let Some(hash) = frame.hash() else { return };
    let bucket = BucketId { group, bucket: bucket_of(hash) };
    if !to_name.contains(&bucket) {
        return;
    }
    let flow = flow::dissect(frame.bytes(), LinkType::of_code(frame.link()), Layers::Inner).key;
    if let Some(mut state) = shared.steering.try_lock() {
        state.note_flow(bucket, flow);
    }
}

impl<H: Handler, P: Platform> Softnet<H, P> {
    pub(super) fn handle(&mut self, nth: usize) {
        let at = self.ring(nth);
        let ring = &mut self.inbound[at];
        let waiting = ring.consumer.waiting();
        self.shared.core.cpu_ledgers[usize::from(self.index)].backlog_max.raise_to(waiting);
        self.worked = true;
        let revoked = ring.consumer.revoked();
        if revoked > 0 {
            self.handled_as = Handled::Revoked;
            ring.consumer.take(HANDLE_BUDGET.min(revoked as usize));
            return;
        }
        if self.shared.core.gates[usize::from(self.index)].enter(self.cpu.now.as_nanos()) == Err(Dead) {
            self.rise();
            // Nothing is in hand; the backlog is looked at anew in the next round.
            self.handled_as = Handled::Revoked;
            return;
        }
        self.nth_batch = self.nth_batch.wrapping_add(1);
        let alone = self.measures && self.nth_batch % TIMED_ONCE_IN == 0;
        let most = if alone { 1 } else { self.limits.dev_weight };
        // Whoever lends frames on this CPU has just written their headers.
        let cached = ring.lent && at < self.own_rings;
        let taken = if cached { ring.consumer.take_cached(most) } else { ring.consumer.take(most) };
        if alone {
            let hash = ring.consumer.frames().next().and_then(|frame| frame.hash());
            if !self.to_name.is_empty() {
                name_flow(&self.shared, ring, &self.to_name);
            }
            self.timed = Some((self.platform.now(), hash.map(bucket_of)));
        }
        self.full |= taken >= self.limits.dev_weight;
        self.handled += taken;
        self.round_handled += taken;
        if ring.order.is_some() {
            self.numbers.clear();
            self.numbers.extend(ring.consumer.frames().map(|frame| {
                let link = LinkType::of_code(frame.link());
                let hash = frame.hash().unwrap_or_else(|| ring.hashing.hash_one(frame.bytes(), link));
                (usize::from(bucket_of(hash)), frame.arrival().unwrap_or(0))
            }));
        }
        let context = BatchContext {
            lent: ring.lent,
            group: self.shared.core.queues[ring.queue].group.load(Ordering::Relaxed),
            queue: ring.queue,
            home: &ring.home,
            spare: &self.spare,
            hashing: &ring.hashing,
        };
        let mut batch = Batch::new(&mut ring.consumer, &mut self.actions, context);
        let (handler, cpu) = (&mut self.handler, &mut self.cpu);
        // What was done with each packet is noted in `actions`, which a panic leaves as it is.
        self.handled_as = match catch_unwind(AssertUnwindSafe(|| handler.handle(&mut batch, cpu))) {
            Ok(()) => Handled::Returned,
            Err(_) => Handled::Panicked,
        };
    }

    pub(super) fn finish_batch(&mut self, nth: usize) {
        let at = self.ring(nth);
        let own = at < self.own_rings;
        let mut handled_as = self.handled_as;
        let mut died = false;
        if handled_as != Handled::Revoked && self.shared.core.gates[usize::from(self.index)].leave() == Err(Dead) {
            // Declared dead meanwhile: others may have the buckets by now, so nothing of this counts.
            (handled_as, died) = (Handled::Revoked, true);
        }
        let ring = &mut self.inbound[at];
        let count = ring.consumer.in_hand();
        let counts = &ring.ledger.by_consumer;
        if handled_as == Handled::Revoked {
            counts.dropped.add(DropReason::Revoked, count as u64);
        } else {
            let mut open = count as u64;
            if self.actions.any() {
                let when = (self.cpu.now, TxSource::queue(ring.queue));
                open -= act(&self.actions, &mut ring.consumer, &mut self.outputs, when, counts);
            }
            match handled_as {
                Handled::Panicked => counts.dropped.add(DropReason::HandlerPanicked, open),
                _ => counts.consumed.add(open),
            }
            if let Some(order) = &ring.order {
                let late = self.numbers.iter().filter(|(bucket, arrival)| order.completed(*bucket, *arrival)).count();
                counts.reordered.add(late as u64);
            }
        }
        // Before the batch counts as finished: who has the flow next sends behind this.
        self.send_originated(handled_as == Handled::Revoked);
        let ring = &mut self.inbound[at];
        ring.consumer.finish();
        self.actions.clear();
        let wakes_owner = ring.can_wait && !own && ring.consumer.producer_waits();
        let owner = usize::from(ring.owner);

        let ledger = &self.shared.core.cpu_ledgers[usize::from(self.index)];
        ledger.processed.add(count as u64);
        if own {
            ledger.inline.add(count as u64);
        } else {
            ledger.handed_in.add(count as u64);
        }
        if wakes_owner && self.shared.core.wake(owner) {
            ledger.wakes_sent.add(1);
        }
        if handled_as == Handled::Panicked {
            self.rebuild_handler("handle");
        }
        if died {
            self.rise();
        }
    }

    /// The packet that was handled alone: how long it took. Returns whether there is more where it came from.
    pub(super) fn note_time(&mut self, nth: usize) -> bool {
        let Some((since, bucket)) = self.timed.take() else { return false };
        let at = self.ring(nth);
        let ring = &mut self.inbound[at];
        let more = ring.consumer.waiting() > 0;
        // Without a hash nobody knows whose it was. The rest is to go on all the same: left over, it would always be there, and
        // with it a poll's pages more.
        let Some(bucket) = bucket else { return more };
        let took = self.cpu.now.since(since).as_nanos() as u64;
        // Beyond that the CPU was doing something else meanwhile.
        let took = if self.timed_mean > 0 { took.min(self.timed_mean * TIMED_MAX) } else { took };
        self.timed_mean = if self.timed_mean > 0 { (self.timed_mean * 15 + took) / 16 } else { took };
        self.shared.core.queues[ring.queue].ledger.timed.add(bucket, took);
        more
    }

    /// The handler panicked, or its CPU was declared dead: it cannot be trusted any more.
    pub(crate) fn rebuild_handler(&mut self, during: &'static str) {
        self.ledger().panics.add(1);
        tracing::error!(cpu = self.cpu.id.0, during, "handler panicked; it is built anew");
        self.replace_handler();
    }

    pub(crate) fn replace_handler(&mut self) {
        let new = (self.make)(self.cpu.id);
        let old = std::mem::replace(&mut self.handler, new);
        // A handler that panicked may panic again when dropped; its memory is then leaked by its own doing.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
        self.next_tick = Some(self.cpu.now);
    }
}
