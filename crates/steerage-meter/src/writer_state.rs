//! The state of an output of flow records, for the meters, the writer thread and the end of a run.
//!
//! The reader of an output may pause for any time, as a pager does. While the reader pauses, a
//! packet source that can wait is paused too, and the end of a run waits. After the user's request
//! to stop, a reader that takes no records for a second ([`LOOKS`] checks, [`LOOK`] apart) is
//! abandoned: the run ends without the writer thread, which is stuck in a write.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use steerage::limits::DRAIN_MAX;

use super::output::ExportError;
use super::record::FlowRecord;
use super::record_ledger::{RecordLedger, Unwritten};

const LOOK: Duration = Duration::from_millis(50);

/// All checks of a reader together take half of [`DRAIN_MAX`], the time for which a stop waits for
/// packets in flight. A CPU's thread that waits for the writer thus ends in time.
const LOOKS: u128 = DRAIN_MAX.as_nanos() / 2 / LOOK.as_nanos();

/// The size of the queue to an IPFIX collector, in messages. The queue has room for 65,536 records,
/// at most 16 MiB. A collector that restarts is unavailable for about a second.
pub(super) const WAITING_FOR_COLLECTOR_MAX: usize = 256;

#[derive(Debug)]
pub(super) enum Message {
    Ended(Ended),
    End,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) records: Arc<Vec<FlowRecord>>,
    /// The time at which the meter sent the records, in nanoseconds since 1970.
    pub(super) now: u64,
    pub(super) unwritten: Unwritten,
}

#[derive(Debug)]
pub(super) enum WriterEnd {
    Itself(thread::Result<Result<(), ExportError>>),
    /// The writer was abandoned, because its reader took no records.
    GivenUp,
}

#[derive(Debug)]
pub(super) struct WriterState {
    name: String,
    /// The queue's receiver, dropped when the writer ends, so that no meter waits for the writer.
    messages: Mutex<Option<Receiver<Message>>>,
    ended: Sender<WriterEnd>,
    ledger: Arc<RecordLedger>,
    // All accesses to the counters are `Relaxed`, because no other memory depends on them.
    messages_sent: AtomicU64,
    message_bytes: AtomicU64,
    connections: AtomicU64,
    refusals: AtomicU64,
    /// A message is counted shortly before it is put into the queue.
    waiting: AtomicUsize,
    taken: AtomicU64,
    hurried: AtomicBool,
    sample: AtomicU32,
}

impl WriterState {
    pub(super) fn new(name: String, messages: Receiver<Message>, ended: Sender<WriterEnd>) -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Self {
            name,
            messages: Mutex::new(Some(messages)),
            ended,
            ledger: Arc::default(),
            messages_sent: zero(),
            message_bytes: zero(),
            connections: zero(),
            refusals: zero(),
            waiting: AtomicUsize::new(0),
            taken: zero(),
            hurried: AtomicBool::new(false),
            sample: AtomicU32::new(1),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn set_sample(&self, sample: u32) {
        self.sample.store(sample, Ordering::Relaxed);
    }

    pub(super) fn sample(&self) -> u32 {
        self.sample.load(Ordering::Relaxed)
    }

    /// Returns the next message, for the writer thread. Fails if the queue is closed.
    pub(super) fn next(&self) -> Result<Message, RecvError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.as_ref().ok_or(RecvError)?.recv()?;
        self.note_not_waiting();
        self.note_taken();
        Ok(message)
    }

    /// For the writer thread: the next message, or `None` if none arrives until `time`.
    pub(super) fn next_until(&self, time: Instant) -> Result<Option<Message>, RecvError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = time.saturating_duration_since(Instant::now());
        let message = match messages.as_ref().ok_or(RecvError)?.recv_timeout(wait) {
            Ok(message) => {
                self.note_not_waiting();
                Some(message)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
        };
        self.note_taken();
        Ok(message)
    }

    /// Ends the output: meters can send no more messages, and `FlowWriter::finish` gets the result.
    pub(super) fn end(&self, ended: WriterEnd) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = self.ended.send(ended);
    }

    pub(super) fn ledger(&self) -> &Arc<RecordLedger> {
        &self.ledger
    }

    pub(super) fn note_messages(&self, messages: usize, bytes: usize) {
        self.messages_sent.fetch_add(messages as u64, Ordering::Relaxed);
        self.message_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn note_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> OutputCounts {
        let (written, lost) = self.ledger.counts();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OutputCounts {
            written,
            lost,
            messages: count(&self.messages_sent),
            bytes: count(&self.message_bytes),
            connections: count(&self.connections),
            refusals: count(&self.refusals),
        }
    }

    pub(super) fn note_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_not_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn note_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the writer ends, or abandons it because its reader takes no records.
    fn watch(&self) {
        let (mut seen, mut looks) = (None, 0);
        loop {
            thread::sleep(LOOK);
            let taken = self.taken.load(Ordering::Relaxed);
            match self.messages.try_lock() {
                Ok(messages) if messages.is_none() => return,
                Ok(mut messages) if seen == Some(taken) => {
                    looks += 1;
                    if looks == LOOKS {
                        messages.take();
                        self.ledger.close();
                        let _ = self.ended.send(WriterEnd::GivenUp);
                        return;
                    }
                }
                // The writer holds the lock while it waits for messages.
                _ => (seen, looks) = (Some(taken), 0),
            }
        }
    }
}

/// The counts of the records that were handed to an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OutputCounts {
    /// Records that were written, or that the kernel has accepted for sending. Records of a Parquet
    /// file count when the file is complete.
    pub written: u64,
    /// Records that did not fit into the queue, or could not be written or sent.
    pub lost: u64,
    /// Messages that were sent to a collector.
    pub messages: u64,
    /// The bytes of the messages that were sent to a collector.
    pub bytes: u64,
    /// Connections to a collector after a broken connection or a failed attempt to connect.
    pub connections: u64,
    /// The number of times that the collector's host reported that no program listens at the port.
    /// The records of a refused datagram count as written, but the collector sees a gap in the
    /// sequence numbers.
    pub refusals: u64,
}

/// An output of flows, as other threads see it: its name, its counts, and a way to stop its writer.
#[derive(Clone, Debug)]
pub struct FlowOutput(pub(super) Arc<WriterState>);

impl FlowOutput {
    /// Returns the name of the file, or the address of the collector.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns how many records were written and lost.
    pub fn counts(&self) -> OutputCounts {
        self.0.counts()
    }

    /// Requests the writer to stop. After this request, a reader that takes no records for a second
    /// is abandoned.
    pub fn hurry(&self) {
        if self.0.hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(&self.0);
        // If the thread that watches the reader cannot be started, the request to stop has no
        // effect.
        let _ = thread::Builder::new().name("patience".to_owned()).spawn(move || shared.watch());
    }
}
