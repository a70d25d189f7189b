//! Frames that are staged but not published belong to the producer alone, which can take them back.

use super::Producer;
use crate::page::Completion;
use crate::sync::Ordering;

impl Producer {
    /// Takes back up to `most` of the newest unpublished frames, oldest first, because the
    /// producer's CPU was declared dead, or because the frames exceed the consumer's limit.
    pub fn withdraw(&mut self, most: u64, mut each: impl FnMut(Completion)) {
        let end = self.staged;
        self.staged = self.published.max(end.saturating_sub(most));
        for at in self.staged..end {
            each(self.unpublished_at(at));
        }
        self.grow_no_later();
    }

    /// Passes the unpublished frames to `keep`, oldest first. Only the frames that are returned by
    /// `keep` stay in the ring.
    pub fn retain_unpublished(&mut self, mut keep: impl FnMut(Completion) -> Option<Completion>) {
        let (first, end) = (self.published, self.staged);
        self.staged = first;
        let mut to = first;
        for at in first..end {
            let Some(frame) = keep(self.unpublished_at(at)) else { continue };
            // SAFETY: the slot lies in its buffer, at or before that of the frame. Only this
            // producer accesses the slot, because the slot is not published. The frame that the
            // slot contained before was already passed to `keep`.
            unsafe { (*self.slot(to)).with_mut(|slot| *slot = frame.slot()) };
            if self.numbered && to != at {
                self.move_arrival(at, to);
            }
            to += 1;
        }
        self.staged = to;
        self.grow_no_later();
    }

    #[inline(always)]
    fn unpublished_at(&self, at: u64) -> Completion {
        // SAFETY: the slot lies in its buffer; what is not published is ours alone. Each slot is
        // read only once, because `staged` was set back before the slot is read.
        Completion::from_slot(unsafe { (*self.slot(at)).with(|slot| *slot) })
    }

    #[cold]
    fn move_arrival(&self, from: u64, to: u64) {
        let of = |at: u64| {
            let is_before = self.mask_before != 0 && at < self.shared.grown().at();
            self.shared.arrival(if is_before { self.mask_before } else { self.mask }, at)
        };
        if let (Some(from), Some(to)) = (of(from), of(to)) {
            // Relaxed, as in `note_arrival`.
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// If the ring was to grow after the last staged frame, it now grows directly after this frame.
    fn grow_no_later(&mut self) {
        if self.mask_before != 0 && self.staged < self.shared.grown().at() {
            self.grows_at(self.staged);
        }
    }
}
