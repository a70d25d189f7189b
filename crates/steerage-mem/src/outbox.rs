//! [`Outbox`] contains one queue's rings to all CPUs, and the lane (frames that stay on the CPU
//! that polls the queue). An outbox visits only rings in use, because with many CPUs, most rings
//! are empty most of the time.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::admission::Admission;
use crate::bits::Bits;
use crate::blocks::Blocks;
use crate::memory::Memory;
use crate::page::Completion;
use crate::ring::{Finished, Lane, Producer};

/// One queue's producers (sending ends of rings): one for each CPU, and a last one for the parking
/// lot. Frames for the queue's owner (the CPU that polls the queue) stay in the lane. The ring to
/// the owner contains only frames that were handed over before the owner began to poll the queue.
#[derive(Debug)]
pub struct Outbox {
    rings: Vec<Producer>,
    owner: usize,
    lane: Lane,
    /// An empty list that replaces the list of the lane while frames are staged one by one.
    spare: Vec<Completion>,
    staged: Bits,
    out: Bits,
    /// The rings whose frames occupy as many units (block sizes) as a ring may hold.
    full: Bits,
    admissions: Option<Arc<[Admission]>>,
    backlog: usize,
}

impl Outbox {
    /// Creates an outbox. The lane, whose frames lie in `memory`, has room for the `poll_max`
    /// frames of one poll and for all parked frames. `admissions` limit the waiting frames of
    /// several queues together. With [shared](Blocks::shared) `blocks`, the frames of a ring hold a
    /// limited part of the blocks' memory.
    pub fn new(
        mut to_cpus: Vec<Producer>,
        lot: Producer,
        (owner, poll_max, memory): (usize, usize, Memory),
        admissions: Option<Arc<[Admission]>>,
        blocks: Option<&mut Blocks>,
    ) -> Self {
        let backlog = to_cpus.first().map_or(0, Producer::limit);
        let stay_max = poll_max + lot.limit();
        let (lane, spare) = (Lane::new(stay_max, lot.is_numbered(), memory), Vec::with_capacity(stay_max));
        to_cpus.push(lot);
        if let Some(blocks) = blocks {
            blocks.divide(to_cpus.len());
        }
        let of_rings = || Bits::new(to_cpus.len());
        let (staged, out, full) = (of_rings(), of_rings(), of_rings());
        Self { rings: to_cpus, owner, lane, spare, staged, out, full, admissions, backlog }
    }

    /// The number of CPUs, which is also the index of the parking lot.
    #[inline(always)]
    pub fn cpus(&self) -> usize {
        self.rings.len() - 1
    }

    /// The ring to a CPU.
    #[inline(always)]
    pub fn ring(&mut self, cpu: usize) -> &mut Producer {
        &mut self.rings[cpu]
    }

    /// The ring to a CPU, for reading only.
    #[inline(always)]
    pub fn look(&self, cpu: usize) -> &Producer {
        &self.rings[cpu]
    }

    /// The parking lot.
    #[inline]
    pub fn lot(&mut self) -> &mut Producer {
        let lot = self.cpus();
        &mut self.rings[lot]
    }

    /// The CPU that polls the queue.
    #[inline(always)]
    pub fn owner(&self) -> usize {
        self.owner
    }

    /// Makes another CPU the owner of the queue. The lane must be empty.
    pub fn set_owner(&mut self, cpu: usize) {
        self.owner = cpu;
    }

    /// The lane, which contains the frames for the owner.
    #[inline(always)]
    pub fn lane(&mut self) -> &mut Lane {
        &mut self.lane
    }

    /// The number of frames in the lane that the owner has not taken yet.
    #[inline(always)]
    pub fn staying(&self) -> usize {
        self.lane.waiting()
    }

    /// Returns true if the queue's owner has finished all frames in the lane and in the owner's
    /// ring. If the owner has unfinished frames, the queue must not be polled: frames in the lane
    /// would overtake frames in the ring.
    #[inline(always)]
    pub fn has_owner_finished(&self) -> bool {
        let ring = &self.rings[self.owner];
        self.lane.is_empty() && (ring.occupied() == 0 || ring.passed(ring.tail()))
    }

    /// Returns true if `cpu` has finished the frames of its ring up to `tail`, and those of the
    /// lane if `cpu` owns the queue.
    pub fn has_passed(&self, cpu: u16, tail: u64) -> bool {
        let cpu = usize::from(cpu);
        self.rings[cpu].passed(tail) && (cpu != self.owner || self.lane.is_empty())
    }

    /// Finishes the frames taken from the lane. Lent frames return to `blocks`, and all other
    /// frames are passed to `home`.
    #[inline]
    pub fn finish_lent(&mut self, blocks: &mut Blocks, mut home: impl FnMut(Completion)) {
        let mut lent = blocks.homecoming();
        self.lane.finish(|frames| frames.for_each(|frame| lent.recycle(frame).unwrap_or_else(&mut home)));
    }

    /// Stages a frame for the ring `target` (see [`Producer::stage`]), or in the lane if `target`
    /// is the owner. The caller must also call [`touch`](Self::touch).
    ///
    /// # Errors
    /// Returns the frame if the ring has no room for it.
    // Always inlined: otherwise loading the frame would have to wait for the stores that wrote the
    // frame. With 16 targets, waiting for these stores raised the cost of staging from 9.5 ns to 22
    // ns per packet.
    #[inline(always)]
    pub fn stage(&mut self, target: usize, frame: Completion, arrival: u64) -> Result<(), Completion> {
        if target == self.owner {
            self.lane.push(frame, arrival);
            return Ok(());
        }
        self.rings[target].stage(frame, arrival)
    }

    /// Records that these rings may have staged frames. Called once per poll, not once per frame.
    pub fn touch(&mut self, rings: &Bits) {
        self.staged.insert_set(rings);
    }

    /// Like [`touch`](Self::touch), for one ring.
    pub fn touch_one(&mut self, ring: usize) {
        self.staged.insert(ring);
    }

    /// Stages the frames in the lane's list on one ring: see [`Producer::stage_all`]. Frames for
    /// the owner stay in the lane. Returns true if all frames were staged.
    #[inline(always)]
    pub fn stage_all(&mut self, target: usize, arrival: u64, staged: impl FnMut(usize)) -> bool {
        if target == self.owner {
            self.lane.note_arrivals(arrival);
            return true;
        }
        let Some(frames) = self.lane.list() else { return true };
        self.staged.insert(target);
        self.rings[target].stage_all(frames, arrival, staged);
        frames.is_empty()
    }

    /// Stages the frames in the lane's list on a few rings: see [`Producer::stage_lists`]. Frames
    /// for the owner stay in the lane. Returns true if all frames were staged.
    #[inline(always)]
    pub fn stage_lists(
        &mut self,
        arrival: u64,
        target: impl Fn(&Completion) -> usize,
        staged: impl FnMut(usize),
    ) -> bool {
        let Some(frames) = self.lane.list() else { return true };
        let lists = Producer::stage_lists(&mut self.rings, self.owner, frames, arrival, target, staged);
        let Some((lists, stay)) = lists else { return false };
        self.staged.insert_all(lists);
        self.lane.note_arrivals_of(stay, arrival);
        true
    }

    /// Takes the list out of the lane, until [`put_list`](Self::put_list), to stage its frames.
    pub fn take_list(&mut self) -> Vec<Completion> {
        let mut frames = std::mem::take(&mut self.spare);
        self.lane.list().into_iter().for_each(|list| std::mem::swap(list, &mut frames));
        frames
    }

    /// Puts back the list of [`take_list`](Self::take_list). Its frames stay in the lane.
    pub fn put_list(&mut self, mut list: Vec<Completion>) {
        self.lane.list().into_iter().for_each(|frames| frames.append(&mut list));
        self.spare = list;
    }

    /// Publishes the staged frames of the parking lot, and of each ring that has at least `least`
    /// staged frames. Calls `shown` for each CPU with published frames. Calls `refused` for each
    /// frame that exceeds the backlog or the ring's share of the device's blocks. If a refused
    /// frame is in a block, `lent` takes it back; otherwise `refused` gets the frame.
    #[inline]
    pub fn publish(
        &mut self,
        least: u64,
        mut lent: Option<&mut Blocks>,
        mut refused: impl FnMut(usize, Option<Completion>),
        mut shown: impl FnMut(usize),
    ) {
        let lot = self.cpus();
        for nth in 0..self.staged.words() {
            let mut staged = self.staged.word(nth);
            while staged != 0 {
                let at = nth * 64 + staged.trailing_zeros() as usize;
                staged &= staged - 1;
                let unpublished = self.rings[at].unpublished();
                if unpublished > 0 && unpublished < least && at != lot {
                    continue;
                }
                self.staged.remove(at);
                if let Some(blocks) = &mut lent {
                    self.share(at, blocks, || refused(at, None));
                }
                if self.admissions.is_some() {
                    self.admit(at, lent.as_deref_mut(), |frame| refused(at, frame));
                }
                if self.rings[at].publish() {
                    self.out.insert(at);
                    shown(at);
                }
            }
        }
    }

    /// Takes back the staged frames of the ring `at` that exceed its share of the device's blocks.
    #[inline(never)]
    fn share(&mut self, at: usize, blocks: &mut Blocks, mut refused: impl FnMut()) {
        let Some(mut publishing) = blocks.publishing(at) else { return };
        self.rings[at].retain_unpublished(|frame| {
            let published = publishing.publish(frame);
            if published.is_none() {
                refused();
            }
            published
        });
        drop(publishing);
        if blocks.is_share_full(at) {
            self.full.insert(at);
        }
    }

    /// Takes back the newest staged frames that exceed the limit of the CPU's backlog.
    #[inline(never)]
    fn admit(&mut self, at: usize, lent: Option<&mut Blocks>, mut refused: impl FnMut(Option<Completion>)) {
        let Some(admission) = self.admissions.as_ref().and_then(|all| all.get(at)) else { return };
        let staged = self.rings[at].unpublished();
        let admitted = admission.admit(staged, self.backlog as u64);
        if admitted < staged {
            let mut lent = lent.map(|blocks| blocks.homecoming_from(at));
            self.rings[at].withdraw(staged - admitted, |frame| match &mut lent {
                Some(lent) => refused(lent.recycle(frame).err()),
                None => refused(Some(frame)),
            });
        }
    }

    /// Takes the oldest frame out of the parking lot: see [`Producer::unpark`].
    pub fn unpark(&mut self, lent: Option<&mut Blocks>) -> Option<(Completion, u64)> {
        let at = self.cpus();
        let is_published = self.rings[at].is_next_published();
        let (frame, arrival) = self.rings[at].unpark()?;
        if let Some(blocks) = lent.filter(|_| is_published) {
            blocks.unpublish(at, &frame);
            self.full.remove(at);
        }
        Some((frame, arrival))
    }

    /// Takes back all frames that are staged for CPUs or wait in the lane.
    pub fn withdraw_all(&mut self, mut each: impl FnMut(Completion)) {
        let cpus = self.cpus();
        self.lane.withdraw(&mut each);
        self.rings[..cpus].iter_mut().for_each(|ring| ring.withdraw(u64::MAX, &mut each));
        self.staged.clear();
    }

    /// Passes the finished frames of a ring to `home`. Returns the number of frames.
    #[inline]
    pub fn reclaim(&mut self, at: usize, mut home: impl FnMut(Completion)) -> u64 {
        self.reclaim_many(at, |finished| finished.for_each(&mut home))
    }

    /// Like [`reclaim`](Self::reclaim), but passes many finished slots to `home` at a time.
    #[inline]
    pub fn reclaim_many(&mut self, at: usize, home: impl FnMut(Finished<'_>)) -> u64 {
        let count = self.rings[at].reclaim_many(home);
        if self.rings[at].occupied() == self.rings[at].unpublished() {
            self.out.remove(at);
        }
        count
    }

    /// Reclaims the finished frames of a ring: lent frames return to `blocks`, and all other frames
    /// are passed to `home`. Returns the number of frames.
    #[inline]
    pub fn reclaim_lent(&mut self, at: usize, blocks: &mut Blocks, mut home: impl FnMut(Completion)) -> u64 {
        let mut lent = blocks.homecoming_from(at);
        let count = self.reclaim(at, |frame| lent.recycle(frame).unwrap_or_else(&mut home));
        if count > 0 {
            self.full.remove(at);
        }
        count
    }

    /// Returns the first ring, from number `from` on, whose frames have not all returned.
    #[inline]
    pub fn next_out(&self, from: usize) -> Option<usize> {
        self.out.next(from)
    }

    /// Returns true if no frame is in a ring, in the lane or in the parking lot.
    pub fn is_empty(&self) -> bool {
        self.lane.is_empty() && self.out.is_empty() && self.staged.is_empty() && self.rings[self.cpus()].occupied() == 0
    }

    /// Returns true if frames of this queue have not returned and other queues may need their
    /// pages.
    pub fn keeps_pages_from_others(&self) -> bool {
        self.admissions.is_some() && !self.out.is_empty()
    }

    /// Returns how many frames may wait for a CPU.
    pub fn backlog(&self) -> usize {
        self.backlog
    }

    /// Sets how many frames may wait for a CPU.
    pub fn set_backlog(&mut self, frames: usize) {
        if self.backlog != frames {
            let cpus = self.cpus();
            self.rings[..cpus].iter_mut().for_each(|ring| ring.set_limit(frames));
            self.backlog = frames;
        }
    }

    /// The frames of all queues that wait for the CPU, or 0 if each queue has its own limit on
    /// waiting frames.
    fn waiting_of_all(&self, at: usize) -> u64 {
        self.admissions.as_ref().and_then(|all| all.get(at)).map_or(0, Admission::waiting)
    }

    /// Returns true if the ring and the CPU's backlog have room. The owner's lane always has room.
    #[inline(always)]
    pub fn has_room(&self, at: usize, frames: usize) -> bool {
        if at == self.owner {
            return true;
        }
        let has_room = self.rings[at].room() >= frames as u64 && !self.full.has(at);
        if self.admissions.is_none() {
            return has_room;
        }
        has_room && self.waiting_of_all(at) + frames as u64 <= self.backlog as u64
    }

    /// Returns the first ring from `from` on that has no room. Rings that are not in use have room.
    #[inline(always)]
    pub fn next_without_room(&self, from: usize, frames: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from % 64);
        for nth in from / 64..self.staged.words() {
            let mut in_use = (self.staged.word(nth) | self.out.word(nth)) & mask;
            while in_use != 0 {
                let at = nth * 64 + in_use.trailing_zeros() as usize;
                if !self.has_room(at, frames) {
                    return Some(at);
                }
                in_use &= in_use - 1;
            }
            mask = u64::MAX;
        }
        None
    }

    /// Returns true if the frames that wait for the CPU are at least half of the limit.
    pub fn is_half_full(&self, cpu: usize) -> bool {
        cpu != self.owner && self.waiting_of_all(cpu).max(self.rings[cpu].occupied()) >= self.backlog as u64 / 2
    }

    /// Asks each CPU whose ring lacks room for `weight` frames to wake this queue's owner when half
    /// of the ring is finished.
    pub fn wake_when_there_is_room(&mut self, weight: usize) {
        let mut next = self.out.next(0);
        while let Some(at) = next {
            let ring = &mut self.rings[at];
            if ring.room() < weight as u64 {
                ring.wake_at(ring.limit() as u64 / 2);
            }
            next = self.out.next(at + 1);
        }
    }
}
