//! Tests outputs that finish packets after `send` has returned.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use steerage::{
    Batch, Builder, Cpu, DeviceError, Handle, Handler, Input, Output, Snapshot, Timestamp,
    device::{
        Capabilities, Completions, Filled, Outgoing, Polled, RxQueue, Sent, TxAccount, TxCapabilities, TxQueue,
        TxResources, TxSource,
    },
    policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy, REFINE_EVERY},
    stats::DropReason,
};
use steerage_fixtures::HANG;
use steerage_fixtures::handlers::SendAll;
use steerage_fixtures::manual_clock::ManualClock;

/// A queue that returns the given number of frames, of eight bytes each.
struct Frames(u64);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = self.0.min(budget as u64) as usize;
        out.fill(count, |_| Some(Filled::whole(8)));
        self.0 -= count as u64;
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }
}

#[derive(Default)]
struct Holding {
    accounts: Vec<TxAccount>,
    held: Vec<(usize, TxSource, u64)>,
}

impl Holding {
    fn settle(&mut self, mut lost: u64) {
        for (account, source, packets) in self.held.drain(..) {
            let now = lost.min(packets);
            lost -= now;
            self.accounts[account].lost(source, now);
            self.accounts[account].sent(source, packets - now, 8 * (packets - now));
        }
    }

    fn packets(&self) -> u64 {
        self.held.iter().map(|(.., packets)| packets).sum()
    }
}

struct Later {
    shared: Arc<Mutex<Holding>>,
    nth: usize,
    room: u64,
}

impl TxQueue for Later {
    fn capabilities(&self) -> TxCapabilities {
        TxCapabilities::default().defers()
    }

    fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
        let mut shared = self.shared.lock().unwrap();
        self.nth = shared.accounts.len();
        shared.accounts.extend(resources.account);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.shared.lock().unwrap().packets() < self.room
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while packets.next_packet().is_some() {
            sent.deferred += 1;
        }
        self.shared.lock().unwrap().held.push((self.nth, packets.source(), sent.deferred));
        Ok(sent)
    }
}

fn two_cpus(queues: &[u64], room: u64) -> (Builder, Arc<Mutex<Holding>>) {
    let shared = Arc::new(Mutex::new(Holding::default()));
    let to = Arc::clone(&shared);
    let open = move |_| Ok(Box::new(Later { shared: Arc::clone(&to), nth: 0, room }) as Box<dyn TxQueue>);
    let output = Output::new("later", "test", open);
    let queues = queues.iter().map(|frames| Box::new(Frames(*frames)) as Box<dyn RxQueue>).collect();
    (Builder::new().virtual_cpus(2).input(Input::new("frames", "test", queues)).output(output), shared)
}

fn over(queues: [u64; 2], room: u64) -> (steerage::Running<()>, Arc<Mutex<Holding>>) {
    let (builder, shared) = two_cpus(&queues, room);
    (builder.build(|_| SendAll).unwrap().start().unwrap(), shared)
}

fn assert_balanced(ledger: &Snapshot) {
    for queue in &ledger.queues {
        assert_eq!(queue.received, queue.verdicts.total() + queue.dropped.total() + queue.in_flight, "{queue:?}");
    }
    assert_eq!(ledger.verdicts().transmitted, ledger.outputs[0].packets);
    assert_eq!(ledger.dropped().total(), ledger.cpus.iter().map(|cpu| cpu.dropped.total()).sum::<u64>());
}

fn wait_until(handle: &Handle, mut reached: impl FnMut(&Snapshot) -> bool) -> Snapshot {
    let start = Instant::now();
    loop {
        let now = handle.snapshot();
        if reached(&now) {
            return now;
        }
        assert!(start.elapsed() < HANG, "{now:?}");
        std::thread::yield_now();
    }
}

#[test]
fn what_an_output_holds_is_in_flight_until_it_is_settled() {
    let (running, shared) = over([300, 700], u64::MAX);
    let handle = running.handle();
    let held = wait_until(&handle, |now| handle.is_finished() && now.outputs[0].held == 1000);
    assert_balanced(&held);
    assert_eq!([held.queues[0].in_flight, held.queues[1].in_flight], [300, 700]);
    assert_eq!((handle.held(), held.delivered(), held.outputs[0].packets), (1000, 0, 0));
    shared.lock().unwrap().settle(10);
    let ledger = running.join().snapshot;
    assert_balanced(&ledger);
    assert_eq!((ledger.in_flight(), ledger.outputs[0].held, ledger.outputs[0].bytes), (0, 0, 990 * 8));
    assert_eq!([&ledger.dropped(), &ledger.outputs[0].dropped].map(|drops| drops.get(DropReason::TxLost)), [10, 10]);
}

#[derive(Clone, Debug, Default)]
struct Adds(Arc<AtomicU64>);

impl Policy for Adds {
    fn name(&self) -> &'static str {
        "adds"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        Plan { order: group.order.to_vec(), active: group.owners }
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        self.0.fetch_add(load.cpus.iter().map(|cpu| cpu.packets).sum(), Ordering::Relaxed);
        None
    }
}

#[test]
fn packets_that_an_output_holds_are_load() {
    let (builder, shared) = two_cpus(&[1_000_000], u64::MAX);
    let adds = Adds::default();
    let (parts, handle) = builder.policy(adds.clone()).build(|_| SendAll).unwrap().split();
    let mut cpus: Vec<_> = parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
    handle.control(Timestamp::ZERO);
    (0..10).for_each(|_| cpus.iter_mut().for_each(|cpu| _ = cpu.step()));
    handle.control(Timestamp::ZERO + REFINE_EVERY);
    let held = handle.snapshot().outputs[0].held;
    assert!(held > 0);
    assert_eq!(adds.0.load(Ordering::Relaxed), held);
    shared.lock().unwrap().settle(0);
}

#[test]
fn what_is_never_settled_is_lost_at_the_end() {
    let (running, shared) = over([300, 700], u64::MAX);
    let handle = running.handle();
    wait_until(&handle, |now| handle.is_finished() && now.outputs[0].held == 1000);
    handle.stop();
    let ledger = running.join().snapshot;
    assert_balanced(&ledger);
    assert_eq!((ledger.in_flight(), ledger.dropped().get(DropReason::TxLost)), (0, 1000));
    assert_eq!([ledger.queues[0].dropped.total(), ledger.queues[1].dropped.total()], [300, 700]);
    assert!(ledger.outputs[0].error.as_ref().is_some_and(|error| error.contains("later")), "it is named");
    let mut shared = shared.lock().unwrap();
    assert!(shared.accounts.iter().all(TxAccount::is_over));
    shared.settle(0);
    assert_eq!(handle.snapshot().delivered(), 0);
}

#[test]
fn a_source_that_can_wait_waits_for_room() {
    let (running, shared) = over([50_000, 50_000], 100);
    let handle = running.handle();
    let start = Instant::now();
    while !handle.is_finished() {
        let held = shared.lock().unwrap().packets();
        assert!(held < 100 + 2 * 64, "{held}");
        shared.lock().unwrap().settle(0);
        assert!(start.elapsed() < HANG, "{:?}", handle.snapshot());
        std::thread::yield_now();
    }
    shared.lock().unwrap().settle(0);
    let ledger = running.join().snapshot;
    assert_eq!((ledger.delivered(), ledger.dropped().total()), (100_000, 0));
}

#[test]
fn a_function_that_has_not_returned_shows_how_long() {
    struct Stuck(Arc<Mutex<()>>);
    impl Handler for Stuck {
        type Moved = ();
        type Report = ();
        fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {
            drop(self.0.lock());
        }
        fn finish(self, _cpu: &mut Cpu) {}
    }
    let shut = Arc::new(Mutex::new(()));
    let closed = shut.lock().unwrap();
    let input = Input::new("frames", "test", vec![Box::new(Frames(64))]);
    let theirs = Arc::clone(&shut);
    let built = Builder::new().virtual_cpus(2).input(input).build(move |_| Stuck(Arc::clone(&theirs)));
    let running = built.unwrap().start().unwrap();
    let handle = running.handle();
    let stuck = wait_until(&handle, |now| {
        now.cpus.iter().any(|cpu| cpu.in_handler.is_some_and(|since| since >= Duration::from_secs(1)))
    });
    assert_eq!(stuck.cpus.iter().filter(|cpu| cpu.in_handler.is_some()).count(), 1);
    assert_eq!((stuck.delivered(), stuck.in_flight()), (0, 64));
    drop(closed);
    let ledger = running.join().snapshot;
    assert_eq!(ledger.delivered(), 64);
    assert!(ledger.cpus.iter().all(|cpu| cpu.in_handler.is_none()));
}
