//! A source of packets at a rate or without end, and a packet function that takes so many nanoseconds for each.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use steerage::{Batch, Completions, Cpu, DeviceError, Filled, Handler, Input, Polled, QueueMemory, RxQueue, Timestamp};

use crate::frames::{FLOWS, FRAME_BYTES, UDP4};
use crate::histogram::Histogram;

/// Frames that the source holds while nobody polls it, as a NIC's ring.
const DEVICE_RING: u64 = 4096;

/// Where a frame says when it was due.
const STAMP: std::ops::Range<usize> = 42..50;

/// UDP flows at a steady rate, each frame with the time at which it was due.
#[derive(Debug)]
pub struct Paced {
    /// Nanoseconds between frames; 0: as many as are asked for.
    gap: f64,
    next: f64,
    chance: u64,
}

impl Paced {
    /// So many packets a second, whether somebody takes them or not; or, without a number, as many as are taken.
    pub fn input(per_second: Option<f64>) -> Input {
        let queue = Self { gap: per_second.map_or(0.0, |rate| 1e9 / rate), next: 0.0, chance: 1 };
        Input { name: "paced".into(), kind: "bench", mode: "", queues: vec![Box::new(queue)] }
    }

    /// How many frames there are by now, at most a poll's.
    fn due(&mut self, out: &mut Completions<'_>, budget: usize) -> usize {
        let now = out.now().as_nanos() as f64;
        if self.next == 0.0 {
            self.next = now;
        }
        let due = ((now - self.next) / self.gap) as u64;
        if due > DEVICE_RING {
            out.lost(due - DEVICE_RING);
            self.next += (due - DEVICE_RING) as f64 * self.gap;
        }
        budget.min(due as usize)
    }
}

impl RxQueue for Paced {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        Ok(QueueMemory::Pages { frame_bytes_max: FRAME_BYTES })
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = if self.gap > 0.0 { self.due(out, budget) } else { budget };
        let Self { gap, next, chance } = self;
        out.fill(count, |page| {
            *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let flow = (*chance >> 33) as u32 % FLOWS;
            let frame: &mut [u8; FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = UDP4;
            frame[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
            frame[STAMP].copy_from_slice(&(*next as u64).to_le_bytes());
            *next += *gap;
            Some(Filled::whole(FRAME_BYTES))
        });
        out.prefetch_pages(budget);
        if self.gap > 0.0 && count < budget {
            return Ok(Polled::NotBefore(Timestamp::from_nanos(self.next as u64)));
        }
        Ok(Polled::More)
    }

    fn can_wait(&self) -> bool {
        self.gap == 0.0
    }
}

/// So many rounds of arithmetic that nobody can shorten.
#[inline(never)]
pub fn spin(rounds: u64, seed: u64) -> u64 {
    (0..rounds).fold(seed | 1, |x, _| black_box(x.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17)))
}

/// How many rounds of [`spin`] take so long: measured once, at the best of a few times, which others disturb least.
pub fn rounds_of(time: Duration) -> u64 {
    const TIMES: usize = 5;
    const ROUNDS: u64 = 2_000_000;
    static NANOS_EACH: OnceLock<f64> = OnceLock::new();
    let each = NANOS_EACH.get_or_init(|| {
        let once = |_| {
            let start = Instant::now();
            black_box(spin(ROUNDS, 3));
            start.elapsed().as_nanos() as f64 / ROUNDS as f64
        };
        (0..TIMES).map(once).fold(f64::INFINITY, f64::min)
    });
    (time.as_nanos() as f64 / each) as u64
}

/// Works for a while on each packet, and where it is asked to notes how old packets are when their turn comes.
#[derive(Debug)]
pub struct Works {
    rounds: u64,
    sum: u64,
    ages: Option<Histogram>,
}

impl Works {
    /// So many rounds of [`spin`] for each.
    pub fn new(rounds: u64, notes_ages: bool) -> Self {
        Self { rounds, sum: 0, ages: notes_ages.then(Histogram::new) }
    }
}

impl Handler for Works {
    type Moved = ();
    type Report = Histogram;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let began = cpu.now().as_nanos();
        for packet in batch.iter_mut() {
            let stamp = packet.data().get(STAMP).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
            if let Some(ages) = &mut self.ages {
                ages.add(began.saturating_sub(stamp));
            }
            self.sum = self.sum.wrapping_add(spin(self.rounds, stamp));
        }
    }

    fn finish(self) -> Histogram {
        black_box(self.sum);
        self.ages.unwrap_or_default()
    }
}
