use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage_core::build::{BeginWith, InputSpec, Spec, build};
use steerage_core::control::Handle;
use steerage_core::handler::{Cpu, Handler, MakeHandler};
use steerage_core::ids::{BucketId, InputId, TxId, Verdict};
use steerage_core::limits::{KEPT_DEFAULT, Limits, MEMORY_MAX_DEFAULT, ORIGINATED_MAX, QueueLimits};
use steerage_core::packet::Batch;
use steerage_core::placement::{Plan, PolicyInfo};
use steerage_core::platform::Platform;
use steerage_core::softnet::{Softnet, Stepped};
use steerage_core::{QueueHasher, tx};
use steerage_flow::dissect::Layers;
use steerage_flow::{Affinity, FlowHasher, FlowKey, HashKey, LinkType, Timestamp};
use steerage_ledger::Snapshot;
use steerage_mem::FRAME_BYTES_MAX;
use steerage_mem::park::Bell;
use steerage_topology::{CpuId, CpuMask, NodeMap};

use crate::frames::{Frame, Recorded, Waiting, output};

/// The number of outputs of a tested handler. The outputs have the numbers ([`TxId`]) 0 to 3.
pub const TESTER_OUTPUTS: usize = 4;

/// The maximum number of rounds (passes of the CPU's loop) in one step of a test. Without this
/// limit, a handler that always requests its next tick immediately would hang the test.
const ROUNDS_MAX: usize = 100_000;

/// Passes `frames` to a handler from `make` (see `Builder::build`) on one CPU, and ends the run.
///
/// # Panics
/// Panics if the handler panics.
///
/// ```
/// # use steerage_core::{handler::{Cpu, Handler}, ids::{TxId, Verdict}, packet::Batch};
/// # use steerage_testing as testing;
/// /// Drops broadcasts, and sends the rest on.
/// struct Unicast;
///
/// impl Handler for Unicast {
///     type Moved = ();
///     type Report = ();
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         for packet in batch.iter_mut() {
///             if packet.data().starts_with(&[0xff; 6]) { packet.discard() } else { packet.transmit(TxId(0)) }
///         }
///     }
///
///     fn finish(self, _cpu: &mut Cpu) {}
/// }
///
/// // With the crate `steerage`: steerage::testing::run
/// let tested = testing::run(|_cpu| Unicast, [[0xff; 60], [2; 60]]);
/// assert_eq!(tested.verdicts, [Verdict::Discarded, Verdict::Transmitted(TxId(0))]);
/// assert_eq!(tested.sent_to(TxId(0)), [[2; 60]]);
/// ```
pub fn run<H: Handler, F: Into<Frame>>(
    make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    frames: impl IntoIterator<Item = F>,
) -> Tested<H::Report> {
    let mut tester = HandlerTester::new(make);
    let verdicts = tester.handle(frames);
    Tested { verdicts, ..tester.finish() }
}

/// The result of a test of a handler: see [`run`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Tested<R> {
    /// The report of the handler.
    pub report: R,
    /// The verdict on each packet, in order. Empty in the result of [`HandlerTester::finish`].
    pub verdicts: Vec<Verdict>,
    /// The packets that the handler sent to each output.
    pub sent: [Vec<Frame>; TESTER_OUTPUTS],
    /// The ledger at the end.
    pub snapshot: Snapshot,
}

impl<R> Tested<R> {
    /// Returns the bytes of each packet sent to an output. Empty if the output does not exist.
    pub fn sent_to(&self, to: TxId) -> Vec<Vec<u8>> {
        let sent = self.sent.get(usize::from(to.0)).map_or(&[][..], Vec::as_slice);
        sent.iter().map(|frame| frame.bytes.clone()).collect()
    }
}

/// A handler on one CPU that the test runs step by step. The clock starts at 0, and only
/// [`advance`](Self::advance) moves the clock.
///
/// ```
/// # use std::time::Duration;
/// # use steerage_core::{handler::{Cpu, Handler}, packet::Batch};
/// # use steerage_flow::Timestamp;
/// # use steerage_testing::HandlerTester;
/// /// Counts the seconds.
/// struct Seconds(u64);
///
/// impl Handler for Seconds {
///     type Moved = ();
///     type Report = u64;
///
///     fn handle(&mut self, _batch: &mut Batch<'_>, _cpu: &mut Cpu) {}
///
///     fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
///         self.0 = cpu.now().as_nanos() / 1_000_000_000;
///         Some(cpu.now() + Duration::from_secs(1))
///     }
///
///     fn finish(self, _cpu: &mut Cpu) -> u64 {
///         self.0
///     }
/// }
///
/// // With the crate `steerage`: steerage::testing::HandlerTester
/// let mut tester = HandlerTester::new(|_cpu| Seconds(0));
/// tester.advance(Duration::from_secs(3));
/// assert_eq!(tester.finish().report, 3);
/// ```
pub struct HandlerTester<H: Handler> {
    cpus: Vec<Softnet<Recording<H>, Still>>,
    handle: Handle,
    clock: Rc<Cell<Timestamp>>,
    inputs: Vec<Waiting>,
    may_panic: bool,
    verdicts: Arc<Mutex<Vec<Verdict>>>,
    recorded: Vec<Recorded>,
}

impl<H: Handler> HandlerTester<H> {
    /// Creates a CPU with a handler and [`TESTER_OUTPUTS`] outputs, and calls the first tick.
    ///
    /// # Panics
    /// Panics if there is too little memory, or if the handler panics.
    pub fn new(make: impl Fn(CpuId) -> H + Send + Sync + 'static) -> Self {
        Self::with(TesterOptions::default(), make)
    }

    /// Like [`new`](Self::new), but with the given settings of the instance.
    ///
    /// # Panics
    /// Panics like [`new`](Self::new).
    pub fn with(options: TesterOptions, make: impl Fn(CpuId) -> H + Send + Sync + 'static) -> Self {
        let verdicts = Arc::<Mutex<Vec<Verdict>>>::default();
        let inputs = vec![(); options.inputs.max(1)].iter().map(|()| Waiting::default()).collect::<Vec<_>>();
        let (outputs, recorded): (Vec<tx::Output>, Vec<Recorded>) = (0..TESTER_OUTPUTS).map(|_| output()).unzip();
        let spec_of = |input: &Waiting| InputSpec {
            input: input.clone().into_input(FRAME_MAX),
            rx_cpus: vec![CpuId(0)],
            mask: None,
        };
        let noted = Arc::clone(&verdicts);
        let make: MakeHandler<_> = Arc::new(move |cpu| Recording { handler: make(cpu), verdicts: Arc::clone(&noted) });
        let may_panic = options.may_panic;
        let spec = spec(H::AFFINITY, inputs.iter().map(spec_of).collect(), outputs, options);
        let built = build(spec, &|cpus, _| vec![(0..cpus.len() as u16).collect(); cpus.len()]);
        let built = built.expect("an instance for a test");
        let handle = built.handle.clone();
        let parts = built.into_parts(&make);
        let clock = Rc::new(Cell::new(Timestamp::ZERO));
        let cpus = parts.into_iter().map(|part| part.enter(Still(Rc::clone(&clock)))).collect();
        let mut tester = Self { cpus, handle, clock, inputs, may_panic, verdicts, recorded };
        tester.settle();
        tester
    }

    /// Passes `frames` to the handler in batches, as the receive path does, and returns the verdict
    /// on each frame. Truncates frames to 16,000 bytes.
    ///
    /// # Panics
    /// Panics if the handler panics, unless [`TesterOptions::may_panic`] is set.
    pub fn handle<F: Into<Frame>>(&mut self, frames: impl IntoIterator<Item = F>) -> Vec<Verdict> {
        self.handle_from(InputId(0), frames)
    }

    /// Like [`handle`](Self::handle), for an input number below [`TesterOptions::inputs`].
    ///
    /// # Panics
    /// Panics if the input does not exist, and like [`handle`](Self::handle).
    pub fn handle_from<F: Into<Frame>>(&mut self, input: InputId, frames: impl IntoIterator<Item = F>) -> Vec<Verdict> {
        let waiting = &self.inputs[usize::from(input.0)];
        frames.into_iter().for_each(|frame| waiting.push(frame.into()));
        self.settle();
        std::mem::take(&mut self.verdicts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves all buckets, with their state, to another of the [`TesterOptions::cpus`] CPUs.
    ///
    /// # Panics
    /// Panics if the CPU does not exist, and like [`handle`](Self::handle).
    pub fn move_to(&mut self, cpu: CpuId) {
        self.handle.set_rps_cpus(&[cpu].into_iter().collect()).expect("a CPU of TesterOptions::cpus");
        for _ in 0..ROUNDS_MAX {
            if self.handle.is_settled() {
                break;
            }
            self.cpus.iter_mut().for_each(|cpu| _ = cpu.step());
        }
        assert!(self.handle.is_settled(), "the move does not end");
        self.settle();
    }

    /// The number of times that the handler panicked: see [`TesterOptions::may_panic`].
    pub fn panics(&self) -> u64 {
        self.handle.snapshot().cpus.iter().map(|cpu| cpu.panics).sum()
    }

    /// Advances the clock by `time`, and calls the handler's tick whenever the tick is due.
    ///
    /// # Panics
    /// Panics if the handler panics.
    pub fn advance(&mut self, time: Duration) {
        let until = self.clock.get() + time;
        while let Some(due) = self.next_tick().filter(|due| *due <= until) {
            // A tick that requests the next tick immediately runs again one microsecond later.
            let next = due.max(self.clock.get() + Duration::from_micros(1));
            if next > until {
                break;
            }
            self.clock.set(next);
            self.settle();
        }
        self.clock.set(until);
        self.settle();
    }

    /// Returns the packets that the handler has sent to an output.
    ///
    /// # Panics
    /// Panics if the output does not exist: see [`TESTER_OUTPUTS`].
    pub fn sent_to(&self, to: TxId) -> Vec<Frame> {
        self.recorded[usize::from(to.0)].packets()
    }

    /// The handle of the instance, for masks, limits, packet counts (the ledger) and posts.
    pub fn control(&self) -> &Handle {
        &self.handle
    }

    /// Returns true if the handler has [stopped](Cpu::stop) the run.
    pub fn is_stopping(&self) -> bool {
        self.handle.is_stopping()
    }

    /// Ends the run and the handler. Returns the result of CPU 0.
    ///
    /// # Panics
    /// Panics if the handler panics.
    pub fn finish(self) -> Tested<H::Report> {
        self.finish_all().swap_remove(0)
    }

    /// Ends the run and the handlers, and returns a result for each CPU. Each result contains the
    /// sent packets and the ledger of all CPUs together.
    ///
    /// # Panics
    /// Panics if a handler panics.
    pub fn finish_all(mut self) -> Vec<Tested<H::Report>> {
        self.inputs.iter().for_each(Waiting::end);
        self.settle();
        // After the end of the inputs, the CPUs close the queues, and the pages return to the pool.
        let mut step = || self.cpus.iter_mut().fold(true, |all, cpu| all & (cpu.step() == Stepped::Finished));
        assert!((0..ROUNDS_MAX).any(|_| step()), "the run does not end");
        let reports: Vec<H::Report> = self.cpus.into_iter().map(Softnet::finish).collect();
        let recorded = &self.recorded;
        let tested = |report| {
            let mut sent = recorded.iter().map(Recorded::packets);
            let sent = std::array::from_fn(|_| sent.next().unwrap_or_default());
            Tested { report, verdicts: Vec::new(), sent, snapshot: self.handle.snapshot() }
        };
        reports.into_iter().map(tested).collect()
    }

    fn next_tick(&self) -> Option<Timestamp> {
        self.cpus.iter().filter_map(Softnet::next_tick).min()
    }

    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            // A round in which no frame arrives counts as a round without work.
            let worked = self.cpus.iter_mut().fold(false, |any, cpu| any | (cpu.step() == Stepped::Worked));
            if !worked && self.inputs.iter().all(Waiting::is_empty) {
                break;
            }
        }
        assert!(self.may_panic || self.panics() == 0, "the handler panicked: see the message above");
    }
}

type FlowKeyFn = fn(&[u8]) -> Option<FlowKey>;

/// Settings of a [`HandlerTester`].
///
/// ```
/// # use steerage_core::{handler::{Cpu, Handler}, ids::BucketId, packet::Batch};
/// # use steerage_testing::{HandlerTester, TesterOptions};
/// # use steerage_topology::CpuId;
/// /// Counts packets, and gives up the count when a bucket moves.
/// #[derive(Default)]
/// struct Count(usize);
///
/// impl Handler for Count {
///     type Moved = usize;
///     type Report = usize;
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         self.0 += batch.len();
///     }
///
///     fn bucket_leaves(&mut self, _bucket: BucketId) -> Option<usize> {
///         Some(std::mem::take(&mut self.0)).filter(|count| *count > 0)
///     }
///
///     fn bucket_arrives(&mut self, _bucket: BucketId, count: usize) {
///         self.0 += count;
///     }
///
///     fn finish(self, _cpu: &mut Cpu) -> usize {
///         self.0
///     }
/// }
///
/// // With the crate `steerage`: steerage::testing
/// let options = TesterOptions { cpus: 2, ..TesterOptions::default() };
/// let mut tester = HandlerTester::with(options, |_cpu| Count::default());
/// tester.handle([[0; 60], [1; 60]]);
/// tester.move_to(CpuId(1));
/// tester.handle([[2; 60]]);
/// let reports: Vec<usize> = tester.finish_all().into_iter().map(|tested| tested.report).collect();
/// assert_eq!(reports, [0, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct TesterOptions {
    /// The number of CPUs. CPU 0 receives all packets, and handles all packets until
    /// [`HandlerTester::move_to`] is called. Default: 1.
    pub cpus: u16,
    /// The number of inputs of the instance: see [`HandlerTester::handle_from`]. Default: 1.
    pub inputs: usize,
    /// Whether the handler may panic without failing the test. [`HandlerTester::handle`] returns no
    /// verdicts for a batch in which the handler panicked. Default: no.
    pub may_panic: bool,
    /// The value for `Builder::kept_max`.
    pub kept_max: usize,
    /// The value for `Builder::originated_max`. Default: 64.
    pub originated_max: usize,
    /// The value for `Builder::layers`.
    pub layers: Layers,
    /// The value for `Builder::flow_key`.
    pub flow_key: Option<FlowKeyFn>,
}

impl Default for TesterOptions {
    fn default() -> Self {
        Self {
            cpus: 1,
            inputs: 1,
            may_panic: false,
            kept_max: KEPT_DEFAULT,
            originated_max: ORIGINATED_MAX / 64,
            layers: Layers::Inner,
            flow_key: None,
        }
    }
}

impl<H: Handler> fmt::Debug for HandlerTester<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerTester").field("now", &self.clock.get()).finish_non_exhaustive()
    }
}

const FRAME_MAX: usize = 16_000;
const _: () = assert!(FRAME_MAX <= FRAME_BYTES_MAX);

fn spec(affinity: Affinity, inputs: Vec<InputSpec>, outputs: Vec<tx::Output>, options: TesterOptions) -> Spec {
    let workers: CpuMask = (0..options.cpus.max(1)).map(CpuId).collect();
    // With a fixed hash key, tests that depend on hashes give the same result each time.
    let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    let hasher = match options.flow_key {
        None => QueueHasher::by_flow(hasher, affinity, options.layers),
        Some(key) => QueueHasher::by_key(hasher, affinity, options.layers, move |frame, link| {
            if link == LinkType::ETHERNET { key(frame) } else { None }
        }),
    };
    Spec {
        mask: [CpuId(0)].into_iter().collect(),
        queue_masks: Vec::new(),
        workers,
        inputs,
        outputs,
        hasher,
        device_hash: Some(affinity),
        affinity,
        limits: Limits::DEFAULT,
        queue_limits: QueueLimits::DEFAULT,
        lpc_pages: Some(0),
        nodes: NodeMap::default(),
        kept_max: options.kept_max,
        linear_bytes: 0,
        originated_max: options.originated_max,
        senders: Vec::new(),
        memory_max: MEMORY_MAX_DEFAULT,
        usable_memory: u64::MAX,
        coalesce: false,
        check_order: true,
        always_hash: true,
        policy: PolicyInfo { name: "test", measures: false },
        bucket_plan: BeginWith(Box::new(|_, _| Plan::all())),
    }
}

struct Still(Rc<Cell<Timestamp>>);

impl Platform for Still {
    fn now(&self) -> Timestamp {
        self.0.get()
    }

    fn park(&mut self, _: &Bell, _: &[BorrowedFd<'_>], _: Option<Timestamp>) -> io::Result<()> {
        Ok(())
    }

    fn random(&mut self) -> u64 {
        0
    }
}

struct Recording<H> {
    handler: H,
    verdicts: Arc<Mutex<Vec<Verdict>>>,
}

impl<H: Handler> Handler for Recording<H> {
    const AFFINITY: Affinity = H::AFFINITY;
    type Moved = H::Moved;
    type Report = H::Report;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.handler.handle(batch, cpu);
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.extend(batch.iter_mut().map(|packet| packet.verdict()));
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.handler.tick(cpu)
    }

    fn woken(&mut self, cpu: &mut Cpu) {
        self.handler.woken(cpu);
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<H::Moved> {
        self.handler.bucket_leaves(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: H::Moved) {
        self.handler.bucket_arrives(bucket, state);
    }

    fn finish(self, cpu: &mut Cpu) -> H::Report {
        self.handler.finish(cpu)
    }
}

#[cfg(test)]
mod tests {
    use steerage_flow::WallTime;

    use super::*;

    #[derive(Default)]
    struct ByTurns {
        packets: u8,
        ticks: u64,
    }

    impl Handler for ByTurns {
        type Moved = ();
        type Report = u64;

        fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
            for packet in batch.iter_mut() {
                assert_eq!(packet.data().first(), Some(&self.packets), "a frame is missing");
                match self.packets % 3 {
                    0 => {}
                    1 => packet.discard(),
                    _ => packet.transmit(TxId(self.packets % 6)),
                }
                self.packets += 1;
            }
        }

        fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
            self.ticks += 1;
            cpu.send(TxId(3), LinkType::RAW, &[0x45; 20]).expect("there is a page");
            Some(cpu.now() + Duration::from_millis(10))
        }

        fn finish(self, _cpu: &mut Cpu) -> u64 {
            self.ticks
        }
    }

    #[test]
    fn verdicts_come_in_order_over_batches_and_links() {
        let mut tester = HandlerTester::new(|_| ByTurns::default());
        let frame = |nth: u8| {
            let link = if nth % 50 < 25 { LinkType::ETHERNET } else { LinkType::RAW };
            Frame::new([nth; 60]).with_link(link).with_time(WallTime::from_nanos(u64::from(nth)))
        };
        let mut verdicts = tester.handle((0..100).map(frame));
        verdicts.extend(tester.handle((100..200).map(frame)));
        assert_eq!(verdicts.len(), 200);
        for (nth, verdict) in (0_u8..).zip(verdicts) {
            let expected = [Verdict::Consumed, Verdict::Discarded, Verdict::Transmitted(TxId(nth % 6))];
            assert_eq!(verdict, expected[usize::from(nth % 3)]);
        }
        // The handler sends to outputs 2 and 5. Packets to output 5, which is missing, are refused.
        let sent = tester.sent_to(TxId(2));
        assert_eq!(sent, (2..200).step_by(6).map(frame).collect::<Vec<_>>());
        let tested = tester.finish();
        assert_eq!((tested.snapshot.verdicts().transmitted, tested.snapshot.dropped().total()), (33, 33));
    }

    #[test]
    fn ticks_come_when_they_are_due() {
        let mut tester = HandlerTester::new(|_| ByTurns::default());
        tester.advance(Duration::from_millis(9));
        assert_eq!(tester.sent_to(TxId(3)).len(), 1);
        tester.advance(Duration::from_millis(1));
        tester.advance(Duration::from_millis(95));
        let tested = tester.finish();
        assert_eq!((tested.report, tested.sent_to(TxId(3)).len()), (11, 11));
        assert_eq!(tested.sent[3][0].link, LinkType::RAW);
    }

    #[test]
    #[should_panic(expected = "the handler panicked")]
    fn a_panic_of_the_handler_fails_the_test() {
        run(|_| ByTurns::default(), [[7; 60]]);
    }

    struct Sorts;

    impl Handler for Sorts {
        type Moved = ();
        type Report = ();

        fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
            let to = TxId(batch.input().0 as u8);
            for packet in batch.iter_mut() {
                assert_ne!(packet.data().first(), Some(&9), "a packet that this handler does not like");
                packet.transmit(to);
            }
        }

        fn finish(self, _cpu: &mut Cpu) {}
    }

    #[test]
    fn inputs_are_told_apart_and_panics_counted_if_they_may_happen() {
        let options = TesterOptions { inputs: 2, may_panic: true, ..TesterOptions::default() };
        let mut tester = HandlerTester::with(options, |_| Sorts);
        tester.handle([[1; 60]]);
        tester.handle_from(InputId(1), [[2; 60], [3; 60]]);
        assert_eq!((tester.panics(), tester.sent_to(TxId(0)).len(), tester.sent_to(TxId(1)).len()), (0, 1, 2));
        tester.handle([[9; 60]]);
        tester.handle([[4; 60]]);
        assert_eq!((tester.panics(), tester.sent_to(TxId(0)).len()), (1, 2));
    }
}
