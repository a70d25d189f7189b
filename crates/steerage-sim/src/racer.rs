//! An additional control thread, which holds the control lock from one chosen moment to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;

use steerage::Handle;

/// Takes and releases the control lock on another thread, even while a handler runs.
#[derive(Debug)]
pub struct Racer {
    is_held: AtomicBool,
    thread: Mutex<(Sender<()>, Receiver<()>)>,
}

impl Racer {
    pub(crate) fn new(handle: Handle) -> Arc<Self> {
        let ((ask, asked), (answer, answered)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            while asked.recv().is_ok() {
                let held = handle.hold();
                let _ = answer.send(());
                let goes_on = asked.recv().is_ok();
                drop(held);
                let _ = answer.send(());
                if !goes_on {
                    return;
                }
            }
        });
        Arc::new(Self { is_held: AtomicBool::new(false), thread: Mutex::new((ask, answered)) })
    }

    /// Makes the thread take the control lock. Returns when the lock is held.
    pub fn hold(&self) {
        self.set(true);
    }

    /// Makes the thread release the control lock. Returns when the lock is free.
    pub fn release(&self) {
        self.set(false);
    }

    /// Returns true if the thread holds the control lock.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    fn set(&self, held: bool) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_held.swap(held, Ordering::SeqCst) != held {
            thread.0.send(()).expect("the thread waits for this");
            thread.1.recv().expect("the thread answers");
        }
    }
}
