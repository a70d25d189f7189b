//! What it costs to meter flows: a capture of short frames, read and metered by one CPU, beside one that only counts.
//!
//! `cargo bench -p steerage-bench --bench meter [-- ROUNDS [PACKETS [CASE]]]`. Cases run in turn, A B C A B C ...; a case's figure is
//! its best round's, which other work on the machine disturbs least.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::io::Cursor;
use std::time::Instant;

use steerage::{Builder, Handler, Stepped};
use steerage_apps::Count;
use steerage_apps::meter::{MeterOptions, Metered, Metering};
use steerage_bench::measure::RX_CPU;
use steerage_bench::placement::pin;
use steerage_device::capture::Capture;

const PACKETS: u32 = 2_000_000;
const FRAME_BYTES: usize = 60;
/// IPv6 and UDP do not fit into less.
const FRAME6_BYTES: usize = 62;

/// The flow of a packet: by chance (splitmix64), so that no cache foresees it.
fn flow_of(nth: u32, flows: u32) -> u32 {
    let mut mixed = u64::from(nth).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) % u64::from(flows)) as u32
}

/// A classic capture of UDP over IPv4 or IPv6.
fn capture(packets: u32, flows: u32, six: bool) -> Vec<u8> {
    let mut file = Vec::with_capacity(24 + packets as usize * (16 + FRAME6_BYTES));
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    let mut frame = vec![0; if six { FRAME6_BYTES } else { FRAME_BYTES }];
    let len = frame.len() as u32;
    if six {
        (frame[12], frame[13], frame[14], frame[19], frame[20]) = (0x86, 0xdd, 0x60, 6, 17);
    } else {
        (frame[12], frame[13], frame[14], frame[17], frame[23]) = (8, 0, 0x45, 46, 17);
    }
    let (address, port) = if six { (34, 55) } else { (26, 35) };
    for nth in 0..packets {
        [nth / 1_000_000, nth % 1_000_000, len, len].iter().for_each(|word| file.extend(word.to_le_bytes()));
        let flow = flow_of(nth, flows);
        frame[address..address + 4].copy_from_slice(&flow.to_be_bytes());
        frame[port] = flow as u8;
        file.extend(&frame);
    }
    file
}

/// Nanoseconds a packet.
fn run<H: Handler>(file: &[u8], packets: u32, make: impl Fn() -> H + Send + Sync + 'static) -> (f64, H::Report) {
    let input = Capture::from_reader("bench", Cursor::new(file.to_vec())).into_input();
    let instance = Builder::new().virtual_cpus(1).input(input).build(move |_| make()).expect("a run");
    let (mut parts, _handle) = instance.split();
    let mut cpu = parts.remove(0).enter_machine();
    let start = Instant::now();
    while cpu.step() != Stepped::Finished {}
    let nanos = start.elapsed().as_nanos() as f64 / f64::from(packets);
    (nanos, cpu.finish())
}

fn metering(file: &[u8], packets: u32, flows: u32) -> f64 {
    let metering = Metering::new(MeterOptions::default(), None);
    let (nanos, report) = run(file, packets, move || metering.meter());
    let (metered, _) = Metered::of([report], 10);
    let mut seen = vec![false; flows as usize];
    (0..packets).for_each(|nth| seen[flow_of(nth, flows) as usize] = true);
    assert_eq!(metered.total, seen.iter().filter(|seen| **seen).count() as u64, "each flow is one record");
    nanos
}

fn main() {
    // `cargo bench` passes --bench.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let rounds: usize = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(11);
    let packets: u32 = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(PACKETS);
    let only: Option<usize> = args.next().and_then(|arg| arg.parse().ok());
    pin(RX_CPU);
    let cases = [("IPv4", 1024, false), ("IPv4", 65_536, false), ("IPv6", 65_536, true), ("IPv4", 1_000_000, false)];
    let mut best = [[f64::INFINITY; 2]; 4];
    for (nth, ((_, flows, six), best)) in cases.iter().zip(&mut best).enumerate() {
        if only.is_some_and(|only| only != nth) {
            continue;
        }
        let file = capture(packets, *flows, *six);
        for _ in 0..rounds {
            best[0] = best[0].min(run(&file, packets, Count::default).0);
            best[1] = best[1].min(metering(&file, packets, *flows));
        }
    }
    println!("best of {rounds} rounds, {packets} frames of {FRAME_BYTES} bytes (IPv6 {FRAME6_BYTES}); ns a packet\n");
    println!("{:<6} {:>9} {:>8} {:>8}", "", "flows", "count", "meter");
    for ((name, flows, _), [count, meter]) in cases.iter().zip(&best).filter(|(_, best)| best[0].is_finite()) {
        println!("{name:<6} {flows:>9} {count:>8.1} {meter:>8.1}");
    }
}
