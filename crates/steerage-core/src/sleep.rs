//! How a CPU goes to sleep and is woken.
//!
//! A CPU with nothing to do first keeps polling for up to [`IDLE_POLL`](crate::limits::IDLE_POLL),
//! and for less time if polling found no packets lately, like KVM's `halt_poll_ns`
//! (`Softnet::run`). Then the CPU sets its bit in `Sleepers`, executes a memory fence, and checks
//! for work once more. Finally, the CPU waits in one `ppoll` on its eventfd (its bell) and on its
//! devices without waiting frames. A CPU that hands frames to other CPUs executes a fence once per
//! poll and then checks the bits of those CPUs. So either the sleeping CPU sees the frames, or the
//! other CPU sees the bit and rings the bell.
//!
//! A caller with a runtime of its own gets one epoll file descriptor for the bell and all devices
//! (`Softnet::event_fd`). Devices are added to the epoll and removed from it as the CPU starts and
//! stops waiting for them.

use std::io;
use std::os::fd::OwnedFd;

use steerage_flow::Timestamp;
use steerage_mem::park::{Bell, Events};

use crate::ids::CpuIndex;
use crate::limits::{DRAIN_LOOK, FULL_LOOK};
use crate::queue::OwnedQueue;
use crate::rx::Polled;
use crate::shared::Shared;

/// Whether a CPU may go to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The CPU may sleep until its event file descriptor is readable or this time has come. From
    /// now on, other CPUs that hand work to this CPU ring its bell.
    Sleep(Option<Timestamp>),
    /// The CPU has work: step again.
    Work,
}

#[derive(Default)]
pub(crate) struct Sleep {
    armed: bool,
    events: Option<Events>,
}

impl Sleep {
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Announces that this CPU is about to sleep. The caller must then check for work once more.
    pub(crate) fn arm(&mut self, me: CpuIndex, shared: &Shared) {
        shared.sleepers.about_to_sleep(usize::from(me));
        self.armed = true;
    }

    pub(crate) fn awake(&mut self, me: CpuIndex, shared: &Shared) {
        self.armed = false;
        shared.sleepers.awake(usize::from(me));
        // Silence the bell in any case: a CPU that cleared the bit during an earlier sleep may have
        // rung the bell only after this CPU was awake again.
        shared.bells[usize::from(me)].hush();
    }

    /// Makes the epoll listen only to the devices for which the CPU waits. The other devices would
    /// make the epoll readable again and again.
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

/// The time until which a CPU's queues have no work unless the CPU is woken: the earliest of
/// `until` and the times of the queues. `None` if a queue has work now.
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
            match queue.state.polled {
                Polled::NotBefore(due) if due > now => sooner(due),
                Polled::Drained if queue.device().is_some() => {
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
