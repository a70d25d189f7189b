use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use steerage_flow::Timestamp;

use super::{Phase, Softnet, Stepped};
use crate::handler::Handler;
use crate::limits::{DRAIN_LOOK, MOVE_LOOK, OUTPUT_LOOK};
use crate::platform::Platform;
use crate::queue::OwnedQueue;
use crate::sleep::{Armed, Patience, queues_sleep_until};

impl<H: Handler, P: Platform> Softnet<H, P> {
    /// Prepares this CPU to sleep. After `arm`, wait on [`event_fd`](Self::event_fd) or
    /// [`event_fds`](Self::event_fds). The next `step` ends the sleep.
    pub fn arm(&mut self) -> Armed {
        self.sleep.arm(self.runner.index, &self.shared);
        let Some(until) = self.sleep_until() else {
            self.sleep.awake(self.runner.index, &self.shared);
            return Armed::Work;
        };
        self.sleep.listen(&mut self.queues);
        Armed::Sleep(until)
    }

    /// Returns the time until which this CPU has no work (`Some(None)`: no limit), or `None` if it
    /// has work.
    fn sleep_until(&mut self) -> Option<Option<Timestamp>> {
        let shared = &self.shared;
        // During a round, or after a round with work, staged frames may not be published yet.
        if self.round.worked
            || self.phase != Phase::Control
            || self.control.is_behind(shared.steering.version())
            || shared.requests.is_set(usize::from(self.runner.index))
            || (shared.all_closed() && !self.runner.cpu.waits_for_kept())
            || (shared.is_stopping() && self.drain_until.is_none())
        {
            return None;
        }
        let in_lanes = self.queues.iter().filter(|queue| queue.outbox.staying() > 0).map(OwnedQueue::can_wait);
        let mut waiting = self.backlogs.waiting().map(|backlog| backlog.can_wait).chain(in_lanes).peekable();
        let held_back = waiting.peek().is_some();
        if held_back && (!self.holds_back() || waiting.any(|can_wait| !can_wait)) {
            return None;
        }
        let now = self.platform.now();
        let in_move = self.control.pending.then(|| now + MOVE_LOOK);
        let for_output = held_back.then(|| now + OUTPUT_LOOK);
        let for_kept = shared.all_closed().then(|| now + DRAIN_LOOK);
        let until =
            [self.runner.next_tick, self.drain_until, in_move, for_output, for_kept].into_iter().flatten().min();
        queues_sleep_until(&mut self.queues, now, until)
    }

    /// The current time of this CPU's clock, to which [`Armed::Sleep`] refers.
    pub fn now(&self) -> Timestamp {
        self.platform.now()
    }

    /// For a simulator, which does not wait on bells: returns which of the CPUs with the indices
    /// `64 * word` to `64 * word + 63` are asleep, lowest bit first. [`arm`](Self::arm) sets a
    /// CPU's bit, and another CPU that rings the bell clears it.
    pub fn sleepers(&self, word: usize) -> u64 {
        self.shared.sleepers.word(word)
    }

    /// The file descriptors that end the sleep when they become readable: the CPU's bell (an
    /// eventfd) and its devices. These file descriptors may differ after each call of
    /// [`arm`](Self::arm).
    pub fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let devices = self.queues.iter().filter_map(OwnedQueue::waits_on);
        std::iter::once(self.shared.bells[usize::from(self.runner.index)].as_fd()).chain(devices)
    }

    /// Returns one epoll file descriptor for all of [`event_fds`](Self::event_fds), readable
    /// whenever the sleep should end. The caller owns the file descriptor, and registers it with an
    /// event loop once. A device is in the epoll instance only while the CPU waits for it.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn event_fd(&mut self) -> io::Result<OwnedFd> {
        self.sleep.event_fd(&self.shared.bells[usize::from(self.runner.index)], &mut self.queues)
    }

    /// Runs rounds until the run is finished, and then ends the handler. Before a sleep, the CPU
    /// polls for up to `idle_poll` if its last sleep was shorter than `idle_poll`. Each sleep of
    /// `idle_poll` or longer halves the polling time, as with KVM's `halt_poll_ns`. If the frames
    /// of all queues may wait ([`Polled::Coalesce`](crate::rx::Polled::Coalesce)), the CPU sleeps
    /// immediately.
    pub fn run(mut self, idle_poll: Duration) -> H::Report {
        let mut patience = Patience::new(idle_poll);
        loop {
            match self.step() {
                Stepped::Worked => patience.worked(),
                Stepped::Finished => return self.finish(),
                Stepped::Idle => {
                    if patience.keeps_polling(self.runner.cpu.now, &self.queues) {
                        std::thread::yield_now();
                    } else if let Armed::Sleep(until) = self.arm() {
                        self.wait(until);
                        patience.slept(self.platform.now());
                    }
                }
            }
        }
    }

    fn wait(&mut self, until: Option<Timestamp>) {
        let devices: Vec<BorrowedFd<'_>> = self.queues.iter().filter_map(OwnedQueue::waits_on).collect();
        if let Err(error) = self.platform.park(&self.shared.bells[usize::from(self.runner.index)], &devices, until) {
            tracing::error!(cpu = self.runner.cpu.id.0, "cannot sleep: {error}");
        }
    }
}
