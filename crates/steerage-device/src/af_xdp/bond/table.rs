//! The table of a bond's ports. Each port has a place (an entry) in the table. The thread in
//! `watcher` writes the table, and the queues in `places` read it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::EventFd;
use steerage::device::Region;

use crate::af_xdp::attach::Attached;
use crate::af_xdp::device::Device;
use crate::af_xdp::sys::OpenSocket;

/// The sockets for the queues of one port, and the memory region into which they receive.
pub(super) type Prepared = (Vec<OpenSocket>, Arc<Region>);

#[derive(Debug)]
pub(super) struct Table {
    pub(super) bond: u32,
    pub(super) name: String,
    /// The bond's first port when the device was opened. New ports are set up like this first port.
    pub(super) model: Arc<Device>,
    pub(super) places: Vec<Place>,
    /// The sockets for ports that the bond does not have yet. Each new port of the bond uses up a
    /// set of sockets.
    spares: Mutex<Vec<Prepared>>,
    is_gone: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) first_key: u32,
    state: Mutex<State>,
    version: AtomicU32,
    /// One eventfd for each queue of the place, which wakes the queue's CPU after a change of the
    /// place's state.
    wakes: Vec<EventFd>,
}

#[derive(Clone, Debug, Default)]
pub(in crate::af_xdp) struct State {
    /// The port that uses the place, or `None` if no port uses the place.
    pub(in crate::af_xdp) port: Option<Arc<Device>>,
    pub(in crate::af_xdp) receives: bool,
}

impl Table {
    pub(super) fn new(bond: u32, name: String, model: Arc<Device>, places: Vec<Place>) -> Self {
        Self { bond, name, model, places, spares: Mutex::default(), is_gone: AtomicBool::new(false) }
    }

    pub(super) fn program(&self) -> &Attached {
        &self.model.program
    }

    pub(super) fn add_spare(&self, prepared: Prepared) {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).push(prepared);
    }

    pub(super) fn spare(&self) -> Option<Prepared> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(super) fn end(&self) {
        // Relaxed, because no other memory is published by this flag.
        self.is_gone.store(true, Ordering::Relaxed);
        self.places.iter().for_each(Place::wake);
    }

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
        // Release pairs with the Acquire in `refresh`: a new version comes with the new state.
        self.version.fetch_add(1, Ordering::Release);
        self.wake();
        drop(before);
    }

    /// Copies the state of the place if it is newer than `version`. Never waits for the thread that
    /// changes the state. `nth`: the index of the caller's queue among the queues of the place
    /// (table entry).
    pub(super) fn refresh(&self, nth: usize, version: &mut u32, state: &mut State) {
        // Read the eventfd before `self.version`, so that a later change wakes the CPU again.
        let _ = self.wakes[nth].read();
        // Acquire pairs with the Release in `set`.
        let now = self.version.load(Ordering::Acquire);
        if now == *version {
            return;
        }
        match self.state.try_lock() {
            Ok(locked) => (*state, *version) = (locked.clone(), now),
            // Another thread holds the lock: read the state at the next check.
            Err(_) => {
                let _ = self.wakes[nth].write(1);
            }
        }
    }

    pub(super) fn event(&self, nth: usize) -> BorrowedFd<'_> {
        self.wakes[nth].as_fd()
    }

    fn wake(&self) {
        for wake in &self.wakes {
            let _ = wake.write(1);
        }
    }
}
