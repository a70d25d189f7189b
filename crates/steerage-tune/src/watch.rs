use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use steerage_netlink::{Changes, Entry, Uevents};

use crate::error::TuneError;
use crate::knob::Knob;
use crate::machine::Machine;
use crate::plan;
use crate::setting::{Difference, Setting};
use crate::stage::{STAGES, Stage};
use crate::undo::Undo;

/// The pause after each wake-up of the watch. The pause limits wake-ups to five per second, even if
/// many interfaces are created and deleted.
const PAUSE: Duration = Duration::from_millis(200);

/// Watches one interface, and sets its kept setting again when values have changed.
#[derive(Debug)]
pub struct Watch {
    interface: String,
    links: Changes,
    devices: Uevents,
    counts: Arc<WatchCounts>,
}

/// The counts of a [`Watch`]: the number of messages from the kernel, and the number of values that
/// were set again.
#[derive(Debug, Default)]
pub struct WatchCounts(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    events: [u64; EVENTS.len()],
    set_again: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, u64>,
}

/// The subjects of the kernel's messages. After the kernel has lost messages (`lost`), the watch
/// checks all values.
const EVENTS: [&str; 4] = ["link", "queues", "cpus", "lost"];
const LINK: usize = 0;
const QUEUES: usize = 1;
const CPUS: usize = 2;
const LOST: usize = 3;

impl WatchCounts {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        // The counts behind this lock are valid even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of messages from the kernel on each subject.
    pub fn events(&self) -> [(&'static str, u64); EVENTS.len()] {
        let counts = self.counted().events;
        std::array::from_fn(|nth| (EVENTS[nth], counts[nth]))
    }

    /// Returns the number of values that were set again, for each stage.
    pub fn set_again(&self) -> Vec<(&'static str, u64)> {
        by_stage(&self.counted().set_again)
    }

    /// Returns the number of values that could not be set again, for each stage.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        by_stage(&self.counted().failures)
    }
}

fn by_stage(counts: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, u64)> {
    STAGES.iter().map(|stage| (stage.name, counts.get(stage.name).copied().unwrap_or(0))).collect()
}

/// Why [`Watch::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The descriptor `stop` is readable.
    Stopped,
    /// The link, its queues or the CPUs have changed.
    Changed,
}

impl Watch {
    /// Starts to receive the kernel's messages about an interface.
    ///
    /// # Errors
    /// Fails if the interface does not exist, or if the kernel refuses a socket.
    pub fn open(machine: &Machine, interface: &str) -> Result<Self, TuneError> {
        let failed = |error| TuneError::Watch { interface: interface.to_owned(), error };
        let index = machine.root().read(&format!("/sys/class/net/{interface}/ifindex")).map_err(failed)?;
        let index = index.parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let links = Changes::of_link(index).map_err(failed)?;
        let devices = Uevents::open().map_err(failed)?;
        Ok(Self { interface: interface.to_owned(), links, devices, counts: Arc::default() })
    }

    /// Returns the counts of this watch, which change while the watch runs.
    pub fn counts(&self) -> Arc<WatchCounts> {
        Arc::clone(&self.counts)
    }

    /// Waits for a change of the link, its queues or the CPUs, or until `stop` is readable.
    ///
    /// # Errors
    /// Fails if the interface was deleted.
    pub fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<Watched, TuneError> {
        loop {
            if self.wait_for(&[stop, self.links.as_fd(), self.devices.as_fd()], None)? {
                return Ok(Watched::Stopped);
            }
            if self.read()? {
                return Ok(Watched::Changed);
            }
            if self.wait_for(&[stop], Some(PAUSE))? {
                return Ok(Watched::Stopped);
            }
        }
    }

    fn wait_for(&self, fds: &[BorrowedFd<'_>], time: Option<Duration>) -> Result<bool, TuneError> {
        let mut waiting: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut waiting, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(TuneError::Watch { interface: self.interface.clone(), error: error.into() }),
        }
        // `stop` also counts as readable if its other end was closed.
        Ok(!waiting[0].revents().is_empty())
    }

    /// Reads all messages from the kernel. Returns true if a message is about the interface, its
    /// queues or the CPUs.
    fn read(&mut self) -> Result<bool, TuneError> {
        let (mut events, mut is_gone) = ([0; EVENTS.len()], false);
        let links_complete = self.links.read(&mut |change| {
            events[LINK] += 1;
            is_gone |= matches!(change.entry, Entry::Link(_)) && !change.is_there;
        });
        let queues = format!("/net/{}/queues/", self.interface);
        let devices_complete = self.devices.read(&mut |action, path| {
            events[QUEUES] += u64::from(path.contains(&queues) && action != "remove");
            events[CPUS] += u64::from(path.contains("/system/cpu/cpu") && ["online", "offline"].contains(&action));
        });
        // Lost messages may have been about the interface.
        events[LOST] += u64::from(!links_complete) + u64::from(!devices_complete);
        let mut counted = self.counts.counted();
        counted.events.iter_mut().zip(events).for_each(|(all, new)| *all += new);
        match is_gone {
            true => Err(TuneError::Gone(self.interface.clone())),
            false => Ok(events != [0; EVENTS.len()]),
        }
    }

    /// Sets knobs again that differ from the kept setting, and sets the knobs of new queues. `log`
    /// gets each change or failure.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written.
    pub fn set_again(
        &self,
        machine: &mut Machine,
        undo: &mut Undo,
        log: &mut dyn FnMut(&SetAgain),
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
            // The queue of this knob was removed. If the removed queue is created again, the kernel
            // sends a message.
            if difference.now.is_none() {
                continue;
            }
            let error = machine.write(&difference.knob, &difference.wanted).err();
            let stage = Stage::of(&difference.knob).map_or("", |stage| stage.name);
            {
                let mut counted = self.counts.counted();
                let Counted { set_again, failures, .. } = &mut *counted;
                *if error.is_some() { failures } else { set_again }.entry(stage).or_default() += 1;
            }
            log(&SetAgain { difference, error });
        }
        Ok(())
    }
}

/// A kept value that was set again, or that could not be set again.
#[derive(Debug)]
pub struct SetAgain {
    /// The knob that differed, with its values.
    pub difference: Difference,
    /// The error, if the watch could not set the value.
    pub error: Option<TuneError>,
}

impl fmt::Display for SetAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { knob, wanted, now } = &self.difference;
        match &self.error {
            Some(error) => error.fmt(f),
            None => write!(f, "set {knob} to {wanted} again (it was {})", now.as_deref().unwrap_or("gone")),
        }
    }
}

/// Returns the values for new queues: for each stage (such as `rps_cpus`), the value that all kept
/// queues have in common.
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
