//! How a CPU goes to sleep and is woken, and the loop of the threads that are ours.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use steerage_mem::park::Bell;

use crate::handler::Handler;
use crate::limits::{DRAIN_LOOK, FULL_LOOK, MOVE_LOOK, OUTPUT_LOOK};
use crate::platform::{Platform, Timestamp};
use crate::queue::OwnedQueue;
use crate::rx::Polled;
use crate::softnet::{Phase, Softnet, Stepped};
use crate::tx::OwnedTx;

/// Whether a CPU may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// It may, until its event file descriptor is readable or that time has come. Whatever is handed to it from now on
    /// rings.
    Sleep(Option<Timestamp>),
    /// There is something to do: step again.
    Work,
}

impl<H: Handler, P: Platform> Softnet<H, P> {
    /// Makes ready to sleep: to be followed by waiting on [`event_fd`](Self::event_fd) or
    /// [`event_fds`](Self::event_fds). The next step knows that it is awake again.
    pub fn arm(&mut self) -> Armed {
        self.shared.core.sleepers.about_to_sleep(usize::from(self.index));
        self.armed = true;
        match self.sleep_until() {
            Some(until) => {
                self.listen();
                Armed::Sleep(until)
            }
            None => {
                self.awake();
                Armed::Work
            }
        }
    }

    /// Has the epoll listen to just the devices that are waited on: it would report the others again and again.
    fn listen(&mut self) {
        let Some(events) = &self.events else { return };
        for queue in &mut self.queues {
            let listens = queue.waits_on().is_some();
            if listens == queue.listens {
                continue;
            }
            let Some(device) = queue.device() else { continue };
            let flags = if listens { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            match events.modify(device, &mut EpollEvent::new(flags, 0)) {
                Ok(()) => queue.listens = listens,
                Err(error) => tracing::debug!(cpu = self.cpu.id.0, "cannot change an epoll: {error}"),
            }
        }
    }

    /// Awake again, for whatever reason.
    pub(crate) fn awake(&mut self) {
        self.armed = false;
        if !self.shared.core.sleepers.awake(usize::from(self.index)) {
            self.ledger().wakes_received.add(1);
        }
        // In any case: whoever cleared the bit the last time may have rung only after we were up.
        self.bell().hush();
    }

    /// The time on this CPU's clock: what [`Armed::Sleep`] counts in.
    pub fn now(&self) -> Timestamp {
        self.platform.now()
    }

    /// Whether somebody has rung since [`arm`](Self::arm): for a simulator, which does not wait on the bell.
    pub fn is_woken(&self) -> bool {
        !self.shared.core.sleepers.is_about_to_sleep(usize::from(self.index))
    }

    /// How long there is nothing to do unless the bell rings: `None` if there is something now.
    fn sleep_until(&mut self) -> Option<Option<Timestamp>> {
        let core = &self.shared.core;
        // What was staged in a round that is not through, or not the last, is not yet shown.
        if self.worked
            || self.phase() != Phase::Control
            || self.shared.steering.version() != self.seen
            || core.all_closed()
            || (core.is_stopping() && self.drain_until.is_none())
        {
            return None;
        }
        let mut waiting = (0..self.inbound.len()).filter(|ring| self.inbound[*ring].consumer.waiting() > 0);
        let held_back = waiting.clone().next().is_some();
        if waiting.any(|ring| !self.is_held_back(ring)) {
            return None;
        }
        let now = self.platform.now();
        let mut until = [self.next_tick, self.drain_until].into_iter().flatten().min();
        let mut sooner = |at: Timestamp| until = Some(until.map_or(at, |until| until.min(at)));
        if self.duty {
            sooner(now + MOVE_LOOK);
        }
        if held_back {
            sooner(now + OUTPUT_LOOK);
        }
        for queue in &mut self.queues {
            if queue.ended {
                sooner(now + DRAIN_LOOK);
            } else if queue.blocked {
                if queue.can_wait {
                    queue.wake_when_there_is_room();
                } else {
                    sooner(now + FULL_LOOK);
                }
                if queue.has_room() {
                    return None;
                }
            } else {
                match queue.polled {
                    Polled::NotBefore(due) if due > now => sooner(due),
                    Polled::Drained if queue.device().is_some() => {}
                    _ => return None,
                }
            }
        }
        Some(until)
    }

    /// The bell, and the devices that are waited on: whichever is readable ends the sleep. Another set after each
    /// [`arm`](Self::arm).
    pub fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let devices = self.queues.iter().filter_map(OwnedQueue::waits_on);
        std::iter::once(self.bell().as_fd()).chain(devices)
    }

    /// One file descriptor for all of them, an epoll's: readable whenever the sleep should end. It is the caller's, to be
    /// registered with a runtime once; what becomes of the devices is seen to here.
    ///
    /// # Errors
    /// The kernel's, where the process has no file descriptor left.
    pub fn event_fd(&mut self) -> io::Result<OwnedFd> {
        if self.events.is_none() {
            let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            events.add(self.bell(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            for queue in &mut self.queues {
                if let Some(device) = queue.device() {
                    events.add(device, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
                    queue.listens = true;
                }
            }
            self.events = Some(events);
        }
        match &self.events {
            Some(events) => events.0.try_clone(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The queue has ended: its device wakes nobody any more.
    pub(crate) fn wait_no_more_on(&self, queue: &OwnedQueue) {
        if let (Some(events), Some(fd)) = (&self.events, queue.device()) {
            if let Err(error) = events.delete(fd) {
                tracing::debug!(cpu = self.cpu.id.0, "cannot take a device out of an epoll: {error}");
            }
        }
    }

    fn bell(&self) -> &Bell {
        &self.shared.core.bells[usize::from(self.index)]
    }

    /// Steps until everything is finished, and ends the handler. Before each sleep it polls on for a while: for up to
    /// `idle_poll` where that has paid, and for less and less where it hasn't, as KVM's `halt_poll_ns` does.
    pub(crate) fn run(mut self, idle_poll: Duration) -> H::Report {
        let mut patience = idle_poll;
        let mut idle_since = None;
        loop {
            match self.step() {
                Stepped::Worked => idle_since = None,
                Stepped::Finished => return self.finish(),
                Stepped::Idle => {
                    let now = self.cpu.now;
                    if now.since(*idle_since.get_or_insert(now)) < patience {
                        std::thread::yield_now();
                    } else if let Armed::Sleep(until) = self.arm() {
                        self.sleep(until);
                        let slept = self.platform.now().since(now);
                        patience = if slept < idle_poll { idle_poll } else { patience / 2 };
                    }
                }
            }
        }
    }

    fn sleep(&mut self, until: Option<Timestamp>) {
        let devices: Vec<BorrowedFd<'_>> = self.queues.iter().filter_map(OwnedQueue::waits_on).collect();
        let bell = &self.shared.core.bells[usize::from(self.index)];
        if let Err(error) = self.platform.park(bell, &devices, until) {
            tracing::error!(cpu = self.cpu.id.0, "cannot sleep: {error}");
        }
    }

    /// Ends this CPU: its handler's report. What is still in its rings stays there, and counts as in flight.
    pub fn finish(mut self) -> H::Report {
        // One that ends before its time leaves others waiting: it stops them.
        self.stops.finished = self.is_finished();
        self.spare.close();
        self.cpu.origin.close();
        self.outputs.iter_mut().for_each(OwnedTx::close);
        self.handler.finish()
    }
}
