//! Packets that a packet function originates, such as an answer.
//!
//! Each CPU has pages for originated packets. Originated packets reach the outputs through a lane,
//! like packets that this CPU has received, so that an output can swap their pages. Originated
//! packets are sent after the transmitted packets of the batch, and before the batch counts as
//! finished, so that a move waits until they are sent. If the CPU was declared dead, originated
//! packets are dropped.
//!
//! To send a kept packet, the CPU stages an empty frame in one of its pages for originated packets.
//! Instead of the empty frame, the output sends the kept packet from the packet's own pages.
//! Packets of [`Sender`](crate::sender::Sender)s are sent like kept packets.

use std::sync::Arc;

use crate::ids::{CpuIndex, TxId, TxSource, Verdict};
use crate::kept::Kept;
use crate::limits::{HANDLE_BUDGET, HEADROOM};
use crate::packet::NoRoom;
use crate::sender::{Item, SendQueue};
use crate::tx::{Outgoing, OwnedTx};
use steerage_flow::{LinkType, Timestamp};
use steerage_ledger::CpuLedger;
use steerage_mem::SharedPool;
use steerage_mem::ring::Lane;
use steerage_mem::{Completion, Kept as WrittenCopy, Memory, Page, Region};

pub(crate) struct Origin {
    region: Arc<Region>,
    shared: Arc<SharedPool>,
    pages: Vec<Page>,
    lane: Lane,
    to: Vec<Verdict>,
    kept: Vec<Option<WrittenCopy>>,
    pub(crate) senders: Vec<(Arc<SendQueue>, u64)>,
    source: TxSource,
}

impl Origin {
    pub(crate) fn new(
        region: &Arc<Region>,
        shared: &Arc<SharedPool>,
        packets: usize,
        source: TxSource,
        senders: Vec<Arc<SendQueue>>,
    ) -> Self {
        let lane = Lane::new(packets, false, Memory::new(Arc::clone(region), None));
        let mut pages = Vec::with_capacity(packets);
        shared.take(&mut pages, packets);
        let (region, shared) = (Arc::clone(region), Arc::clone(shared));
        let (to, kept) = (Vec::with_capacity(packets), Vec::with_capacity(packets));
        let senders = senders.into_iter().map(|sender| (sender, 0)).collect();
        Self { region, shared, pages, lane, to, kept, senders, source }
    }

    pub(crate) fn room(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn stage(&mut self, to: TxId, link: LinkType, frame: &[u8]) -> Result<(), NoRoom> {
        let mut page = self.pages.pop().ok_or(NoRoom::OriginatedMax)?;
        let room = self.region.page_mut(&mut page).get_mut(HEADROOM..).and_then(|room| room.get_mut(..frame.len()));
        let Some(room) = room else {
            self.pages.push(page);
            return Err(NoRoom::TooLong);
        };
        room.copy_from_slice(frame);
        self.push(to, link.code(), Completion::new(page, HEADROOM, frame.len()), None);
        Ok(())
    }

    pub(crate) fn stage_kept(&mut self, to: TxId, mut packet: Kept) -> Result<(), Kept> {
        if self.pages.is_empty() || !packet.frame.linearise() {
            return Err(packet);
        }
        let Some(page) = self.pages.pop() else { return Err(packet) };
        let link = packet.frame.link();
        self.push(to, link, Completion::new(page, HEADROOM, 0), Some(packet.frame));
        Ok(())
    }

    fn push(&mut self, to: TxId, link: u8, mut whole: Completion, kept: Option<WrittenCopy>) {
        whole.set_link(link);
        self.lane.push(whole, 0);
        self.to.push(Verdict::Transmitted(to));
        self.kept.push(kept);
    }

    /// Stages the packets that other threads have passed to this CPU, while pages are free. Drops
    /// and counts packets that cannot be sent. Returns true if more packets may be waiting.
    pub(crate) fn pull(&mut self, cpu: CpuIndex, closes: bool, counts: &CpuLedger) -> bool {
        let mut senders = std::mem::take(&mut self.senders);
        let mut is_more = false;
        for (sender, taken) in &mut senders {
            is_more |= sender.waiting.take(cpu, closes, taken, |item| {
                if self.pages.is_empty() {
                    return Err(item);
                }
                let (is_staged, buffer) = match item {
                    Item::Kept(packet) => (self.stage_kept(sender.to, packet).is_ok(), None),
                    Item::Copy(link, bytes) => (self.stage(sender.to, link, &bytes).is_ok(), Some(bytes)),
                };
                counts.originated_dropped.add(u64::from(!is_staged));
                // The emptied buffer returns to the sender, unless another thread holds the lock.
                let _ = sender.buffers.try_lock().map(|mut buffers| buffers.extend(buffer));
                Ok(())
            });
        }
        self.senders = senders;
        is_more
    }

    pub(crate) fn report_sent(&self, cpu: CpuIndex) {
        self.senders.iter().for_each(|(sender, taken)| sender.waiting.sent(cpu, *taken));
    }

    #[inline]
    pub(crate) fn send(&mut self, outputs: &mut [OwnedTx], now: Timestamp, void: bool, counts: &CpuLedger) {
        if !self.to.is_empty() {
            self.send_all(outputs, now, void, counts);
        }
    }

    #[inline(never)]
    fn send_all(&mut self, outputs: &mut [OwnedTx], now: Timestamp, void: bool, counts: &CpuLedger) {
        let (mut to, mut kept) = (self.to.as_slice(), self.kept.as_slice());
        loop {
            let (these, rest) = to.split_at(self.lane.take(HANDLE_BUDGET, false).len().min(to.len()));
            if these.is_empty() {
                break;
            }
            let (copies, kept_rest) = kept.split_at(these.len());
            (to, kept) = (rest, kept_rest);
            let (mut sent, mut deferred) = (0, 0);
            for (nth, output) in outputs.iter_mut().enumerate() {
                let id = TxId(nth as u8);
                let count = these.iter().filter(|verdict| **verdict == Verdict::Transmitted(id)).count() as u64;
                if count > 0 && !void {
                    let (mut hand, when) = (self.lane.hand(), (now, self.source));
                    let mut packets = Outgoing::new(hand.frames(), (these.iter(), copies.iter()), id, when);
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
        self.kept.clear();
    }

    pub(crate) fn send_last(&mut self, outputs: &mut [OwnedTx], cpu: CpuIndex, now: Timestamp, counts: &CpuLedger) {
        while self.pull(cpu, true, counts) && !self.to.is_empty() {
            self.send(outputs, now, false, counts);
        }
        self.send(outputs, now, false, counts);
    }

    pub(crate) fn close(&mut self) {
        self.shared.give(&mut self.pages);
    }
}
