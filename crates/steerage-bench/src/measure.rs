//! One run: CPU 0 receives and does nothing else, CPU 1 is all of the targets.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, FlowHasher, Handler, Hash, HashKey, Input, Machine, Softnet, Stepped,
};

use crate::frames::FrameOptions;
use crate::placement::{Placement, one_way_nanos, pin};

/// The machine's CPUs that a run uses.
pub const RX_CPU: usize = 0;
/// And where the work is.
pub const WORK_CPU: usize = 1;

/// Reads what a forwarder would look at: the least that a packet function does.
#[derive(Debug, Default)]
pub struct ReadsHeaders(u64);

impl Handler for ReadsHeaders {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let Some(head) = packet.data().first_chunk::<34>() else { continue };
            let fields = [head[12], head[14], head[23], head[26], head[27], head[28], head[29], head[0]];
            self.0 = self.0.wrapping_add(u64::from_le_bytes(fields));
        }
    }

    fn finish(self) -> u64 {
        self.0
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in the table.
    pub name: &'static str,
    /// The traffic.
    pub frames: FrameOptions,
    /// How many CPUs the packets are spread over. All of them are threads' work on one CPU: what counts here is what
    /// many rings cost the receiver.
    pub targets: usize,
    /// The size of the local page cache.
    pub lpc_size: usize,
}

/// What came of it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Where the two CPUs were.
    pub placement: Placement,
    /// The receiving CPU's time a packet, without the time in which all backlogs were full.
    pub receive: f64,
    /// The worker's, without the time in which there was nothing to do.
    pub work: f64,
    /// From the first packet to the last, a packet.
    pub whole: f64,
    /// Of packets that come at a rate: the part that was lost, and how many millions were delivered a second.
    pub lossy: Option<(f64, f64)>,
}

/// Time in which something was done. The clock is read at every look that finds nothing, and where that changes; not
/// between one step of work and the next.
#[derive(Debug, Default)]
pub struct Busy {
    time: Duration,
    since: Option<Instant>,
}

impl Busy {
    /// `step` says whether it did something.
    #[inline(always)]
    pub fn during(&mut self, step: impl FnOnce() -> bool) {
        let before = if self.since.is_none() { Some(Instant::now()) } else { None };
        if step() {
            self.since = self.since.or(before);
        } else if let Some(since) = self.since.take() {
            self.time += since.elapsed();
        }
    }

    /// So much in all.
    pub fn time(mut self) -> Duration {
        self.during(|| false);
        self.time
    }
}

/// Runs it once.
///
/// # Panics
/// If it cannot be set up, or a packet is lost: then the figures would be of something else.
pub fn run(case: &Case) -> Figures {
    let builder = Builder::new().lpc_size(case.lpc_size);
    run_with(builder, case.frames.input(), case.frames.frames, case.targets, ReadsHeaders::default)
}

/// Runs an input of so many frames once, with another packet function.
///
/// # Panics
/// As [`run`].
pub fn run_with<H, F>(builder: Builder, input: Input, frames: u64, targets: usize, make: F) -> Figures
where
    H: Handler,
    F: Fn() -> H + Send + Sync + 'static,
{
    let (figures, delivered) = run_lossy(builder, input, frames, targets, make);
    assert_eq!(delivered, frames, "packets were lost");
    figures
}

/// The same where packets may be lost: returns as well how many were delivered.
///
/// # Panics
/// If it cannot be set up.
pub fn run_lossy<H, F>(builder: Builder, input: Input, frames: u64, targets: usize, make: F) -> (Figures, u64)
where
    H: Handler,
    F: Fn() -> H + Send + Sync + 'static,
{
    let (rx, workers) = (CpuId(0), (1..=targets as u16).map(CpuId).collect::<CpuMask>());
    let instance = builder
        .virtual_cpus(targets + 1)
        .rps_cpus(workers)
        .policy(Hash)
        .hash(FlowHasher::keyed(&HashKey::MICROSOFT))
        .input_on(input, &[rx], None)
        .build(move |_| make())
        .expect("a benchmark that can be set up");
    let (mut parts, handle) = instance.split();
    let receiver = parts.remove(0);
    let before = one_way_nanos(WORK_CPU);
    let (ready, is_ready) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        pin(WORK_CPU);
        let mut cpus: Vec<Softnet<H, Machine>> = parts.into_iter().map(|p| p.enter_machine()).collect();
        ready.send(()).expect("somebody waits for it");
        let mut busy = Busy::default();
        let mut finished = 0;
        while finished < cpus.len() {
            finished = 0;
            busy.during(|| {
                let mut worked = false;
                for cpu in &mut cpus {
                    let stepped = cpu.step();
                    worked |= stepped == Stepped::Worked;
                    finished += usize::from(stepped == Stepped::Finished);
                }
                worked
            });
        }
        let time = busy.time();
        cpus.into_iter().for_each(|cpu| {
            std::hint::black_box(cpu.finish());
        });
        time
    });
    let mut cpu = receiver.enter_machine();
    is_ready.recv().expect("a worker that begins");
    let whole = Instant::now();
    let mut busy = Busy::default();
    while !cpu.is_finished() {
        busy.during(|| cpu.step() == Stepped::Worked);
    }
    let (receive, whole) = (busy.time(), whole.elapsed());
    let work = worker.join().expect("a worker that ends");
    let after = one_way_nanos(WORK_CPU);
    let delivered = handle.snapshot().delivered();
    let each = |time: Duration| time.as_nanos() as f64 / frames as f64;
    let placement = Placement::of(before, after);
    let lossy = Some((1.0 - delivered as f64 / frames as f64, delivered as f64 / whole.as_secs_f64() / 1e6));
    let figures = Figures { placement, receive: each(receive), work: each(work), whole: each(whole), lossy: None };
    (Figures { lossy: lossy.filter(|_| delivered < frames), ..figures }, delivered)
}

/// Runs an input of so many frames once, on CPU 0 alone: it is the receiver and the worker.
///
/// # Panics
/// As [`run`].
pub fn run_alone<H, F>(builder: Builder, input: Input, frames: u64, make: F) -> Figures
where
    H: Handler,
    F: Fn() -> H + Send + Sync + 'static,
{
    let builder = builder.virtual_cpus(1).hash(FlowHasher::keyed(&HashKey::MICROSOFT));
    let instance = builder.input(input).build(move |_| make()).expect("a benchmark that can be set up");
    let (mut parts, handle) = instance.split();
    let before = one_way_nanos(WORK_CPU);
    let mut cpu = parts.remove(0).enter_machine();
    let start = Instant::now();
    while cpu.step() != Stepped::Finished {}
    let whole = start.elapsed().as_nanos() as f64 / frames as f64;
    let after = one_way_nanos(WORK_CPU);
    assert_eq!(handle.snapshot().delivered(), frames, "packets were lost");
    Figures { placement: Placement::of(before, after), receive: whole, work: 0.0, whole, lossy: None }
}

fn median(of: &mut [f64]) -> (f64, f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[0], of[of.len() - 1])
}

/// Runs cases with their names in turn, A B C A B C ..., and prints what came of them. The command line says how often
/// (`rounds` times, if it doesn't), and of which cases a part of the name.
#[expect(clippy::print_stdout, reason = "a benchmark prints")]
pub fn in_turn<C>(cases: Vec<(String, C)>, rounds: usize, run: impl Fn(&C) -> Figures) {
    // `cargo bench` passes --bench.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let rounds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(rounds);
    let part = args.next().unwrap_or_default();
    pin(RX_CPU);
    let cases: Vec<(String, C)> = cases.into_iter().filter(|(name, _)| name.contains(&part)).collect();
    let mut seen: BTreeMap<(usize, Placement), Vec<Figures>> = BTreeMap::new();
    for _ in 0..rounds {
        for (at, (_, case)) in cases.iter().enumerate() {
            let figures = run(case);
            seen.entry((at, figures.placement)).or_default().push(figures);
        }
    }
    println!("{rounds} rounds; ns a packet, median [least..most]\n");
    println!("{:<28} {:<6} {:>4}  {:<24} {:<24} whole", "case", "where", "runs", "receive", "worker");
    for ((at, placement), figures) in seen.iter().filter(|((_, placement), _)| *placement != Placement::Moved) {
        let column = |of: fn(&Figures) -> f64| {
            let (mid, low, high) = median(&mut figures.iter().map(of).collect::<Vec<_>>());
            format!("{mid:.2} [{low:.2}..{high:.2}]")
        };
        let lossy = figures.iter().any(|figures| figures.lossy.is_some()).then(|| {
            let lost = column(|f| f.lossy.map_or(0.0, |(lost, _)| 100.0 * lost));
            format!("  lost {lost} %, {} Mpps", column(|f| f.lossy.map_or(1e3 / f.whole, |(_, delivered)| delivered)))
        });
        println!(
            "{:<28} {:<6} {:>4}  {:<24} {:<24} {}{}",
            cases[*at].0,
            placement.to_string(),
            figures.len(),
            column(|f| f.receive),
            column(|f| f.work),
            column(|f| f.whole),
            lossy.unwrap_or_default(),
        );
    }
}
