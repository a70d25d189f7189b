//! Packets that a function originates, such as an answer in several parts, or a timer's message.
//!
//! Originated packets lie in pages that their CPU uses only for this purpose. They go to the
//! outputs through a ring of which this CPU has both ends. So an output accepts originated packets,
//! and can swap their pages, like any other packets. Originated packets leave after the packets
//! that the batch transmits and before the batch counts as finished, so the fence of a move covers
//! them. If the CPU was declared dead, originated packets are dropped, like packets with verdicts.

use std::fmt;
use std::sync::Arc;

use crate::ids::{TxId, TxSource, Verdict};
use crate::limits::{HANDLE_BUDGET, HEADROOM};
use crate::packet::NoRoom;
use crate::tx::{Outgoing, OwnedTx};
use steerage_flow::{LinkType, Timestamp};
use steerage_ledger::CpuLedger;
use steerage_mem::SharedPool;
use steerage_mem::ring::{Consumer, Producer, RingOptions, ring};
use steerage_mem::{Completion, Memory, Page, Region};

pub(crate) struct Origin {
    region: Arc<Region>,
    shared: Arc<SharedPool>,
    pages: Vec<Page>,
    producer: Producer,
    consumer: Consumer,
    to: Vec<Verdict>,
    source: TxSource,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin of {} packets", self.to.len())
    }
}

impl Origin {
    /// Takes `packets` pages of the pool, which must be pages of `region`.
    pub(crate) fn new(region: &Arc<Region>, shared: &Arc<SharedPool>, packets: usize, source: TxSource) -> Self {
        let options = RingOptions { slots: packets, slots_max: packets, limit: packets, arrivals: false };
        let (producer, consumer) = ring(options, Memory::new(Arc::clone(region), None));
        let mut pages = Vec::with_capacity(packets);
        shared.take(&mut pages, packets);
        let (region, shared) = (Arc::clone(region), Arc::clone(shared));
        Self { region, shared, pages, producer, consumer, to: Vec::with_capacity(packets), source }
    }

    pub(crate) fn room(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn stage(&mut self, to: TxId, link: LinkType, frame: &[u8]) -> Result<(), NoRoom> {
        let mut page = self.pages.pop().ok_or(NoRoom)?;
        let room = self.region.page_mut(&mut page).get_mut(HEADROOM..).and_then(|room| room.get_mut(..frame.len()));
        let Some(room) = room else {
            self.pages.push(page);
            return Err(NoRoom);
        };
        room.copy_from_slice(frame);
        let mut whole = Completion::new(page, HEADROOM, frame.len());
        whole.set_link(link.code());
        let staged = self.producer.stage(whole, 0);
        debug_assert!(staged.is_ok());
        self.to.push(Verdict::Transmitted(to));
        Ok(())
    }

    /// Sends the staged packets in order, or drops them if `void` (the CPU was declared dead).
    #[inline]
    pub(crate) fn send(&mut self, outputs: &mut [OwnedTx], now: Timestamp, void: bool, counts: &CpuLedger) {
        if !self.to.is_empty() {
            self.send_all(outputs, now, void, counts);
        }
    }

    #[inline(never)]
    fn send_all(&mut self, outputs: &mut [OwnedTx], now: Timestamp, void: bool, counts: &CpuLedger) {
        self.producer.publish();
        let mut to = self.to.as_slice();
        loop {
            let (these, rest) = to.split_at(self.consumer.take(HANDLE_BUDGET).min(to.len()));
            if these.is_empty() {
                break;
            }
            to = rest;
            let (mut sent, mut deferred) = (0, 0);
            for (nth, output) in outputs.iter_mut().enumerate() {
                let id = TxId(nth as u8);
                let count = these.iter().filter(|verdict| **verdict == Verdict::Transmitted(id)).count() as u64;
                if count > 0 && !void {
                    let frames = self.consumer.frames();
                    let mut packets = Outgoing {
                        frames,
                        verdicts: these.iter(),
                        copies: [].iter(),
                        to: id,
                        now,
                        source: self.source,
                    };
                    let fate = output.send(count, &mut packets);
                    sent += fate.sent;
                    deferred += fate.deferred;
                }
            }
            counts.originated.add(sent);
            counts.originated_dropped.add(these.len() as u64 - sent - deferred);
            self.consumer.finish();
        }
        self.to.clear();
        let pages = &mut self.pages;
        self.producer.reclaim(|frame| pages.extend(frame.into_page().ok()));
    }

    pub(crate) fn close(&mut self) {
        self.shared.give(&mut self.pages);
    }
}
