//! Makes runs on two CPUs, one of which only receives, and runs on one CPU that receives and
//! handles packets.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Input,
    flow::{FlowHasher, HashKey},
    threads::{CpuPart, Machine, Softnet, Stepped},
};

use crate::bare;
use crate::capacity::Loss;
use crate::error::LabError;
use crate::frames::FrameOptions;
use crate::measurement::Measurement;
use crate::placement::pin;

/// A handler that only reads the header fields that a router would read.
#[derive(Debug, Default)]
pub struct ReadsHeaders(u64);

impl ReadsHeaders {
    #[inline(always)]
    fn read(&mut self, frame: &[u8]) {
        let Some(head) = frame.first_chunk::<34>() else { return };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (ethertype, version, protocol, source) = (word(12) & 0xffff, head[14], head[23], word(26));
        self.0 = self.0.wrapping_add(u64::from(ethertype ^ source) + u64::from(version) + u64::from(protocol));
    }
}

impl Handler for ReadsHeaders {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let mut read = Self::default();
        let others = batch.read_common(|_, packet| {
            read.read(packet.data);
            true
        });
        if !others.is_empty() {
            let others = batch.iter_mut().enumerate().filter(|(nth, _)| others.contains(*nth));
            others.for_each(|(_, packet)| read.read(packet.data()));
        }
        self.0 = self.0.wrapping_add(read.0);
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        self.0
    }
}

/// The two CPUs of a run.
#[derive(Clone, Copy, Debug)]
pub struct CpuPair {
    /// The CPU that receives packets, and does nothing else.
    pub receive: usize,
    /// The CPU that handles the packets.
    pub work: usize,
}

/// The times of a run, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The receiving CPU's time per packet, without the time in which all backlogs were full.
    pub receive: f64,
    /// The worker's busy time per packet. `None` if the receiving CPU handles the packets.
    pub work: Option<f64>,
    /// The time from the first packet to the last, divided by the number of packets.
    pub whole: f64,
    /// The number of packets delivered.
    pub delivered: u64,
}

impl Times {
    /// Returns `self` if the run has delivered all `sent` packets.
    ///
    /// # Errors
    /// Returns an error if packets were lost.
    pub fn of_all(self, sent: u64) -> Result<Self, LabError> {
        none_lost(self.delivered, sent).map(|()| self)
    }

    /// Returns the loss of a run at a fixed rate.
    pub fn loss(&self, sent: u64) -> Loss {
        let lost_percent = 100.0 * (1.0 - self.delivered as f64 / sent as f64);
        Loss { lost_percent, cpu_percent: 100.0 * self.receive / self.whole }
    }

    /// Returns the metrics `mpps`, `receive_ns` and, if another CPU did the work, `work_ns`.
    pub fn measurement(&self) -> Measurement {
        let measurement = Measurement::of("mpps", 1e3 / self.whole).and("receive_ns", self.receive);
        match self.work {
            Some(work) => measurement.and("work_ns", work),
            None => measurement,
        }
    }
}

/// Measures how long a CPU is busy. The clock is read before each step (call of `during`) of an
/// idle CPU, and after a busy CPU's first step without work.
#[derive(Debug, Default)]
pub struct Busy {
    time: Duration,
    since: Option<Instant>,
}

impl Busy {
    /// Runs `step`, which returns true if it did any work.
    #[inline(always)]
    pub fn during(&mut self, step: impl FnOnce() -> bool) {
        let before = if self.since.is_none() { Some(Instant::now()) } else { None };
        if step() {
            self.since = self.since.or(before);
        } else if let Some(since) = self.since.take() {
            self.time += since.elapsed();
        }
    }

    /// Returns the busy time so far.
    pub fn time(mut self) -> Duration {
        self.during(|| false);
        self.time
    }
}

/// One CPU receives `frames` frames, and another CPU handles the frames. The handling CPU reads the
/// hand-over rings of all `targets`, because the run measures what many rings cost the receiving
/// CPU.
///
/// # Errors
/// Returns an error if the run cannot be set up.
pub fn run<H, F>(
    on: CpuPair,
    builder: Builder,
    input: Input,
    frames: u64,
    targets: usize,
    make: F,
) -> Result<Times, LabError>
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
        // `send` fails only if the receiving thread has failed.
        let _ = ready.send(());
        Ok(work(cpus))
    });
    let mut cpu = receiver.enter_machine();
    if is_ready.recv().is_err() {
        return joined(worker).and(Err(LabError::Panicked));
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

/// Hands frames over with the [bare] loop. Each CPU does the same work per packet as in [`run`]
/// with a device's hash. The number of frames is rounded up to whole batches, by at most 31 frames.
///
/// # Errors
/// Returns an error if the run cannot be set up.
pub fn run_bare(on: CpuPair, frames: FrameOptions, prefetches: bool) -> Result<Times, LabError> {
    let (mut writer, mut reader) =
        bare::bare(prefetches).map_err(|error| LabError::set_up("memory for the bare loop", error))?;
    let batches = frames.frames.div_ceil(bare::BATCH as u64);
    let total = batches * bare::BATCH as u64;
    pin(on.receive)?;
    let (ready, is_ready) = mpsc::channel();
    let worker = thread::spawn(move || {
        pin(on.work)?;
        let _ = ready.send(());
        let (mut busy, mut reads, mut hashes, mut read) = (Busy::default(), ReadsHeaders::default(), 0, 0);
        while read < total {
            busy.during(|| {
                let count = reader.read(|frame, hash| {
                    reads.read(frame);
                    hashes ^= hash;
                });
                read += count as u64;
                count > 0
            });
        }
        std::hint::black_box((reads.0, hashes));
        Ok(busy.time())
    });
    if is_ready.recv().is_err() {
        return joined(worker).and(Err(LabError::Panicked));
    }
    let mut source = frames.writer();
    let (whole, mut busy, mut written) = (Instant::now(), Busy::default(), 0);
    while written < batches {
        busy.during(|| {
            let room = writer.write(|frame| source.write(frame));
            written += u64::from(room);
            room
        });
    }
    let receive = busy.time();
    let work = joined(worker)?;
    let each = |time: Duration| time.as_nanos() as f64 / total as f64;
    Ok(Times { receive: each(receive), work: Some(each(work)), whole: each(whole.elapsed()), delivered: total })
}

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

/// Runs `frames` frames on one CPU. Returns the times and the handler's report.
///
/// # Errors
/// Returns an error if the run cannot be set up, or if a packet is lost.
pub fn run_alone<H, F>(
    on: usize,
    builder: Builder,
    input: Input,
    frames: u64,
    make: F,
) -> Result<(Times, H::Report), LabError>
where
    H: Handler,
    F: Fn() -> H + Send + Sync + 'static,
{
    let (times, report) = run_alone_at_rate(on, builder, input, frames, make)?;
    Ok((times.of_all(frames)?, report))
}

/// Like [`run_alone`], but frames arrive at a fixed rate and may be lost.
///
/// # Errors
/// Returns an error if the run cannot be set up.
pub fn run_alone_at_rate<H, F>(
    on: usize,
    builder: Builder,
    input: Input,
    frames: u64,
    make: F,
) -> Result<(Times, H::Report), LabError>
where
    H: Handler,
    F: Fn() -> H + Send + Sync + 'static,
{
    let builder = builder.virtual_cpus(1).hash(FlowHasher::keyed(&HashKey::MICROSOFT));
    let (mut parts, handle) = builder.input(input).build(move |_| make())?.split();
    pin(on)?;
    let mut cpu = parts.remove(0).enter_machine();
    // The measurement begins after the first round, in which a device posts the pages of its ring.
    cpu.step();
    let (start, mut busy) = (Instant::now(), Busy::default());
    while !cpu.is_finished() {
        busy.during(|| cpu.step() == Stepped::Worked);
    }
    let each = |time: Duration| time.as_nanos() as f64 / frames as f64;
    let (receive, whole) = (each(busy.time()), each(start.elapsed()));
    let delivered = handle.snapshot().delivered();
    Ok((Times { receive, work: None, whole, delivered }, cpu.finish()))
}

/// Returns `Ok` if all packets arrived.
///
/// # Errors
/// Returns an error if packets were lost.
pub fn none_lost(delivered: u64, sent: u64) -> Result<(), LabError> {
    if delivered == sent { Ok(()) } else { Err(LabError::Lost { delivered, sent }) }
}

/// Returns the result of a thread.
///
/// # Errors
/// Returns the thread's error, or an error if the thread panicked.
pub fn joined<T>(thread: thread::JoinHandle<Result<T, LabError>>) -> Result<T, LabError> {
    thread.join().unwrap_or(Err(LabError::Panicked))
}
