//! Packets of a function's own making: an answer in several parts, or something said when its time has come.
//!
//! They lie in pages that this CPU has for nothing else, and go to the outputs as a batch's packets do: by a ring whose both
//! ends are this CPU's, so that an output takes them, and their pages, as any others.

use std::fmt;
use std::sync::Arc;

use steerage_mem::ring::{Consumer, Producer, RingOptions, ring};
use steerage_mem::{Completion, Memory, Page, Region};

use crate::ledger::CpuLedger;
use crate::limits::{HANDLE_BUDGET, HEADROOM};
use crate::packet::{NoRoom, Verdict};
use crate::platform::Timestamp;
use crate::pool::SharedPool;
use crate::rx::LinkType;
use crate::tx::{Outgoing, OwnedTx, TxId, TxSource};

/// One CPU's packets of its function's own making.
pub(crate) struct Origin {
    region: Arc<Region>,
    shared: Arc<SharedPool>,
    pages: Vec<Page>,
    producer: Producer,
    consumer: Consumer,
    /// Where each staged packet goes, in their order.
    to: Vec<Verdict>,
    source: TxSource,
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin of {} packets", self.to.len())
    }
}

impl Origin {
    /// With `packets` pages of the pool, of which `region` is.
    pub(crate) fn new(region: &Arc<Region>, shared: &Arc<SharedPool>, packets: usize, source: TxSource) -> Self {
        let options = RingOptions { slots: packets, limit: packets, arrivals: false };
        let (producer, consumer) = ring(options, Memory::new(Arc::clone(region), None));
        let mut pages = Vec::with_capacity(packets);
        shared.take(&mut pages, packets);
        let (region, shared) = (Arc::clone(region), Arc::clone(shared));
        Self { region, shared, pages, producer, consumer, to: Vec::with_capacity(packets), source }
    }

    /// How many packets more there is room for.
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
        let mut whole = Completion::new(page, HEADROOM as u32, frame.len());
        whole.set_link(link.code());
        // There are as many slots as pages.
        let staged = self.producer.stage(whole, 0);
        debug_assert!(staged.is_ok());
        self.to.push(Verdict::Transmitted(to));
        Ok(())
    }

    /// Sends what was staged, in order; or, where the CPU was declared dead meanwhile, does not.
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

    /// It is over: the pages go home.
    pub(crate) fn close(&mut self) {
        self.shared.give(&mut self.pages);
    }
}
