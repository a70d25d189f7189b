//! Copies the kernel's routes and neighbours into a [`Table`](crate::Table), and keeps the table up
//! to date. Routes of the user may replace the kernel's routes.
//!
//! | file | content |
//! |---|---|
//! | `tables` | a copy of the kernel's tables, and the forwarding table made from it |
//! | `neighbour_probes` | makes the kernel look for neighbours |
//! | `route` | the user's routes, as `ip route` writes them |
//! | `silence` | keeps the kernel from answering packets that the router forwards |
//!
//! This file contains the thread that updates the forwarding table. It handles no packets.

mod neighbour_probes;
mod route;
mod silence;
mod tables;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::TxId;
use steerage_netlink::{Changes, Rtnetlink};

use crate::Forwarding;
use neighbour_probes::NeighbourProbes;
use tables::{KernelTables, Member};

pub use route::{NextHop, Route, RouteError};
pub use silence::SilentKernel;

/// The interval at which the route thread checks to which neighbours the router has sent packets.
/// The kernel marks a neighbour as stale after 15 s at the earliest.
const FRESHEN: Duration = Duration::from_secs(1);

/// After building a table, the route thread pauses for this multiple of the time that the building
/// took. Without the pause, changes among a million routes would keep a CPU busy.
const REST: u32 = 9;

/// The minimum time between two requests for all routes and neighbours of the kernel.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The reason why the router cannot read the kernel's tables and their changes.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel refused to open a socket, to list its own tables, or to start a thread.
    #[error("cannot {operation}: {error}")]
    System {
        /// The operation that failed, such as "open a netlink socket".
        operation: &'static str,
        /// The kernel's reason.
        #[source]
        error: io::Error,
    },
    /// A route of the user does not match the router's interfaces.
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// An interface of the router.
#[derive(Clone, Debug)]
pub struct RouterInterface {
    /// The name, such as `eth0`.
    pub name: String,
    /// The index of the interface, as `if_nametoindex(3)` returns it.
    pub index: u32,
    /// True if packets on the interface begin with an Ethernet header.
    pub ethernet: bool,
}

/// Keeps the forwarding table up to date.
#[derive(Debug)]
pub struct RouteUpdater {
    kernel: KernelTables,
    changes: Changes,
    probes: NeighbourProbes,
    forwarding: Arc<Forwarding>,
    freshened: Instant,
    /// The earliest times to build the next table, and to request the kernel's tables again.
    rested: Instant,
    ask_after: Instant,
    ask_all: bool,
}

impl RouteUpdater {
    /// Opens the sockets, and builds the first forwarding table. The caller needs `CAP_NET_RAW`,
    /// because sockets for probes are bound to interfaces. `interfaces` are in the order of the
    /// instance's outputs. Routes in `routes` replace the kernel's routes.
    ///
    /// # Errors
    /// [`KernelError`] if the kernel refuses a socket or its tables, or no interface fits a route.
    pub fn new(
        interfaces: &[RouterInterface],
        routes: &[Route],
        forwarding: Arc<Forwarding>,
    ) -> Result<Self, KernelError> {
        let cannot = |operation| move |error| KernelError::System { operation, error };
        let members = interfaces.iter().enumerate().map(|(nth, interface)| Member {
            index: interface.index,
            output: TxId(nth as u8),
            ethernet: interface.ethernet,
        });
        let mut kernel = KernelTables::new(members.collect());
        let changes = Changes::of_all().map_err(cannot("open a netlink socket"))?;
        let probes = NeighbourProbes::new(interfaces).map_err(cannot("open a socket to look for neighbours with"))?;
        read_all(&mut kernel).map_err(cannot("ask the kernel for its routes"))?;
        if !routes.is_empty() {
            kernel.set_static_routes(route::resolve(routes, interfaces, |address| kernel.member_of(address))?);
        }
        let now = Instant::now();
        let mut control = Self {
            kernel,
            changes,
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

    /// Returns hints for the user, one line each.
    pub fn notes(&self, interfaces: &[RouterInterface]) -> Vec<String> {
        let veths = interfaces.iter().filter(|interface| self.kernel.is_veth(interface.index));
        let note = |interface: &RouterInterface| {
            format!(
                "{} is a veth: what the other end's own machine sends comes uncut and without checksums; there: ethtool -K IFACE tx off",
                interface.name
            )
        };
        veths.map(note).collect()
    }

    /// Starts the thread that updates the forwarding table. The thread runs until the program ends.
    ///
    /// # Errors
    /// Fails if the kernel cannot start a thread.
    pub fn start(mut self) -> Result<(), KernelError> {
        let spawned = thread::Builder::new().name("routes".to_owned()).spawn(move || {
            loop {
                self.turn();
            }
        });
        spawned.map(drop).map_err(|error| KernelError::System { operation: "start a thread for routes", error })
    }

    fn turn(&mut self) {
        self.wait();
        let (kernel, now) = (&mut self.kernel, Instant::now());
        self.ask_all |= !self.changes.read(&mut |change| kernel.apply(change));
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

    /// Waits for a change by the kernel, a packet CPU's request for a neighbour, or a timer.
    fn wait(&self) {
        let due = [Some(self.freshened + FRESHEN), self.ask_all.then_some(self.ask_after)];
        let due = due.into_iter().flatten().chain(self.kernel.is_changed().then_some(self.rested)).min();
        let time = due.map_or(FRESHEN, |due| due.saturating_duration_since(Instant::now()));
        // The time is rounded up, so that the wait does not end too early.
        let millis = u16::try_from(time.as_millis()).unwrap_or(u16::MAX).saturating_add(1);
        let wanted = self.forwarding.wanted();
        let mut fds =
            [PollFd::new(self.changes.as_fd(), PollFlags::POLLIN), PollFd::new(wanted.event_fd(), PollFlags::POLLIN)];
        // If a signal interrupts `poll`, the only effect is one unnecessary check.
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

fn read_all(kernel: &mut KernelTables) -> io::Result<()> {
    kernel.begin_dump();
    Rtnetlink::open()?.list(&mut |change| kernel.apply(change))?;
    kernel.end_dump();
    Ok(())
}
