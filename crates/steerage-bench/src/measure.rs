//! One run: a CPU receives and does nothing else, another is all of the targets; or one does all.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, CpuPart, FlowHasher, Handler, Hash, HashKey, Input, Machine, Softnet, Stepped,
};

use crate::error::BenchError;
use crate::experiments::Figures;
use crate::placement::pin;

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

/// The two CPUs of a run.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Receives, and does nothing else.
    pub receive: usize,
    /// Where the work is.
    pub work: usize,
}

/// What a run came to, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The receiving CPU's time a packet, without the time in which all backlogs were full.
    pub receive: f64,
    /// The worker's, without the time in which there was nothing to do; none where the receiving CPU does all.
    pub work: Option<f64>,
    /// From the first packet to the last, a packet.
    pub whole: f64,
    /// How many packets were delivered.
    pub delivered: u64,
}

impl Times {
    /// The same, of a run in which nothing may be lost.
    ///
    /// # Errors
    /// If anything was.
    pub fn of_all(self, sent: u64) -> Result<Self, BenchError> {
        none_lost(self.delivered, sent).map(|()| self)
    }

    /// By metric: `mpps`, `receive_ns`, and `work_ns` where another CPU worked.
    pub fn figures(&self) -> Figures {
        let figures = Figures::of("mpps", 1e3 / self.whole).and("receive_ns", self.receive);
        match self.work {
            Some(work) => figures.and("work_ns", work),
            None => figures,
        }
    }
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

/// Runs an input of so many frames once. The targets are all on one CPU: what counts is what many rings cost the receiver.
///
/// # Errors
/// If it cannot be set up.
pub fn run<H, F>(
    on: Pair,
    builder: Builder,
    input: Input,
    frames: u64,
    targets: usize,
    make: F,
) -> Result<Times, BenchError>
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
        .build(move |_| make())?;
    let (mut parts, handle) = instance.split();
    let receiver = parts.remove(0);
    pin(on.receive)?;
    let (ready, is_ready) = mpsc::channel();
    let worker = thread::spawn(move || {
        pin(on.work)?;
        let cpus = parts.into_iter().map(CpuPart::enter_machine).collect();
        // Where nobody waits for it, there is nothing to do.
        let _ = ready.send(());
        Ok(work(cpus))
    });
    let mut cpu = receiver.enter_machine();
    if is_ready.recv().is_err() {
        return joined(worker).and(Err(BenchError::Panicked));
    }
    let whole = Instant::now();
    let mut busy = Busy::default();
    while !cpu.is_finished() {
        busy.during(|| cpu.step() == Stepped::Worked);
    }
    let (receive, whole) = (busy.time(), whole.elapsed());
    let work = joined(worker)?;
    let each = |time: Duration| time.as_nanos() as f64 / frames as f64;
    let delivered = handle.snapshot().delivered();
    Ok(Times { receive: each(receive), work: Some(each(work)), whole: each(whole), delivered })
}

/// Works on them in turn until all have finished. Returns for how long there was something to do.
fn work<H: Handler>(mut cpus: Vec<Softnet<H, Machine>>) -> Duration {
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
}

/// Runs an input of so many frames once on one CPU, which receives and works. Returns as well what the function reports.
///
/// # Errors
/// If it cannot be set up, or a packet is lost.
pub fn run_alone<H, F>(
    on: usize,
    builder: Builder,
    input: Input,
    frames: u64,
    make: F,
) -> Result<(Times, H::Report), BenchError>
where
    H: Handler,
    F: Fn() -> H + Send + Sync + 'static,
{
    let builder = builder.virtual_cpus(1).hash(FlowHasher::keyed(&HashKey::MICROSOFT));
    let (mut parts, handle) = builder.input(input).build(move |_| make())?.split();
    pin(on)?;
    let mut cpu = parts.remove(0).enter_machine();
    let start = Instant::now();
    while cpu.step() != Stepped::Finished {}
    let whole = start.elapsed().as_nanos() as f64 / frames as f64;
    let delivered = handle.snapshot().delivered();
    let times = Times { receive: whole, work: None, whole, delivered }.of_all(frames)?;
    Ok((times, cpu.finish()))
}

/// Whether all arrived.
///
/// # Errors
/// If not.
pub fn none_lost(delivered: u64, sent: u64) -> Result<(), BenchError> {
    if delivered == sent { Ok(()) } else { Err(BenchError::Lost { delivered, sent }) }
}

/// What a thread came to.
///
/// # Errors
/// Its own, or that it panicked.
pub fn joined<T>(thread: thread::JoinHandle<Result<T, BenchError>>) -> Result<T, BenchError> {
    thread.join().unwrap_or(Err(BenchError::Panicked))
}
