//! Tests late, missing and concurrent calls of `Handle::control`, which runs the policies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use steerage::{
    Balance, Batch, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Hash, Input, Timestamp,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    limits::BUCKETS,
    policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy, REFINE_EVERY, REFINE_EVERY_MAX},
    stats::MoveCause,
    threads::Softnet,
};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::manual_clock::{self, ManualClock};
use steerage_fixtures::{quiet_panics, until};
use steerage_policy::REFINE_RETRY;

struct Frames(Arc<AtomicUsize>);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let left = self.0.load(Ordering::SeqCst);
        if left > 0 {
            self.0.store(left - 1, Ordering::SeqCst);
            out.fill(1, |_| Some(Filled::whole(60)));
        }
        Ok(if left > 1 { Polled::More } else { Polled::Drained })
    }
}

#[derive(Debug, Default)]
struct Asked {
    looks: Vec<Timestamp>,
    plans: Vec<Vec<u16>>,
    changes: usize,
    request: Option<u16>,
    panics: bool,
}

/// A policy that begins with the first CPU. When the test sets `request`, the policy moves all
/// buckets to the requested CPU.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Asked>>);

impl Told {
    fn asked(&self) -> std::sync::MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Policy for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        self.asked().plans.push(group.active.to_vec());
        Plan { order: group.order.to_vec(), active: group.owners }
    }

    fn cpus_changed(&mut self) {
        self.asked().changes += 1;
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        let mut asked = self.asked();
        asked.looks.push(load.now);
        assert!(!asked.panics, "planted");
        let map = Box::new([asked.request.take()?; BUCKETS]);
        Some(MapRequest::new(map, MoveCause::Balance))
    }
}

struct ByHands {
    cpus: [Softnet<Nothing, ManualClock>; 2],
    handle: Handle,
    frames: Arc<AtomicUsize>,
}

impl ByHands {
    fn new(policy: impl Policy + 'static) -> Self {
        let frames = Arc::new(AtomicUsize::new(0));
        let input = Input::new("frames", "test", vec![Box::new(Frames(Arc::clone(&frames)))]);
        let builder = Builder::new().virtual_cpus(2).policy(policy).input_on(input, &[CpuId(0)], None);
        let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
        let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
        Self { cpus: <[_; 2]>::try_from(cpus).unwrap(), handle, frames }
    }

    fn step_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.cpus.iter_mut().for_each(|cpu| _ = cpu.step());
        }
    }

    fn settle(&mut self) {
        self.step_until(|two| two.handle.is_settled());
    }

    fn receive(&mut self, frames: usize) {
        let wanted = self.handle.snapshot().delivered() + frames as u64;
        self.frames.store(frames, Ordering::SeqCst);
        self.step_until(|two| two.handle.snapshot().delivered() == wanted);
    }

    fn shares(&self) -> [usize; 2] {
        let buckets = self.handle.buckets(0).unwrap();
        [0, 1].map(|cpu| buckets.iter().filter(|bucket| bucket.cpu == CpuId(cpu)).count())
    }

    fn end(mut self) {
        let [first, second] = &mut self.cpus;
        manual_clock::end(&self.handle, [first, second]);
    }
}

#[test]
fn looks_become_rare_while_nothing_is_received() {
    let told = Told::default();
    let mut two = ByHands::new(told.clone());
    two.receive(1);
    let mut now = Timestamp::ZERO;
    let mut intervals = Vec::new();
    for _ in 0..10 {
        let next = two.handle.control(now).unwrap();
        assert_eq!(two.handle.control(now), Some(next), "a call before the time does nothing");
        intervals.push(next.since(now));
        now = next;
    }
    let idle = (0..10).map(|nth| (REFINE_EVERY * (1 << nth)).min(REFINE_EVERY_MAX));
    assert_eq!(intervals, idle.collect::<Vec<_>>());
    assert_eq!(told.asked().looks.len(), 9);
    two.receive(1);
    let next = two.handle.control(now).unwrap();
    assert_eq!(next.since(now), REFINE_EVERY, "it is no longer idle");
    let late = next + Duration::from_secs(100);
    two.handle.control(late).unwrap();
    assert_eq!(told.asked().looks.last(), Some(&late));
    assert_eq!(told.asked().looks.len(), 11);
    two.end();
}

struct Eights;

impl RxQueue for Eights {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        out.fill(8, |_| Some(Filled::whole(60)));
        Ok(Polled::More)
    }
}

/// A handler that counts batches of one packet. steerage handles a packet alone to measure the
/// packet's time for the policy.
#[derive(Debug)]
struct Singles(Arc<AtomicUsize>);

impl Handler for Singles {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        self.0.fetch_add(usize::from(batch.len() == 1), Ordering::SeqCst);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// The policy has a choice if the mask has a second CPU, or if a CPU outside of the mask polls a
/// queue.
#[test]
fn the_load_is_measured_only_while_there_is_a_choice() {
    let (told, singles) = (Told::default(), Arc::new(AtomicUsize::new(0)));
    let (mask, batches) = (|ids: &[u16]| ids.iter().copied().map(CpuId).collect::<CpuMask>(), Arc::clone(&singles));
    let input = Input::new("eights", "test", vec![Box::new(Eights)]);
    let builder = Builder::new().virtual_cpus(2).rps_cpus(mask(&[0])).policy(told.clone());
    let builder = builder.input_on(input, &[CpuId(0)], None);
    let (parts, handle) = builder.build(move |_| Singles(Arc::clone(&batches))).unwrap().split();
    let mut cpus: Vec<_> = parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
    let mut now = Timestamp::ZERO;
    // Returns whether the policy's `refine` was called, whether the handler got a batch of one
    // packet, and the time until the next call of `control`.
    let mut measures = |cpus: &mut Vec<Softnet<Singles, ManualClock>>| {
        let mut round = || {
            let before = (told.asked().looks.len(), singles.load(Ordering::SeqCst));
            let mut due = Duration::ZERO;
            for _ in 0..8 {
                (0..40).for_each(|_| cpus.iter_mut().for_each(|cpu| _ = cpu.step()));
                let next = handle.control(now).unwrap();
                (due, now) = (next.since(now), next);
            }
            let after = (told.asked().looks.len(), singles.load(Ordering::SeqCst));
            (after.0 > before.0, after.1 > before.1, due)
        };
        // The first round is ignored, because the control and the CPUs still adapt to the new mask.
        round();
        round()
    };
    assert_eq!(measures(&mut cpus), (false, false, REFINE_EVERY));
    handle.set_rps_cpus(&mask(&[0, 1])).unwrap();
    assert_eq!(measures(&mut cpus), (true, true, REFINE_EVERY));
    handle.set_rps_cpus(&mask(&[0])).unwrap();
    assert_eq!(measures(&mut cpus), (false, false, REFINE_EVERY));
    // CPU 0 polls the queue. CPU 1 could handle the packets, or poll the queue in place of CPU 0.
    handle.set_rps_cpus(&mask(&[1])).unwrap();
    assert_eq!(measures(&mut cpus), (true, true, REFINE_EVERY));
}

#[test]
fn a_wish_leaves_a_plan_that_outlives_the_control() {
    let told = Told::default();
    let mut two = ByHands::new(told.clone());
    two.handle.control(Timestamp::ZERO);
    told.asked().request = Some(1);
    two.handle.control(Timestamp::ZERO + REFINE_EVERY);
    two.settle();
    assert_eq!(two.shares(), [0, BUCKETS]);
    // CPU 0 replaces CPU 1 while CPU 1 is absent, without further calls of `control`.
    for (present, shares) in [(&[0][..], [BUCKETS, 0]), (&[0, 1], [0, BUCKETS])] {
        two.handle.set_present_cpus(&present.iter().copied().map(CpuId).collect::<CpuMask>());
        two.settle();
        assert_eq!(two.shares(), shares, "with CPUs {present:?}");
    }
    // A late call of `control` informs the policy once of changed CPUs, and does not call the
    // policy's `plan` again.
    let asked = || {
        let asked = told.asked();
        (asked.changes, asked.plans.len())
    };
    let (changes, plans) = asked();
    two.handle.control(Timestamp::ZERO + Duration::from_secs(10));
    assert_eq!(asked(), (changes + 1, plans));
    two.end();
}

#[test]
fn a_policy_that_is_set_is_in_force_without_a_call() {
    let mut two = ByHands::new(Balance::new());
    assert_eq!(two.shares(), [BUCKETS, 0]);
    two.handle.set_policy(Hash);
    two.settle();
    assert_eq!((two.handle.policy(), two.shares()), ("hash", [BUCKETS / 2, BUCKETS / 2]));
    assert_eq!(two.handle.control(Timestamp::ZERO), None, "nothing is looked at");
    let told = Told::default();
    two.handle.set_policy(told.clone());
    two.settle();
    assert_eq!(two.shares(), [BUCKETS, 0]);
    assert_eq!(told.asked().plans, [[0, 1]], "the CPUs that had buckets");
    assert!(two.handle.control(Timestamp::ZERO).is_some());
    two.end();
}

#[test]
fn a_policy_that_panics_is_replaced_by_hash() {
    quiet_panics();
    let told = Told::default();
    let mut two = ByHands::new(told.clone());
    two.handle.control(Timestamp::ZERO);
    told.asked().panics = true;
    for check in 1..=3 {
        two.handle.control(Timestamp::ZERO + check * REFINE_EVERY_MAX);
        two.settle();
    }
    assert_eq!(told.asked().looks.len(), 1);
    assert_eq!(two.shares(), [BUCKETS / 2, BUCKETS / 2]);
    two.receive(10);
    assert_eq!(two.handle.snapshot().delivered(), 10);
    let other = Told::default();
    two.handle.set_policy(other.clone());
    two.settle();
    two.handle.control(Timestamp::ZERO + 4 * REFINE_EVERY_MAX);
    two.handle.control(Timestamp::ZERO + 5 * REFINE_EVERY_MAX);
    assert_eq!(other.asked().looks.len(), 1);
    two.end();
}

/// A policy whose calls return only when the test permits it.
#[derive(Clone, Debug)]
struct Slow(Sender<()>, Arc<Mutex<Receiver<()>>>);

impl Policy for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn plan(&mut self, _: &GroupStart<'_>) -> Plan {
        Plan::all()
    }

    fn refine(&mut self, _: &GroupLoad<'_>) -> Option<MapRequest> {
        self.0.send(()).unwrap();
        self.1.lock().unwrap().recv().unwrap();
        None
    }
}

#[test]
fn nothing_waits_for_a_slow_policy() {
    let ((begins, has_begun), (goes_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let mut two = ByHands::new(Slow(begins, Arc::new(Mutex::new(may_go_on))));
    let (handle, now) = (two.handle.clone(), Timestamp::ZERO + REFINE_EVERY);
    handle.control(Timestamp::ZERO);
    let looks = thread::spawn(move || handle.control(now));
    has_begun.recv().unwrap();
    // Packets are handled and new masks take effect while a call of the policy has not returned.
    assert_eq!(two.handle.control(now), Some(now + REFINE_RETRY));
    two.receive(100);
    two.handle.set_rps_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    two.settle();
    assert_eq!((two.handle.snapshot().delivered(), two.shares()), (100, [0, BUCKETS]));
    goes_on.send(()).unwrap();
    assert!(looks.join().unwrap().is_some_and(|next| next > now + REFINE_RETRY));
    two.end();
}

/// An instance with virtual CPUs and the policy `Hash` also gets a control thread, because another
/// policy may be set later.
#[test]
fn the_library_calls_the_control_by_itself() {
    let frames = Arc::new(AtomicUsize::new(usize::MAX));
    let input = Input::new("frames", "test", vec![Box::new(Frames(Arc::clone(&frames)))]);
    let builder = Builder::new().virtual_cpus(2).policy(Hash).input(input);
    let running = builder.build(|_| Nothing).unwrap().start().unwrap();
    let handle = running.handle();
    let told = Told::default();
    handle.set_policy(told.clone());
    until("the policy looks", || !told.asked().looks.is_empty());
    told.asked().request = Some(1);
    let all_on = |cpu| handle.buckets(0).unwrap().iter().all(|bucket| bucket.cpu == CpuId(cpu));
    until("its request is granted", || all_on(1));
    handle.stop();
    running.join();
}

/// The time from the start of a run to the first measurement of other programs' CPU time.
const WATCH_EVERY: Duration = Duration::from_millis(250);

#[test]
#[expect(clippy::print_stderr, reason = "the reason of a skipped test")]
fn the_policy_waits_for_the_time_that_others_take() {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: it takes two CPUs");
        return;
    }
    let input = Input::new("frames", "test", vec![Box::new(Frames(Arc::new(AtomicUsize::new(usize::MAX))))]);
    let told = Told::default();
    let running = Builder::new().policy(told.clone()).input(input).build(|_| Nothing).unwrap().start().unwrap();
    until("the policy looks", || !told.asked().looks.is_empty());
    let first = told.asked().looks[0];
    running.handle().stop();
    running.join();
    assert!(first >= Timestamp::ZERO + WATCH_EVERY, "{first:?}");
}
