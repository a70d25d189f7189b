//! A source of packets with or without a fixed rate, and a handler with fixed work per packet.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Duration;

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};
use steerage::{
    Batch, Cpu, DeviceError, Handler, Input, Timestamp,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
};

use crate::frames::{FLOWS, FRAME_BYTES, udp4};
use crate::histogram::Histogram;

/// The number of frames that can wait for a poll, as in the ring of a network card.
const DEVICE_RING: u64 = 4096;

/// The bytes of a frame that contain the time at which the frame is due.
const STAMP: std::ops::Range<usize> = 42..50;

/// Computes the times at which the frames of a queue are due.
#[derive(Debug)]
pub struct Pace {
    /// The nanoseconds between two frames. If 0, the source delivers as many frames as the receive
    /// path requests.
    gap: f64,
    next: f64,
    /// The frames that were lost because the device's ring was full.
    pub lost: u64,
}

impl Pace {
    /// Makes a schedule of `per_second` frames per second, independent of the receive path. If
    /// `per_second` is `None`, the next frame is always due.
    pub fn new(per_second: Option<f64>) -> Self {
        Self { gap: per_second.map_or(0.0, |rate| 1e9 / rate), next: 0.0, lost: 0 }
    }

    /// Returns true if the frames have no schedule: frames then wait for the receive path, and none
    /// is lost.
    pub fn can_wait(&self) -> bool {
        self.gap == 0.0
    }

    /// Returns the number of due frames, up to `budget`. Due frames that do not fit into the
    /// device's ring are lost.
    pub fn due(&mut self, out: &mut Completions<'_>, budget: usize) -> usize {
        if self.can_wait() {
            return budget;
        }
        let now = out.now().as_nanos() as f64;
        if self.next == 0.0 {
            self.next = now;
        }
        let due = ((now - self.next) / self.gap) as u64;
        if due > DEVICE_RING {
            out.lost(due - DEVICE_RING);
            self.lost += due - DEVICE_RING;
            self.next += (due - DEVICE_RING) as f64 * self.gap;
        }
        budget.min(due as usize)
    }

    /// Returns the due time of the next frame in nanoseconds, and counts the frame as delivered.
    #[inline(always)]
    pub fn take(&mut self) -> u64 {
        let due = self.next as u64;
        self.next += self.gap;
        due
    }

    /// Returns the result of a poll that has delivered `count` of `budget` frames.
    pub fn polled(&self, count: usize, budget: usize) -> Polled {
        match self.can_wait() || count == budget {
            true => Polled::More,
            false => Polled::NotBefore(Timestamp::from_nanos(self.next as u64)),
        }
    }
}

/// A source of UDP flows at a steady rate. Each frame contains the time at which it is due.
#[derive(Debug)]
pub struct Paced {
    pace: Pace,
    rng: Rng,
    frame: [u8; FRAME_BYTES],
}

impl Paced {
    /// Makes a source of `per_second` packets per second, or as many as the receive path accepts.
    pub fn input(per_second: Option<f64>) -> Input {
        Self::input_of_queues(per_second, 1)
    }

    /// Makes a source whose `queues` queues together deliver `per_second` packets per second.
    pub fn input_of_queues(per_second: Option<f64>, queues: usize) -> Input {
        let pace = || Pace::new(per_second.map(|rate| rate / queues as f64));
        let queue =
            |seed| Box::new(Self { pace: pace(), rng: Rng::with_seed(seed), frame: udp4() }) as Box<dyn RxQueue>;
        Input::new("paced", "bench", (1..=queues as u64).map(queue).collect())
    }
}

impl RxQueue for Paced {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES);
        can.can_wait = self.pace.can_wait();
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = self.pace.due(out, budget);
        let Self { pace, rng, frame: template } = self;
        out.fill(count, |page| {
            let flow = rng.u32(..FLOWS);
            let frame: &mut [u8; FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = *template;
            frame[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
            frame[STAMP].copy_from_slice(&pace.take().to_le_bytes());
            Some(Filled::whole(FRAME_BYTES))
        });
        out.prefetch_pages(budget);
        Ok(self.pace.polled(count, budget))
    }
}

/// Uses CPU time. The compiler cannot shorten the rounds, because each round needs the result of
/// the previous round. The result stays in a register, because on some CPUs, a store and a load of
/// the result take zero to five cycles.
#[inline(never)]
pub fn spin(rounds: u64, seed: u64) -> u64 {
    (0..rounds).fold(seed | 1, |x, _| x.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17))
}

/// Returns the number of rounds of [`spin`] that take the given time. A round is measured once per
/// process. The shortest of several measurements counts, because other programs disturbed this
/// measurement least.
pub fn spin_rounds(time: Duration) -> u64 {
    const TIMES: usize = 5;
    const ROUNDS: u64 = 2_000_000;
    static NANOS_EACH: OnceLock<f64> = OnceLock::new();
    let each = NANOS_EACH.get_or_init(|| {
        let once = |_| {
            let start = thread_time();
            black_box(spin(ROUNDS, 3));
            thread_time().saturating_sub(start).as_nanos() as f64 / ROUNDS as f64
        };
        (0..TIMES).map(once).fold(f64::INFINITY, f64::min)
    });
    (time.as_nanos() as f64 / each) as u64
}

/// The CPU time of the thread, without time in which another program runs on the CPU.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

/// A handler that runs [`spin`] rounds for each packet, and can record how long each packet waited.
#[derive(Debug)]
pub struct SpinHandler {
    rounds: u64,
    sum: u64,
    delays: Option<Histogram>,
}

impl SpinHandler {
    /// Makes a handler that runs `rounds` rounds of [`spin`] per packet.
    pub fn new(rounds: u64, records_delays: bool) -> Self {
        Self { rounds, sum: 0, delays: records_delays.then(Histogram::new) }
    }
}

impl Handler for SpinHandler {
    type Moved = ();
    type Report = Histogram;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let began = cpu.now().as_nanos();
        for packet in batch.iter_mut() {
            let stamp = packet.data().get(STAMP).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
            if let Some(delays) = &mut self.delays {
                delays.add(began.saturating_sub(stamp));
            }
            // A CPU overlaps the work on several packets unless each needs the previous result.
            self.sum = spin(self.rounds, self.sum.wrapping_add(stamp));
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Histogram {
        black_box(self.sum);
        self.delays.unwrap_or_default()
    }
}
