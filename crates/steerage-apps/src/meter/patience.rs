//! How long the end of a run waits for whoever reads what is written.
//!
//! A reader may stop reading for as long as it likes, as a pager does: a source that can wait then waits, and so does the end
//! of a run that ends by itself. Once somebody has asked to stop, who takes nothing for [`PATIENCE`] is given up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use steerage::DRAIN_MAX;

/// How long may pass after a stop without anything being taken. Half of what a stop gives to packets in flight, so that a
/// CPU that waits for the writer still comes to its own end in time.
pub(super) const PATIENCE: Duration = DRAIN_MAX.checked_div(2).expect("two is not zero");

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What the writer, those who hand over to it, and those who lose patience share.
#[derive(Debug)]
pub(super) struct Shared<M> {
    /// Where the writer takes from. Gone once it has been given up, so that nobody waits for room any more.
    messages: Mutex<Option<Receiver<M>>>,
    /// Told once the writer has been given up.
    given_up: Box<dyn Tell>,
    // Relaxed throughout: numbers by themselves, of which one is compared with itself.
    handed: AtomicU64,
    written: AtomicU64,
    /// Goes up whenever something was taken.
    taken: AtomicU64,
    hurried: AtomicBool,
    ended: AtomicBool,
}

/// Tells once that the writer was given up.
pub(super) trait Tell: Send + Sync + std::fmt::Debug {
    fn tell(&self);
}

impl<M: Send + 'static> Shared<M> {
    pub(super) fn new(messages: Receiver<M>, given_up: Box<dyn Tell>) -> Arc<Self> {
        Arc::new(Self {
            messages: Mutex::new(Some(messages)),
            given_up,
            handed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            hurried: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    /// For the writer: the next message. None are left, or nobody cares any more.
    pub(super) fn next(&self) -> Result<M, RecvError> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.as_ref().ok_or(RecvError)?.recv()
    }

    /// For the writer: there will be nothing more to wait for, and who hands over finds nobody.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn note_handed(&self, records: u64) {
        self.handed.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn note_written(&self, records: u64) {
        self.written.fetch_add(records, Ordering::Relaxed);
        self.note_taken();
    }

    pub(super) fn note_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were handed over and not written.
    pub(super) fn left(&self) -> u64 {
        self.handed.load(Ordering::Relaxed).saturating_sub(self.written.load(Ordering::Relaxed))
    }

    /// From now on, patience is bounded.
    pub(super) fn hurry(self: &Arc<Self>) {
        if self.hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(self);
        // Without a thread for it, it is as if nobody had asked; a second signal still ends all.
        let _ = thread::Builder::new().name("patience".to_owned()).spawn(move || shared.lose_patience());
    }

    /// Waits until nothing has been taken for too long, and gives the writer up.
    fn lose_patience(&self) {
        let (mut seen, mut waited) = (None, Duration::ZERO);
        while !self.ended.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
            let taken = self.taken.load(Ordering::Relaxed);
            // Whoever holds it waits for messages: there is nothing to take.
            let Ok(mut messages) = self.messages.try_lock() else {
                waited = Duration::ZERO;
                continue;
            };
            if seen != Some(taken) {
                (seen, waited) = (Some(taken), Duration::ZERO);
                continue;
            }
            waited += LOOK;
            if waited >= PATIENCE {
                messages.take();
                self.given_up.tell();
                return;
            }
        }
    }
}
