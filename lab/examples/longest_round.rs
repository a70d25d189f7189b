//! The longest rounds of packet CPUs while control is busy: masks that change a thousand times a
//! second, and a reader of snapshots in a loop.
//!
//! ```sh
//! cargo run --release -p steerage-lab --example longest_round -- 10 # seconds
//! ```
//!
//! One thread steps two CPUs in turn and times each round. Control runs in a second thread, so on a
//! quiet machine with two CPUs only control can make a round longer. The kernel and a hypervisor
//! still interrupt, so compare runs in turn.

#![allow(clippy::print_stdout)] // it prints one line, its result

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use steerage::Handle;
use steerage::prelude::*;

struct Touch(u64);

impl Handler for Touch {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            self.0 = self.0.wrapping_add(u64::from(packet.data()[0]));
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        self.0
    }
}

/// Keeps control busy until `end`.
fn control(handle: &Handle, end: &AtomicBool) {
    let masks = [vec![0], vec![1], vec![0, 1]].map(|cpus: Vec<u16>| cpus.into_iter().map(CpuId).collect::<CpuMask>());
    let (mut nth, mut last) = (0, Instant::now());
    while !end.load(Ordering::Relaxed) {
        if last.elapsed() >= Duration::from_millis(1) {
            let _ = handle.set_rps_cpus(&masks[nth % masks.len()]);
            (nth, last) = (nth + 1, Instant::now());
        }
        handle.control(handle.now());
        std::hint::black_box(handle.snapshot());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(5.0), |text| text.parse())?;
    let input = steerage_device::open("synthetic:flows=1000")?;
    let (parts, handle) = Builder::new().virtual_cpus(2).input(input).build(|_| Touch(0))?.split();
    let mut cpus: Vec<_> = parts.into_iter().map(|part| part.enter_machine()).collect();
    let end = AtomicBool::new(false);
    // The number of rounds by their length, in tenths of a power of two.
    let mut rounds = vec![0_u64; 400];
    std::thread::scope(|scope| {
        scope.spawn(|| control(&handle, &end));
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds {
            for cpu in &mut cpus {
                for _ in 0..16 {
                    let before = Instant::now();
                    cpu.step();
                    let nanos = before.elapsed().as_nanos().max(1) as f64;
                    rounds[((nanos.log2() * 10.0) as usize).min(399)] += 1;
                }
            }
        }
        end.store(true, Ordering::Relaxed);
    });
    let all: u64 = rounds.iter().sum();
    let at = |part: f64| {
        let mut below = 0;
        let place = rounds.iter().position(|count| {
            below += count;
            below as f64 >= part * all as f64
        });
        2_f64.powf((place.unwrap_or(0) + 1) as f64 / 10.0) / 1000.0
    };
    let moved = handle.snapshot().moves.buckets;
    println!(
        "{all} rounds, {moved} buckets moved; us: median {:.1}, 99 % {:.1}, 99.9 % {:.1}, 99.99 % {:.1}, longest {:.1}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        at(1.0)
    );
    handle.stop();
    Ok(())
}
