//! Tests moves of buckets away from a CPU whose `step` the test does not call.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steerage::{
    Affinity, Batch, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Hash, Input, Snapshot,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    flow::FlowHash,
    limits::{DEAD_AFTER, POLL_BUDGET},
    stats::{DropReason, MoveCause},
    threads::{Phase, Softnet},
};
use steerage_core::limits::MOVE_WAIT;
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::manual_clock::{self, ManualClock};

/// A queue whose frames all belong to the first bucket, which moves in the first slice (group of
/// buckets).
pub(crate) struct OneBucket;

impl RxQueue for OneBucket {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).hashes(Affinity::BothDirections)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |_| Some(Filled::whole(60).with_hash(Some(FlowHash(0)))));
        Ok(Polled::More)
    }
}

const POLL: u64 = POLL_BUDGET as u64;

struct Two<H: Handler = Nothing> {
    receiver: Softnet<H, ManualClock>,
    worker: Softnet<H, ManualClock>,
    handle: Handle,
    clock: ManualClock,
}

impl Two {
    fn in_a_move() -> Self {
        Self::in_a_move_of(|_| Nothing)
    }
}

impl<H: Handler> Two<H> {
    fn in_a_move_of(make: impl Fn(CpuId) -> H + Send + Sync + 'static) -> Self {
        let input = Input::new("one bucket", "test", vec![Box::new(OneBucket)]);
        let builder = Builder::new().virtual_cpus(2).policy(Hash).rps_cpus(only(1)).input_on(input, &[CpuId(0)], None);
        let (parts, handle) = builder.build(make).unwrap().split();
        let clock = ManualClock::default();
        let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
        let [mut receiver, worker] = <[_; 2]>::try_from(cpus).unwrap();
        receiver.step();
        handle.set_rps_cpus(&only(0)).unwrap();
        receiver.step();
        Self { receiver, worker, handle, clock }
    }

    /// CPU 0 runs two steps, so that in the second `step` it can act on events of the first.
    fn receive_after(&mut self, time: Duration) {
        self.clock.advance(time);
        self.receiver.step();
        self.receiver.step();
    }

    fn dropped(&self) -> [u64; 2] {
        let dropped = self.handle.snapshot().dropped();
        [DropReason::Moving, DropReason::Revoked].map(|reason| dropped.get(reason))
    }

    fn end(mut self) -> Snapshot {
        while !self.handle.is_settled() {
            self.receiver.step();
            self.worker.step();
        }
        manual_clock::end(&self.handle, [&mut self.receiver, &mut self.worker]);
        self.handle.snapshot()
    }
}

fn only(cpu: u16) -> CpuMask {
    [CpuId(cpu)].into_iter().collect()
}

/// After `MOVE_WAIT`, new frames are dropped until the CPU that the bucket leaves (`worker`) runs
/// again. Frames that `worker` has not begun to handle are dropped when `worker` runs again.
#[test]
fn a_move_that_takes_too_long_takes_the_frames_back() {
    let mut two = Two::in_a_move();
    two.receive_after(MOVE_WAIT / 2);
    assert_eq!(two.dropped(), [0, 0], "new frames wait for the move to end");
    two.receive_after(MOVE_WAIT);
    let [moving, revoked] = two.dropped();
    assert!(moving >= POLL, "{moving}");
    assert_eq!(revoked, 0, "only the worker knows what it has not begun");
    two.worker.step();
    assert_eq!(two.dropped(), [moving, POLL]);

    let ended = two.end();
    assert_eq!(ended.moves.of(MoveCause::CpuDied), 0);
    assert!(ended.delivered() >= 2 * POLL, "the frames that waited are handled");
}

/// The bucket moves to CPU 0, although the handler on CPU 1 does not return.
#[test]
fn a_cpu_whose_handler_does_not_return_is_declared_dead() {
    let mut two = Two::in_a_move();
    while !matches!(two.worker.phase(), Phase::Finish(_)) {
        two.worker.advance();
    }
    two.receive_after(MOVE_WAIT);
    two.receive_after(DEAD_AFTER / 2);
    assert_eq!(two.handle.snapshot().moves.of(MoveCause::CpuDied), 0);
    two.receive_after(DEAD_AFTER);
    assert!(two.handle.snapshot().moves.of(MoveCause::CpuDied) > 0);
    let ended = two.end();
    assert_eq!((ended.cpus[1].deaths, ended.cpus[1].dropped.get(DropReason::Revoked)), (1, POLL));
}

thread_local! {
    /// A function that is called when the handler is woken for the first time.
    static WHEN_WOKEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Woken(Arc<AtomicU64>);

impl Handler for Woken {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn woken(&mut self, _: &mut Cpu) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let first = WHEN_WOKEN.with_borrow_mut(Option::take);
        first.into_iter().for_each(|first| first());
    }

    fn finish(self, _: &mut Cpu) {}
}

/// The handler that replaces another must also get a call of `woken`. If `woken` is not called,
/// messages and senders' packets wait for the next `Handle::wake`.
#[test]
fn a_request_outlives_the_handler_that_did_not_return() {
    let woken = Arc::<AtomicU64>::default();
    let of_handlers = Arc::clone(&woken);
    let Two { mut receiver, mut worker, handle, clock } = Two::in_a_move_of(move |_| Woken(Arc::clone(&of_handlers)));
    let (while_woken, its_handle) = (clock.clone(), handle.clone());
    WHEN_WOKEN.set(Some(Box::new(move || {
        for _ in 0..10 {
            while_woken.advance(DEAD_AFTER);
            receiver.step();
            receiver.step();
        }
        assert!(its_handle.snapshot().moves.of(MoveCause::CpuDied) > 0);
        receiver.finish();
    })));
    handle.wake(CpuId(1)).unwrap();
    (0..4).for_each(|_| _ = worker.step());
    assert_eq!((handle.snapshot().cpus[1].deaths, woken.load(Ordering::Relaxed)), (1, 2));
}
