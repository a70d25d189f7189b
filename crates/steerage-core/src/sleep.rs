//! The rules by which a CPU goes to sleep and is woken.
//!
//! A CPU without work first continues to poll for up to [`IDLE_POLL`](crate::limits::IDLE_POLL).
//! The CPU polls for a shorter time if its recent sleeps were long. KVM's `halt_poll_ns` adapts
//! the duration of polling in the same way as `Softnet::run`. Before a CPU sleeps, it sets its bit
//! in `Sleepers`, executes a memory fence, and checks for work once more. Finally, one call of
//! `ppoll` waits on the CPU's eventfd (its bell), and on those devices that have no waiting frames.
//! A CPU that hands frames to other CPUs executes one memory fence per poll, and then checks the
//! `Sleepers` bits of those CPUs. So either the sleeping CPU sees the frames, or the CPU that hands
//! over the frames sees the bit and rings the bell.
//!
//! A caller with its own event loop gets a single epoll file descriptor for the bell (the CPU's
//! eventfd) and all devices (`Softnet::event_fd`). A device is added to the epoll instance when the
//! CPU begins to wait for this device, and removed after the wait.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use steerage_flow::Timestamp;
use steerage_mem::park::{Bell, Events};

use crate::ids::CpuIndex;
use crate::limits::{DRAIN_LOOK, FULL_LOOK};
use crate::queue::OwnedQueue;
use crate::rx::Polled;
use crate::shared::Shared;

/// The result of [`arm`](crate::softnet::Softnet::arm), which states whether the CPU may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The CPU may sleep until its event file descriptor is readable, or until the returned time.
    /// After `arm` has returned `Sleep`, CPUs that hand work to this CPU ring its bell (an
    /// eventfd).
    Sleep(Option<Timestamp>),
    /// The CPU has work: call `step` again.
    Work,
}

#[derive(Default)]
pub(crate) struct Sleep {
    armed: bool,
    events: Option<Events>,
    /// The number of times that other CPUs have cleared the bit of this sleeping CPU, minus the
    /// rings of the bell (an eventfd) that this CPU has read. A CPU that has cleared the bit has
    /// also rung this CPU's bell (an eventfd), or is about to ring it.
    rings: u64,
}

impl Sleep {
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Announces that this CPU is about to sleep. After `arm`, the caller must check for work once
    /// more.
    pub(crate) fn arm(&mut self, me: CpuIndex, shared: &Shared) {
        if self.armed {
            self.awake(me, shared);
        }
        shared.sleepers.about_to_sleep(usize::from(me));
        self.armed = true;
    }

    pub(crate) fn awake(&mut self, me: CpuIndex, shared: &Shared) {
        self.armed = false;
        // Another CPU that clears this CPU's `Sleepers` bit rings this CPU's bell once, but
        // possibly only after this CPU is awake again.
        self.rings += u64::from(!shared.sleepers.awake(usize::from(me)));
        if self.rings > 0 {
            self.rings = self.rings.saturating_sub(shared.bells[usize::from(me)].hush());
        }
    }

    /// Makes the epoll instance listen only to those devices for which the CPU waits. Other devices
    /// are excluded, because they would make the epoll file descriptor readable again and again.
    pub(crate) fn listen(&self, queues: &mut [OwnedQueue]) {
        let Some(events) = &self.events else { return };
        for queue in queues {
            let listens = queue.waits_on().is_some();
            if listens == queue.state.listens {
                continue;
            }
            match queue.device().map(|device| events.listen(device, listens)) {
                Some(Ok(())) => queue.state.listens = listens,
                Some(Err(error)) => tracing::debug!(queue = queue.id, "cannot change an epoll: {error}"),
                None => {}
            }
        }
    }

    pub(crate) fn event_fd(&mut self, bell: &Bell, queues: &mut [OwnedQueue]) -> io::Result<OwnedFd> {
        let events = match self.events.take() {
            Some(events) => events,
            None => {
                let events = Events::new(bell, queues.iter().filter_map(OwnedQueue::device))?;
                queues.iter_mut().for_each(|queue| queue.state.listens = queue.device().is_some());
                events
            }
        };
        self.events.insert(events).try_clone()
    }

    pub(crate) fn add(&self, queue: &mut OwnedQueue) {
        let Some((events, device)) = self.events.as_ref().zip(queue.device()) else { return };
        match events.add(device) {
            Ok(()) => queue.state.listens = true,
            Err(error) => tracing::warn!(queue = queue.id, "cannot add a device to an epoll: {error}"),
        }
    }

    pub(crate) fn forget(&self, queue: &OwnedQueue) {
        if let (Some(events), Some(device)) = (&self.events, queue.device()) {
            if let Err(error) = events.forget(device) {
                tracing::debug!(queue = queue.id, "cannot take a device out of an epoll: {error}");
            }
        }
    }
}

/// Decides how long a CPU continues to poll before it sleeps.
pub(crate) struct Patience {
    longest: Duration,
    now: Duration,
    idle_since: Option<Timestamp>,
    /// The time of the last round without work. The `bool` is true if the frames of all queues were
    /// allowed to wait at that time.
    idle: (Timestamp, bool),
}

impl Patience {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, now: longest, idle_since: None, idle: (Timestamp::ZERO, false) }
    }

    pub(crate) fn worked(&mut self) {
        self.idle_since = None;
    }

    /// Returns true if the CPU should poll again after a round without work at the time `now`.
    pub(crate) fn keeps_polling(&mut self, now: Timestamp, queues: &[OwnedQueue]) -> bool {
        let coalesces = |queue: &OwnedQueue| matches!(queue.state.polled, Polled::Coalesce(due) if due > now);
        let mut open = queues.iter().filter(|queue| !queue.state.ended).peekable();
        self.idle = (now, open.peek().is_some() && open.all(coalesces));
        now.since(*self.idle_since.get_or_insert(now)) < self.now && !self.idle.1
    }

    /// Adapts the polling time to the duration of the sleep that has just ended.
    pub(crate) fn slept(&mut self, now: Timestamp) {
        let (since, may_wait) = self.idle;
        // If frames were coalesced (collected) during a sleep, the duration of the sleep does not
        // show when packets arrive. So the duration is ignored.
        if !may_wait {
            self.now = if now.since(since) < self.longest { self.longest } else { self.now / 2 };
        }
    }
}

/// Returns the time until which a CPU's queues have no work, unless the CPU is woken earlier. The
/// returned time is the earliest of `until` and the times that the queues returned. Returns `None`
/// if a queue has work now.
pub(crate) fn queues_sleep_until(
    queues: &mut [OwnedQueue],
    now: Timestamp,
    mut until: Option<Timestamp>,
) -> Option<Option<Timestamp>> {
    let mut sooner = |at: Timestamp| until = Some(until.map_or(at, |until| until.min(at)));
    for queue in queues {
        if queue.state.ended {
            sooner(now + DRAIN_LOOK);
        } else if queue.state.blocked {
            if queue.can_wait() {
                queue.wake_when_there_is_room();
            } else {
                sooner(now + FULL_LOOK);
            }
            if queue.has_room() {
                return None;
            }
        } else {
            match queue.state.polled.due() {
                Some(due) if due > now => sooner(due),
                None if queue.state.polled == Polled::Drained && queue.device().is_some() => {
                    if queue.outbox.keeps_pages_from_others() {
                        sooner(now + DRAIN_LOOK);
                    }
                }
                _ => return None,
            }
        }
    }
    Some(until)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::build::{InputSpec, build};
    use crate::completions::Completions;
    use crate::device::{Capabilities, DeviceError};
    use crate::handler::{Cpu, Handler, MakeHandler};
    use crate::packet::Batch;
    use crate::rx::{Input, RxQueue};
    use crate::test_support::spec;

    struct Nothing;

    impl Handler for Nothing {
        type Moved = ();
        type Report = ();

        fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

        fn finish(self, _: &mut Cpu) {}
    }

    impl RxQueue for Nothing {
        fn capabilities(&self) -> Capabilities {
            Capabilities::pages(64)
        }

        fn poll(&mut self, _: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
            Ok(Polled::Drained)
        }
    }

    /// A CPU reads its bell (an eventfd) only if another CPU has rung the bell or may still ring
    /// it.
    #[test]
    fn a_bell_is_read_once_for_each_ring() {
        let mut spec = spec(1);
        let input = Input::new("nothing", "test", vec![Box::new(Nothing)]);
        spec.inputs = vec![InputSpec { input, rx_cpus: Vec::new(), mask: None }];
        let make: MakeHandler<Nothing> = Arc::new(|_| Nothing);
        let parts = build(spec, &|_, _| Vec::new()).unwrap().into_parts(&make);
        let shared = &parts[0].side.shared;
        let (mut sleep, bell) = (Sleep::default(), &shared.bells[0]);
        bell.ring();
        sleep.arm(0, shared);
        sleep.awake(0, shared);
        assert_eq!(bell.hush(), 1, "no CPU had a reason to ring, so the bell was not read");
        for is_armed_again in [false, true] {
            // In this test, another CPU clears the sleeping CPU's bit, but rings the bell only
            // after the sleep has ended.
            sleep.arm(0, shared);
            assert!(shared.sleepers.must_wake(0));
            if is_armed_again {
                sleep.arm(0, shared);
            }
            sleep.awake(0, shared);
            sleep.arm(0, shared);
            assert!(shared.sleepers.must_wake(0));
            bell.ring();
            sleep.awake(0, shared);
            assert_eq!(bell.hush(), 0);
            bell.ring();
            sleep.arm(0, shared);
            sleep.awake(0, shared);
            assert_eq!(bell.hush(), 0, "an unread ring would end each later sleep at once");
        }
    }
}
