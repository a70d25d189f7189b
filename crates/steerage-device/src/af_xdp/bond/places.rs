//! The places for the ports of a bond. Each place has queues, and keys in the maps of the program.
//! The thread in `watcher` changes which port has a place, and the queues of the place follow at
//! their next check.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};
use steerage::{DeviceError, device::Region};
use steerage_netlink::Link;

use super::watcher::Watcher;
use super::{NEW_PORTS_MAX, uses};
use crate::af_xdp::AfXdpOptions;
use crate::af_xdp::attach::Attached;
use crate::af_xdp::device::Device;
use crate::af_xdp::sys::{FEWEST, OpenSocket, Socket};

/// The places of a bond.
#[derive(Debug)]
pub(in crate::af_xdp) struct Places {
    pub(super) bond: u32,
    pub(super) name: String,
    /// The first port at the start, which new ports resemble.
    model: Arc<Device>,
    pub(super) places: Vec<Place>,
    /// The watcher, until its thread is started.
    watcher: Mutex<Option<Watcher>>,
    spares: Mutex<Spares>,
    /// The number of queues that are not open yet.
    unopened: AtomicUsize,
    /// Whether the bond was deleted.
    is_gone: AtomicBool,
    /// Ends the thread.
    ends: Arc<EventFd>,
}

/// A place for a port.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) first_key: u32,
    state: Mutex<State>,
    /// The number of changes of the state.
    version: AtomicU32,
    /// Wakes the CPUs of the queues after a change.
    wakes: Vec<EventFd>,
}

/// The state of a place.
#[derive(Clone, Debug, Default)]
pub(in crate::af_xdp) struct State {
    /// The port. `None` if the place is free.
    pub(in crate::af_xdp) port: Option<Arc<Device>>,
    /// Whether the bond uses the port to receive.
    pub(in crate::af_xdp) receives: bool,
}

/// The sockets for ports that the bond does not have yet. The process creates them at the start,
/// and may later no longer have the permission. A socket can be bound only once, so each new port
/// takes a set of sockets.
#[derive(Debug, Default)]
struct Spares {
    unbound: Vec<Vec<Socket>>,
    prepared: Vec<(Vec<OpenSocket>, Arc<Region>)>,
}

impl Places {
    /// The places of a bond with these ports. `queues` are the numbers of the queues of each place,
    /// and
    /// `keys` is the number of keys of each place.
    pub(in crate::af_xdp) fn new(
        options: &AfXdpOptions,
        bond: &Link,
        ports: &[(&Link, Arc<Device>)],
        count: u32,
        (keys, queues): (u32, &RangeInclusive<u32>),
    ) -> Result<Arc<Self>, DeviceError> {
        let watches = |e| options.error("watch the bond", e);
        let watcher = Watcher::open(ports.iter().map(|(link, _)| *link), count as usize).map_err(watches)?;
        let model = ports.first().map(|(_, device)| Arc::clone(device));
        let model = model.ok_or_else(|| watches(io::Error::other("it has no ports")))?;
        let event = || EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let place = |nth: u32| -> io::Result<Place> {
            let state = ports
                .get(nth as usize)
                .map(|(link, device)| State { port: Some(Arc::clone(device)), receives: uses(bond.index, link) });
            Ok(Place {
                first_key: nth * keys,
                state: Mutex::new(state.unwrap_or_default()),
                version: AtomicU32::new(0),
                wakes: queues.clone().map(|_| event()).collect::<nix::Result<_>>()?,
            })
        };
        let places = (0..count).map(place).collect::<io::Result<_>>().map_err(watches)?;
        let mut unbound = Vec::new();
        for _ in 0..NEW_PORTS_MAX {
            let sockets = queues.clone().map(|_| Socket::new()).collect::<io::Result<Vec<_>>>();
            let sockets = sockets.map_err(|e| options.error("open an AF_XDP socket", e))?;
            Device::set_up(options, &sockets)?;
            unbound.push(sockets);
        }
        Ok(Arc::new(Self {
            bond: bond.index,
            name: options.interface.clone(),
            model,
            places,
            watcher: Mutex::new(Some(watcher)),
            spares: Mutex::new(Spares { unbound, prepared: Vec::new() }),
            unopened: AtomicUsize::new(0),
            is_gone: AtomicBool::new(false),
            ends: Arc::new(event().map_err(|e| watches(e.into()))?),
        }))
    }

    /// The number of places.
    pub(in crate::af_xdp) fn count(&self) -> usize {
        self.places.len()
    }

    /// The first port at the start.
    pub(in crate::af_xdp) fn model(&self) -> &Arc<Device> {
        &self.model
    }

    pub(super) fn program(&self) -> &Attached {
        &self.model.program
    }

    /// Says that a queue is open. After the last one, prepares the sockets for new ports, and
    /// starts the thread that watches the bond.
    pub(in crate::af_xdp) fn opened(self: &Arc<Self>, region: &Arc<Region>) -> Result<(), DeviceError> {
        // Relaxed, as all queues are opened by one thread.
        if self.unopened.fetch_sub(1, Ordering::Relaxed) != 1 {
            return Ok(());
        }
        let Some(watcher) = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        {
            let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
            for sockets in std::mem::take(&mut spares.unbound) {
                match self.model.prepare(sockets, region, |_, _| FEWEST) {
                    Ok(prepared) => spares.prepared.push((prepared, Arc::clone(region))),
                    // The queues of the ports have their memory already.
                    Err(error) => {
                        tracing::warn!(%error, "the packets of a new port of the bond will go to the kernel");
                        break;
                    }
                }
            }
        }
        let (places, ends) = (Arc::downgrade(self), Arc::clone(&self.ends));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let run = move || watcher.run(&places, &ends, &ready);
        let spawned = thread::Builder::new().name("bond".to_owned()).spawn(run);
        spawned.map_err(|e| self.model.error("start a thread that watches the bond", e))?;
        // The thread has given up its capabilities before the process restricts its system calls.
        let _ = is_ready.recv();
        Ok(())
    }

    /// A set of prepared sockets for a new port.
    pub(super) fn spare(&self) -> Option<(Vec<OpenSocket>, Arc<Region>)> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner).prepared.pop()
    }

    /// Says that the bond was deleted.
    pub(super) fn end(&self) {
        // Relaxed: the flag refers to no other memory.
        self.is_gone.store(true, Ordering::Relaxed);
        self.places.iter().for_each(Place::wake);
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = self.ends.write(1);
    }
}

impl Place {
    pub(super) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, state: State) {
        let before = std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state);
        // Release pairs with the Acquire in `View::refresh`, so that a queue that sees the new
        // version does not find the old state.
        self.version.fetch_add(1, Ordering::Release);
        self.wake();
        drop(before);
    }

    fn wake(&self) {
        for wake in &self.wakes {
            let _ = wake.write(1);
        }
    }
}

/// A queue's view of its place.
#[derive(Debug)]
pub(in crate::af_xdp) struct View {
    places: Arc<Places>,
    place: usize,
    /// The number of the queue among those of the place.
    nth: usize,
    version: u32,
    state: State,
}

impl View {
    pub(in crate::af_xdp) fn new(places: &Arc<Places>, place: usize, nth: usize) -> Self {
        let state = places.places[place].state();
        places.unopened.fetch_add(1, Ordering::Relaxed);
        Self { places: Arc::clone(places), place, nth, version: 0, state }
    }

    pub(in crate::af_xdp) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// The number of the place's queue 0 in the maps of the program.
    pub(in crate::af_xdp) fn first_key(&self) -> u32 {
        self.places.places[self.place].first_key
    }

    /// Becomes readable when the state changes.
    pub(in crate::af_xdp) fn event(&self) -> BorrowedFd<'_> {
        self.places.places[self.place].wakes[self.nth].as_fd()
    }

    /// The state at the last [`refresh`](Self::refresh).
    pub(in crate::af_xdp) fn state(&self) -> &State {
        &self.state
    }

    /// Reads the state if it has changed. The queue's CPU never waits for the thread that changes
    /// it.
    pub(in crate::af_xdp) fn refresh(&mut self) {
        let place = &self.places.places[self.place];
        // The event is read first: a change after this line wakes the CPU again.
        let _ = place.wakes[self.nth].read();
        let version = place.version.load(Ordering::Acquire);
        if version != self.version {
            match place.state.try_lock() {
                Ok(state) => (self.state, self.version) = (state.clone(), version),
                // The next check reads it.
                Err(_) => {
                    let _ = place.wakes[self.nth].write(1);
                }
            }
        }
    }

    /// The error that ends the queue, if the bond was deleted.
    pub(in crate::af_xdp) fn error(&self) -> Option<DeviceError> {
        self.places.is_gone.load(Ordering::Relaxed).then(|| {
            let cause = io::Error::from_raw_os_error(libc::ENODEV);
            DeviceError::new(self.places.name.clone(), "go on receiving", cause).advise("the interface was deleted")
        })
    }
}
