//! Tests that a live queue whose device has its own memory waits for room in a backlog, but only
//! for a limited time. A request to stop must reach a queue that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steerage::{
    Builder, CpuId, DeviceError, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    limits::POLL_BUDGET,
    stats::DropReason,
    threads::{Armed, Softnet, Stepped},
};
use steerage_core::limits::{FULL_LOOK, PATIENCE};
use steerage_fixtures::handlers::Nothing;

use steerage_fixtures::manual_clock::{self, ManualClock};

const BACKLOG: usize = 2 * POLL_BUDGET;

/// A queue that always has more frames. After a stop, the queue delivers one last frame.
struct Endless {
    has_room: Arc<AtomicBool>,
    stopping: bool,
}

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let most = if self.stopping { 1 } else { budget };
        out.fill(most, |_| Some(Filled::whole(60)));
        Ok(if self.stopping { Polled::Ended } else { Polled::More })
    }

    fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    fn stop(&mut self) -> bool {
        self.stopping = true;
        true
    }
}

#[test]
fn it_waits_for_a_while_and_only_while_it_has_room() {
    let has_room = Arc::new(AtomicBool::new(true));
    let queue = Endless { has_room: Arc::clone(&has_room), stopping: false };
    let input = Input::new("endless", "test", vec![Box::new(queue)]);
    let to_the_other = [CpuId(1)].into_iter().collect();
    let builder = Builder::new().virtual_cpus(2).backlog(BACKLOG).rps_cpus(to_the_other).input(input);
    let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
    let clock = ManualClock::default();
    let cpus: Vec<Softnet<Nothing, ManualClock>> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
    let [mut receiver, mut worker] = <[_; 2]>::try_from(cpus).unwrap();
    let full = BACKLOG as u64;
    let rounds = |receiver: &mut Softnet<Nothing, ManualClock>, count| {
        (0..count).for_each(|_| {
            receiver.step();
        })
    };
    let lost = || handle.snapshot().dropped().get(DropReason::BacklogFull);

    clock.advance(PATIENCE);
    // The backlog of `worker` fills up, because `worker` handles no packets.
    rounds(&mut receiver, 10);
    assert_eq!((handle.snapshot().received(), lost()), (full, 0));
    let look = receiver.now() + FULL_LOOK;
    assert_eq!(receiver.arm(), Armed::Sleep(Some(look)));
    while worker.step() == Stepped::Worked {}
    assert_eq!(receiver.arm(), Armed::Work, "it looks for room once more before it sleeps");
    rounds(&mut receiver, 10);
    assert_eq!((handle.snapshot().received(), lost()), (2 * full, 0));
    // When the queue has waited for the maximum time, each round drops frames.
    clock.advance(PATIENCE);
    rounds(&mut receiver, 3);
    assert_eq!(lost(), 3 * POLL_BUDGET as u64);
    // After the backlog had room, the queue may wait again.
    while worker.step() == Stepped::Worked {}
    rounds(&mut receiver, 10);
    assert_eq!(lost(), 3 * POLL_BUDGET as u64);
    // If the device has no room for more frames, the queue does not wait.
    has_room.store(false, Ordering::Relaxed);
    rounds(&mut receiver, 1);
    assert_eq!(lost(), 4 * POLL_BUDGET as u64);

    let received = handle.snapshot().received();
    manual_clock::end(&handle, [&mut receiver, &mut worker]);
    assert_eq!(handle.snapshot().received(), received + 1);
}
