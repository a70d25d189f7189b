//! Measures the CPU time per packet of a capture file: a bare loop over its records, steerage's
//! polling alone, and polling with steering and counting.
//!
//! `cargo bench -p steerage-lab --bench capture [-- ROUNDS [FILE]]`. The default file has 2,000,000
//! frames of 60 bytes, and is in the page cache. Cases run in turn, A B C A B C ...
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use steerage::testing::QueueTester;
use steerage::{Builder, Timestamp, device::Polled, limits::POLL_BUDGET, threads::Stepped};
use steerage_apps::Count;
use steerage_capture as capture;
use steerage_lab::capture::{FRAME_BYTES, Lengths, capture as bytes};
use steerage_lab::placement::pin;

const FRAMES: u32 = 2_000_000;
const FLOWS: u32 = 65_536;

const READ_BYTES: usize = 256 << 10;

/// Steps over the records of a little-endian pcap file with the minimum of work: read(2), and the
/// length of each record.
fn bare(path: &Path) -> u64 {
    let mut file = File::open(path).expect("it was just there");
    let mut memory = vec![0; 2 * READ_BYTES];
    let (mut filled, mut packets) = (file.read(&mut memory[..24]).expect("a header") - 24, 0);
    loop {
        let read = file.read(&mut memory[filled..filled + READ_BYTES]).expect("a readable file");
        if read == 0 {
            return packets;
        }
        filled += read;
        let mut at = 0;
        while let Some(header) = memory[at..filled].first_chunk::<16>() {
            let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
            if filled - at < 16 + len {
                break;
            }
            packets += 1;
            at += 16 + len;
        }
        memory.copy_within(at..filled, 0);
        filled -= at;
    }
}

fn polled(path: &Path) -> u64 {
    let mut input = capture::open(path).expect("a capture");
    let mut tester = QueueTester::new(input.queues.remove(0)).expect("memory");
    let mut packets = 0;
    loop {
        let (polled, count) = tester.poll_and_count(Timestamp::ZERO, POLL_BUDGET).expect("a sound capture");
        packets += count as u64;
        if polled == Polled::Ended {
            return packets;
        }
    }
}

fn counted(path: &Path) -> u64 {
    let input = capture::open(path).expect("a capture");
    let instance = Builder::new().virtual_cpus(1).input(input).build(|_| Count::default()).expect("an instance");
    let (mut parts, handle) = instance.split();
    let mut cpu = parts.remove(0).enter_machine();
    while cpu.step() != Stepped::Finished {}
    std::hint::black_box(cpu.finish());
    handle.snapshot().delivered()
}

type Case = (&'static str, fn(&Path) -> u64);

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let rounds: usize = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(7);
    let given = args.next().map(PathBuf::from);
    pin(0).expect("a CPU");
    let path = given.clone().unwrap_or_else(|| {
        let path = std::env::temp_dir().join(format!("steerage-lab-{}.pcap", std::process::id()));
        fs::write(&path, bytes(FRAMES, FLOWS, Lengths::All(FRAME_BYTES))).expect("a temporary file");
        path
    });
    let cases: [Case; 3] = [("bare loop", bare), ("polled", polled), ("counted", counted)];
    let mut nanos: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        for ((_, run), nanos) in cases.iter().zip(&mut nanos) {
            let start = Instant::now();
            let packets = run(&path);
            nanos.push(start.elapsed().as_nanos() as f64 / packets as f64);
        }
    }
    if given.is_none() {
        let _ = fs::remove_file(&path);
    }
    println!("{rounds} rounds; ns per packet, set-up included: median [least..most]");
    for ((name, _), nanos) in cases.iter().zip(&mut nanos) {
        nanos.sort_by(f64::total_cmp);
        let (middle, least, most) = (nanos[nanos.len() / 2], nanos[0], nanos[nanos.len() - 1]);
        println!("{name:<10} {middle:6.2} [{least:.2}..{most:.2}]   {:5.1} Mpps", 1000.0 / middle);
    }
}
