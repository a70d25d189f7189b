//! A wrapper that limits the frames per second of a device that can wait, such as a capture file.

use steerage::{
    DeviceError, Input,
    device::{Completions, Polled, RxQueue},
};

use crate::schedule::{NANOS_PER_SECOND, Schedule};
use crate::wrapper::delegate_to_queue;

/// The highest rate in frames per second: one frame per nanosecond.
pub const RATE_MAX: u64 = 1_000_000_000;

/// One queue of a rate-limited device, with a share of the rate.
///
/// ```
/// use steerage_device::rate::Rate;
///
/// // 100,000 packets per second.
/// let input = Rate::new(steerage_device::open("synthetic")?, 100_000);
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
pub struct Rate {
    queue: Box<dyn RxQueue>,
    schedule: Schedule,
    handed_over: u64,
}

impl Rate {
    /// Limits `input` to `per_second` frames per second over all queues, in equal shares. From the
    /// queue's first poll on, its frames become due at the queue's share of the rate. A queue that
    /// is polled late delivers all frames that have become due. The name, kind and mode of the
    /// input stay unchanged.
    #[expect(clippy::new_ret_no_self, reason = "a device goes in and a device comes out")]
    pub fn new(input: Input, per_second: u64) -> Input {
        let queues = input.queues.len().max(1) as u64;
        let share = |nth: u64| (per_second.min(RATE_MAX) / queues + u64::from(nth < per_second % queues)).max(1);
        let rated = |queue, nth: usize| -> Box<dyn RxQueue> {
            Box::new(Self { queue, schedule: Schedule::new(share(nth as u64), NANOS_PER_SECOND), handed_over: 0 })
        };
        input.wrap_queues(rated)
    }
}

impl RxQueue for Rate {
    delegate_to_queue!();

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let may = self.schedule.due(out.now()).saturating_sub(self.handed_over).min(budget as u64);
        if may == 0 {
            return Ok(Polled::NotBefore(self.schedule.time_of(self.handed_over)));
        }
        let before = out.len();
        let polled = self.queue.poll(out, may as usize);
        let handed_over = (out.len() - before) as u64;
        self.handed_over += handed_over;
        match polled {
            Ok(Polled::More) if handed_over == may && may < budget as u64 => {
                Ok(Polled::NotBefore(self.schedule.time_of(self.handed_over)))
            }
            polled => polled,
        }
    }
}

#[cfg(test)]
mod tests {
    use steerage::{Timestamp, testing::QueueTester};

    use super::*;
    use crate::synthetic::SyntheticOptions;

    const S: u64 = 1_000_000_000;

    fn queue(packets: u64, per_second: u64) -> QueueTester {
        let options = SyntheticOptions::new().packets(packets);
        let mut input = Rate::new(options.open().unwrap(), per_second);
        QueueTester::new(input.queues.remove(0)).unwrap()
    }

    #[test]
    fn a_second_holds_the_rate() {
        let mut queue = queue(100_000, 1000);
        let mut count = 0;
        for tick in 0..100_000 {
            let (_, frames) = queue.poll(Timestamp::from_nanos(77 + tick * S / 10_000), 64).unwrap();
            count += frames.len();
            let due = tick as usize / 10 + 1;
            assert_eq!(count, due, "after {tick} ticks");
        }
    }

    #[test]
    fn it_says_when_the_next_is_due_and_catches_up() {
        let mut queue = queue(200, 100);
        let start = 5 * S;
        assert_eq!(
            queue.poll(Timestamp::from_nanos(start), 64).unwrap().0,
            Polled::NotBefore(Timestamp::from_nanos(start + S / 100))
        );
        let (polled, frames) = queue.poll(Timestamp::from_nanos(start + S), 64).unwrap();
        assert_eq!((polled, frames.len()), (Polled::More, 64));
        let (polled, frames) = queue.poll(Timestamp::from_nanos(start + S), 64).unwrap();
        assert_eq!((polled, frames.len()), (Polled::NotBefore(Timestamp::from_nanos(start + S + S / 100)), 36));
        let late = Timestamp::from_nanos(start + 100 * S);
        let mut left = 0;
        loop {
            let (polled, frames) = queue.poll(late, 64).unwrap();
            left += frames.len();
            if polled == Polled::Ended {
                break;
            }
        }
        assert_eq!(left, 99);
    }
}
