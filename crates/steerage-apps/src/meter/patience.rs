//! How long the end of a run waits for whoever reads what is written.
//!
//! A reader may stop for as long as it likes, as a pager does: a source that can wait then waits, and so does the end of a run
//! that ends by itself. Once somebody has asked to stop, who takes nothing for [`PATIENCE`] is given up. The writer's thread
//! cannot be called back from its write, and is left where it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use steerage::DRAIN_MAX;

use super::export::{Ended, Message};

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// So many looks after which nothing had been taken are enough: half of what a stop gives to packets in flight, so that a CPU
/// that waits for the writer still comes to its own end in time.
const LOOKS: u128 = DRAIN_MAX.as_nanos() / 2 / LOOK.as_nanos();

/// What those who hand over, the writer, and those who lose patience with it share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Where the writer takes from. Gone once there is no writer any more, so that nobody waits for it.
    messages: Mutex<Option<Receiver<Message>>>,
    ended: Sender<Ended>,
    // Relaxed throughout: numbers by themselves, and no other memory hangs on them.
    handed: AtomicU64,
    written: AtomicU64,
    /// Goes up whenever something was taken.
    taken: AtomicU64,
    hurried: AtomicBool,
}

impl Shared {
    pub(super) fn new(messages: Receiver<Message>, ended: Sender<Ended>) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (handed, written, taken) = (zero(), zero(), zero());
        let messages = Mutex::new(Some(messages));
        Arc::new(Self { messages, ended, handed, written, taken, hurried: AtomicBool::new(false) })
    }

    /// For the writer: the next message, if there will be one.
    pub(super) fn next(&self) -> Result<Message, RecvError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.as_ref().ok_or(RecvError)?.recv();
        self.note_taken();
        message
    }

    /// For the writer: there is none any more. Who hands over finds nobody, and who waits for the end has it.
    pub(super) fn end(&self, ended: Ended) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
        // If nobody waits for it, nobody wants to know.
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

    /// How many were handed over and not written.
    pub(super) fn left(&self) -> u64 {
        self.handed.load(Ordering::Relaxed).saturating_sub(self.written.load(Ordering::Relaxed))
    }

    /// Gives the writer up once nothing has been taken for too long.
    fn lose_patience(&self) {
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
                        let _ = self.ended.send(Ended::GivenUp);
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
#[derive(Clone, Debug)]
pub struct Hurry(pub(super) Arc<Shared>);

impl Hurry {
    /// Somebody has asked to stop. From now on, who takes nothing of what is written for a second is given up.
    pub fn hurry(&self) {
        if self.0.hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(&self.0);
        // Without a thread it is as if nobody had asked.
        let _ = thread::Builder::new().name("patience".to_owned()).spawn(move || shared.lose_patience());
    }
}
