//! The whole path with many queues: steering over all CPUs, with caches of several sizes.

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
use crate::measurement::Measurement;
use crate::runs::ReadsHeaders;

/// An endless source of frames of 1,500 bytes. Only the first 64 bytes of a frame are written,
/// which is the part that a packet function reads. The DMA of a real card does not take the rest
/// through the CPU's caches.
struct Frames(Rng, [u8; frames::FRAME_BYTES]);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |page| {
            let frame: &mut [u8; frames::FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = self.1;
            frame[26..30].copy_from_slice(&(0x0a00_0000 + self.0.u32(..FLOWS)).to_be_bytes());
            Some(Filled::whole(FRAME_BYTES))
        });
        out.prefetch_pages(budget);
        Ok(Polled::More)
    }
}

pub(super) fn once(
    on: &[usize],
    queues: usize,
    lpc_pages: usize,
    warm_up: Duration,
    time: Duration,
) -> Result<Measurement, LabError> {
    let cpus: CpuMask = on.iter().map(|cpu| CpuId(*cpu as u16)).collect();
    let rx: Vec<CpuId> = on.iter().cycle().take(queues).map(|cpu| CpuId(*cpu as u16)).collect();
    let queue = |seed| Box::new(Frames(Rng::with_seed(seed), udp4())) as Box<dyn RxQueue>;
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
    let (packets, busy) = ((after.delivered() - before.delivered()) as f64, busy(&after).saturating_sub(busy(&before)));
    let took = after.elapsed.saturating_sub(before.elapsed).as_secs_f64();
    Ok(Measurement::of("cpu_ns", busy.as_nanos() as f64 / packets.max(1.0)).and("mpps", packets / took / 1e6))
}
