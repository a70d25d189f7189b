//! The rules by which a CPU goes to sleep and is woken.
//!
//! A CPU without work polls for up to [`IDLE_POLL`](crate::limits::IDLE_POLL) before it sleeps.
//! After long sleeps, a CPU polls for a shorter time, as with KVM's `halt_poll_ns`. Before a CPU
//! sleeps, it sets its bit in `Sleepers`, executes a memory fence, and checks for work once more.
//! To sleep, the CPU calls `ppoll`, which waits on the CPU's eventfd (its bell), and on the devices
//! that have no frames. A CPU that hands frames over executes one memory fence per poll, and then
//! checks the `Sleepers` bits. Therefore either the CPU that goes to sleep sees the frames, or the
//! CPU that hands frames over sees the `Sleepers` bit and rings the bell.
//!
//! A caller with its own event loop gets one epoll file descriptor for the bell and all devices
//! (`Softnet::event_fd`). A device is in the epoll instance only while the CPU waits for this
//! device.

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

/// The result of [`arm`](crate::softnet::Softnet::arm): whether the CPU may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The CPU may sleep until its event file descriptor is readable, or until the returned time.
    Sleep(Option<Timestamp>),
    /// The CPU has work: call `step` again.
    Work,
}

#[derive(Default)]
pub(crate) struct Sleep {
    armed: bool,
    events: Option<Events>,
    /// The number of times that other CPUs have cleared this CPU's bit in `Sleepers`, minus the
    /// number of writes to this CPU's eventfd that it has read. A CPU that clears the bit writes to
    /// the eventfd afterwards.
    rings: u64,
}

impl Sleep {
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Sets this CPU's bit in `Sleepers`. After `arm`, the caller must check for work once more.
    pub(crate) fn arm(&mut self, me: CpuIndex, shared: &Shared) {
        if self.armed {
            self.awake(me, shared);
        }
        shared.sleepers.about_to_sleep(usize::from(me));
        self.armed = true;
    }

    pub(crate) fn awake(&mut self, me: CpuIndex, shared: &Shared) {
        self.armed = false;
        // Another CPU that clears this CPU's bit rings the bell once, possibly later than this
        // point.
        self.rings += u64::from(!shared.sleepers.awake(usize::from(me)));
        if self.rings > 0 {
            self.rings = self.rings.saturating_sub(shared.bells[usize::from(me)].hush());
        }
    }

    /// Listens only to the devices for which the CPU waits, because other devices would keep the
    /// epoll file descriptor readable.
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

pub(crate) struct Patience {
    longest: Duration,
    now: Duration,
    idle_since: Option<Timestamp>,
    /// The time of the last round without work, and whether the frames of all queues were allowed
    /// to wait then.
    idle: (Timestamp, bool),
}

impl Patience {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, now: longest, idle_since: None, idle: (Timestamp::ZERO, false) }
    }

    pub(crate) fn worked(&mut self) {
        self.idle_since = None;
    }

    pub(crate) fn keeps_polling(&mut self, now: Timestamp, queues: &[OwnedQueue]) -> bool {
        let coalesces = |queue: &OwnedQueue| matches!(queue.state.polled, Polled::Coalesce(due) if due > now);
        let mut open = queues.iter().filter(|queue| !queue.state.ended).peekable();
        self.idle = (now, open.peek().is_some() && open.all(coalesces));
        now.since(*self.idle_since.get_or_insert(now)) < self.now && !self.idle.1
    }

    pub(crate) fn slept(&mut self, now: Timestamp) {
        let (since, may_wait) = self.idle;
        // The duration of a sleep in which frames were coalesced does not show how soon packets
        // arrive.
        if !may_wait {
            self.now = if now.since(since) < self.longest { self.longest } else { self.now / 2 };
        }
    }
}

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

    /// A CPU reads its bell only if another CPU has rung it or may still ring it.
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
