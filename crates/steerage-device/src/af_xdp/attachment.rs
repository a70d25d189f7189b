//! How the XDP program is attached to its interface, and whether the program is still attached.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use steerage_netlink as netlink;

use super::dispatcher::{self, Added, Component};
use super::sys::{Link, Program};

#[derive(Debug)]
pub(super) enum Attachment {
    Link(ByLink),
    Component(InDispatcher),
}

impl Attachment {
    pub(super) fn is_attached(&self) -> io::Result<bool> {
        match self {
            Self::Link(by_link) => by_link.link.is_attached(),
            Self::Component(component) => Ok(component.is_attached()),
        }
    }

    pub(super) fn changed(&self, link: &netlink::Link) {
        if let Self::Component(component) = self {
            // Relaxed suffices, because the flags do not guard other memory.
            component.attached.store(!link.programs.is_empty(), Ordering::Relaxed);
            component.changed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the program can be attached again after a driver has lost it.
    pub(super) fn can_be_renewed(&self) -> bool {
        matches!(self, Self::Link(ByLink { copies: Some(_), .. }))
    }

    /// Makes the driver set up the XDP program once more. Requires no privileges.
    pub(super) fn attach_again(&self) -> io::Result<()> {
        let Self::Link(ByLink { link, copies: Some(copies), renewals }) = self else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // Relaxed suffices, because the count does not guard other memory.
        let nth = 1 + renewals.fetch_add(1, Ordering::Relaxed);
        link.replace_program(&copies[nth % copies.len()])
    }

    pub(super) fn component(&self) -> Option<Component> {
        match self {
            Self::Link(_) => None,
            Self::Component(component) => Some(component.added.component),
        }
    }

    /// Makes the program outlast the process. Until the process ends, `removed` reports the
    /// program's removal.
    pub(super) fn stay(&self, removed: &Arc<Removed>) {
        if let Self::Component(component) = self {
            let _ = component.stays.set(Arc::clone(removed));
        }
    }
}

#[derive(Debug)]
pub(super) struct ByLink {
    link: Link,
    /// Two copies of a program that runs in a driver, because the kernel ignores a replacement by
    /// the same program.
    copies: Option<[Program; 2]>,
    renewals: AtomicUsize,
}

impl ByLink {
    pub(super) fn new(link: Link, copies: Option<[Program; 2]>) -> Self {
        Self { link, copies, renewals: AtomicUsize::new(0) }
    }
}

/// Without the permission to read the dispatcher, a process can detect only whether the interface
/// has any program.
#[derive(Debug)]
pub(super) struct InDispatcher {
    added: Added,
    /// Set if the program stays in the dispatcher when the process ends. Another process then
    /// reports removed programs, because this process may not read the dispatcher.
    stays: OnceLock<Arc<Removed>>,
    attached: AtomicBool,
    /// True if the interface has changed since the dispatcher was read.
    changed: AtomicBool,
}

impl InDispatcher {
    pub(super) fn new(added: Added) -> Self {
        Self { added, stays: OnceLock::new(), attached: AtomicBool::new(true), changed: AtomicBool::new(false) }
    }

    fn is_attached(&self) -> bool {
        let component = self.added.component;
        match self.stays.get() {
            Some(removed) => self.attached.load(Ordering::Relaxed) && !removed.has(component),
            None => {
                if self.changed.swap(false, Ordering::Relaxed) {
                    match dispatcher::has(component) {
                        Ok(has) => self.attached.store(has, Ordering::Relaxed),
                        // Another process is changing the dispatcher: read it again later.
                        Err(_) => self.changed.store(true, Ordering::Relaxed),
                    }
                }
                self.attached.load(Ordering::Relaxed)
            }
        }
    }
}

impl Drop for InDispatcher {
    fn drop(&mut self) {
        if self.stays.get().is_some() {
            self.added.stay();
            return;
        }
        if let Err(error) = dispatcher::remove(self.added.component) {
            tracing::warn!(%error, program = self.added.component.program, "the program stays in the dispatcher, and leaves all packets to the kernel");
        }
    }
}

/// The components that another process has reported as removed, one line each.
#[derive(Debug)]
pub(super) struct Removed(Mutex<(File, Vec<u8>)>);

impl Removed {
    /// Reads the reports from the pipe `reports`, whose reads must not block.
    pub(super) fn from(reports: OwnedFd) -> Self {
        Self(Mutex::new((reports.into(), Vec::new())))
    }

    /// Returns false while another thread reads the reports.
    fn has(&self, component: Component) -> bool {
        let Ok(mut held) = self.0.try_lock() else { return false };
        let (reports, text) = &mut *held;
        let mut some = [0; 256];
        while let Ok(count @ 1..) = reports.read(&mut some) {
            text.extend(&some[..count]);
        }
        let text = String::from_utf8_lossy(text);
        text.split_inclusive('\n').any(|line| line.strip_suffix('\n').is_some_and(|line| line.parse() == Ok(component)))
    }
}
