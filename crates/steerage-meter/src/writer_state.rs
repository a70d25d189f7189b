//! The state of an output of flow records. The meters, the writer thread and the code that ends a
//! run share this state. The state determines how long the end of a run waits for a reader of the
//! records.
//!
//! A reader of the records may pause for any length of time, as a pager does. While the reader
//! pauses, a packet source that can wait is paused too. The end of a run also waits for the reader,
//! unless the user has requested the stop. After a request to stop, a reader that takes no records
//! for a second is abandoned (the run ends without it). During the second before it is abandoned,
//! the writer's progress is checked [`LOOKS`] times, with a pause of [`LOOK`] before each check.
//! While the reader takes no records, the writer thread is stuck in a write that cannot be
//! interrupted. Therefore the run ends without waiting for the writer thread.

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

/// The writer is abandoned after this many checks in a row without progress. A stop waits for
/// packets in flight for a limited time. All checks of the writer together take half of that time.
/// A CPU's thread may wait for the writer. Because of this limit, the thread still ends in time.
const LOOKS: u128 = DRAIN_MAX.as_nanos() / 2 / LOOK.as_nanos();

/// The maximum number of messages that wait for a collector: 65,536 records, at most 16 MiB. A
/// collector that restarts is unavailable for about a second.
pub(super) const WAITING_FOR_COLLECTOR_MAX: usize = 256;

#[derive(Debug)]
pub(super) enum Message {
    Ended(Ended),
    End,
}

#[derive(Debug)]
pub(super) struct Ended {
    /// The records are in an `Arc`, because several writers may write the same records.
    pub(super) records: Arc<Vec<FlowRecord>>,
    /// The time at which the meter sent the records, in nanoseconds since 1970.
    pub(super) now: u64,
    pub(super) unwritten: Unwritten,
}

#[derive(Debug)]
pub(super) enum WriterEnd {
    /// The writer thread ended on its own. It returned a result, or it panicked.
    Itself(thread::Result<Result<(), ExportError>>),
    /// The writer was abandoned because its reader took no records.
    GivenUp,
}

#[derive(Debug)]
pub(super) struct WriterState {
    name: String,
    /// The queue that the writer reads. When the writer ends, the queue is dropped, so that no
    /// meter waits for the writer.
    messages: Mutex<Option<Receiver<Message>>>,
    ended: Sender<WriterEnd>,
    ledger: Arc<RecordLedger>,
    // All accesses to the counters are `Relaxed`, because no other memory depends on the counters.
    /// The counts of an export: messages, their bytes, connections, and datagrams that the
    /// collector's host refused.
    messages_sent: AtomicU64,
    message_bytes: AtomicU64,
    connections: AtomicU64,
    refusals: AtomicU64,
    /// The messages in the queue. A message is counted shortly before it is put into the queue.
    waiting: AtomicUsize,
    /// Counts how often the reader has taken records.
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

    /// Waits for the next message. The writer thread calls this function. Returns an error if the
    /// queue is closed.
    pub(super) fn next(&self) -> Result<Message, RecvError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.as_ref().ok_or(RecvError)?.recv()?;
        self.note_not_waiting();
        self.note_taken();
        Ok(message)
    }

    /// Waits until `time` for the next message. The writer thread calls this function. Returns
    /// `None` if no message arrived.
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

    /// The writer calls this function when it ends. After this call, meters cannot send messages to
    /// the writer, and `FlowWriter::finish` gets the result.
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

    /// Waits until the writer ends. If the reader has taken no records for too long, this function
    /// abandons the writer and returns.
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
                // If the queue's lock is taken, the writer holds the lock and is waiting for
                // messages. While the writer waits for messages, there are no records that the
                // reader could take.
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
    /// The number of records that were written or sent. "Sent" means that the kernel has accepted
    /// all of their bytes. Records of a Parquet file count as written when the file is complete.
    pub written: u64,
    /// The number of records that did not fit into the output's queue, or that could not be written
    /// or sent.
    pub lost: u64,
    /// Messages that were sent to a collector.
    pub messages: u64,
    /// The bytes of the messages that were sent to a collector.
    pub bytes: u64,
    /// The number of connections to a collector that replaced a broken connection or followed a
    /// failed attempt to connect.
    pub connections: u64,
    /// The number of times that the collector's host reported that no program listens at the
    /// collector's port. The records of a refused datagram count as written. From the sequence
    /// numbers, the collector knows how many records it missed.
    pub refusals: u64,
}

/// An output of flows, for other threads: the output's name, its counts, and a way to stop its
/// writer.
#[derive(Clone, Debug)]
pub struct FlowOutput(pub(super) Arc<WriterState>);

impl FlowOutput {
    /// Returns the name of the file, or the address of the collector.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the numbers of records that were written and lost.
    pub fn counts(&self) -> OutputCounts {
        self.0.counts()
    }

    /// Requests the writer to stop. After a call of `hurry`, a reader that takes no records for a
    /// second is abandoned (the run ends without it).
    pub fn hurry(&self) {
        if self.0.hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(&self.0);
        // If the thread that watches the writer cannot be started, the request to hurry has no
        // effect on the writer.
        let _ = thread::Builder::new().name("patience".to_owned()).spawn(move || shared.watch());
    }
}
