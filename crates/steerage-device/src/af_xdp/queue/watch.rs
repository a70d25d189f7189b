//! Watches the interface of a queue, and the XDP program on it.

use std::io;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use steerage::flow::wire::ethernet;
use steerage::{DeviceError, device::DeviceCounts};
use steerage_netlink::{Change, Changes, Entry, Link, Rtnetlink};

use super::super::device::{Device, Known};
use super::super::sys::ByCpu;
use super::UNSEEN;

/// The interval at which a queue checks the XDP program. For each check of the XDP program, the
/// kernel copies a counter per CPU.
const COUNTERS_LOOK: Duration = Duration::from_secs(1);

/// Frames count as unseen by the program only after the program did not run during this number of
/// checks: some drivers update their statistics only every two seconds.
const SETTLED_CHECKS: u32 = 3;

/// The number of unseen frames that shows that the driver no longer runs the program.
const UNSEEN_MIN: u64 = 32;

#[derive(Debug)]
pub(super) struct Watch {
    /// `None` if the interface is a port of a bond, which another thread watches.
    changes: Option<Changes>,
    /// The kernel reports no event when the XDP program is detached, so a timer fires every second.
    seconds: TimerFd,
    missing: bool,
    /// One queue of the interface counts the frames that the XDP program does not see.
    unseen: Option<Unseen>,
    known: Known,
    /// True if this queue logs changes of the interface for all its queues.
    pub(super) tells: bool,
}

impl Watch {
    pub(super) fn new(device: &Device, tells: bool, is_port: bool) -> io::Result<Self> {
        let seconds = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        seconds.set(Expiration::Interval(TimeSpec::from_duration(COUNTERS_LOOK)), TimerSetTimeFlags::empty())?;
        let can_be_forgotten = device.can_be_forgotten() || is_port && device.program.attachment.can_be_renewed();
        Ok(Self {
            changes: (!is_port).then(|| Changes::of_link(device.index)).transpose()?,
            seconds,
            missing: false,
            unseen: (tells && can_be_forgotten).then(Unseen::open).transpose()?,
            known: Known { up: true, mtu: Some(device.frame_bytes - ethernet::TAGGED_BYTES) },
            tells,
        })
    }

    pub(super) fn restart(&mut self) {
        self.unseen.iter_mut().for_each(Unseen::restart);
    }

    pub(super) fn add_to(&self, events: &Epoll) -> io::Result<()> {
        if let Some(changes) = &self.changes {
            events.add(changes, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        events.add(&self.seconds, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(())
    }

    /// Reads the timer, and returns true if it has fired. An unread timer would keep the CPU awake.
    pub(super) fn is_second(&self) -> bool {
        self.seconds.wait().is_ok()
    }

    pub(super) fn look(&mut self, device: &Device) -> Option<DeviceError> {
        let mut last = None;
        if !self.changes.as_mut()?.read(&mut |change| last = Some(change)) {
            // Missed messages do no harm: the next message of the kernel contains the interface's
            // whole state.
            tracing::debug!(device = %device.name, "changes were missed");
        }
        match last? {
            Change { entry: Entry::Link(link), is_there: true } => {
                self.changed(device, &link);
                None
            }
            Change { is_there: false, .. } => {
                let cause = io::Error::from_raw_os_error(libc::ENODEV);
                Some(device.error("go on receiving", cause).advise("the interface was deleted"))
            }
            Change { .. } => None,
        }
    }

    fn changed(&mut self, device: &Device, link: &Link) {
        device.program.attachment.changed(link);
        let before = std::mem::replace(&mut self.known, Known::of(link));
        if self.tells {
            device.report("the interface", before, self.known);
        }
    }

    /// `handled` is the number of this queue's frames for which the XDP program has run, or `None`
    /// if the queue has no interface. Returns the error that ends the queue.
    pub(super) fn look_for_program(
        &mut self,
        device: &Device,
        handled: Option<u64>,
        by_cpu: &mut ByCpu,
        counts: &DeviceCounts,
    ) -> Result<Option<DeviceError>, DeviceError> {
        let is_there = device.program.attachment.is_attached();
        let is_there = is_there.map_err(|e| device.error("look for the XDP program", e))?;
        // The program must be missing in two checks: the kernel also detaches the program of an
        // interface that is being deleted, but reports the deletion before the second check.
        if !is_there && std::mem::replace(&mut self.missing, true) {
            let cause = io::Error::other("another program took the XDP program away");
            return Ok(Some(device.error("go on receiving", cause).advise("start it again")));
        }
        self.missing = !is_there;
        let Some(unseen) = self.unseen.as_mut().filter(|_| is_there && device.can_be_forgotten()) else {
            return Ok(None);
        };
        handled.map_or(Ok(None), |handled| unseen.look(device, handled, by_cpu, counts))
    }
}

/// Detects frames that an attached XDP program does not see. The driver vmxnet3 of Linux 7.3 loses
/// its program when the interface goes down, although the kernel still lists the program.
#[derive(Debug)]
struct Unseen {
    kernel: Rtnetlink,
    handled: u64,
    silence: Silence,
    /// True if the program was attached again and has not run since then.
    is_renewed: bool,
}

impl Unseen {
    fn open() -> io::Result<Self> {
        Ok(Self { kernel: Rtnetlink::open()?, handled: 0, silence: Silence::default(), is_renewed: false })
    }

    fn restart(&mut self) {
        (self.silence, self.is_renewed) = (Silence::default(), false);
    }

    /// Makes no system call while the queue receives frames. Reading the interface's statistics
    /// takes the kernel's lock on all interfaces, so they are read only while the XDP program does
    /// not run on any queue.
    fn look(
        &mut self,
        device: &Device,
        handled: u64,
        by_cpu: &mut ByCpu,
        counts: &DeviceCounts,
    ) -> Result<Option<DeviceError>, DeviceError> {
        if std::mem::replace(&mut self.handled, handled) != handled {
            self.restart();
            return Ok(None);
        }
        let runs = device.runs(by_cpu).map_err(|e| device.error("read the program's counters", e))?;
        self.is_renewed &= self.silence.runs == runs;
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

/// Shows how long the XDP program has not run: the number of its runs so far, and the number of
/// checks since the last run.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    runs: u64,
    checks: u32,
    received: u64,
}

impl Silence {
    /// Returns the number of frames that the XDP program did not see, if at least [`UNSEEN_MIN`].
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

    fn found(checks: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut silence = Silence::default();
        checks.iter().map(|(runs, received)| silence.look(*runs, || Some(*received))).collect()
    }

    #[test]
    fn frames_that_the_program_does_not_see_are_noticed() {
        let checks = [(7, 100), (7, 200), (7, 300), (7, 331), (7, 332), (7, 400)];
        assert_eq!(found(&checks), [None, None, None, None, Some(32), Some(100)]);
    }

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
