//! The routes and neighbours that `steerage forward` uses. By default they are the kernel's own,
//! and follow its changes. `--route` replaces the kernel's routes.
//!
//! | file | content |
//! |---|---|
//! | `netlink` | reads the kernel's tables, and receives their changes |
//! | `kernel_tables` | a copy of the kernel's tables, and the forwarding table made from it |
//! | `neighbour_probes` | makes the kernel look for neighbours |
//! | `static_routes` | the routes of the command line |
//!
//! This file has the thread that keeps the forwarding table up to date. That thread handles no
//! packets.

mod kernel_tables;
mod neighbour_probes;
mod netlink;
mod static_routes;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::TxId;
use steerage_apps::forward::Forwarding;

use crate::args::RouteArg;
use crate::error::Error;
use kernel_tables::{KernelTables, Member};
use neighbour_probes::NeighbourProbes;
use netlink::Events;

/// How often the thread checks which neighbours are in use. The kernel marks a neighbour stale after 15 s or more.
const FRESHEN: Duration = Duration::from_secs(1);

/// After making a table, the thread rests for this many times as long. Otherwise a million flapping
/// routes would keep a CPU busy with tables that are replaced at once.
const REST: u32 = 9;

/// The shortest time between two reads of all the kernel's tables.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// An interface of the router, as the command line names it.
#[derive(Clone, Debug)]
pub(crate) struct RouterInterface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) ethernet: bool,
}

/// Keeps the forwarding table up to date.
#[derive(Debug)]
pub(crate) struct RouteUpdater {
    kernel: KernelTables,
    events: Events,
    probes: NeighbourProbes,
    forwarding: Arc<Forwarding>,
    freshened: Instant,
    /// When the next table may be made, and when all tables may be read again.
    rested: Instant,
    ask_after: Instant,
    ask_all: bool,
}

impl RouteUpdater {
    /// Opens the sockets while there are privileges, and makes the first table.
    pub(crate) fn new(
        interfaces: &[RouterInterface],
        routes: &[RouteArg],
        forwarding: Arc<Forwarding>,
    ) -> Result<Self, Error> {
        let cannot = |operation| move |error| Error::System { operation, error };
        let members = interfaces.iter().enumerate().map(|(nth, interface)| Member {
            index: interface.index,
            output: TxId(nth as u8),
            ethernet: interface.ethernet,
        });
        let mut kernel = KernelTables::new(members.collect());
        let events = Events::open().map_err(cannot("open a netlink socket"))?;
        let named: Vec<(String, u32)> =
            interfaces.iter().map(|interface| (interface.name.clone(), interface.index)).collect();
        let probes = NeighbourProbes::new(&named).map_err(cannot("open a socket to look for neighbours with"))?;
        read_all(&mut kernel).map_err(cannot("ask the kernel for its routes"))?;
        if !routes.is_empty() {
            kernel.set_static_routes(static_routes::resolve(routes, interfaces, |address| kernel.member_of(address))?);
        }
        let now = Instant::now();
        let mut control = Self {
            kernel,
            events,
            probes,
            forwarding,
            freshened: now,
            rested: now,
            ask_after: now + ASK_AGAIN,
            ask_all: false,
        };
        control.show_if_changed(now);
        Ok(control)
    }

    /// Notes for the user about the interfaces, one line each.
    pub(crate) fn notes(&self, interfaces: &[RouterInterface]) -> Vec<String> {
        let veths = interfaces.iter().filter(|interface| self.kernel.is_veth(interface.index));
        let note = |interface: &RouterInterface| {
            format!(
                "{} is a veth: what the other end's own machine sends comes uncut and without checksums; there: ethtool -K IFACE tx off",
                interface.name
            )
        };
        veths.map(note).collect()
    }

    /// Starts the thread that follows changes. It ends with the program.
    pub(crate) fn start(mut self) -> Result<(), Error> {
        let spawned = thread::Builder::new().name("routes".to_owned()).spawn(move || {
            loop {
                self.turn();
            }
        });
        spawned.map(drop).map_err(|error| Error::System { operation: "start a thread for routes", error })
    }

    fn turn(&mut self) {
        self.wait();
        let (kernel, now) = (&mut self.kernel, Instant::now());
        self.ask_all |= !self.events.read(&mut |message, flags| kernel.apply(message, flags));
        let mut neighbours = self.forwarding.wanted().take();
        if now.duration_since(self.freshened) >= FRESHEN {
            self.freshened = now;
            neighbours.extend(self.kernel.check_neighbours());
        }
        self.probes.send(&neighbours, now);
        if self.ask_all && now >= self.ask_after {
            self.ask_all = false;
            if let Err(error) = read_all(&mut self.kernel) {
                tracing::warn!("cannot ask the kernel for its routes: {error}; trying again");
                self.ask_all = true;
            }
            self.ask_after = Instant::now() + ASK_AGAIN.max(now.elapsed() * REST);
        }
        self.show_if_changed(now);
    }

    /// Waits until the kernel reports a change, a CPU asks for a neighbour, or something is due.
    fn wait(&self) {
        let due = [Some(self.freshened + FRESHEN), self.ask_all.then_some(self.ask_after)];
        let due = due.into_iter().flatten().chain(self.kernel.is_changed().then_some(self.rested)).min();
        let time = due.map_or(FRESHEN, |due| due.saturating_duration_since(Instant::now()));
        // One more millisecond, since a timeout that is rounded down would end too early.
        let millis = u16::try_from(time.as_millis()).unwrap_or(u16::MAX).saturating_add(1);
        let wanted = self.forwarding.wanted();
        let mut fds =
            [PollFd::new(self.events.as_fd(), PollFlags::POLLIN), PollFd::new(wanted.event_fd(), PollFlags::POLLIN)];
        // If a signal interrupts `poll`, the thread only checks once more than necessary.
        let _ = poll(&mut fds, PollTimeout::from(millis));
    }

    fn show_if_changed(&mut self, now: Instant) {
        if !self.kernel.is_changed() || now < self.rested {
            return;
        }
        let changed = self.kernel.take_changed();
        self.ask_all |= changed.all;
        if changed.any {
            let table = self.kernel.table(changed);
            self.forwarding.show(table);
        }
        self.rested = Instant::now() + now.elapsed() * REST;
    }
}

/// Reads all of the kernel's tables.
fn read_all(kernel: &mut KernelTables) -> io::Result<()> {
    kernel.begin_dump();
    netlink::dump(&mut |message, flags| kernel.apply(message, flags))?;
    kernel.end_dump();
    Ok(())
}
