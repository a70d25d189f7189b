//! Runs one CPU's handler and catches its panics. The CPU's *gate* (the mark that the CPU runs a
//! handler) decides whether a batch counts: batches of a CPU that was declared dead do not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use steerage_flow::{FlowHash, LinkType, Timestamp, dissect::Dissections};
use steerage_mem::gate::{Dead, Gate};
use steerage_mem::ring::Hand;
use steerage_mem::{Spare, round};
use steerage_topology::CpuId;

use super::{Cpu, Handler};
use crate::backlog::Source;
use crate::coalesce;
use crate::ids::{CpuIndex, DropReason, TxId, TxSource};
use crate::limits::HANDLE_BUDGET;
use crate::packet::{Actions, Batch, BatchContext};
use crate::rps_map::bucket_of;
use crate::shared::Shared;
use crate::tx::{Outgoing, OwnedTx};
use steerage_ledger::CpuLedger;

/// An output that does not exist is logged only once, because a handler usually sends every packet
/// to the same output.
static NO_OUTPUT: Once = Once::new();

/// Creates a CPU's handler, on the thread of that CPU.
pub type MakeHandler<H> = Arc<dyn Fn(CpuId) -> H + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Returned,
    Panicked,
    Void,
}

pub(crate) struct Runner<H: Handler> {
    pub(crate) index: CpuIndex,
    pub(crate) shared: Arc<Shared>,
    handler: H,
    make: MakeHandler<H>,
    pub(crate) cpu: Cpu,
    pub(crate) outputs: Vec<OwnedTx>,
    pub(crate) next_tick: Option<Timestamp>,
    actions: Actions,
    dissections: Dissections,
    spare: Spare,
    arrivals: Vec<(usize, u64)>,
    ended: Ended,
    merged: Option<usize>,
}

impl<H: Handler> Runner<H> {
    pub(crate) fn new(
        index: CpuIndex,
        shared: &Arc<Shared>,
        make: MakeHandler<H>,
        outputs: Vec<OwnedTx>,
        cpu: Cpu,
    ) -> Self {
        Self {
            index,
            shared: Arc::clone(shared),
            handler: make(cpu.id),
            make,
            cpu,
            outputs,
            next_tick: Some(Timestamp::ZERO),
            actions: Actions::new(),
            dissections: Dissections::of_batches(HANDLE_BUDGET),
            spare: Spare::new(Arc::clone(&shared.pools[usize::from(index)])),
            arrivals: Vec::with_capacity(HANDLE_BUDGET),
            ended: Ended::Returned,
            merged: None,
        }
    }

    fn gate(&self) -> &Gate {
        &self.shared.gates[usize::from(self.index)]
    }

    pub(crate) fn ledger(&self) -> &CpuLedger {
        &self.shared.ledgers.cpus[usize::from(self.index)]
    }

    /// Shows other CPUs that this CPU runs a handler, or returns an error if this CPU was declared
    /// dead.
    pub(crate) fn enter(&mut self) -> Result<(), Dead> {
        let entered = self.gate().enter(self.cpu.now.as_nanos());
        if entered.is_err() {
            self.ended = Ended::Void;
        }
        entered
    }

    pub(crate) fn skip(&mut self) {
        self.ended = Ended::Void;
    }

    #[inline]
    pub(crate) fn handle(&mut self, source: &Source, mut hand: Hand<'_>) {
        if source.order.is_some() {
            self.arrivals.clear();
            self.arrivals.extend(hand.frames().map(|frame| {
                let link = LinkType::of_code(frame.link());
                let hash = frame.hash().map(FlowHash);
                let hash = hash.unwrap_or_else(|| source.hasher.hash_one(frame.bytes(), link));
                (usize::from(bucket_of(hash)), frame.arrival().unwrap_or(0))
            }));
        }
        if source.coalesces {
            self.merged = coalesce::merge(&mut hand, &mut self.actions, source, &self.spare);
            if let Some(packets) = self.merged {
                return hand.with_first(packets, |hand| self.call_handle(source, hand));
            }
        }
        self.call_handle(source, hand);
    }

    #[inline(always)]
    fn call_handle(&mut self, source: &Source, hand: Hand<'_>) {
        let group = self.shared.ledgers.queues[source.queue].group();
        let context = BatchContext { source, group, spare: &self.spare, dissections: &self.dissections };
        let mut batch = Batch::new(hand, &mut self.actions, context);
        let (handler, cpu) = (&mut self.handler, &mut self.cpu);
        let outside = round::leave();
        self.ended = match catch_unwind(AssertUnwindSafe(|| handler.handle(&mut batch, cpu))) {
            Ok(()) => Ended::Returned,
            Err(_) => Ended::Panicked,
        };
        drop(outside);
    }

    /// Leaves the gate (which shows that this CPU runs a handler), counts the verdicts, and sends
    /// packets. The caller must finish the frames of the batch after `finish_batch`. Returns true
    /// if this CPU was declared dead during the batch.
    pub(crate) fn finish_batch(&mut self, source: &Source, mut hand: Hand<'_>) -> bool {
        // A dead CPU's buckets may already be on other CPUs.
        let died = self.ended != Ended::Void && self.gate().leave() == Err(Dead);
        if died {
            self.ended = Ended::Void;
        }
        let count = hand.len() as u64;
        let counts = &source.ledger.by_consumer;
        counts.finished.add(count);
        if self.ended == Ended::Void {
            counts.dropped.add(DropReason::Revoked, count);
        } else {
            let mut open = count;
            if self.actions.any() {
                let count = hand.len();
                open -= match self.merged.take() {
                    None => self.act(source, hand, count),
                    Some(packets) => {
                        let Self { actions, spare, outputs, .. } = self;
                        let (seen, lost) = coalesce::settle(&mut hand, actions, (source, spare), (packets, outputs));
                        lost + hand.with_first(seen, |hand| self.act(source, hand, count))
                    }
                };
            }
            match self.ended {
                Ended::Panicked => counts.dropped.add(DropReason::HandlerPanicked, open),
                _ => counts.consumed.add(open),
            }
            if let Some(order) = &source.order {
                let late = self.arrivals.iter().filter(|(bucket, arrival)| order.completed(*bucket, *arrival)).count();
                counts.reordered.add(late as u64);
            }
        }
        // Packets are sent before the batch is finished, because the CPU to which a flow moves may
        // send the flow's next packets as soon as the batch is finished.
        self.send_originated(self.ended == Ended::Void);
        self.actions.clear();
        self.dissections.clear();
        if self.ended == Ended::Panicked {
            self.rebuild("handle");
        }
        died
    }

    pub(crate) fn tick(&mut self) -> Result<(), Dead> {
        let next = self.call("tick", Handler::tick)?;
        self.next_tick = next.unwrap_or(Some(self.cpu.now));
        self.send_originated(false);
        Ok(())
    }

    /// Calls a function of the handler (any except `handle`). Returns `None` if the function
    /// panicked and a new handler was created, or an error if this CPU was declared dead.
    pub(crate) fn call<R>(
        &mut self,
        what: &'static str,
        part: impl FnOnce(&mut H, &mut Cpu) -> R,
    ) -> Result<Option<R>, Dead> {
        self.gate().enter(self.cpu.now.as_nanos())?;
        let (handler, cpu) = (&mut self.handler, &mut self.cpu);
        let outside = round::leave();
        let result = catch_unwind(AssertUnwindSafe(|| part(handler, cpu)));
        drop(outside);
        if self.gate().leave() == Err(Dead) {
            self.send_originated(true);
            return Err(Dead);
        }
        if result.is_err() {
            self.rebuild(what);
        }
        Ok(result.ok())
    }

    /// Sends the packets that the handler originated, or drops them if `void` is true (this CPU was
    /// declared dead), and sets the next tick.
    #[inline]
    pub(crate) fn send_originated(&mut self, void: bool) {
        let ledger = &self.shared.ledgers.cpus[usize::from(self.index)];
        self.cpu.origin.send(&mut self.outputs, self.cpu.now, void, ledger);
        if let Some(by) = self.cpu.tick_by.take() {
            self.next_tick = Some(self.next_tick.map_or(by, |next| next.min(by)));
        }
    }

    #[inline(never)]
    fn act(&mut self, source: &Source, mut hand: Hand<'_>, count: usize) -> u64 {
        let counts = &source.ledger.by_consumer;
        let when = (self.cpu.now, TxSource::queue(source.queue));
        let tally = self.actions.tally(count);
        counts.discarded.add(tally.discarded);
        counts.kept.add(tally.kept);
        let mut acted = tally.discarded + tally.kept;
        for (nth, packets) in tally.transmitted.iter().enumerate().filter(|(_, packets)| **packets > 0) {
            let (to, packets) = (TxId(nth as u8), u64::from(*packets));
            acted += packets;
            let Some(output) = self.outputs.get_mut(nth) else {
                NO_OUTPUT.call_once(|| {
                    tracing::error!("a handler sends to output {nth}, which does not exist: see add_output")
                });
                counts.dropped.add(DropReason::TxRefused, packets);
                continue;
            };
            let fate = output.send(packets, &mut Outgoing::new(hand.frames(), self.actions.each(), to, when));
            fate.dropped.iter().for_each(|(reason, packets)| counts.dropped.add(reason, packets));
            counts.transmitted.add(fate.sent);
        }
        acted
    }

    fn rebuild(&mut self, during: &'static str) {
        self.ledger().panics.add(1);
        tracing::error!(cpu = self.cpu.id.0, during, "handler panicked; it is built anew");
        self.replace();
    }

    pub(crate) fn replace(&mut self) {
        let _outside = round::leave();
        let new = (self.make)(self.cpu.id);
        let old = std::mem::replace(&mut self.handler, new);
        // A handler that has panicked may panic again when it is dropped, and leak its memory.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
        self.next_tick = Some(self.cpu.now);
    }

    pub(crate) fn is_output_full(&self) -> bool {
        self.outputs.iter().any(OwnedTx::is_full)
    }

    pub(crate) fn flush_outputs(&mut self) {
        self.outputs.iter_mut().for_each(OwnedTx::flush);
    }

    pub(crate) fn finish(self) -> H::Report {
        let Self { index, shared, handler, mut cpu, mut outputs, spare, .. } = self;
        let report = handler.finish(&mut cpu);
        let ledger = &shared.ledgers.cpus[usize::from(index)];
        cpu.origin.send_last(&mut outputs, index, cpu.now, ledger);
        cpu.origin.close();
        spare.close();
        outputs.iter_mut().for_each(OwnedTx::flush);
        outputs.iter_mut().for_each(OwnedTx::close);
        report
    }
}
