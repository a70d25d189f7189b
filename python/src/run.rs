//! A run reads a source. The consumer (Python code) receives the run's rows batch by batch.
//!
//! A run has the threads of the receive path, and one thread that waits until they have ended.
//! Batches wait in a bounded queue. If the queue is full, the run waits for the consumer, so the
//! memory of a run does not depend on the length of the capture.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use serde_json::{Map, Value, json};
use steerage::flow::Layers;
use steerage::topology::Topology;
use steerage::{Builder, CpuMask, Handle, Handler, Input, Outcome, Snapshot};
use steerage_capture::{Capture, CaptureInfo, CaptureOptions};
use steerage_device::af_packet::AfPacketOptions;
use steerage_meter::{ColumnBatch, FlowRecord};

use crate::error::Failure;

/// The number of rows of a batch. A batch of flows with all columns takes 7 MB of memory.
const BATCH_ROWS: usize = 32_768;

/// A batch ends with the row that reaches this number of bytes of text and packets. 32,768 IPv6
/// flows have 3 MB of text.
const BATCH_BYTES: usize = 8 << 20;

/// The number of flows after which a batch's bytes are counted.
pub(crate) const RECORDS_AT_A_TIME: usize = 256;

const WAITING_MAX: usize = 2;

/// The consumer gets the schema only after this number of batches. If the run ends with fewer
/// batches than this, the schema's metadata contains the run's ledger (packet counters).
const FIRST_MAX: usize = 8;

/// The batches before the schema have at most this number of bytes of text and packets, and those
/// of one batch.
const FIRST_BYTES: usize = 32 << 20;

const INTERVAL_MAX: usize = 64;

/// The maximum time until the run reacts to Ctrl-C.
pub(crate) const SIGNAL_LOOK: Duration = Duration::from_millis(100);

pub(crate) enum Source {
    Paths(Vec<PathBuf>),
    /// A capture in memory. The text is the capture's name in error messages.
    Bytes(String, PyBackedBytes),
    /// A pipe from which a capture is read. The text is the pipe's name in error messages.
    Pipe(String, OwnedFd),
    /// A live device: the name of a network interface, or another text that names a device.
    Live(String),
}

pub(crate) struct OpenSource {
    pub(crate) inputs: Vec<Input>,
    /// The progress of reading a capture, or `None` for a live source.
    info: Option<Arc<CaptureInfo>>,
    /// The size of a capture in memory.
    bytes: Option<u64>,
}

pub(crate) struct RunOptions {
    pub(crate) filter: Option<String>,
    /// The number of CPUs. `None` stands for all CPUs that the process may use.
    pub(crate) cpus: Option<usize>,
    pub(crate) layers: Layers,
    /// The error of the thread that writes into a pipe source, if that thread failed.
    pub(crate) feed: Arc<Mutex<Option<String>>>,
    pub(crate) progress: Option<Progress>,
}

/// Calls a Python function with the progress of a run, in the threads that wait for batches.
pub(crate) struct Progress {
    show: Py<PyAny>,
    /// The time of the latest call of `show`, and whether this call reported the end of the run.
    last: Mutex<(Instant, bool)>,
}

impl Progress {
    pub(crate) fn new(show: Py<PyAny>) -> Self {
        Self { show, last: Mutex::new((Instant::now(), false)) }
    }

    fn is_due(&self, is_over: bool) -> bool {
        let (last, was_over) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        !was_over && (is_over || last.elapsed() >= SIGNAL_LOOK)
    }
}

impl Source {
    pub(crate) fn open(self, filter: Option<&str>) -> Result<OpenSource, Failure> {
        let files = filter.into_iter().fold(CaptureOptions::new(), CaptureOptions::filter);
        let bytes = if let Self::Bytes(_, bytes) = &self { Some(bytes.len() as u64) } else { None };
        let capture = match self {
            Self::Paths(paths) => return Ok(files.open(&paths)?.into()),
            Self::Live(name) => {
                let live = |interface: &str| {
                    let options = AfPacketOptions::new(interface);
                    Ok(match filter {
                        Some(text) => options.filtered(text)?,
                        None => options,
                    })
                };
                let opened = steerage_device::open_all_with(&[name], &files, live)?;
                return Ok(OpenSource { inputs: opened.inputs, info: opened.capture, bytes: None });
            }
            Self::Bytes(name, bytes) => Capture::from_reader(name, io::Cursor::new(bytes)),
            Self::Pipe(name, pipe) => Capture::from_pipe(name, pipe)?,
        };
        let capture = match filter {
            Some(text) => capture.filtered(text)?,
            None => capture,
        };
        Ok(OpenSource { bytes, ..capture.into() })
    }
}

impl From<Capture> for OpenSource {
    fn from(capture: Capture) -> Self {
        let info = Some(capture.info());
        Self { inputs: vec![capture.into_input()], info, bytes: None }
    }
}

/// Returns the rows of a full batch, and leaves the batch empty.
pub(crate) fn take_full(batch: &mut ColumnBatch) -> Option<ColumnBatch> {
    let is_full = batch.rows() >= BATCH_ROWS || batch.bytes() >= BATCH_BYTES;
    is_full.then(|| batch.take())
}

pub(crate) struct Batcher {
    batch: ColumnBatch,
    to: SyncSender<Option<ColumnBatch>>,
}

impl Batcher {
    /// Blocks while the consumer's queue is full.
    pub(crate) fn add(&mut self, mut records: &[FlowRecord]) -> io::Result<()> {
        while !records.is_empty() {
            let room = BATCH_ROWS - self.batch.rows();
            let (now, later) = records.split_at(records.len().min(RECORDS_AT_A_TIME).min(room));
            self.add_rows(|batch| batch.add(now))?;
            records = later;
        }
        Ok(())
    }

    /// Adds the rows that `add` adds to the batch. The batch's limits are checked afterwards.
    pub(crate) fn add_rows(&mut self, add: impl FnOnce(&mut ColumnBatch)) -> io::Result<()> {
        add(&mut self.batch);
        take_full(&mut self.batch).map_or(Ok(()), |batch| self.send(batch))
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.batch.rows() == 0 {
            return Ok(());
        }
        let batch = self.batch.take();
        self.send(batch)
    }

    fn send(&self, batch: ColumnBatch) -> io::Result<()> {
        // An error means that the consumer has dropped the stream.
        self.to.send(Some(batch)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[derive(Clone)]
pub(crate) struct Batching(Arc<Mutex<Batcher>>);

impl Batching {
    /// Creates another batcher (which collects rows) for the same consumer, so that CPUs do not
    /// wait for each other.
    pub(crate) fn own(&self) -> Batcher {
        let mut shared = self.lock();
        let batch = shared.batch.take();
        Batcher { batch, to: shared.to.clone() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Batcher> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The results at the end of a run. `edges` (flows that another part may continue) is set only for
/// a run over one part of a recording.
pub(crate) struct Ended {
    pub(crate) report: Value,
    pub(crate) edges: Option<Vec<u8>>,
    pub(crate) failure: Option<Failure>,
}

/// After the last batch, the channel contains `None`.
struct Queue {
    batches: Receiver<Option<ColumnBatch>>,
    is_over: bool,
}

impl Queue {
    /// Returns `None` if no batch arrived within `time`, and `Some(None)` at the end of the run.
    fn receive(&mut self, time: Duration) -> Option<Option<ColumnBatch>> {
        if self.is_over {
            return Some(None);
        }
        let received = match self.batches.recv_timeout(time) {
            Ok(received) => received,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => None,
        };
        self.is_over = received.is_none();
        Some(received)
    }
}

pub(crate) struct Run {
    schema: ColumnBatch,
    handle: Handle,
    info: Option<Arc<CaptureInfo>>,
    batching: Batching,
    queue: Mutex<Queue>,
    first: Mutex<VecDeque<ColumnBatch>>,
    ended: Arc<OnceLock<Ended>>,
    progress: Option<Progress>,
    bytes: Option<u64>,
}

/// Adds the last rows. Returns counters for the report, and edges (open flows) for a part of a
/// recording.
pub(crate) type Finish<R> = Box<dyn FnOnce(Vec<R>, &Batching) -> (Map<String, Value>, Option<Vec<u8>>) + Send>;

/// `make` makes the handler of a CPU. `finish` is called at the end of the run.
pub(crate) struct Work<H: Handler> {
    pub(crate) make: Box<dyn Fn() -> H + Send + Sync>,
    pub(crate) finish: Finish<H::Report>,
}

impl Run {
    /// Starts a run. The function `work` gets the shared batcher and a handle that can stop the
    /// run.
    pub(crate) fn start<H: Handler + 'static>(
        source: Source,
        options: RunOptions,
        schema: ColumnBatch,
        work: impl FnOnce(&Batching, Stop) -> Result<Work<H>, Failure>,
    ) -> Result<Self, Failure>
    where
        H::Report: Send + 'static,
    {
        let OpenSource { inputs, info, bytes } = source.open(options.filter.as_deref())?;
        let (to, batches) = mpsc::sync_channel(WAITING_MAX);
        let end = to.clone();
        let batching = Batching(Arc::new(Mutex::new(Batcher { batch: schema.clone(), to })));
        let stop = Stop::default();
        let Work { make, finish } = work(&batching, stop.clone())?;
        let builder = on_cpus(Builder::new(), options.cpus).layers(options.layers);
        let builder = inputs.into_iter().fold(builder, Builder::input);
        let running = builder.build(move |_cpu| make())?.start()?;
        let handle = running.handle();
        stop.started(running.handle());
        let ended = Arc::<OnceLock<Ended>>::default();
        let (to_set, of_capture, feed) = (Arc::clone(&ended), info.clone(), options.feed);
        let of_run = batching.clone();
        let wait = move || {
            let Outcome { snapshot, reports, .. } = running.join();
            let mut report = ledger(&snapshot, of_capture.as_deref());
            let (counts, edges) = finish(reports.into_iter().map(|(_cpu, report)| report).collect(), &batching);
            report.extend(counts);
            // An error means that the consumer has dropped the stream.
            let _ = batching.lock().flush();
            let fed = feed.lock().unwrap_or_else(PoisonError::into_inner).take().map(Failure::Feed);
            let failure = fed.or_else(|| Failure::of_run(&snapshot));
            report.insert("error".to_owned(), failure.as_ref().map_or(Value::Null, |f| f.to_string().into()));
            let _ = to_set.set(Ended { report: Value::Object(report), edges, failure });
            // The results are stored first, because the consumer reads them when it gets `None`.
            let _ = end.send(None);
        };
        let spawned = thread::Builder::new().name("steerage".to_owned()).spawn(wait);
        spawned.map_err(|error| Failure::System("start a thread that waits for the end", error))?;
        let queue = Mutex::new(Queue { batches, is_over: false });
        Ok(Self {
            schema,
            handle,
            info,
            batching: of_run,
            queue,
            first: Mutex::default(),
            ended,
            progress: options.progress,
            bytes,
        })
    }

    pub(crate) fn wait_for_first(&self, py: Python<'_>) -> PyResult<()> {
        let (mut batches, mut bytes) = (0, 0);
        while batches < FIRST_MAX && bytes < FIRST_BYTES {
            let Some(batch) = self.receive(py)? else { break };
            batches += 1;
            bytes += batch.bytes();
            self.first.lock().unwrap_or_else(PoisonError::into_inner).push_back(batch);
        }
        Ok(())
    }

    /// Returns `None` at the end of the run.
    pub(crate) fn next(&self, py: Python<'_>) -> PyResult<Option<ColumnBatch>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        first.map_or_else(|| self.receive(py), |batch| Ok(Some(batch)))
    }

    /// Like [`next`](Self::next), but does not wait. The caller need not hold Python's GIL.
    pub(crate) fn next_at_once(&self) -> Option<Option<ColumnBatch>> {
        if let Some(batch) = self.first.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
            return Some(Some(batch));
        }
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).receive(Duration::ZERO)
    }

    /// Waits for a batch without holding Python's GIL, and handles signals during the wait.
    fn receive(&self, py: Python<'_>) -> PyResult<Option<ColumnBatch>> {
        loop {
            let queue = || self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let received = py.detach(|| queue().receive(SIGNAL_LOOK));
            if self.is_progress_due(matches!(received, Some(None))) {
                self.show_progress(py)?;
            }
            match received {
                Some(received) => return Ok(received),
                None => py.check_signals()?,
            }
        }
    }

    pub(crate) fn is_progress_due(&self, is_over: bool) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.is_due(is_over))
    }

    pub(crate) fn show_progress(&self, py: Python<'_>) -> PyResult<()> {
        let Some(progress) = &self.progress else { return Ok(()) };
        let is_over = self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_over;
        *progress.last.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), is_over);
        let (read, total) = self.progress();
        progress.show.call1(py, (read, total, is_over)).map(drop)
    }

    /// Returns the rows that arrive within `time`, the ledger (packet counters), and whether the
    /// run is over.
    pub(crate) fn interval(&self, py: Python<'_>, time: Duration) -> PyResult<(Vec<ColumnBatch>, Value, bool)> {
        let (begin, mut batches) = (Instant::now(), Vec::new());
        let queue = || self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // An interval ends early after `INTERVAL_MAX` batches, which limits its memory.
        while batches.len() < INTERVAL_MAX {
            let left = time.saturating_sub(begin.elapsed());
            match py.detach(|| queue().receive(left.min(SIGNAL_LOOK))) {
                Some(Some(batch)) => batches.push(batch),
                Some(None) => break,
                None if left.is_zero() => break,
                None => py.check_signals()?,
            }
        }
        let is_over = queue().is_over;
        // A thread that holds the batcher's lock waits for space in the queue. The rows of this
        // thread come with a later interval.
        if let Ok(mut batcher) = self.batching.0.try_lock()
            && batcher.batch.rows() > 0
        {
            batches.push(batcher.batch.take());
        }
        let report = match self.ended() {
            Some(ended) if is_over => ended.report.clone(),
            _ => Value::Object(ledger(&self.handle.snapshot(), self.info.as_deref())),
        };
        Ok((batches, report, is_over))
    }

    pub(crate) fn stop(&self) {
        self.handle.stop();
    }

    pub(crate) fn schema(&self) -> &ColumnBatch {
        &self.schema
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        self.ended.get()
    }

    /// Returns the results of the run after the consumer has received all rows. A run may end while
    /// its last batches wait in the queue.
    pub(crate) fn received_whole(&self) -> Option<&Ended> {
        let is_over = self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_over;
        self.ended().filter(|_| is_over)
    }

    /// Returns the bytes of the source that were read, and the total if it is known.
    pub(crate) fn progress(&self) -> (u64, Option<u64>) {
        self.info.as_ref().map_or((0, None), |info| (info.bytes_read(), info.bytes_total().or(self.bytes)))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

/// Stops a run. A `Stop` can be created before the run has started.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<StopState>>);

#[derive(Default)]
struct StopState {
    handle: Option<Handle>,
    is_requested: bool,
}

impl Stop {
    pub(crate) fn stop(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_requested = true;
        state.handle.iter().for_each(|handle| handle.stop());
    }

    fn started(&self, handle: Handle) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_requested {
            handle.stop();
        }
        state.handle = Some(handle);
    }
}

/// The threads of a run are not pinned, because the other processes of a process pool use the same
/// CPUs.
pub(crate) fn on_cpus(builder: Builder, cpus: Option<usize>) -> Builder {
    let all = Topology::read().default_mask();
    match cpus {
        // Only tests request more threads than CPUs. The number of CPUs of the machine must not
        // affect the results of tests.
        Some(count) if count > all.iter().count() => builder.virtual_cpus(count),
        Some(count) => builder.cpus(all.iter().take(count.max(1)).collect::<CpuMask>()).pin(false),
        None if all.is_empty() => builder.pin(false),
        None => builder.cpus(all).pin(false),
    }
}

fn ledger(snapshot: &Snapshot, info: Option<&CaptureInfo>) -> Map<String, Value> {
    let dropped: Map<String, Value> =
        snapshot.dropped().iter().map(|(reason, packets)| (reason.name().to_owned(), packets.into())).collect();
    let report = json!({
        "received": snapshot.received(),
        "received_bytes": snapshot.received_bytes(),
        "delivered": snapshot.delivered(),
        "dropped": dropped,
        "in_flight": snapshot.in_flight(),
        "version": env!("CARGO_PKG_VERSION"),
    });
    let of_capture = info.map_or(Value::Null, |info| {
        let times = info.times();
        json!({
            "filtered": info.filtered(),
            "bad_times": info.bad_times(),
            "bytes_read": info.bytes_read(),
            "first": times.map(|(first, _)| first.as_nanos()),
            "last": times.map(|(_, last)| last.as_nanos()),
            "links": info.links().iter().map(|link| link.0).collect::<Vec<_>>(),
            "notes": info.notes(),
        })
    });
    let mut all = Map::new();
    for part in [report, of_capture] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    all
}
