//! The table of a bond's ports. Each port of a bond has a place (an entry) in the table. The thread
//! in `watcher` writes the table, and the queues in `places` read it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::EventFd;
use steerage::device::Region;

use crate::af_xdp::attach::Attached;
use crate::af_xdp::device::Device;
use crate::af_xdp::sys::OpenSocket;

/// The sockets for the queues of one port, and the memory region into which these sockets receive.
pub(super) type Prepared = (Vec<OpenSocket>, Arc<Region>);

/// The ports of a bond.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) bond: u32,
    pub(super) name: String,
    /// The bond's first port when the device was opened. New ports are set up like the bond's first
    /// port.
    pub(super) model: Arc<Device>,
    pub(super) places: Vec<Place>,
    /// The sockets for ports that the bond does not have yet. Each new port uses up a set of
    /// sockets.
    spares: Mutex<Vec<Prepared>>,
    /// Whether the bond was deleted.
    is_gone: AtomicBool,
}

/// A place for a port.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) first_key: u32,
    state: Mutex<State>,
    /// The number of changes of this place's state since the start.
    version: AtomicU32,
    /// One eventfd for each queue of this place (table entry). After a change of the place's state,
    /// these eventfds wake the CPUs that poll the queues.
    wakes: Vec<EventFd>,
}

/// The state of a place.
#[derive(Clone, Debug, Default)]
pub(in crate::af_xdp) struct State {
    /// The port. `None` if the place is free.
    pub(in crate::af_xdp) port: Option<Arc<Device>>,
    /// True if the bond receives packets from the port.
    pub(in crate::af_xdp) receives: bool,
}

impl Table {
    pub(super) fn new(bond: u32, name: String, model: Arc<Device>, places: Vec<Place>) -> Self {
        Self { bond, name, model, places, spares: Mutex::default(), is_gone: AtomicBool::new(false) }
    }

    pub(super) fn program(&self) -> &Attached {
        &self.model.program
    }

    /// Stores a set of prepared sockets for a port that is added later.
    pub(super) fn add_spare(&self, prepared: Prepared) {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).push(prepared);
    }

    /// Returns a set of prepared sockets for a new port, if one is left.
    pub(super) fn spare(&self) -> Option<Prepared> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Records that the bond was deleted.
    pub(super) fn end(&self) {
        // Relaxed, because no other memory is published by this flag.
        self.is_gone.store(true, Ordering::Relaxed);
        self.places.iter().for_each(Place::wake);
    }

    /// Whether the bond was deleted.
    pub(super) fn is_gone(&self) -> bool {
        // Relaxed, because no other memory is published by this flag.
        self.is_gone.load(Ordering::Relaxed)
    }
}

impl Place {
    pub(super) fn new(first_key: u32, state: State, wakes: Vec<EventFd>) -> Self {
        Self { first_key, state: Mutex::new(state), version: AtomicU32::new(0), wakes }
    }

    pub(super) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, state: State) {
        let before = std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state);
        // Release pairs with the Acquire in `refresh`, so that a queue that reads the new version
        // does not read the old state.
        self.version.fetch_add(1, Ordering::Release);
        self.wake();
        drop(before);
    }

    /// Copies the place's state and its version, if the state has changed since the version
    /// `version`. The caller never waits for the thread that changes the state. `nth` is the number
    /// of the caller's queue among the queues of the place (table entry).
    pub(super) fn refresh(&self, nth: usize, version: &mut u32, state: &mut State) {
        // The eventfd is read before the version, so that a change after this read wakes the CPU
        // again.
        let _ = self.wakes[nth].read();
        // Acquire pairs with the Release in `set`.
        let now = self.version.load(Ordering::Acquire);
        if now == *version {
            return;
        }
        match self.state.try_lock() {
            Ok(locked) => (*state, *version) = (locked.clone(), now),
            // Another thread holds the lock of the state, so the next check reads the state.
            Err(_) => {
                let _ = self.wakes[nth].write(1);
            }
        }
    }

    /// Returns the file descriptor that becomes readable when the state of the place (table entry)
    /// changes. Each queue `nth` has its own.
    pub(super) fn event(&self, nth: usize) -> BorrowedFd<'_> {
        self.wakes[nth].as_fd()
    }

    fn wake(&self) {
        for wake in &self.wakes {
            let _ = wake.write(1);
        }
    }
}
