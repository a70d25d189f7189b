//! Keeps a setting: sets it again when the kernel reports that the link, its queues or the CPUs have
//! changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use steerage_netlink::{Changes, Entry, Uevents};

use crate::error::TuneError;
use crate::knob::Knob;
use crate::machine::Machine;
use crate::plan;
use crate::setting::Setting;
use crate::stage::STAGES;
use crate::undo::Undo;

/// Waits for changes of one interface.
#[derive(Debug)]
pub struct Watch {
    interface: String,
    links: Changes,
    devices: Uevents,
}

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The descriptor of the caller is readable.
    Stopped,
    /// The link, its queues or the CPUs have changed.
    Changed,
}

impl Watch {
    /// Starts to receive the kernel's messages about an interface.
    ///
    /// # Errors
    ///
    /// There is no such interface, or the kernel refuses a socket.
    pub fn open(machine: &Machine, interface: &str) -> Result<Self, TuneError> {
        let failed = |error| TuneError::Watch { interface: interface.to_owned(), error };
        let index = machine.root().read(&format!("/sys/class/net/{interface}/ifindex")).map_err(failed)?;
        let index = index.parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let links = Changes::of_link(index).map_err(failed)?;
        Ok(Self { interface: interface.to_owned(), links, devices: Uevents::open().map_err(failed)? })
    }

    /// Waits until something has changed, or until `stop` is readable.
    ///
    /// # Errors
    ///
    /// The interface was deleted.
    pub fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<Watched, TuneError> {
        loop {
            let mut waiting =
                [stop, self.links.as_fd(), self.devices.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut waiting, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(TuneError::Watch { interface: self.interface.clone(), error: error.into() });
                }
            }
            // Also if the other end was closed.
            if !waiting[0].revents().is_empty() {
                return Ok(Watched::Stopped);
            }
            if self.read()? {
                return Ok(Watched::Changed);
            }
        }
    }

    /// Reads all messages. Returns whether one is about the interface, its queues or the CPUs.
    fn read(&mut self) -> Result<bool, TuneError> {
        let (mut changed, mut is_gone) = (false, false);
        let links_complete = self.links.read(&mut |change| {
            changed = true;
            is_gone |= matches!(change.entry, Entry::Link(_)) && !change.is_there;
        });
        let queues = format!("/net/{}/queues/", self.interface);
        let devices_complete = self.devices.read(&mut |action, path| {
            changed |= path.contains(&queues) && action != "remove";
            changed |= path.contains("/system/cpu/cpu") && ["online", "offline"].contains(&action);
        });
        if is_gone {
            return Err(TuneError::Gone(self.interface.clone()));
        }
        // Lost messages may have been about the interface.
        Ok(changed || !links_complete || !devices_complete)
    }

    /// Sets again what differs from what was kept, also on queues that are new. Passes one line for
    /// each change or failure to `log`.
    ///
    /// # Errors
    ///
    /// The undo file was not written.
    pub fn set_again(
        &self,
        machine: &mut Machine,
        undo: &mut Undo,
        log: &mut dyn FnMut(String),
    ) -> Result<(), TuneError> {
        machine.refresh_cpus();
        let new = on_new_queues(machine, &self.interface, undo.kept().unwrap_or(&Setting::default()));
        if !new.0.is_empty() {
            undo.extend(machine, &new)?;
        }
        let kept = undo.kept().cloned().unwrap_or_default();
        let differences = kept.differences(machine);
        if differences.iter().any(|difference| difference.knob.0.starts_with("/proc/irq/")) {
            undo.ban_again(machine.root());
        }
        for difference in differences {
            // A queue that is gone comes back with an event of its own.
            let Some(now) = difference.now else { continue };
            match machine.write(&difference.knob, &difference.wanted) {
                Ok(()) => log(format!("set {} to {} again (it was {now})", difference.knob, difference.wanted)),
                Err(error) => log(error.to_string()),
            }
        }
        Ok(())
    }
}

/// The values for the knobs of queues that appeared after the setting was made. A stage whose queues
/// all have the same value has that value on a new queue, too.
fn on_new_queues(machine: &mut Machine, interface: &str, kept: &Setting) -> Setting {
    let mut new = Setting::default();
    for stage in STAGES.iter().filter(|stage| stage.pattern.contains("/queues/")) {
        let knobs = plan::knobs(machine, interface, stage);
        let name = format!("/{}", stage.name);
        let is_of_stage = |knob: &Knob| knob.is_of(interface) && knob.0.ends_with(&name);
        let mut values = kept.0.iter().filter(|(knob, _)| is_of_stage(knob)).map(|(_, value)| value);
        let Some(first) = values.next() else { continue };
        if values.any(|value| value != first) {
            continue;
        }
        let unknown = knobs.into_iter().filter(|knob| !kept.0.contains_key(knob));
        let unknown: Vec<Knob> = unknown.filter(|knob| machine.read(knob).is_ok()).collect();
        new.0.extend(unknown.into_iter().map(|knob| (knob, first.clone())));
    }
    new
}
