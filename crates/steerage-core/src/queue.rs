//! A receive queue, and everything that the CPU that owns it needs to poll it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use steerage_flow::{LinkType, Timestamp};
use steerage_mem::Completion;

use crate::backlog::{QueueRings, Shown, To};
use crate::completions::Completions;
use crate::device::Capabilities;
use crate::device::DeviceError;
use crate::ids::CpuIndex;
use crate::limits::{Limits, PATIENCE, POLL_BUDGET, QueueLimits, RECLAIM_POLLS};
use crate::pool::QueuePages;
use crate::rx::{Polled, RxQueue};
use crate::steer::{self, Steer};
use steerage_ledger::QueueLedger;
use steerage_moves::BucketMove;

/// A receive queue with everything that its owner needs.
pub(crate) struct OwnedQueue {
    /// Its number over all inputs.
    pub(crate) id: usize,
    rx: Box<dyn RxQueue>,
    pages: QueuePages,
    steer: Steer,
    rings: QueueRings,
    ledger: Arc<QueueLedger>,
    frames: Vec<Completion>,
    /// How many frames the last poll received.
    pub(crate) frames_polled: usize,
    /// The type of the first header in these frames.
    link: LinkType,
    /// How many pages the device will fill by this CPU's own stores in the next poll.
    prefetch: usize,
    polls: usize,
    limits: PollLimits,
    pub(crate) state: PollState,
}

/// The limits of a poll.
struct PollLimits {
    can_wait: bool,
    /// The most frames of a poll: `dev_weight`.
    weight: usize,
    /// The most pages of a frame.
    segments_max: usize,
    /// Frames of up to this many bytes are copied out of the device's pages.
    copybreak: usize,
}

/// Whether and when to poll the queue again.
pub(crate) struct PollState {
    /// The result of the last poll.
    pub(crate) polled: Polled,
    /// The queue is polled no more: it ended, failed or was stopped.
    pub(crate) ended: bool,
    /// A ring had no room when the queue should have been polled last.
    pub(crate) blocked: bool,
    /// Since when a ring has had no room, if the queue waits only for a limited time.
    full_since: Option<Timestamp>,
    /// The CPU's epoll includes the device.
    pub(crate) listens: bool,
}

/// The parts of an [`OwnedQueue`].
pub(crate) struct QueueParts {
    pub(crate) id: usize,
    pub(crate) rx: Box<dyn RxQueue>,
    pub(crate) pages: QueuePages,
    pub(crate) steer: Steer,
    pub(crate) rings: QueueRings,
    pub(crate) ledger: Arc<QueueLedger>,
}

impl OwnedQueue {
    pub(crate) fn new(parts: QueueParts) -> Self {
        let QueueParts { id, rx, pages, steer, rings, ledger } = parts;
        let Capabilities { can_wait, segments_max, .. } = rx.capabilities();
        Self {
            id,
            rx,
            pages,
            steer,
            rings,
            ledger,
            frames: Vec::with_capacity(POLL_BUDGET),
            frames_polled: 0,
            link: LinkType::ETHERNET,
            prefetch: 0,
            polls: 0,
            limits: PollLimits { can_wait, weight: POLL_BUDGET, segments_max, copybreak: 0 },
            state: PollState { polled: Polled::More, ended: false, blocked: false, full_since: None, listens: false },
        }
    }

    /// Sets the first map.
    pub(crate) fn adopt(&mut self, map: &[CpuIndex]) {
        self.steer.adopt(map);
    }

    // ---- the phases of a round

    /// Polls the device for up to a budget of frames.
    pub(crate) fn poll(&mut self, now: Timestamp) -> Result<(), DeviceError> {
        self.state.blocked = false;
        let polled_before = std::mem::take(&mut self.frames_polled);
        if self.state.ended || matches!(self.state.polled, Polled::NotBefore(due) if now < due) {
            return Ok(());
        }
        self.polls = self.polls.wrapping_add(1);
        let short = match self.pages.blocks {
            None if polled_before == 0 && self.rings.to.keeps_pages_from_others() => true,
            None => self.pages.pool.cached() < self.limits.weight * self.limits.segments_max,
            Some(_) => self.state.polled != Polled::More || self.polls % RECLAIM_POLLS == 0,
        };
        if short {
            self.rings.reclaim_all(&mut self.pages);
        }
        let budget = self.budget(now);
        if budget == 0 {
            self.state.blocked = true;
            return Ok(());
        }
        let mut out = Completions::new(&mut self.frames, &mut self.pages, now, self.limits.copybreak);
        let polled = self.rx.poll(&mut out, budget);
        let counts = out.counts;
        (self.prefetch, self.link) = (out.prefetch, out.link());
        self.frames_polled = self.frames.len();
        self.ledger.polled(self.frames_polled as u64, &counts);
        match polled {
            Ok(polled) => {
                self.state.polled = polled;
                self.state.ended = polled == Polled::Ended;
                Ok(())
            }
            Err(error) => {
                self.state.ended = true;
                Err(error)
            }
        }
    }

    /// Chooses each frame's CPU and writes its slot to that CPU's ring. The other CPU does not see the slot until it
    /// is published.
    pub(crate) fn steer(&mut self, now: Timestamp) {
        let link = self.link;
        let poll = steer::Polled { frames: &mut self.frames, link, now, nth: self.polls, prefetch: self.prefetch };
        self.steer.steer(poll, &mut self.rings, &mut self.pages, &self.ledger);
    }

    /// Publishes the staged frames if they are due: see [`QueueRings::publish`].
    pub(crate) fn publish(&mut self, own: usize, shown: &mut Vec<Shown>) {
        let weight = self.limits.weight;
        let to = To { pages: &mut self.pages, ledger: &self.ledger, shown };
        self.rings.publish(own, self.frames_polled >= weight, weight, to);
    }

    /// How many frames the next poll may receive.
    fn budget(&mut self, now: Timestamp) -> usize {
        let weight = self.limits.weight;
        if !self.limits.can_wait && !self.rx.has_room() {
            return weight;
        }
        let room = self.rings.room_everywhere(weight, &mut self.pages);
        if self.limits.can_wait || room > 0 {
            self.state.full_since = None;
            return room;
        }
        // A CPU that made no room in this time is not keeping up. The queue does not wait for it again until there
        // was room.
        let since = *self.state.full_since.get_or_insert(now);
        if now.since(since) < PATIENCE { 0 } else { weight }
    }

    // ---- moves: see steer.rs

    /// Parks the moving buckets, unless that is already done.
    pub(crate) fn park(&mut self, epoch: u64, moves: &[BucketMove], shown: &mut Vec<Shown>) {
        let to = To { pages: &mut self.pages, ledger: &self.ledger, shown };
        self.steer.park(epoch, moves, &mut self.rings, to);
    }

    /// Whether everything that was sent before the buckets were parked is finished.
    pub(crate) fn fences_passed(&mut self, dead: impl Fn(CpuIndex) -> bool) -> bool {
        self.steer.fences_passed(&mut self.rings, dead)
    }

    /// The CPUs whose fences have not been passed.
    pub(crate) fn fences_open(&self) -> impl Iterator<Item = CpuIndex> + '_ {
        self.steer.fences_open(&self.rings)
    }

    /// The move takes too long: stops parking, and orders the old CPUs to discard the frames that they have not begun.
    pub(crate) fn revoke(&mut self) {
        self.steer.revoke(&mut self.rings);
    }

    /// Sends the parked frames to their new CPUs, and then steers the buckets there directly. Returns false while
    /// some frames wait for room.
    pub(crate) fn release(&mut self, moves: &[BucketMove], shown: &mut Vec<Shown>) -> bool {
        let to = To { pages: &mut self.pages, ledger: &self.ledger, shown };
        self.steer.release(moves, self.limits.can_wait, &mut self.rings, to)
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.steer.is_parked()
    }

    /// This CPU was declared dead and is alive again: drops the frames that it had staged and parked, and applies
    /// `map`.
    pub(crate) fn start_over(&mut self, map: &[CpuIndex]) {
        self.steer.start_over(map, &mut self.rings, &mut self.pages, &self.ledger);
    }

    // ---- limits

    pub(crate) fn set_limits(&mut self, limits: Limits, own: QueueLimits, flow_limited: &[CpuIndex]) {
        (self.limits.weight, self.limits.copybreak) = (limits.dev_weight, own.copybreak);
        self.pages.pool.set_cache_max(own.lpc_pages);
        self.rings.to.set_backlog(limits.backlog);
        // A queue that waits for room loses nothing, so it needs no flow limit.
        let flow_limited = if self.limits.can_wait { &[] } else { flow_limited };
        self.steer.set_flow_limits(flow_limited, limits.flow_limit_table_len);
    }

    // ---- sleep

    /// The device's file descriptor, if the queue waits for the device. The device of a queue that is blocked, has
    /// named a time or has ended may be readable the whole time.
    pub(crate) fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        let drained = self.state.polled == Polled::Drained && !self.state.blocked && !self.state.ended;
        if drained { self.rx.wait_on() } else { None }
    }

    /// The device's file descriptor, whether or not the queue waits for it.
    pub(crate) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.rx.wait_on()
    }

    pub(crate) fn can_wait(&self) -> bool {
        self.limits.can_wait
    }

    /// Whether other queues may need the pages of its frames that are finished and not home.
    pub(crate) fn keeps_pages_from_others(&self) -> bool {
        self.rings.to.keeps_pages_from_others()
    }

    /// Asks the CPUs whose backlogs block this queue to wake its owner when half of a backlog is worked off.
    pub(crate) fn wake_when_there_is_room(&mut self) {
        self.rings.to.wake_when_there_is_room(self.limits.weight);
    }

    /// Whether every ring has room for a poll.
    pub(crate) fn has_room(&mut self) -> bool {
        self.rings.room_everywhere(self.limits.weight, &mut self.pages) > 0
    }

    // ---- the end

    /// The run ends: the queue is polled no more, or until the device has handed over the frames that have already
    /// arrived.
    pub(crate) fn stop(&mut self) {
        if !self.state.ended {
            self.state.ended = !self.rx.stop();
            // The device may have named a later time, but the frames that are left are due now.
            self.state.polled = Polled::More;
        }
    }

    /// Whether the queue has ended and none of its frames is in flight, so that its pages can be given back.
    pub(crate) fn is_at_rest(&mut self) -> bool {
        if !self.state.ended {
            return false;
        }
        self.rings.reclaim_all(&mut self.pages);
        self.frames.is_empty() && self.rings.to.is_empty()
    }

    /// Gives the pages back to the shared pool.
    pub(crate) fn close(&mut self) {
        let mut pages = Vec::new();
        self.rx.close(&mut pages);
        pages.into_iter().for_each(|page| self.pages.pool.recycle(page));
        self.pages.pool.close();
    }
}
