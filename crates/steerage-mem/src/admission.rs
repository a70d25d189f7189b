//! [`Admission`] limits the total number of frames of all queues that wait for one CPU: Linux's
//! `netdev_max_backlog`.
//!
//! Each producer adds the number of frames that it publishes to one counter, which all producers
//! share. The consumer adds the number of frames that it has finished to a second counter in
//! another cache line. The consumer's counter needs no atomic read-modify-write operation. The
//! producers' counter needs one atomic read-modify-write operation for each published list of
//! frames.

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
    /// Requests permission to publish `frames` frames. At most `limit` frames may wait for the CPU.
    /// Returns how many of the frames may be published. The number of waiting frames never exceeds
    /// `limit`. If several producers call `admit` at the same time, `admit` may refuse frames
    /// although the limit is not reached.
    #[inline]
    pub fn admit(&self, frames: u64, limit: u64) -> u64 {
        // All loads and stores are relaxed, because no memory is handed over through these
        // counters. If a producer reads an old value of `finished`, it admits fewer frames, not
        // more.
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

    /// Returns how many frames wait for the CPU. The result is an estimate while other threads
    /// publish or finish frames.
    #[inline]
    pub fn waiting(&self) -> u64 {
        let finished = self.finished.load(Ordering::Relaxed);
        self.admitted.load(Ordering::Relaxed).saturating_sub(finished)
    }
}
