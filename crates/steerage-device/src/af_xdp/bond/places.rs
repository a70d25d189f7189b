//! The table of a bond's ports. Each entry (a "place" for one port) has receive queues, and keys in
//! the maps of the XDP program. The thread in `watcher` assigns the bond's ports to places. If a
//! place is assigned to another port, the queues of the place notice the new port at their next
//! check.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};
use steerage::{DeviceError, device::Region};
use steerage_netlink::Link;

use super::table::{Place, State, Table};
use super::watcher::Watcher;
use super::{NEW_PORTS_MAX, uses};
use crate::af_xdp::AfXdpOptions;
use crate::af_xdp::device::Device;
use crate::af_xdp::sys::{FEWEST, Socket};

#[derive(Debug)]
pub(in crate::af_xdp) struct Places {
    table: Arc<Table>,
    to_start: Mutex<Option<ToStart>>,
    unopened: AtomicUsize,
    ends: Arc<EventFd>,
}

#[derive(Debug)]
struct ToStart {
    watcher: Watcher,
    /// The sockets for later ports, created now because later the process may lack the permission.
    /// A socket can be bound only once, so each new port uses up a set of sockets.
    unbound: Vec<Vec<Socket>>,
}

impl Places {
    /// Each place gets the queues `queues`, and `keys` keys in the maps of the XDP program.
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
            let wakes = queues.clone().map(|_| event()).collect::<nix::Result<_>>()?;
            Ok(Place::new(nth * keys, state.unwrap_or_default(), wakes))
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
            table: Arc::new(Table::new(bond.index, options.interface.clone(), model, places)),
            to_start: Mutex::new(Some(ToStart { watcher, unbound })),
            unopened: AtomicUsize::new(0),
            ends: Arc::new(event().map_err(|e| watches(e.into()))?),
        }))
    }

    pub(in crate::af_xdp) fn count(&self) -> usize {
        self.table.places.len()
    }

    pub(in crate::af_xdp) fn model(&self) -> &Arc<Device> {
        &self.table.model
    }

    /// Called when a queue is opened. When the last queue is opened, prepares sockets for new
    /// ports, and starts the thread that watches the bond.
    pub(in crate::af_xdp) fn opened(&self, region: &Arc<Region>) -> Result<(), DeviceError> {
        // Relaxed, because one thread opens all queues.
        if self.unopened.fetch_sub(1, Ordering::Relaxed) != 1 {
            return Ok(());
        }
        let to_start = self.to_start.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ToStart { watcher, unbound }) = to_start else { return Ok(()) };
        for sockets in unbound {
            match self.model().prepare(sockets, region, |_, _| FEWEST) {
                Ok(prepared) => self.table.add_spare((prepared, Arc::clone(region))),
                // Continue after an error: only the queues of new ports need these sockets.
                Err(error) => {
                    tracing::warn!(%error, "the packets of a new port of the bond will go to the kernel");
                    break;
                }
            }
        }
        let (table, ends) = (Arc::downgrade(&self.table), Arc::clone(&self.ends));
        let (ready, is_ready) = mpsc::channel();
        let run = move || watcher.run(&table, &ends, &ready);
        let spawned = thread::Builder::new().name("bond".to_owned()).spawn(run);
        spawned.map_err(|e| self.model().error("start a thread that watches the bond", e))?;
        // The watching thread must give up its capabilities before the process restricts its system
        // calls.
        let _ = is_ready.recv();
        Ok(())
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = self.ends.write(1);
    }
}

#[derive(Debug)]
pub(in crate::af_xdp) struct View {
    places: Arc<Places>,
    place: usize,
    /// The index of the queue among the queues of its table entry.
    nth: usize,
    version: u32,
    state: State,
}

impl View {
    pub(in crate::af_xdp) fn new(places: &Arc<Places>, place: usize, nth: usize) -> Self {
        let state = places.table.places[place].state();
        places.unopened.fetch_add(1, Ordering::Relaxed);
        Self { places: Arc::clone(places), place, nth, version: 0, state }
    }

    fn place(&self) -> &Place {
        &self.places.table.places[self.place]
    }

    pub(in crate::af_xdp) fn places(&self) -> &Places {
        &self.places
    }

    /// The key of the place's queue 0 in the maps of the XDP program.
    pub(in crate::af_xdp) fn first_key(&self) -> u32 {
        self.place().first_key
    }

    pub(in crate::af_xdp) fn event(&self) -> BorrowedFd<'_> {
        self.place().event(self.nth)
    }

    /// The state of the bond's port at the last [`refresh`](Self::refresh).
    pub(in crate::af_xdp) fn state(&self) -> &State {
        &self.state
    }

    pub(in crate::af_xdp) fn refresh(&mut self) {
        self.places.table.places[self.place].refresh(self.nth, &mut self.version, &mut self.state);
    }

    pub(in crate::af_xdp) fn error(&self) -> Option<DeviceError> {
        let table = &self.places.table;
        table.is_gone().then(|| {
            let cause = io::Error::from_raw_os_error(libc::ENODEV);
            DeviceError::new(table.name.clone(), "go on receiving", cause).advise("the interface was deleted")
        })
    }
}
