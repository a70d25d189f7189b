//! Passes records from the packet CPUs to outputs. Each output has a bounded queue and a writer
//! thread.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use steerage_guard::file::start_of_period;

use super::file::{FlowFile, STDOUT};
use super::ipfix::{Export, OpenCollector};
use super::output::{ExportError, FlowFormat, FlowsTo};
use super::parquet::ROWS_OF_ALL_MAX;
use super::record::FlowRecord;
use super::record_ledger::{Unwritten, Volume};
use super::timeouts::nanos;
use super::writer_state::{
    Ended, FlowOutput, Message, OutputCounts, WAITING_FOR_COLLECTOR_MAX, WriterEnd, WriterState,
};

/// With this number of records in a message (at most 64 KiB), the time for passing the message is
/// negligible.
pub(super) const RECORDS_AT_A_TIME: usize = 256;

/// The size of a writer's queue, in messages. The queue has room for 4096 records: 4 ms at a
/// million records per second.
const WAITING_MAX: usize = 16;

const _: () = assert!(size_of::<FlowRecord>() <= 256);

/// The maximum number of open files: with rotation, each period has a file. Before one more file is
/// opened, the file of the oldest period is completed.
const OPEN_MAX: usize = 128;

/// The outputs that receive a meter's records.
#[derive(Clone, Debug)]
pub struct Exporter {
    outlets: Vec<Outlet>,
}

#[derive(Clone, Debug)]
struct Outlet {
    to: SyncSender<Message>,
    shared: Arc<WriterState>,
    waits: bool,
}

impl Exporter {
    /// Combines two exporters. Each record goes to the outputs of both exporters.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.outlets.extend(other.outlets);
        self
    }

    /// Passes records to all outputs, for programs that count flows themselves
    /// ([`FlowRecord::of_flow`]) or select a meter's records. [`FlowWriter::exporter`] describes
    /// what happens if a queue is full.
    pub fn pass(&self, records: Vec<FlowRecord>) {
        if let Some(now) = records.iter().map(|record| record.last().as_nanos()).max() {
            self.send(records, now);
        }
    }

    pub(super) fn tell_sample(&self, sample: u32) {
        self.outlets.iter().for_each(|outlet| outlet.shared.set_sample(sample));
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = OutputCounts> {
        self.outlets.iter().map(|outlet| outlet.shared.counts())
    }

    pub(super) fn send(&self, records: Vec<FlowRecord>, now: u64) {
        let (volume, records) = (Volume::of(&records), Arc::new(records));
        self.outlets.iter().for_each(|outlet| outlet.send(&records, volume, now));
    }
}

impl Outlet {
    fn send(&self, records: &Arc<Vec<FlowRecord>>, volume: Volume, now: u64) {
        let (records, unwritten) = (Arc::clone(records), self.shared.ledger().take(volume));
        let message = Message::Ended(Ended { records, now, unwritten });
        // The records of a refused message count as lost. If the packet source waits for a writer,
        // the writer refuses messages only after it has failed or was abandoned.
        self.shared.note_waiting();
        let is_refused = if self.waits { self.to.send(message).is_err() } else { self.to.try_send(message).is_err() };
        if is_refused {
            self.shared.note_not_waiting();
        }
    }
}

/// The thread that writes records to files, or sends them to a collector.
///
/// ```no_run
/// use steerage_meter::{Collector, FilePattern, FlowFormat, FlowWriter, FlowsTo, MeterOptions, Metering};
///
/// let to = FlowsTo::Files { name: FilePattern::parse("flows.csv")?, rotate: None };
/// let writer = FlowWriter::start(to, FlowFormat::Csv, || eprintln!("the writer gave up"))?;
/// // A capture can wait until its records are written.
/// let collector = Collector::parse("ipfix://127.0.0.1:4739")?.open()?;
/// let export = FlowWriter::export(collector, true, Box::new(|| 0), || eprintln!("the export gave up"))?;
/// let metering = Metering::new(MeterOptions::default(), Some(writer.exporter(true).and(export.exporter(true))));
/// # drop(metering);
/// // At the end of the run:
/// let output = export.output();
/// export.finish(Vec::new())?;
/// println!("{}: {} records, {} lost", output.name(), output.counts().written, output.counts().lost);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FlowWriter {
    to: SyncSender<Message>,
    shared: Arc<WriterState>,
    ended: Receiver<WriterEnd>,
}

impl FlowWriter {
    /// Starts the writer thread. If the file's name contains no time, the file is created before
    /// the thread starts. If the thread fails, it calls `on_failure`, so that the caller can stop
    /// the meters.
    ///
    /// # Errors
    /// Returns an error if the file or its directory cannot be used.
    pub fn start(
        to: FlowsTo,
        format: FlowFormat,
        on_failure: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ExportError> {
        let name = match &to {
            FlowsTo::Stdout => STDOUT.to_owned(),
            FlowsTo::Files { name, .. } => name.as_str().to_owned(),
        };
        Self::spawn(name, WAITING_MAX, on_failure, |shared| {
            let mut sink = Sink::new(to, format, shared)?;
            Ok(move || sink.write_all())
        })
    }

    /// Starts a thread that passes all records to `take`, and ends if `take` fails. Error messages
    /// contain `name`. The program in this example counts flows in its own handler:
    ///
    /// ```
    /// use std::sync::mpsc;
    ///
    /// use steerage::{Batch, BucketId, Builder, Cpu, Handler, Timestamp};
    /// use steerage_meter::{FlowWriter, Meter, MeterOptions, MeterReport, Metered, Metering, MovedFlows};
    ///
    /// /// Meters flows, and counts long packets.
    /// struct Mine {
    ///     meter: Meter,
    ///     long: u64,
    /// }
    ///
    /// impl Handler for Mine {
    ///     type Moved = MovedFlows;
    ///     type Report = (MeterReport, u64);
    ///
    ///     fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
    ///         self.long += batch.iter_mut().filter(|packet| packet.wire_len() >= 1000).count() as u64;
    ///         self.meter.handle(batch, cpu);
    ///     }
    ///
    ///     fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
    ///         self.meter.tick(cpu)
    ///     }
    ///
    ///     fn bucket_leaves(&mut self, bucket: BucketId) -> Option<MovedFlows> {
    ///         self.meter.bucket_leaves(bucket)
    ///     }
    ///
    ///     fn bucket_arrives(&mut self, bucket: BucketId, flows: MovedFlows) {
    ///         self.meter.bucket_arrives(bucket, flows);
    ///     }
    ///
    ///     fn finish(self, cpu: &mut Cpu) -> Self::Report {
    ///         (self.meter.finish(cpu), self.long)
    ///     }
    /// }
    ///
    /// let (sender, records) = mpsc::channel();
    /// let callback = move |records: &[steerage_meter::FlowRecord]| {
    ///     for record in records {
    ///         let _ = sender.send(format!("{}: {} packets", record.key(), record.forth().packets));
    ///     }
    ///     Ok(()) // An error ends the thread.
    /// };
    /// let writer = FlowWriter::pass_to("callback", callback, || eprintln!("the callback failed"))?;
    /// // A source that can wait loses no records. Live sources must not wait: `exporter(false)`.
    /// let metering = Metering::new(MeterOptions::default(), Some(writer.exporter(true)));
    /// let input = steerage_device::open("synthetic:packets=10000,flows=10,size=1000")?;
    /// let running = Builder::new().input(input).build(move |_cpu| Mine { meter: metering.meter(), long: 0 })?.start()?;
    /// let (meters, long): (Vec<_>, Vec<_>) = running.join().reports.into_iter().map(|(_cpu, report)| report).unzip();
    /// let (metered, open) = Metered::of(meters, 3);
    /// writer.finish(open.into_records())?; // Ends the thread after the last record.
    /// assert_eq!((metered.total, records.iter().count(), long.iter().sum::<u64>()), (10, 10, 10_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn pass_to(
        name: impl Into<String>,
        mut take: impl FnMut(&[FlowRecord]) -> io::Result<()> + Send + 'static,
        on_failure: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ExportError> {
        Self::spawn(name.into(), WAITING_MAX, on_failure, |shared| {
            Ok(move || {
                while let Ok(Message::Ended(ended)) = shared.next() {
                    let Ended { records, mut unwritten, .. } = ended;
                    take(&records).map_err(|cause| ExportError::new("pass flows to", shared.name(), cause))?;
                    unwritten.written(Volume::of(&records));
                    shared.note_taken();
                }
                Ok(())
            })
        })
    }

    /// Starts the thread that sends records to an IPFIX collector. The thread also reports to the
    /// collector how many packets were lost before the meters saw them (`ignored`).
    ///
    /// # Errors
    /// Returns an error if `must_arrive` is true and the collector does not answer.
    pub fn export(
        collector: OpenCollector,
        must_arrive: bool,
        ignored: Box<dyn Fn() -> u64 + Send>,
        on_failure: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ExportError> {
        Self::spawn(collector.name(), WAITING_FOR_COLLECTOR_MAX, on_failure, |shared| {
            let mut export = Export::new(collector, must_arrive, ignored, shared)?;
            Ok(move || export.run())
        })
    }

    fn spawn<W: FnOnce() -> Result<(), ExportError> + Send + 'static>(
        name: String,
        waiting_max: usize,
        on_failure: impl FnOnce() + Send + 'static,
        make: impl FnOnce(Arc<WriterState>) -> Result<W, ExportError>,
    ) -> Result<Self, ExportError> {
        let (sender, messages) = mpsc::sync_channel(waiting_max);
        let (told, ended) = mpsc::channel();
        let shared = WriterState::new(name, messages, told);
        let work = make(Arc::clone(&shared))?;
        let of_thread = Arc::clone(&shared);
        let write = move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            if !matches!(result, Ok(Ok(()))) {
                on_failure();
            }
            // A meter that finds the queue closed thus knows that the thread has called
            // `on_failure`.
            of_thread.end(WriterEnd::Itself(match result {
                // A closed pipe is no error, because its reader needs no more records.
                Ok(Err(error)) if error.is_closed_pipe() => Ok(Ok(())),
                other => other,
            }));
        };
        let spawned = leaving_signals_to_others(|| thread::Builder::new().name("flows".to_owned()).spawn(write));
        spawned.map_err(|cause| ExportError::new("start a thread to write flows to", shared.name(), cause))?;
        Ok(Self { to: sender, shared, ended })
    }

    /// Returns the output's state for other threads: counts, and a way to stop the writer.
    pub fn output(&self) -> FlowOutput {
        FlowOutput(Arc::clone(&self.shared))
    }

    /// Creates an exporter for the meters. If the writer's queue is full, a CPU waits if `waits` is
    /// true, and otherwise the records are lost and counted.
    pub fn exporter(&self, waits: bool) -> Exporter {
        Exporter { outlets: vec![Outlet { to: self.to.clone(), shared: Arc::clone(&self.shared), waits }] }
    }

    /// Writes all remaining records and `rest`, and ends the thread. If the output's reader reads
    /// nothing, `finish` waits until the writer is [hurried](FlowOutput::hurry).
    ///
    /// # Errors
    /// Returns an error if a record could not be written.
    pub fn finish(self, rest: impl Into<Arc<Vec<FlowRecord>>>) -> Result<(), ExportError> {
        let records = rest.into();
        let now = records.iter().map(|record| record.last().as_nanos()).max().unwrap_or(0);
        let unwritten = self.shared.ledger().take(Volume::of(&records));
        // If sending fails, the records are lost, and `ended` has the writer's error.
        for message in [Message::Ended(Ended { records, now, unwritten }), Message::End] {
            self.shared.note_waiting();
            let _ = self.to.send(message);
        }
        match self.ended.recv() {
            Ok(WriterEnd::Itself(Ok(result))) => result,
            Ok(WriterEnd::Itself(Err(panic))) => resume_unwind(panic),
            Ok(WriterEnd::GivenUp) | Err(_) => {
                let lost = self.shared.counts().lost;
                let cause = io::Error::other(format!("its reader stopped reading, and {lost} flows were not written"));
                let error = ExportError::new("write flows to", self.shared.name(), cause);
                Err(error.with_advice("let its reader read on, or write to a file"))
            }
        }
    }
}

/// Starts a thread to which the kernel delivers no signals, because a thread that is blocked in a
/// write would never handle them. A new thread inherits the signal mask of its creator.
fn leaving_signals_to_others<T>(start: impl FnOnce() -> T) -> T {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1].into_iter().collect();
    // Blocking signals fails only if the set of signals is invalid.
    let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let started = start();
    let _ = before.map(|before| before.thread_set_mask());
    started
}

struct Sink {
    shared: Arc<WriterState>,
    to: FlowsTo,
    format: FlowFormat,
    /// The incomplete files, by the start of the period of their records. Without rotation, the
    /// only period starts at 0.
    open: BTreeMap<u64, FlowFile>,
    from: u64,
    names: HashSet<PathBuf>,
    rows_max: usize,
}

impl Sink {
    fn new(to: FlowsTo, format: FlowFormat, shared: Arc<WriterState>) -> Result<Self, ExportError> {
        let mut sink = Self {
            shared,
            to,
            format,
            open: BTreeMap::new(),
            from: 0,
            names: HashSet::new(),
            rows_max: ROWS_OF_ALL_MAX,
        };
        match &sink.to {
            FlowsTo::Stdout => drop(sink.open.insert(0, FlowFile::stdout(format, &sink.shared)?)),
            FlowsTo::Files { name, .. } if !name.has_time() => drop(sink.file(0, 0)?),
            FlowsTo::Files { name, .. } => FlowFile::check_directory(name.as_str())?,
        }
        Ok(sink)
    }

    /// After a failure, incomplete files keep their temporary names, and the error lists them.
    fn write_all(&mut self) -> Result<(), ExportError> {
        let result = self.write_records();
        let (open, sample) = (std::mem::take(&mut self.open), self.shared.sample());
        let parts = open.into_values().filter_map(|file| file.leave(sample)).collect();
        result.map_err(|error| error.with_parts(parts))
    }

    fn write_records(&mut self) -> Result<(), ExportError> {
        while let Ok(Message::Ended(ended)) = self.shared.next() {
            self.write(ended)?;
        }
        while !self.open.is_empty() {
            self.finish_first()?;
        }
        Ok(())
    }

    fn write(&mut self, ended: Ended) -> Result<(), ExportError> {
        let Ended { records, now, mut unwritten } = ended;
        let FlowsTo::Files { rotate: Some(rotate), .. } = self.to else {
            let Some(time) = records.iter().map(|record| record.first().as_nanos()).min() else { return Ok(()) };
            return self.put(0, time, &records, &mut unwritten);
        };
        let (period, late) = (nanos(rotate.period).max(1), rotate.late());
        // If the file of a record's period is complete already, the record goes to the first
        // incomplete file.
        let start = |record: &FlowRecord, from: u64| {
            let last = record.last().as_nanos();
            from.max(start_of_period(last, period))
        };
        let from = self.from;
        for records in records.chunk_by(|one, next| start(one, from) == start(next, from)) {
            let start = start(&records[0], from);
            self.put(start, start, records, &mut unwritten)?;
        }
        while let Some(first) = self.open.first_key_value() {
            let end = first.0.saturating_add(period);
            if end.saturating_add(late) > now && self.open.len() <= OPEN_MAX {
                break;
            }
            self.finish_first()?;
            self.from = end;
        }
        Ok(())
    }

    fn finish_first(&mut self) -> Result<(), ExportError> {
        let Some(mut file) = self.open.first_entry() else { return Ok(()) };
        file.get_mut().finish(self.shared.sample())?;
        file.remove();
        Ok(())
    }

    /// Writes the records in chunks, so that the counts show the progress.
    fn put(
        &mut self,
        start: u64,
        time: u64,
        records: &[FlowRecord],
        unwritten: &mut Unwritten,
    ) -> Result<(), ExportError> {
        for records in records.chunks(RECORDS_AT_A_TIME) {
            let these = unwritten.split(Volume::of(records));
            self.file(start, time)?.write(records, these)?;
            self.shared.note_taken();
            self.bound_rows()?;
        }
        Ok(())
    }

    fn bound_rows(&mut self) -> Result<(), ExportError> {
        let all: usize = self.open.values().map(FlowFile::rows).sum();
        if all <= self.rows_max {
            return Ok(());
        }
        self.open.values_mut().max_by_key(|file| file.rows()).map_or(Ok(()), FlowFile::write_rows)
    }

    fn file(&mut self, start: u64, time: u64) -> Result<&mut FlowFile, ExportError> {
        let entry = match self.open.entry(start) {
            Entry::Occupied(file) => return Ok(file.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let FlowsTo::Files { name, .. } = &self.to else {
            return Ok(entry.insert(FlowFile::stdout(self.format, &self.shared)?));
        };
        let path = PathBuf::from(name.at(steerage::WallTime::from_nanos(time)));
        if !self.names.insert(path.clone()) {
            let cause = io::Error::new(io::ErrorKind::AlreadyExists, "another period has the same name");
            let error = ExportError::new("write flows to", path, cause);
            return Err(error.with_advice("put more of the time into the name, such as %Y%m%d-%H%M"));
        }
        Ok(entry.insert(FlowFile::create(path, name.has_time(), self.format, &self.shared)?))
    }
}

#[cfg(test)]
mod faults;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use steerage::BucketId;

    use super::super::flow::{Flow, FlowEnd, Seen};
    use super::super::key::Key;
    use super::super::output::Rotation;
    use super::*;
    use steerage_guard::file::FilePattern;

    pub(super) const S: u64 = 1_000_000_000;
    pub(super) const START: u64 = 1_699_999_800;

    pub(super) fn records(seconds: &[u64]) -> Vec<FlowRecord> {
        let record = |second: &u64| {
            let seen = Seen { time: (START + second) * S, ..Seen::of(Key::v4((1, 2), (3, 4), 17)) };
            let mut flow = Flow::begin(&seen, BucketId { group: 0, bucket: 0 });
            flow.add(&seen);
            FlowRecord::new(flow, FlowEnd::Idle)
        };
        seconds.iter().map(record).collect()
    }

    fn ended(state: &Arc<WriterState>, seconds: &[u64], now: u64) -> Ended {
        let records = Arc::new(records(seconds));
        let unwritten = state.ledger().take(Volume::of(&records));
        Ended { records, now: (START + now) * S, unwritten }
    }

    fn shared() -> (SyncSender<Message>, Arc<WriterState>) {
        let (messages_in, messages) = mpsc::sync_channel(1);
        (messages_in, WriterState::new(String::new(), messages, mpsc::channel().0))
    }

    #[test]
    fn a_file_is_complete_when_no_flow_of_its_period_can_end() {
        let directory = std::env::temp_dir().join(format!("steerage-export-{}", std::process::id()));
        // A test process that was killed leaves its directory, and process IDs return.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        let pattern = directory.join("%H%M.jsonl");
        let name = FilePattern::parse(pattern.to_str().expect("a path that is text")).expect("a pattern");
        let rotate = Rotation { period: Duration::from_secs(300), inactive: Duration::from_secs(60) };
        let (end, shared) = shared();
        let mut sink =
            Sink::new(FlowsTo::Files { name, rotate: Some(rotate) }, FlowFormat::JsonLines, Arc::clone(&shared))
                .unwrap();
        let names = || {
            let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
            let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| name(entry.unwrap())).collect();
            names.sort();
            names
        };
        let is_part = |part: &str, name: &str| {
            part.strip_prefix(name).is_some_and(|rest| rest.len() == 22 && rest.ends_with(".part"))
        };
        let lines = |name: &str| fs::read_to_string(directory.join(name)).unwrap().lines().count();

        sink.write(ended(&shared, &[1, 299, 300, 2], 400)).unwrap();
        let [first, second] = <[String; 2]>::try_from(names()).unwrap();
        assert!(is_part(&first, "2210.jsonl") && is_part(&second, "2215.jsonl"), "{first} {second}");
        sink.write(ended(&shared, &[3], 721)).unwrap();
        assert_eq!(names(), [first, second.clone()]);
        sink.write(ended(&shared, &[4], 722)).unwrap();
        assert_eq!(names(), ["2210.jsonl", &second]);
        sink.write(ended(&shared, &[5, 301], 722)).unwrap();
        end.send(Message::End).unwrap();
        sink.write_all().unwrap();
        assert_eq!(names(), ["2210.jsonl", "2215.jsonl"]);
        assert_eq!((lines("2210.jsonl"), lines("2215.jsonl")), (5, 3));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_period_each_does_not_take_all_file_descriptors() {
        let directory = std::env::temp_dir().join(format!("steerage-export-many-{}", std::process::id()));
        // A test process that was killed leaves its directory, and process IDs return.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        let pattern = directory.join("%s.csv");
        let name = FilePattern::parse(pattern.to_str().expect("a path that is text")).expect("a pattern");
        let rotate = Rotation { period: Duration::from_secs(1), inactive: Duration::from_secs(3600) };
        let shared = shared().1;
        let to = FlowsTo::Files { name, rotate: Some(rotate) };
        let mut sink = Sink::new(to, FlowFormat::Csv, Arc::clone(&shared)).unwrap();
        for second in 0..2 * OPEN_MAX as u64 {
            sink.write(ended(&shared, &[second], second)).unwrap();
            assert!(sink.open.len() <= OPEN_MAX);
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
