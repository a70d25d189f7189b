//! The thread that watches a bond and opens the queues of new ports. Packet threads may not make
//! the system calls that open a queue, which also wait for the kernel's lock on all interfaces.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use nix::poll::PollTimeout;
use nix::sys::eventfd::EventFd;
use steerage::DeviceError;
use steerage_netlink::ethtool::Ethtool;
use steerage_netlink::{Changes, Entry, Link, Rtnetlink};

use super::table::{Place, State, Table};
use super::uses;
use crate::af_xdp::device::{Device, Known};
use crate::af_xdp::sys;
use crate::af_xdp::waits::has_ended;

#[derive(Debug)]
pub(super) struct Watcher {
    changes: Changes,
    kernel: Rtnetlink,
    ethtool: Option<Ethtool>,
    /// For each place (table entry), the last known state of its port.
    known: Vec<Option<Known>>,
    refused: Vec<u32>,
}

impl Watcher {
    /// Opens netlink sockets in this thread's network namespace. The present `ports` use the first
    /// places of the table.
    pub(super) fn open<'a>(ports: impl Iterator<Item = &'a Link>, places: usize) -> io::Result<Self> {
        let mut known: Vec<Option<Known>> = ports.map(|port| Some(Known::of(port))).collect();
        known.resize(places, None);
        Ok(Self {
            changes: Changes::of_links()?,
            kernel: Rtnetlink::open()?,
            ethtool: Ethtool::open().ok(),
            known,
            refused: Vec::new(),
        })
    }

    /// `ready` gets a message after the thread has given up its capabilities.
    pub(super) fn run(mut self, table: &Weak<Table>, ends: &EventFd, ready: &Sender<()>) {
        if let Err(error) = sys::drop_capabilities() {
            tracing::warn!(%error, "the thread that watches the bond keeps its capabilities");
        }
        let _ = ready.send(());
        // `reads_all` is true at the start, and after the kernel has dropped messages about
        // changes.
        let mut reads_all = true;
        loop {
            let Some(there) = table.upgrade() else { return };
            if std::mem::take(&mut reads_all) {
                self.read_all(&there);
            }
            drop(there);
            match has_ended(ends.as_fd(), &self.changes, PollTimeout::NONE) {
                Ok(false) => {}
                Ok(true) => return,
                Err(error) => return tracing::warn!(%error, "the bond is watched no more"),
            }
            let mut links = Vec::new();
            reads_all = !self.changes.read(&mut |change| {
                if let Entry::Link(link) = change.entry {
                    links.push((link, change.is_there));
                }
            });
            let Some(there) = table.upgrade() else { return };
            links.iter().for_each(|(link, is_there)| self.changed(&there, link.index, is_there.then_some(link)));
        }
    }

    fn read_all(&mut self, table: &Table) {
        let ports = match self.kernel.ports(table.bond) {
            Ok(ports) => ports,
            Err(error) => return tracing::warn!(%error, "the ports of the bond cannot be read"),
        };
        for place in &table.places {
            let Some(port) = place.state().port.filter(|port| ports.iter().all(|link| link.index != port.index)) else {
                continue;
            };
            // The interface left the bond, or was deleted.
            match self.kernel.link_at(port.index) {
                Ok(link) => self.changed(table, port.index, Some(&link)),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => self.changed(table, port.index, None),
                Err(error) => tracing::debug!(%error, device = %port.name, "a port cannot be read"),
            }
        }
        ports.iter().for_each(|link| self.changed(table, link.index, Some(link)));
    }

    /// Handles the new state (`link`) of an interface, or its deletion (`None`).
    fn changed(&mut self, table: &Table, index: u32, link: Option<&Link>) {
        if index == table.bond {
            return match link {
                Some(link) => table.program().attachment.changed(link),
                None => table.end(),
            };
        }
        let has = |place: &Place| place.state().port.is_some_and(|port| port.index == index);
        match (table.places.iter().position(has), link) {
            (Some(nth), Some(link)) => self.update(table, nth, link),
            (Some(nth), None) => self.leave(table, nth, index),
            (None, Some(link)) if link.controller == Some(table.bond) => self.enter(table, link),
            (None, _) => self.refused.retain(|refused| *refused != index),
        }
    }

    fn update(&mut self, table: &Table, nth: usize, link: &Link) {
        let place = &table.places[nth];
        let State { port: Some(port), receives } = place.state() else { return };
        if let Some(known) = self.known[nth].replace(Known::of(link)) {
            port.report("the port of the bond", known, Known::of(link));
        }
        if uses(table.bond, link) != receives {
            place.set(State { port: Some(port), receives: !receives });
        }
    }

    fn leave(&mut self, table: &Table, nth: usize, index: u32) {
        let place = &table.places[nth];
        if let Some(port) = place.state().port {
            tracing::warn!(device = %port.name, "the port of the bond was deleted");
        }
        self.known[nth] = None;
        if let Some(new_ports) = &table.program().new_ports {
            // Ignore an error: the map has no entry for a port that the bond had at the start.
            let _ = new_ports.clear(index);
        }
        place.set(State::default());
    }

    fn enter(&mut self, table: &Table, link: &Link) {
        if self.refused.contains(&link.index) {
            return;
        }
        let port = link.name.as_deref().unwrap_or_default();
        let free = table.places.iter().position(|place| place.state().port.is_none());
        let Some(nth) = free else {
            self.refused.push(link.index);
            return tracing::warn!(
                port,
                "the bond has a new port, whose packets go to the kernel until a new start: there is no room for it (af_xdp: option `ports`)"
            );
        };
        match self.open_queues(table, nth, link) {
            Ok((device, queues)) => {
                self.known[nth] = Some(Known::of(link));
                table.places[nth].set(State { port: Some(device), receives: uses(table.bond, link) });
                tracing::info!(port, queues, "the bond has a new port, whose packets are taken too");
            }
            Err(error) => {
                self.refused.push(link.index);
                tracing::warn!(port, %error, "the bond has a new port, whose packets go to the kernel until a new start");
            }
        }
    }

    /// Binds sockets to the queues of a new port. Returns the port's device, and how many sockets
    /// were bound.
    fn open_queues(&mut self, table: &Table, nth: usize, link: &Link) -> Result<(Arc<Device>, usize), DeviceError> {
        let name = link.name.clone().unwrap_or_default();
        let channels = self.ethtool.as_mut().and_then(|ethtool| ethtool.channels(&name).ok());
        let count = channels.map_or(1, |channels| channels.receiving()).max(1);
        let Some((mut sockets, region)) = table.spare() else {
            let cause = io::Error::other("the sockets for new ports are used up");
            return Err(DeviceError::new(name, "receive from it", cause));
        };
        let model = &table.model;
        let last = model.first_queue + sockets.len() as u32;
        if count > last {
            tracing::warn!(port = %name, queues = count, taken = last, "the packets of the port's other queues go to the kernel");
        }
        sockets.truncate(count.saturating_sub(model.first_queue) as usize);
        let (first_key, queues) = (table.places[nth].first_key, sockets.len());
        let device = model.of_port(link, first_key, sockets, &region)?;
        if let Some(new_ports) = &table.program().new_ports {
            let set = new_ports.set_number(link.index, first_key);
            set.map_err(|e| device.error("give the program its number", e))?;
        }
        Ok((device, queues))
    }
}
