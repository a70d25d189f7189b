//! Packets that a function originates, such as an answer in several parts, or a timer's message.
//!
//! Originated packets lie in pages that their CPU uses only for this purpose. They go to the
//! outputs through a lane of this CPU. So an output accepts originated packets, and can swap their
//! pages, like any other packets. Originated packets leave after the packets
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
use steerage_mem::ring::Lane;
use steerage_mem::{Completion, Memory, Page, Region};

pub(crate) struct Origin {
    region: Arc<Region>,
    shared: Arc<SharedPool>,
    pages: Vec<Page>,
    lane: Lane,
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
        let lane = Lane::new(packets, false, Memory::new(Arc::clone(region), None));
        let mut pages = Vec::with_capacity(packets);
        shared.take(&mut pages, packets);
        let (region, shared) = (Arc::clone(region), Arc::clone(shared));
        Self { region, shared, pages, lane, to: Vec::with_capacity(packets), source }
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
        self.lane.push(whole, 0);
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
        let mut to = self.to.as_slice();
        loop {
            let (these, rest) = to.split_at(self.lane.take(HANDLE_BUDGET, false).len().min(to.len()));
            if these.is_empty() {
                break;
            }
            to = rest;
            let (mut sent, mut deferred) = (0, 0);
            for (nth, output) in outputs.iter_mut().enumerate() {
                let id = TxId(nth as u8);
                let count = these.iter().filter(|verdict| **verdict == Verdict::Transmitted(id)).count() as u64;
                if count > 0 && !void {
                    let (mut hand, when) = (self.lane.hand(), (now, self.source));
                    let mut packets = Outgoing::new(hand.frames(), (these.iter(), [].iter()), id, when);
                    let fate = output.send(count, &mut packets);
                    sent += fate.sent;
                    deferred += fate.deferred;
                }
            }
            counts.originated.add(sent);
            counts.originated_dropped.add(these.len() as u64 - sent - deferred);
            self.lane.finish(|frames| frames.for_each(|frame| self.pages.extend(frame.into_page().ok())));
        }
        self.to.clear();
    }

    pub(crate) fn close(&mut self) {
        self.shared.give(&mut self.pages);
    }
}
