//! A wrapper that simulates the faults of a network: lost, duplicated, reordered, corrupted and
//! delayed frames. With the same frames and the same seed, the faults are the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use steerage::{
    DeviceError, Input, Timestamp,
    device::{Completions, Polled, RxQueue},
};

use crate::options::setters;
use crate::wrapper::delegate_to_queue;

/// The maximum number of frames that a queue delays at a time. While it delays this many, other
/// frames are not delayed.
pub const HELD_MAX: usize = 1024;

const OVERTAKE_MAX: Duration = Duration::from_millis(5);

/// A seed, and for each type of fault the number of affected frames per thousand.
///
/// ```
/// use steerage_device::fault::{Fault, Faults};
///
/// let input = steerage_device::open("synthetic:packets=1000")?;
/// let (input, counts) = Fault::new(input, Faults::new(7).lose(100).corrupt(10));
/// // While the input is read:
/// println!("{} frames were lost", counts.read().lost);
/// # drop(input);
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// The seed of the random numbers that choose the fault of each frame.
    pub seed: u64,
    /// The number of frames per thousand that are lost.
    pub lose: u32,
    /// The number of frames per thousand that are duplicated.
    pub duplicate: u32,
    /// The number of frames per thousand that get a flipped bit after their first 14 bytes.
    pub corrupt: u32,
    /// The number of frames per thousand that are held back until after the next poll's frames.
    pub reorder: u32,
    /// The number of frames per thousand that are delayed by `delay_time`.
    pub delay: u32,
    /// The delay of delayed frames.
    pub delay_time: Duration,
}

impl Faults {
    /// Creates options without faults, with the seed `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    setters! {
        /// The seed of the random numbers.
        seed: u64;
        /// The number of frames per thousand that are lost.
        lose: u32;
        /// The number of frames per thousand that arrive twice.
        duplicate: u32;
        /// The number of frames per thousand that get a flipped bit after their first 14 bytes.
        corrupt: u32;
        /// The number of frames per thousand that are held back until after the next poll's frames.
        reorder: u32;
    }

    /// Delays `per_thousand` of each thousand frames by `time`.
    #[must_use]
    pub fn delay(mut self, per_thousand: u32, time: Duration) -> Self {
        (self.delay, self.delay_time) = (per_thousand, time);
        self
    }
}

/// Counts the faults of each type over all queues. Any thread can call [`read`](Self::read).
#[derive(Debug, Default)]
pub struct FaultCounts([AtomicU64; 5]);

impl FaultCounts {
    /// Returns the counts so far.
    pub fn read(&self) -> FaultTotals {
        let counts = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        let [lost, duplicated, corrupted, reordered, delayed] = counts;
        FaultTotals { lost, duplicated, corrupted, reordered, delayed }
    }
}

/// The number of affected frames for each type of fault: see [`FaultCounts::read`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultTotals {
    /// The number of frames that were lost.
    pub lost: u64,
    /// The number of frames that were duplicated.
    pub duplicated: u64,
    /// The number of frames with a flipped bit.
    pub corrupted: u64,
    /// The number of frames that arrived after the frames of the next poll.
    pub reordered: u64,
    /// The number of frames that were delayed.
    pub delayed: u64,
}

#[derive(Debug)]
struct Held {
    frame: Vec<u8>,
    /// The time of delivery. With `until_overtaken`, the frame is delivered earlier if later frames
    /// overtake it.
    due: Timestamp,
    until_overtaken: bool,
}

/// A wrapper around one queue of a device, which simulates faults.
pub struct Fault {
    queue: Box<dyn RxQueue>,
    faults: Faults,
    rng: Rng,
    held: VecDeque<Held>,
    /// Duplicated and corrupted frames, which the current poll must still deliver.
    now: Vec<Vec<u8>>,
    counts: Arc<FaultCounts>,
}

/// The types of faults, in the order of the counts in [`FaultCounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    Lost,
    Duplicated,
    Corrupted,
    Reordered,
    Delayed,
}

impl Fault {
    /// Simulates faults in each queue of `input`, whose name, kind and mode stay unchanged. The
    /// wrapper copies frames and allocates memory, so use it in tests only.
    #[expect(clippy::new_ret_no_self, reason = "a device goes in and a device comes out")]
    pub fn new(input: Input, faults: Faults) -> (Input, Arc<FaultCounts>) {
        let counts = Arc::new(FaultCounts::default());
        let faulty = |queue, nth: usize| -> Box<dyn RxQueue> {
            let rng = Rng::with_seed(faults.seed ^ (nth as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let (held, now) = (VecDeque::new(), Vec::new());
            Box::new(Self { queue, faults, rng, held, now, counts: Arc::clone(&counts) })
        };
        let input = input.wrap_queues(faulty);
        (input, counts)
    }

    fn happen(&mut self, out: &mut Completions<'_>, from: usize) {
        let later = out.now();
        let Self { faults, rng, held, now, counts, .. } = self;
        out.retain(from, |frame| {
            let Some(happens) = what_happens(faults, rng) else { return true };
            let is_possible = match happens {
                Happens::Lost | Happens::Duplicated => true,
                Happens::Corrupted => frame.len() > 14,
                Happens::Reordered | Happens::Delayed => held.len() < HELD_MAX,
            };
            if !is_possible {
                return true;
            }
            counts.0[happens as usize].fetch_add(1, Ordering::Relaxed);
            match happens {
                Happens::Lost => {}
                Happens::Duplicated => now.push(frame.to_vec()),
                Happens::Corrupted => {
                    let mut frame = frame.to_vec();
                    let bit = rng.usize(..(frame.len() - 14) * 8);
                    frame[14 + bit / 8] ^= 1 << (bit % 8);
                    now.push(frame);
                }
                Happens::Reordered | Happens::Delayed => {
                    let until_overtaken = happens == Happens::Reordered;
                    let due = later + if until_overtaken { OVERTAKE_MAX } else { faults.delay_time };
                    held.push_back(Held { frame: frame.to_vec(), due, until_overtaken });
                }
            }
            happens == Happens::Duplicated
        });
    }

    fn release(&mut self, out: &mut Completions<'_>, is_overtaken: bool, budget: usize) {
        let now = out.now();
        let mut at = 0;
        while at < self.held.len() && out.len() < budget {
            let held = &self.held[at];
            if held.due <= now || held.until_overtaken && is_overtaken {
                // A delayed frame is copied to a page. If no page is free, the frame is lost.
                let _ = out.copy_in(&held.frame);
                self.held.remove(at);
            } else {
                at += 1;
            }
        }
    }
}

fn what_happens(faults: &Faults, rng: &mut Rng) -> Option<Happens> {
    let mut drawn = rng.u32(..1000);
    for (often, happens) in [
        (faults.lose, Happens::Lost),
        (faults.duplicate, Happens::Duplicated),
        (faults.corrupt, Happens::Corrupted),
        (faults.reorder, Happens::Reordered),
        (faults.delay, Happens::Delayed),
    ] {
        match drawn.checked_sub(often) {
            Some(rest) => drawn = rest,
            None => return Some(happens),
        }
    }
    None
}

impl RxQueue for Fault {
    delegate_to_queue!();

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let from = out.len();
        // Each frame may be delivered twice, so the inner queue polls for at most half of the
        // budget.
        let polled = self.queue.poll(out, budget.div_ceil(2))?;
        let came = out.len() > from;
        // The new frames overtake frames that earlier polls delayed. Frames that this poll delays
        // come later.
        let before = self.held.len();
        self.happen(out, from);
        for frame in self.now.drain(..) {
            let _ = out.copy_in(&frame);
        }
        let later = self.held.split_off(before);
        self.release(out, came, budget);
        self.held.extend(later);
        match (polled, self.held.iter().map(|held| held.due).min()) {
            (Polled::Ended, Some(_)) => {
                self.held.iter_mut().for_each(|held| held.due = Timestamp::ZERO);
                Ok(Polled::More)
            }
            (Polled::Drained, Some(due)) => Ok(Polled::NotBefore(due.min(out.now() + LOOK))),
            (polled, _) => Ok(polled),
        }
    }
}

/// The interval at which a queue with delayed frames polls its device, even if the device is not
/// readable.
const LOOK: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use steerage::testing::QueueTester;

    use super::*;
    use crate::synthetic::SyntheticOptions;

    const FRAMES: u64 = 20_000;

    fn through(faults: Faults) -> (Vec<Vec<u8>>, FaultTotals) {
        let options = SyntheticOptions::new().packets(FRAMES).flows(5000);
        let (mut input, counts) = Fault::new(options.open().unwrap(), faults);
        let mut queue = QueueTester::new(input.queues.remove(0)).unwrap();
        let (mut all, mut now) = (Vec::new(), 0);
        loop {
            now += 10_000;
            let (polled, frames) = queue.poll(Timestamp::from_nanos(now), 64).unwrap();
            all.extend(frames);
            if polled == Polled::Ended {
                assert_eq!(queue.pages_out(), 0);
                return (all, counts.read());
            }
        }
    }

    fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        frames.sort();
        frames
    }

    #[test]
    fn without_faults_nothing_happens() {
        let (frames, counts) = through(Faults::default());
        assert_eq!((frames.len() as u64, counts), (FRAMES, FaultTotals::default()));
    }

    #[test]
    fn each_thing_happens_as_often_as_it_should() {
        let (whole, _) = through(Faults::default());
        let delay_time = Duration::from_millis(1);
        let only = |faults: Faults, nth: usize| {
            let (frames, totals) = through(Faults { seed: 7, delay_time, ..faults });
            let FaultTotals { lost, duplicated, corrupted, reordered, delayed } = totals;
            let counts = [lost, duplicated, corrupted, reordered, delayed];
            assert!(counts.iter().enumerate().all(|(at, count)| at == nth || *count == 0), "{counts:?}");
            // A tenth of 20,000 frames, within six standard deviations.
            assert!(counts[nth].abs_diff(2000) < 260, "{counts:?}");
            (frames, counts[nth])
        };
        let (frames, lost) = only(Faults::default().lose(100), 0);
        assert_eq!(frames.len() as u64, FRAMES - lost);
        let (frames, twice) = only(Faults::default().duplicate(100), 1);
        assert_eq!(frames.len() as u64, FRAMES + twice);
        let (frames, _) = only(Faults::default().corrupt(100), 2);
        assert!(frames.len() == whole.len() && sorted(frames) != sorted(whole.clone()));
        for (nth, faults) in [(3, Faults::default().reorder(100)), (4, Faults { delay: 100, ..Faults::default() })] {
            let (frames, _) = only(faults, nth);
            assert!(frames != whole && sorted(frames) == sorted(whole.clone()), "all come, in another order");
        }
    }

    #[test]
    fn a_seed_is_a_history() {
        let faults = |seed| Faults {
            seed,
            lose: 50,
            duplicate: 50,
            corrupt: 50,
            reorder: 50,
            delay: 50,
            delay_time: Duration::from_micros(100),
        };
        assert!(through(faults(1)) == through(faults(1)) && through(faults(1)) != through(faults(2)));
    }
}
