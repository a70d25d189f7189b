//! The state that the meters, the thread that writes their records, and the end of the run share. It decides how long the end of
//! a run waits for a reader of the records.
//!
//! A reader may pause for as long as it likes, as a pager does: a source that can wait then waits, and so does the end of a run
//! that ends by itself. After a request to stop, a reader that takes nothing for a second is given up: [`LOOKS`] checks, one
//! every [`LOOK`]. The thread that is stuck in its write cannot be interrupted, and is left behind.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use steerage::limits::DRAIN_MAX;

use super::output::ExportError;
use super::record::FlowRecord;

/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(50);

/// The writer is given up after this many checks in a row during which nothing was taken: half of the time that a stop gives to
/// packets in flight, so that a CPU that waits for the writer still ends in time.
const LOOKS: u128 = DRAIN_MAX.as_nanos() / 2 / LOOK.as_nanos();

/// What is handed over to the writer.
#[derive(Debug)]
pub(super) enum Message {
    /// Records that ended, and the time at which they were handed over, in nanoseconds since 1970.
    Ended(Vec<FlowRecord>, u64),
    /// No more records follow.
    End,
}

/// How the writer ended.
#[derive(Debug)]
pub(super) enum WriterEnd {
    /// By itself: with a result, or with a panic.
    Itself(thread::Result<Result<(), ExportError>>),
    /// It was given up because nobody took what it wrote.
    GivenUp,
}

/// The state that meters, writer and the end of the run share.
#[derive(Debug)]
pub(super) struct WriterState {
    /// The queue that the writer reads. It is dropped when the writer ends, so that no meter waits for the writer.
    messages: Mutex<Option<Receiver<Message>>>,
    ended: Sender<WriterEnd>,
    // Relaxed throughout: these are counters, and no other memory depends on them.
    handed: AtomicU64,
    written: AtomicU64,
    /// Rises whenever the reader has taken something.
    taken: AtomicU64,
    hurried: AtomicBool,
}

impl WriterState {
    pub(super) fn new(messages: Receiver<Message>, ended: Sender<WriterEnd>) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (handed, written, taken) = (zero(), zero(), zero());
        let messages = Mutex::new(Some(messages));
        Arc::new(Self { messages, ended, handed, written, taken, hurried: AtomicBool::new(false) })
    }

    /// For the writer: waits for the next message, if there is one to come.
    pub(super) fn next(&self) -> Result<Message, RecvError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.as_ref().ok_or(RecvError)?.recv();
        self.note_taken();
        message
    }

    /// For the writer: it has ended. Meters can hand over nothing from now on, and the end of the run gets the result.
    pub(super) fn end(&self, ended: WriterEnd) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If nobody waits for the result, nobody needs it.
        let _ = self.ended.send(ended);
    }

    pub(super) fn note_handed(&self, records: usize) {
        self.handed.fetch_add(records as u64, Ordering::Relaxed);
    }

    pub(super) fn note_written(&self, records: usize) {
        self.written.fetch_add(records as u64, Ordering::Relaxed);
        self.note_taken();
    }

    pub(super) fn note_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of records that were handed over and not written.
    pub(super) fn left(&self) -> u64 {
        self.handed.load(Ordering::Relaxed).saturating_sub(self.written.load(Ordering::Relaxed))
    }

    /// Waits until the writer ends, or gives it up if the reader has taken nothing for too long.
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
                        let _ = self.ended.send(WriterEnd::GivenUp);
                        return;
                    }
                }
                // The writer has the lock while it waits for messages: there was nothing to take.
                _ => (seen, looks) = (Some(taken), 0),
            }
        }
    }
}

/// Hurries the writer of flows, from any thread.
/// [`FlowWriter`](super::FlowWriter) has an example.
#[derive(Clone, Debug)]
pub struct Hurry(pub(super) Arc<WriterState>);

impl Hurry {
    /// Notes a request to stop. From now on, a reader that takes nothing for a second is given up.
    pub fn hurry(&self) {
        if self.0.hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(&self.0);
        // If there can be no thread, the request has no effect on the writer.
        let _ = thread::Builder::new().name("patience".to_owned()).spawn(move || shared.watch());
    }
}
