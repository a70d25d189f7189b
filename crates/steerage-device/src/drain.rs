//! A wrapper that ends a device's input after its packets were processed elsewhere.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use steerage::{
    DeviceError, Input,
    device::{Completions, Polled, RxQueue},
};

use crate::wrapper::delegate_to_queue;

/// The interval at which queues without frames check whether the input may end.
const LOOK: Duration = Duration::from_millis(2);

/// The part of the program that processes an input's frames. The methods must not block, because
/// the polling CPUs call them.
pub trait Downstream: Send + Sync {
    /// Returns true if the input may end. `handed_over` is the number of frames that the input has
    /// delivered. The queues call `may_end` every 2 ms after their frames have ended.
    fn may_end(&self, handed_over: u64) -> bool;

    /// Returns the time for which the input should deliver no frames. Called before each poll.
    fn pause(&self) -> Option<Duration> {
        None
    }
}

/// One queue of a wrapped device.
///
/// ```
/// use std::sync::Arc;
///
/// use steerage_device::drain::{Downstream, Drain};
///
/// struct Elsewhere;
///
/// impl Downstream for Elsewhere {
///     fn may_end(&self, _handed_over: u64) -> bool {
///         // Here: whether whatever is done with the packets is done.
///         true
///     }
/// }
///
/// let input = steerage_device::open("synthetic:packets=1000")?;
/// let inputs = Drain::over(vec![input], &Arc::default(), Box::new(Elsewhere));
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
pub struct Drain {
    queue: Box<dyn RxQueue>,
    shared: Arc<Shared>,
    ended: Option<Result<(), DeviceError>>,
}

struct Shared {
    downstream: Box<dyn Downstream>,
    end_now: Arc<AtomicBool>,
    handed_over: AtomicU64,
    unfinished: AtomicUsize,
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("ended", &self.ended.is_some()).finish_non_exhaustive()
    }
}

impl Drain {
    /// Wraps `inputs`. The queues end when no queue has more frames and [`Downstream::may_end`]
    /// returns true. If `end_now` becomes true, the wrapped devices are not polled any more.
    pub fn over(inputs: Vec<Input>, end_now: &Arc<AtomicBool>, downstream: Box<dyn Downstream>) -> Vec<Input> {
        let unfinished = inputs.iter().map(|input| input.queues.len()).sum::<usize>().into();
        let shared =
            Arc::new(Shared { downstream, end_now: Arc::clone(end_now), handed_over: AtomicU64::new(0), unfinished });
        let drained =
            |queue, _| -> Box<dyn RxQueue> { Box::new(Self { queue, shared: Arc::clone(&shared), ended: None }) };
        inputs.into_iter().map(|input| input.wrap_queues(drained)).collect()
    }
}

impl RxQueue for Drain {
    delegate_to_queue!();

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let shared = &self.shared;
        if self.ended.is_none() {
            let before = out.len();
            let ends = shared.end_now.load(Ordering::Relaxed);
            if let Some(pause) = shared.downstream.pause().filter(|_| !ends) {
                return Ok(Polled::NotBefore(out.now() + pause));
            }
            let polled = if ends { Ok(Polled::Ended) } else { self.queue.poll(out, budget) };
            shared.handed_over.fetch_add((out.len() - before) as u64, Ordering::Relaxed);
            self.ended = Some(match polled {
                Ok(Polled::Ended) => Ok(()),
                Err(error) => Err(error),
                polled => return polled,
            });
            shared.unfinished.fetch_sub(1, Ordering::Relaxed);
        }
        let all_have = shared.unfinished.load(Ordering::Relaxed) == 0;
        if !all_have || !shared.downstream.may_end(shared.handed_over.load(Ordering::Relaxed)) {
            return Ok(Polled::NotBefore(out.now() + LOOK));
        }
        self.ended.replace(Ok(())).unwrap_or(Ok(())).map(|()| Polled::Ended)
    }
}

#[cfg(test)]
mod tests {
    use steerage::{Timestamp, testing::QueueTester};

    use super::*;

    #[derive(Clone, Default)]
    struct Elsewhere {
        is_done: Arc<AtomicBool>,
        is_full: Arc<AtomicBool>,
    }

    const PAUSE: Duration = Duration::from_millis(7);

    impl Downstream for Elsewhere {
        fn may_end(&self, handed_over: u64) -> bool {
            handed_over == 10 && self.is_done.load(Ordering::Relaxed)
        }

        fn pause(&self) -> Option<Duration> {
            self.is_full.load(Ordering::Relaxed).then_some(PAUSE)
        }
    }

    #[test]
    fn it_pauses_and_ends_when_it_may() {
        let elsewhere = Elsewhere::default();
        let inputs = vec![crate::open("synthetic:packets=10").unwrap()];
        let mut inputs = Drain::over(inputs, &Arc::default(), Box::new(elsewhere.clone()));
        let mut queue = QueueTester::new(inputs[0].queues.remove(0)).unwrap();
        elsewhere.is_full.store(true, Ordering::Relaxed);
        let (polled, frames) = queue.poll(Timestamp::ZERO, 64).unwrap();
        assert_eq!((polled, frames.len()), (Polled::NotBefore(Timestamp::ZERO + PAUSE), 0));
        elsewhere.is_full.store(false, Ordering::Relaxed);
        let mut frames = 0;
        for _ in 0..3 {
            let (polled, of_it) = queue.poll(Timestamp::ZERO, 64).unwrap();
            frames += of_it.len();
            assert_eq!(polled, Polled::NotBefore(Timestamp::ZERO + LOOK));
        }
        elsewhere.is_done.store(true, Ordering::Relaxed);
        assert_eq!((queue.poll(Timestamp::ZERO, 64).unwrap().0, frames), (Polled::Ended, 10));
    }
}
