//! The limit on the frames of all queues that wait for one CPU: Linux's `netdev_max_backlog`. The
//! producers share one counter, with one atomic read-modify-write operation for each published
//! list. The consumer's counter is in another cache line, and needs no atomic read-modify-write
//! operation.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

/// Limits the total number of frames of all queues that wait for one CPU.
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
    /// Returns how many of `frames` frames may be published, so that at most `limit` frames wait.
    /// Producers that call `admit` at the same time may be refused although there is room.
    #[inline]
    pub fn admit(&self, frames: u64, limit: u64) -> u64 {
        // Relaxed: no memory is handed over through these counters. A producer that reads an old
        // value of `finished` admits fewer frames, not more.
        let before = self.admitted.fetch_add(frames, Ordering::Relaxed);
        let waiting = before.saturating_sub(self.finished.load(Ordering::Relaxed));
        let admitted = frames.min(limit.saturating_sub(waiting));
        if admitted < frames {
            self.admitted.fetch_sub(frames - admitted, Ordering::Relaxed);
        }
        admitted
    }

    /// Counts frames that the consuming CPU has finished. Only the consuming CPU may call `finish`.
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
