use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steerage::{
    Batch, Builder, Cpu, CpuId, DeviceError, Handle, Handler, Input, SetError,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    limits::{HANDLE_BUDGET, LPC_PAGES_MAX, Limits, POLL_BUDGET},
    threads::{Armed, Softnet, Stepped},
};

use steerage_fixtures::manual_clock::{self, ManualClock};

struct Endless(Arc<Mutex<Vec<usize>>>);

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.0.lock().unwrap().push(budget);
        out.fill(budget, |_| Some(Filled::whole(60)));
        Ok(Polled::More)
    }
}

struct Sizes(Noted);

impl Handler for Sizes {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let mut sizes = self.0.sizes.take();
        sizes.push(batch.len());
        self.0.sizes.set(sizes);
        self.0.clock.advance(self.0.work.get());
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

struct Two {
    receiver: Softnet<Sizes, ManualClock>,
    worker: Softnet<Sizes, ManualClock>,
    handle: Handle,
    polls: Arc<Mutex<Vec<usize>>>,
    noted: Noted,
}

#[derive(Clone, Default)]
struct Noted {
    sizes: Rc<Cell<Vec<usize>>>,
    clock: ManualClock,
    work: Rc<Cell<Duration>>,
}

// The test and its handlers share this data, because the handler of a CPU runs on the thread of its
// CPU, here the test's thread.
thread_local! {
    static NOTED: Noted = Noted::default();
}

fn two(queues: usize) -> Two {
    let polls = Arc::new(Mutex::new(Vec::new()));
    let queues = (0..queues).map(|_| Box::new(Endless(Arc::clone(&polls))) as Box<dyn RxQueue>).collect();
    let to_the_other = [CpuId(1)].into_iter().collect();
    let builder = Builder::new().virtual_cpus(2).rps_cpus(to_the_other).dev_weight(1_000_000);
    let builder = builder.input_on(Input::new("endless", "test", queues), &[CpuId(0)], None);
    let (parts, handle) = builder.build(|_| Sizes(NOTED.with(Clone::clone))).unwrap().split();
    let noted = NOTED.with(Clone::clone);
    let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(noted.clock.clone())).collect();
    let [receiver, worker] = <[_; 2]>::try_from(cpus).unwrap();
    Two { receiver, worker, handle, polls, noted }
}

impl Two {
    fn end(mut self) {
        manual_clock::end(&self.handle, [&mut self.receiver, &mut self.worker]);
        assert!(self.handle.is_settled());
    }
}

#[test]
fn they_are_as_asked_for_within_their_ranges() {
    let two = two(1);
    let built = two.handle.limits();
    assert_eq!((built.backlog, built.dev_weight, built.budget), (1000, POLL_BUDGET, 300));
    let beyond =
        |limits: &mut Limits| (limits.backlog, limits.dev_weight, limits.budget) = (usize::MAX, 65, usize::MAX);
    let now = two.handle.set_limits(beyond);
    assert_eq!((now.backlog, now.dev_weight, now.budget), (16 * 1000, POLL_BUDGET, usize::MAX));
    let below = |limits: &mut Limits| (limits.backlog, limits.dev_weight, limits.budget) = (0, 0, 0);
    let now = two.handle.set_limits(below);
    assert_eq!((now.backlog, now.dev_weight, now.budget), (1, 1, 1));
    assert_eq!(two.handle.limits(), now);
    two.end();
}

#[test]
fn they_are_in_force_once_every_cpu_has_come_round() {
    let mut two = two(1);
    two.receiver.step();
    two.worker.step();
    assert!(two.handle.is_settled());
    two.handle.set_limits(|limits| limits.dev_weight = 8);
    two.receiver.step();
    assert!(!two.handle.is_settled(), "one CPU knows nothing of it");
    two.worker.step();
    assert!(two.handle.is_settled());
    two.handle.set_limits(|limits| limits.dev_weight = 8);
    assert!(two.handle.is_settled());
    two.end();
}

/// A change or a stop that comes between a CPU's last round and its sleep must wake the CPU.
#[test]
fn no_cpu_falls_asleep_over_a_change_or_a_stop() {
    let mut two = two(1);
    assert_eq!(two.worker.step(), Stepped::Idle);
    assert_eq!(two.worker.arm(), Armed::Sleep(None));
    assert_eq!(two.worker.step(), Stepped::Idle);
    two.handle.set_limits(|limits| limits.dev_weight = 8);
    assert_eq!(two.worker.arm(), Armed::Work);
    assert_eq!(two.worker.step(), Stepped::Idle);
    assert_eq!(two.worker.arm(), Armed::Sleep(None));
    assert_eq!(two.worker.step(), Stepped::Idle);
    two.handle.stop();
    assert_eq!(two.worker.arm(), Armed::Work);
    two.end();
}

#[test]
fn the_weight_is_how_many_are_polled_and_handed_over_at_a_time() {
    let mut two = two(1);
    for weight in [POLL_BUDGET, 8, 1, 32] {
        two.handle.set_limits(|limits| limits.dev_weight = weight);
        two.receiver.step();
        while two.worker.step() == Stepped::Worked {}
        assert!(two.handle.is_settled());
        two.polls.lock().unwrap().clear();
        two.noted.sizes.take();
        two.receiver.step();
        assert_eq!(*two.polls.lock().unwrap(), [weight]);
        two.worker.step();
        assert_eq!(two.noted.sizes.take(), [weight], "a full list is shown at once");
    }
    two.end();
}

#[test]
fn a_round_ends_when_its_budget_is_used_up() {
    let mut two = two(4);
    let rounds_of = |two: &mut Two| {
        two.receiver.step();
        let squeezed = |two: &Two| two.handle.snapshot().cpus[1].time_squeeze;
        let before = squeezed(two);
        let mut rounds = Vec::new();
        loop {
            two.noted.sizes.take();
            if two.worker.step() != Stepped::Worked {
                return (rounds, squeezed(two) - before);
            }
            rounds.push(two.noted.sizes.take().iter().sum::<usize>());
        }
    };
    let all = 4 * HANDLE_BUDGET;
    assert_eq!(rounds_of(&mut two), (vec![all], 0));
    // Two batches of 64 packets use up a round's budget of 100. `time_squeeze` counts both rounds,
    // because after the second, more packets might have been waiting.
    two.handle.set_limits(|limits| limits.budget = 100);
    assert_eq!(rounds_of(&mut two), (vec![all / 2; 2], 2));
    two.handle.set_limits(|limits| limits.budget = 1);
    assert_eq!(rounds_of(&mut two).0, [HANDLE_BUDGET; 4]);
    two.noted.work.set(Duration::from_millis(3));
    two.handle.set_limits(|limits| limits.budget = 1000);
    assert_eq!(rounds_of(&mut two).0, [HANDLE_BUDGET; 4]);
    two.handle.set_limits(|limits| limits.budget_time = Duration::from_millis(4));
    assert_eq!(rounds_of(&mut two).0, [all / 2; 2]);
    two.noted.work.set(Duration::ZERO);
    two.end();
}

/// Returns the number of pages that came from the local page cache and from the pool, and the
/// number that returned to each.
fn flow_of_pages(two: &mut Two, lpc_pages: usize) -> [u64; 4] {
    two.handle.set_queue_limits(0, |limits| limits.lpc_pages = lpc_pages).unwrap();
    let counts = |two: &Two| {
        let pool = two.handle.snapshot().queues[0].pool;
        [pool.alloc_fast, pool.alloc_slow, pool.recycle_cached, pool.recycle_cache_full]
    };
    let round = |two: &mut Two| {
        two.receiver.step();
        while two.worker.step() == Stepped::Worked {}
    };
    (0..10).for_each(|_| round(two));
    let before = counts(two);
    (0..100).for_each(|_| round(two));
    let after = counts(two);
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn the_local_page_cache_is_switched_while_it_runs() {
    let mut two = two(2);
    let all = 100 * POLL_BUDGET as u64;
    for _ in 0..2 {
        let most = all * 9 / 10;
        let [fast, slow, cached, full] = flow_of_pages(&mut two, 2048);
        assert!(fast > most && slow == 0 && cached > most && full == 0, "{fast} {slow} {cached} {full}");
        let [fast, slow, cached, full] = flow_of_pages(&mut two, 0);
        assert!(fast < all / 10 && slow > most && cached == 0 && full > most, "{fast} {slow} {cached} {full}");
    }
    let most = two.handle.set_queue_limits(1, |limits| limits.lpc_pages = usize::MAX).unwrap();
    assert_eq!((most.lpc_pages, most.copybreak), (LPC_PAGES_MAX, 0));
    assert_eq!(two.handle.set_queue_limits(0, |_| ()).unwrap().lpc_pages, 0, "the other queue's are its own");
    assert!(two.handle.set_queue_limits(2, |_| ()).is_err());
    let both = two.handle.set_queue_limits(0, |limits| (limits.lpc_pages, limits.copybreak) = (9, 1));
    assert!(matches!(both, Err(SetError::NoCopybreak { queue: 0, .. })), "{both:?}");
    let limits = two.handle.set_queue_limits(0, |limits| limits.copybreak = 0).unwrap();
    assert_eq!((limits.lpc_pages, limits.copybreak), (0, 0));
    two.end();
}
