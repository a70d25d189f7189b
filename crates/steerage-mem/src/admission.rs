//! Limits the frames of all queues that wait for one CPU: Linux's `netdev_max_backlog`.
//!
//! Producers count the frames that they publish, and the consumer counts the frames that it has
//! finished, each in a cache line of its own. The consumer's count needs no atomic
//! read-modify-write operation. A producer's count needs one such operation for each list.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

/// Limits the frames that wait for one CPU, from all queues together.
///
/// ```
/// use steerage_mem::Admission;
///
/// let cpu = Admission::default();
/// assert_eq!(cpu.admit(3, 4), 3);
/// assert_eq!(cpu.admit(3, 4), 1, "two find no room");
/// cpu.finish(2);
/// assert_eq!((cpu.waiting(), cpu.admit(3, 4)), (2, 2));
/// ```
#[derive(Debug, Default)]
pub struct Admission {
    admitted: CachePadded<AtomicU64>,
    finished: CachePadded<AtomicU64>,
}

impl Admission {
    /// Requests to publish `frames` frames if at most `limit` frames may wait. Returns how many
    /// frames may be published. The count never exceeds the limit. If several producers call this
    /// function at once, it may refuse frames for which there is room.
    #[inline]
    pub fn admit(&self, frames: u64, limit: u64) -> u64 {
        // Relaxed everywhere, because these counters hand no memory over. An old value of
        // `finished` admits fewer frames, not more.
        let before = self.admitted.fetch_add(frames, Ordering::Relaxed);
        let waiting = before.saturating_sub(self.finished.load(Ordering::Relaxed));
        let admitted = frames.min(limit.saturating_sub(waiting));
        if admitted < frames {
            self.admitted.fetch_sub(frames - admitted, Ordering::Relaxed);
        }
        admitted
    }

    /// Counts frames that the CPU has finished. Only that CPU may call this function.
    #[inline]
    pub fn finish(&self, frames: u64) {
        self.finished.store(self.finished.load(Ordering::Relaxed) + frames, Ordering::Relaxed);
    }

    /// Returns how many frames wait: an estimate while other threads publish or finish frames.
    #[inline]
    pub fn waiting(&self) -> u64 {
        let finished = self.finished.load(Ordering::Relaxed);
        self.admitted.load(Ordering::Relaxed).saturating_sub(finished)
    }
}
