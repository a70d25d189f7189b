//! Counts instructions per packet, and checks that the counts do not increase. Counts of
//! instructions do not depend on other load of the machine.
//!
//! `cargo bench -p steerage-lab --bench instructions` needs valgrind and the runner (`cargo install
//! gungraun-runner --version 0.18.2 --locked`). One thread steps all CPUs in turn with a virtual
//! clock, so each run executes the same instructions. A run has [`PACKETS`] packets of 64 bytes in
//! 65,536 flows. Two further benchmarks count and meter packets from a capture.
#![allow(missing_docs, unused_qualifications, reason = "in what the macros make")]

use std::cell::Cell;
use std::hint::black_box;
use std::io::{self, Cursor};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use steerage::{
    BuildError, Builder, CpuId, CpuMask, Handler, Hash, Instance, Timestamp,
    flow::{FlowHasher, HashKey},
    limits::POLL_BUDGET,
    threads::{Bell, Platform, Softnet, Stepped},
};
use steerage_apps::Count;
use steerage_capture::Capture;
use steerage_lab::capture::{FRAME_BYTES, Lengths, capture};
use steerage_lab::frames::{FLOWS, FrameOptions, Mix};
use steerage_lab::runs::ReadsHeaders;
use steerage_meter::{Meter, MeterOptions, Metering};

/// The number of packets, so large that the start and the end of a run do not matter.
const PACKETS: u64 = 64_000;

const TICK: Duration = Duration::from_nanos(50);

/// Steps all CPUs on one thread. CPUs never sleep.
#[derive(Clone, Default)]
struct Stepping(Rc<Cell<Timestamp>>);

impl Platform for Stepping {
    fn now(&self) -> Timestamp {
        self.0.set(self.0.get() + TICK);
        self.0.get()
    }

    fn park(&mut self, _: &Bell, _: &[BorrowedFd<'_>], _: Option<Timestamp>) -> io::Result<()> {
        Ok(())
    }

    fn random(&mut self) -> u64 {
        0
    }
}

/// The CPUs of a run. The first CPU receives packets, and handles them if it is the only CPU.
type Cpus<H> = Vec<Softnet<H, Stepping>>;

fn stepped<H: Handler>(instance: Result<Instance<H>, BuildError>) -> Cpus<H> {
    let (parts, _) = instance.expect("a benchmark that can be set up").split();
    let clock = Stepping::default();
    parts.into_iter().map(|part| part.enter(clock.clone())).collect()
}

fn run<H: Handler>(mut cpus: Cpus<H>) -> Cpus<H> {
    let mut finished = 0;
    while finished < cpus.len() {
        finished = cpus.iter_mut().map(|cpu| usize::from(black_box(cpu.step()) == Stepped::Finished)).sum();
    }
    cpus
}

fn cpus(frames: FrameOptions, targets: usize) -> Cpus<ReadsHeaders> {
    let workers: CpuMask = (1..=targets as u16).map(CpuId).collect();
    let builder = Builder::new().virtual_cpus(targets + 1).policy(Hash).hash(FlowHasher::keyed(&HashKey::MICROSOFT));
    let builder = if targets > 0 { builder.rps_cpus(workers) } else { builder };
    stepped(builder.input_on(frames.input(), &[CpuId(0)], None).build(|_| ReadsHeaders::default()))
}

fn device_hash(targets: usize) -> Cpus<ReadsHeaders> {
    let mix = Mix::Uniform;
    cpus(FrameOptions { mix, device_hash: true, list: POLL_BUDGET, flows: FLOWS, frames: PACKETS }, targets)
}

fn our_hash(targets: usize, mix: Mix) -> Cpus<ReadsHeaders> {
    cpus(FrameOptions { mix, device_hash: false, list: POLL_BUDGET, flows: FLOWS, frames: PACKETS }, targets)
}

fn single(targets: usize) -> Cpus<ReadsHeaders> {
    cpus(FrameOptions { mix: Mix::Uniform, device_hash: true, list: 1, flows: FLOWS, frames: PACKETS }, targets)
}

/// Sets the limit of instructions per packet: the counted number plus 5 % for later compilers.
/// Lower the limit if the counted number falls. A poll takes about 250 instructions, which matter
/// if the poll returns one packet or if 16 workers are idle. Branch-free code executes more
/// instructions than code with branches, which the CPU cannot predict for mixed traffic.
fn at_most(each: u64) -> LibraryBenchmarkConfig {
    let limit = (EventKind::Ir, each * PACKETS);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::with_args(["--cache-sim=no"]).hard_limits([limit]));
    config
}

#[library_benchmark]
#[bench::alone(args = (0), setup = device_hash, config = at_most(141))]
#[bench::device_hash_1_target(args = (1), setup = device_hash, config = at_most(198))]
#[bench::device_hash_2_targets(args = (2), setup = device_hash, config = at_most(239))]
#[bench::device_hash_16_targets(args = (16), setup = device_hash, config = at_most(358))]
#[bench::our_hash_2_targets(args = (2, Mix::Uniform), setup = our_hash, config = at_most(327))]
#[bench::our_hash_2_targets_mixed(args = (2, Mix::Mixed), setup = our_hash, config = at_most(388))]
#[bench::lists_of_one(args = (1), setup = single, config = at_most(2227))]
fn packets(cpus: Cpus<ReadsHeaders>) -> Cpus<ReadsHeaders> {
    run(cpus)
}

fn captured<H: Handler>(make: impl Fn() -> H + Send + Sync + 'static) -> Cpus<H> {
    let input = Capture::from_reader("bench", Cursor::new(capture(PACKETS as u32, 1024, Lengths::All(FRAME_BYTES))))
        .into_input();
    stepped(Builder::new().virtual_cpus(1).input(input).build(move |_| make()))
}

fn counting() -> Cpus<Count> {
    captured(Count::default)
}

fn metering() -> Cpus<Meter> {
    let metering = Metering::new(MeterOptions::default(), None);
    captured(move || metering.meter())
}

#[library_benchmark]
#[bench::capture(setup = counting, config = at_most(219))]
fn counted(cpus: Cpus<Count>) -> Cpus<Count> {
    run(cpus)
}

#[library_benchmark]
#[bench::capture(setup = metering, config = at_most(493))]
fn metered(cpus: Cpus<Meter>) -> Cpus<Meter> {
    run(cpus)
}

library_benchmark_group!(name = path, benchmarks = packets);
library_benchmark_group!(name = captures, benchmarks = [counted, metered]);
main!(library_benchmark_groups = [path, captures]);
