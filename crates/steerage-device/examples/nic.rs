//! A device that has a ring of pages, like a network card: `cargo run --release -p steerage-device
//! --example nic`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;

use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, Outcome,
    device::{Capabilities, Completions, Filled, Fit, Page, Polled, RxQueue},
    limits::HEADROOM,
};

const RING: usize = 256;
const FRAME_BYTES_MAX: usize = 1514;

struct Nic {
    frames_left: u32,
    ring: Vec<Page>,
    next: usize,
}

impl Nic {
    /// Simulates the hardware: writes short and long frames in turn. `None` after the last frame.
    fn receive(&mut self, memory: &mut [u8]) -> Option<usize> {
        self.frames_left = self.frames_left.checked_sub(1)?;
        let len = [60, FRAME_BYTES_MAX][self.frames_left as usize % 2];
        memory[..len].fill(0);
        memory[26..30].copy_from_slice(&self.frames_left.to_be_bytes());
        Some(len)
    }
}

impl RxQueue for Nic {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES_MAX).posted(RING).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        // The first poll fills the ring with pages. Later polls replace the pages that have left
        // the ring.
        out.refill(RING - self.ring.len(), Fit::new(FRAME_BYTES_MAX), |page| {
            self.ring.push(page);
            Ok(())
        });
        for _ in 0..budget.min(self.ring.len()) {
            let mut page = self.ring.swap_remove(self.next);
            let Some(len) = self.receive(&mut out.page_mut(&mut page)[HEADROOM..]) else {
                out.give_page(page);
                self.ring.drain(..).for_each(|page| out.give_page(page));
                return Ok(Polled::Ended);
            };
            // The page that `rx_finish` returns replaces the frame's page in the ring.
            self.ring.push(out.rx_finish(page, HEADROOM, Filled::whole(len)));
            self.next = (self.next + 1) % self.ring.len();
        }
        Ok(Polled::More)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sums(pub(crate) u64, pub(crate) u64);

impl Handler for Sums {
    type Moved = ();
    type Report = Self;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let number = packet.data()[26..30].try_into().map_or(0, u32::from_be_bytes);
            (self.0, self.1) = (self.0 + 1, self.1 + u64::from(number));
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Self {
        self
    }
}

pub(crate) fn run(frames: u32, copybreak: usize) -> Result<Outcome<Sums>, Box<dyn Error>> {
    let nic = Nic { frames_left: frames, ring: Vec::with_capacity(RING), next: 0 };
    let input = Input::new("nic0", "example", vec![Box::new(nic)]);
    Ok(Builder::new().input(input).copybreak(copybreak).build(|_cpu| Sums::default())?.start()?.join())
}

fn main() -> Result<(), Box<dyn Error>> {
    for (cpu, Sums(frames, sum)) in run(1_000_000, 256)?.reports {
        println!("CPU {cpu}: {frames} frames, numbers up to a sum of {sum}");
    }
    Ok(())
}
