//! Watches the interface of a queue, and the XDP program on it.

use std::io;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use steerage::flow::wire::ethernet;
use steerage::{DeviceError, device::DeviceCounts};
use steerage_netlink::{Change, Changes, Entry, Link, Rtnetlink};

use super::super::bond;
use super::super::device::Device;
use super::super::sys::ByCpu;
use super::UNSEEN;

/// The interval at which the queue checks for the program and reads its counters. The kernel writes
/// one counter per CPU for each read.
const COUNTERS_LOOK: Duration = Duration::from_secs(1);

/// The number of consecutive checks without a run of the program after which frames count as
/// unseen. Some drivers update the statistics of their interface only every two seconds.
const SETTLED_CHECKS: u32 = 3;

/// The number of unseen frames after which steerage concludes that the driver no longer runs the
/// program.
const UNSEEN_MIN: u64 = 32;

/// What has happened to the interface.
#[derive(Debug)]
pub(super) enum News {
    Nothing,
    /// The queue ends, with this error if there is one.
    Ends(Option<DeviceError>),
    /// The bond begins or stops to use its port for receiving.
    Receives(bool),
}

#[derive(Debug)]
pub(super) struct Watch {
    /// Reports changes of the interface, and of all interfaces if this queue watches the bond.
    changes: Changes,
    /// The interfaces that were added to the bond during the run.
    new_ports: Vec<u32>,
    /// A timer that fires every second, because no event reports that the program was detached.
    seconds: TimerFd,
    /// True if the program was missing at the last check.
    missing: bool,
    /// The frames that the program does not see, on behalf of all queues of the interface.
    unseen: Option<Unseen>,
    up: bool,
    mtu: usize,
    /// True if this queue logs changes on behalf of all queues of the interface.
    tells: bool,
}

impl Watch {
    pub(super) fn new(device: &Device, tells: bool) -> io::Result<Self> {
        let watches_bond = device.bond.is_some() && device.first_key == 0 && tells;
        let changes = if watches_bond { Changes::of_links() } else { Changes::of_link(device.index) }?;
        let seconds = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        seconds.set(Expiration::Interval(TimeSpec::from_duration(COUNTERS_LOOK)), TimerSetTimeFlags::empty())?;
        Ok(Self {
            changes,
            new_ports: Vec::new(),
            seconds,
            missing: false,
            unseen: (tells && device.can_be_forgotten()).then(Unseen::open).transpose()?,
            up: true,
            mtu: device.frame_bytes - ethernet::TAGGED_BYTES,
            tells,
        })
    }

    /// True if this queue logs changes on behalf of all queues of the interface.
    pub(super) fn tells(&self) -> bool {
        self.tells
    }

    /// Makes changes of the interface and the timer wake the CPU.
    pub(super) fn add_to(&self, events: &Epoll) -> io::Result<()> {
        events.add(&self.changes, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        events.add(&self.seconds, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(())
    }

    /// Returns true if another second has passed. An unread timer would keep the CPU awake.
    pub(super) fn is_second(&self) -> bool {
        self.seconds.wait().is_ok()
    }

    /// Reads the changes of the interface. A queue has room for frames of up to `longest` bytes.
    pub(super) fn look(&mut self, device: &Device, longest: usize) -> News {
        let (mut last, mut others) = (None, Vec::new());
        let read = self.changes.read(&mut |change| match change.entry {
            Entry::Link(link) if link.index != device.index => others.push(link),
            _ => last = Some(change),
        });
        others.iter().for_each(|link| self.warn_of_new_port(device, link));
        if !read {
            // The next message about a change contains the whole state.
            tracing::debug!(device = %device.name, "changes were missed");
        }
        match last {
            Some(Change { entry: Entry::Link(link), is_there: true }) => self.changed(device, &link, longest),
            Some(Change { is_there: false, .. }) if device.bond.is_some() => {
                tracing::warn!(device = %device.name, "the port of the bond was deleted");
                News::Ends(None)
            }
            Some(Change { is_there: false, .. }) => {
                let cause = io::Error::from_raw_os_error(libc::ENODEV);
                News::Ends(Some(device.error("go on receiving", cause).advise("the interface was deleted")))
            }
            _ => News::Nothing,
        }
    }

    /// Warns that the packets of a port that is new to the bond go to the kernel. A socket for such a
    /// port takes privileges and system calls that a packet thread no longer has.
    fn warn_of_new_port(&mut self, device: &Device, link: &Link) {
        let known = &device.program.ports.interfaces;
        let is_new = device.bond.is_some_and(|bond| link.controller == Some(bond));
        if is_new && !known.contains(&link.index) && !self.new_ports.contains(&link.index) {
            self.new_ports.push(link.index);
            let port = link.name.as_deref().unwrap_or_default();
            tracing::warn!(port, "the bond has a new port, whose packets go to the kernel until a new start");
        }
    }

    fn changed(&mut self, device: &Device, link: &Link, longest: usize) -> News {
        device.program.attachment.changed(link);
        let mtu = link.mtu.unwrap_or(self.mtu);
        let before = (std::mem::replace(&mut self.up, link.up), std::mem::replace(&mut self.mtu, mtu));
        if self.tells {
            let name = &device.name;
            match (before.0, self.up) {
                (false, true) => tracing::info!(device = %name, "the interface is up again"),
                (true, false) => tracing::warn!(device = %name, "the interface is down; going on when it is up"),
                _ => {}
            }
            if mtu != before.1 && mtu + ethernet::TAGGED_BYTES > longest {
                tracing::warn!(device = %name, mtu, longest, "the MTU was raised: frames longer than there is room for are lost until a new start");
            } else if mtu != before.1 {
                tracing::info!(device = %name, mtu, "the MTU was changed");
            }
        }
        device.bond.map_or(News::Nothing, |bond| News::Receives(bond::uses(bond, link)))
    }

    /// Checks whether the program is still attached, and whether the driver still runs it. The
    /// argument `handled` is the number of frames of this queue for which the program has run.
    /// Returns the error that ends the queue.
    pub(super) fn look_for_program(
        &mut self,
        device: &Device,
        handled: u64,
        by_cpu: &mut ByCpu,
        counts: &DeviceCounts,
    ) -> Result<Option<DeviceError>, DeviceError> {
        let is_there = device.program.attachment.is_attached();
        let is_there = is_there.map_err(|e| device.error("look for the XDP program", e))?;
        // The kernel also detaches the program of an interface that is being deleted. Netlink reports
        // the deletion before the next check.
        if !is_there && std::mem::replace(&mut self.missing, true) {
            let cause = io::Error::other("another program took the XDP program away");
            return Ok(Some(device.error("go on receiving", cause).advise("start it again")));
        }
        self.missing = !is_there;
        let Some(unseen) = self.unseen.as_mut().filter(|_| is_there) else { return Ok(None) };
        unseen.look(device, handled, by_cpu, counts)
    }
}

/// The frames that an attached program does not see, because the driver no longer runs it. vmxnet3 of
/// Linux 7.3 forgets its program when the interface goes down, and the kernel still lists the program.
#[derive(Debug)]
struct Unseen {
    kernel: Rtnetlink,
    /// The frames of the queue for which the program had run at the last check.
    handled: u64,
    silence: Silence,
    /// True if the program was attached again after its last run.
    is_renewed: bool,
}

impl Unseen {
    fn open() -> io::Result<Self> {
        Ok(Self { kernel: Rtnetlink::open()?, handled: 0, silence: Silence::default(), is_renewed: false })
    }

    /// While the queue receives, the check takes no system call. The kernel is asked for statistics,
    /// which takes the lock of all interfaces, only while the program does not run on any queue.
    fn look(
        &mut self,
        device: &Device,
        handled: u64,
        by_cpu: &mut ByCpu,
        counts: &DeviceCounts,
    ) -> Result<Option<DeviceError>, DeviceError> {
        if std::mem::replace(&mut self.handled, handled) != handled {
            (self.silence, self.is_renewed) = (Silence::default(), false);
            return Ok(None);
        }
        let runs = device.runs(by_cpu).map_err(|e| device.error("read the program's counters", e))?;
        self.is_renewed &= self.silence.runs == runs;
        // The statistics are missing if the interface has just been deleted.
        let received = || self.kernel.link_at(device.index).ok()?.statistics.map(|statistics| statistics.rx_packets);
        let Some(unseen) = self.silence.look(runs, received) else { return Ok(None) };
        counts.add(UNSEEN, unseen);
        let attached = match self.is_renewed {
            true => Err(io::Error::other("attaching it again did not help")),
            false => device.program.attachment.attach_again(),
        };
        if let Err(error) = attached {
            let cause = format!("the driver forgot the XDP program, and {unseen} packets went past it: {error}");
            return Ok(Some(device.error("go on receiving", io::Error::other(cause)).advise("start it again")));
        }
        (self.silence, self.is_renewed) = (Silence { runs, ..Silence::default() }, true);
        tracing::warn!(device = %device.name, unseen, "the driver had forgotten the XDP program, which is attached again");
        Ok(None)
    }
}

/// The time for which the program has not run, and the number of frames that the interface received
/// in this time.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// How often the program has run.
    runs: u64,
    /// The number of checks since the program ran last.
    checks: u32,
    /// The number of frames that the interface had received when frames began to count as unseen.
    received: u64,
}

impl Silence {
    /// Returns the number of frames that the program has not seen, if this number is large enough.
    fn look(&mut self, runs: u64, received: impl FnOnce() -> Option<u64>) -> Option<u64> {
        if self.checks == 0 || runs != self.runs {
            (self.runs, self.checks) = (runs, 1);
            return None;
        }
        let received = received()?;
        self.checks = self.checks.saturating_add(1);
        if self.checks <= SETTLED_CHECKS {
            self.received = received;
        }
        Some(received.saturating_sub(self.received)).filter(|unseen| *unseen >= UNSEEN_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a series of checks. Each check has the number of runs of the program and the
    /// number of received frames.
    fn found(checks: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut silence = Silence::default();
        checks.iter().map(|(runs, received)| silence.look(*runs, || Some(*received))).collect()
    }

    #[test]
    fn frames_that_the_program_does_not_see_are_noticed() {
        let checks = [(7, 100), (7, 200), (7, 300), (7, 331), (7, 332), (7, 400)];
        assert_eq!(found(&checks), [None, None, None, None, Some(32), Some(100)]);
    }

    /// The interface's statistics may be out of date. A program that runs rarely still counts as
    /// running.
    #[test]
    fn a_program_that_runs_is_not_missed() {
        let late = [(7, 0), (7, 0), (7, 1000), (7, 1000), (7, 1031)];
        assert!(found(&late).iter().all(Option::is_none));
        let seldom: Vec<_> = (0..40).map(|check| (check / 4, 10 * check)).collect();
        assert!(found(&seldom).iter().all(Option::is_none), "{:?}", found(&seldom));
        let without_traffic = [(0, 5); 20];
        assert!(found(&without_traffic).iter().all(Option::is_none));
    }

    #[test]
    fn unknown_statistics_find_nothing() {
        let mut silence = Silence::default();
        assert!((0..10).all(|_| silence.look(0, || None).is_none()));
    }
}
