//! A wrapper around a device that ends the input after a number of frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steerage::{
    DeviceError, Input,
    device::{Completions, Polled, RxQueue},
};

use crate::wrapper::delegate_to_queue;

/// One queue of a limited device. All queues share one frame limit.
///
/// ```
/// use steerage_device::limit::Limit;
///
/// let input = Limit::new(steerage_device::open("synthetic")?, 1000);
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
pub struct Limit {
    queue: Box<dyn RxQueue>,
    allowance: Arc<Allowance>,
}

#[derive(Debug)]
struct Allowance {
    free: AtomicU64,
    /// The number of frames that may still be delivered: the unreserved ones (`free`), plus the
    /// frames reserved for polls in progress.
    left: AtomicU64,
}

impl Limit {
    /// Limits `input`: its queues end after they have delivered `packets` frames in total. Lost
    /// frames are not counted. The name, kind and mode of the input stay unchanged.
    ///
    /// A queue that sleeps on its [`wait_on`](RxQueue::wait_on) notices the limit at its next poll.
    #[expect(clippy::new_ret_no_self, reason = "a device goes in and a device comes out")]
    pub fn new(input: Input, packets: u64) -> Input {
        Self::with(&Self::allowance(packets), input)
    }

    /// Limits several devices. The devices end after they have delivered `packets` frames in total.
    pub fn over(inputs: Vec<Input>, packets: u64) -> Vec<Input> {
        let allowance = Self::allowance(packets);
        inputs.into_iter().map(|input| Self::with(&allowance, input)).collect()
    }

    fn allowance(packets: u64) -> Arc<Allowance> {
        Arc::new(Allowance { free: AtomicU64::new(packets), left: AtomicU64::new(packets) })
    }

    fn with(allowance: &Arc<Allowance>, input: Input) -> Input {
        let limited = |queue, _| -> Box<dyn RxQueue> { Box::new(Self { queue, allowance: Arc::clone(allowance) }) };
        input.wrap_queues(limited)
    }
}

impl Allowance {
    fn take(&self, wanted: u64) -> u64 {
        // `Relaxed` suffices for `left` and `free`, because they guard no other memory.
        let taken = |free| Some(free - wanted.min(free));
        let free = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        free.map_or(0, |free| free.min(wanted))
    }

    /// Releases the frames that a poll has reserved but not delivered. Returns how many frames may
    /// still be delivered.
    fn settle(&self, taken: u64, used: u64) -> u64 {
        self.free.fetch_add(taken - used, Ordering::Relaxed);
        self.left.fetch_sub(used, Ordering::Relaxed) - used
    }
}

impl RxQueue for Limit {
    delegate_to_queue!();

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let taken = self.allowance.take(budget as u64);
        if taken == 0 {
            // The queue ends only if `left` is 0, because another queue's poll may give back
            // reserved frames that it does not deliver.
            let over = self.allowance.left.load(Ordering::Relaxed) == 0;
            return Ok(if over { Polled::Ended } else { Polled::More });
        }
        let before = out.len();
        let polled = self.queue.poll(out, taken as usize);
        let used = ((out.len() - before) as u64).min(taken);
        match self.allowance.settle(taken, used) {
            0 => polled.and(Ok(Polled::Ended)),
            _ => polled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_poll_gives_back_another_may_take() {
        let allowance = Allowance { free: AtomicU64::new(100), left: AtomicU64::new(100) };
        assert_eq!((allowance.take(64), allowance.take(64), allowance.take(64)), (64, 36, 0));
        assert_eq!(allowance.settle(64, 10), 90);
        assert_eq!(allowance.take(64), 54);
        assert_eq!(allowance.settle(36, 36), 54);
        assert_eq!(allowance.settle(54, 54), 0);
    }
}
