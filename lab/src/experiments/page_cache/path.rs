//! The whole receive path with many queues, by size of the local page caches.

use std::thread;
use std::time::Duration;

use fastrand::Rng;
use steerage::{
    Builder, CpuId, CpuMask, DeviceError, Hash, Input, Instance,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
};

use super::FRAME_BYTES;
use crate::error::LabError;
use crate::frames::{self, FLOWS, udp4};
use crate::load::Pace;
use crate::runs::ReadsHeaders;

/// A device with frames of 1,500 bytes, of which it writes only the 64 bytes that a packet function
/// reads. With a network card, bytes that nobody reads arrive by DMA and do not use the CPU's
/// caches.
struct Frames {
    pace: Pace,
    rng: Rng,
    frame: [u8; frames::FRAME_BYTES],
}

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES);
        can.can_wait = self.pace.can_wait();
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = self.pace.due(out, budget);
        let Self { pace, rng, frame: template } = self;
        out.fill(count, |page| {
            let frame: &mut [u8; frames::FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = *template;
            frame[26..30].copy_from_slice(&(0x0a00_0000 + rng.u32(..FLOWS)).to_be_bytes());
            pace.take();
            Some(Filled::whole(FRAME_BYTES))
        });
        out.prefetch_pages(budget);
        Ok(self.pace.polled(count, budget))
    }
}

pub(super) struct Path {
    /// The busy time of all CPUs per packet, in nanoseconds.
    pub(super) cpu_ns: f64,
    pub(super) per_second: f64,
    /// The mean busy time of a CPU.
    pub(super) cpu_percent: f64,
    pub(super) lost_percent: f64,
}

/// Without `rate` (frames per second on all queues), frames arrive as fast as polls accept them.
pub(super) fn once(
    on: &[usize],
    queues: usize,
    lpc_pages: usize,
    rate: Option<f64>,
    (warm_up, time): (Duration, Duration),
) -> Result<Path, LabError> {
    let cpus: CpuMask = on.iter().map(|cpu| CpuId(*cpu as u16)).collect();
    let rx: Vec<CpuId> = on.iter().cycle().take(queues).map(|cpu| CpuId(*cpu as u16)).collect();
    let pace = || Pace::new(rate.map(|rate| rate / queues as f64));
    let queue = |seed| Box::new(Frames { pace: pace(), rng: Rng::with_seed(seed), frame: udp4() }) as Box<dyn RxQueue>;
    let all = (0..queues as u64).map(queue).collect();
    let builder = Builder::new().cpus(cpus.clone()).rps_cpus(cpus).policy(Hash).lpc_pages(lpc_pages);
    let builder = builder.input_on(Input::new("frames", "bench", all), &rx, None);
    let running = builder.build(|_| ReadsHeaders::default()).and_then(Instance::start)?;
    let handle = running.handle();
    thread::sleep(warm_up);
    let before = handle.snapshot();
    thread::sleep(time);
    let after = handle.snapshot();
    handle.stop();
    if !running.join().failed.is_empty() {
        return Err(LabError::Panicked);
    }
    let busy = |snapshot: &steerage::Snapshot| snapshot.cpus.iter().map(|cpu| cpu.busy).sum::<Duration>();
    let packets = (after.delivered() - before.delivered()) as f64;
    let lost = (after.dropped().total() - before.dropped().total()) as f64;
    let busy = busy(&after).saturating_sub(busy(&before));
    let took = after.elapsed.saturating_sub(before.elapsed);
    Ok(Path {
        cpu_ns: busy.as_nanos() as f64 / packets.max(1.0),
        per_second: packets / took.as_secs_f64(),
        cpu_percent: 100.0 * busy.as_secs_f64() / (took.as_secs_f64() * on.len() as f64),
        lost_percent: 100.0 * lost / (packets + lost).max(1.0),
    })
}
