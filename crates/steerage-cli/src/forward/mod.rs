//! What `steerage forward` goes by: the kernel's own routes and neighbours, followed as they change, or the user's routes.
//!
//! | file | what happens there |
//! |---|---|
//! | `netlink` | asks the kernel, and hears of changes |
//! | `kernel` | what is known of it, and the table that makes |
//! | `route` | a route as it is written: `10.0.0.0/8 via 192.0.2.1` |
//! | `nudge` | has the kernel find neighbours |
//!
//! Here is the thread that keeps the table up to date. It sees no packet.

mod kernel;
pub(crate) mod link;
mod netlink;
mod nudge;
mod route;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::TxId;
use steerage_apps::forward::Forwarding;

use crate::error::Error;
use kernel::{Kernel, Member};
use netlink::Events;
use nudge::Nudges;

pub(crate) use route::RouteArg;

/// How often it is looked which neighbours are in use: the kernel lets one grow stale after 15 s or more.
const FRESHEN: Duration = Duration::from_secs(1);

/// Making a table takes at most one part in so many of this thread's time: a million routes that flap would else keep a CPU
/// busy with tables that nobody has time to use.
const REST: u32 = 9;

/// How long at least after everything was asked for until it is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// An interface that takes part, as the command line has it.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) ethernet: bool,
}

/// Keeps the table up to date.
#[derive(Debug)]
pub(crate) struct Control {
    kernel: Kernel,
    events: Events,
    nudges: Nudges,
    forwarding: Arc<Forwarding>,
    freshened: Instant,
    /// When a table may be made again, and everything be asked for again.
    rested: Instant,
    ask_after: Instant,
    ask_all: bool,
}

impl Control {
    /// Shows a first table. Sockets are opened here, with whatever privileges there still are.
    pub(crate) fn new(legs: &[Leg], routes: &[RouteArg], forwarding: Arc<Forwarding>) -> Result<Self, Error> {
        let cannot = |operation| move |error| Error::System { operation, error };
        let members = legs.iter().enumerate().map(|(nth, leg)| Member {
            index: leg.index,
            output: TxId(nth as u8),
            ethernet: leg.ethernet,
        });
        let mut kernel = Kernel::new(members.collect());
        let events = Events::open().map_err(cannot("open a netlink socket"))?;
        let named: Vec<(String, u32)> = legs.iter().map(|leg| (leg.name.clone(), leg.index)).collect();
        let nudges = Nudges::new(&named).map_err(cannot("open a socket to look for neighbours with"))?;
        ask(&mut kernel).map_err(cannot("ask the kernel for its routes"))?;
        if !routes.is_empty() {
            kernel.fix(route::resolved(routes, legs, |address| kernel.member_of(address))?);
        }
        let now = Instant::now();
        let mut control = Self {
            kernel,
            events,
            nudges,
            forwarding,
            freshened: now,
            rested: now,
            ask_after: now + ASK_AGAIN,
            ask_all: false,
        };
        control.show_if_changed(now);
        Ok(control)
    }

    /// What the user should know of interfaces: a line each.
    pub(crate) fn notes(&self, legs: &[Leg]) -> Vec<String> {
        let veths = legs.iter().filter(|leg| self.kernel.is_veth(leg.index));
        let note = |leg: &Leg| {
            format!(
                "{} is a veth: what the other end's own machine sends comes uncut and without checksums; there: ethtool -K IFACE tx off",
                leg.name
            )
        };
        veths.map(note).collect()
    }

    /// Goes on with it on a thread of its own, which ends with the program.
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
        self.ask_all |= !self.events.read(&mut |message, flags| kernel.hear(message, flags));
        let mut neighbours = self.forwarding.wanted().take();
        if now.duration_since(self.freshened) >= FRESHEN {
            self.freshened = now;
            neighbours.extend(self.kernel.used_and_stale());
        }
        self.nudges.send(&neighbours, now);
        if self.ask_all && now >= self.ask_after {
            self.ask_all = false;
            if let Err(error) = ask(&mut self.kernel) {
                tracing::warn!("cannot ask the kernel for its routes: {error}; trying again");
                self.ask_all = true;
            }
            self.ask_after = Instant::now() + ASK_AGAIN.max(now.elapsed() * REST);
        }
        self.show_if_changed(now);
    }

    /// Until something is told or wanted, or due.
    fn wait(&self) {
        let due = [Some(self.freshened + FRESHEN), self.ask_all.then_some(self.ask_after)];
        let due = due.into_iter().flatten().chain(self.kernel.is_changed().then_some(self.rested)).min();
        let time = due.map_or(FRESHEN, |due| due.saturating_duration_since(Instant::now()));
        // A millisecond more: it would else wake up just before.
        let millis = u16::try_from(time.as_millis()).unwrap_or(u16::MAX).saturating_add(1);
        let wanted = self.forwarding.wanted();
        let mut fds =
            [PollFd::new(self.events.as_fd(), PollFlags::POLLIN), PollFd::new(wanted.event_fd(), PollFlags::POLLIN)];
        // Interrupted, it looks once too often.
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

/// Asks the kernel for all that there is.
fn ask(kernel: &mut Kernel) -> io::Result<()> {
    kernel.forget();
    netlink::dump(&mut |message, flags| kernel.hear(message, flags))?;
    kernel.all_is_told();
    Ok(())
}
