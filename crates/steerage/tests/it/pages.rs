use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, DeviceError, Handler, Input,
    device::{Capabilities, Completions, Filled, Gather, Opened, Page, Polled, Region, RxQueue},
    limits::{HEADROOM, POLL_BUDGET},
    packet::Kept,
    stats::DropReason,
    topology::NodeMap,
};
use steerage_fixtures::{assert_at_rest, quiet_panics};

use steerage_fixtures::manual_clock::ManualClock;

const FRAMES: usize = 100_000;
const QUEUES: usize = 4;

struct Frames(usize);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.0 -= out.fill(budget.min(self.0), |_| Some(Filled::whole(60)));
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }
}

#[derive(Default)]
struct Holds {
    for_ever: Vec<(usize, Kept)>,
    for_a_while: Option<Kept>,
}

impl Handler for Holds {
    type Moved = ();
    type Report = usize;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let queue = batch.queue();
        let Some(packet) = batch.iter_mut().next() else { return };
        let Ok(kept) = packet.keep() else { panic!("so few may be kept") };
        if self.for_ever.iter().any(|(of, _)| *of == queue) {
            self.for_a_while = Some(kept);
        } else {
            self.for_ever.push((queue, kept));
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> usize {
        self.for_ever.len()
    }
}

/// The kernel's ENA driver searches its page cache in order, so a page in use blocks the search.
/// steerage's local page cache needs no search.
#[test]
fn a_page_held_for_ever_does_not_stop_the_cache() {
    let queues = (0..QUEUES).map(|_| Box::new(Frames(FRAMES)) as Box<dyn RxQueue>).collect();
    let outcome = Builder::new()
        .virtual_cpus(2)
        .input(Input::new("frames", "test", queues))
        .build(|_| Holds::default())
        .unwrap()
        .start()
        .unwrap()
        .join();
    assert!(outcome.reports.iter().map(|(_, held)| held).sum::<usize>() >= QUEUES);
    for queue in &outcome.snapshot.queues {
        let (hits, misses) = (queue.pool.alloc_fast, queue.pool.alloc_slow);
        assert!(hits * 100 >= (hits + misses) * 95 && hits > 0, "{hits} pages from the local cache, {misses} others");
        assert_eq!(queue.pool.alloc_empty, 0);
    }
    assert_at_rest(&outcome.snapshot);
}

#[derive(Default)]
struct Greedy(Vec<Page>);

impl RxQueue for Greedy {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).posted(1)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        while let Some(page) = out.take_page() {
            self.0.push(page);
        }
        for len in [60, 8, 60] {
            let page = self.0.pop().unwrap();
            let number = page.number();
            let posted = out.rx_finish(page, HEADROOM, Filled::whole(len));
            assert_eq!(posted.number(), number, "there was no other");
            self.0.push(posted);
        }
        // The device gets an empty page in exchange for a filled page only once, because only one
        // page is free.
        out.give_page(self.0.pop().unwrap());
        let page = self.0.pop().unwrap();
        let number = page.number();
        let posted = out.rx_finish(page, HEADROOM, Filled::whole(60));
        assert_ne!(posted.number(), number);
        self.0.push(posted);
        self.0.drain(..).for_each(|page| out.give_page(page));
        Ok(Polled::Ended)
    }
}

/// A device that receives each frame in two pages. `spare` has the number of free pages in the pool
/// while each frame arrives.
struct InParts {
    pages: Vec<Page>,
    begun: Gather,
    spare: Vec<usize>,
}

impl RxQueue for InParts {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).segments(2)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        while let Some(page) = out.take_page() {
            self.pages.push(page);
        }
        for spare in std::mem::take(&mut self.spare) {
            self.pages.drain(..spare).for_each(|page| out.give_page(page));
            for _ in 0..2 {
                let page = self.pages.remove(0);
                let posted = out.rx_finish_part(&mut self.begun, page, HEADROOM, 50);
                self.pages.push(posted);
            }
            assert_eq!(out.push_gathered(&mut self.begun, None), spare == 2);
            while let Some(page) = out.take_page() {
                self.pages.push(page);
            }
        }
        let page = self.pages.remove(0);
        out.gather(&mut self.begun, page, HEADROOM, 50);
        self.pages.drain(..).for_each(|page| out.give_page(page));
        Ok(Polled::Ended)
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let mut pages = Vec::new();
        self.begun.close(region, &mut pages);
        assert!(pages.is_empty() && self.begun.is_empty());
        Ok(Opened::default())
    }

    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        self.begun.close(region, pages);
        assert_eq!(pages.len(), 1);
    }
}

#[test]
fn a_frame_of_several_buffers_comes_whole_or_drops() {
    let queue = InParts { pages: Vec::new(), begun: Gather::default(), spare: vec![2, 1, 0, 2] };
    let outcome = Builder::new()
        .virtual_cpus(1)
        .input(Input::new("in parts", "test", vec![Box::new(queue)]))
        .build(|_| Holds::default())
        .unwrap()
        .start()
        .unwrap()
        .join();
    let ledger = outcome.snapshot;
    assert_eq!((ledger.received(), ledger.delivered(), ledger.received_bytes()), (4, 2, 400));
    assert_eq!(ledger.dropped().get(DropReason::NoPage), 2);
    assert_at_rest(&ledger);
}

#[test]
fn a_frame_that_no_page_is_given_for_drops_and_its_page_stays_posted() {
    for copybreak in [0, 8] {
        let outcome = Builder::new()
            .virtual_cpus(1)
            .copybreak(copybreak)
            .input(Input::new("greedy", "test", vec![Box::<Greedy>::default()]))
            .build(|_| Holds::default())
            .unwrap()
            .start()
            .unwrap()
            .join();
        let ledger = outcome.snapshot;
        assert_eq!((ledger.received(), ledger.delivered()), (4, 1));
        assert_eq!(ledger.dropped().get(DropReason::NoPage), 3);
        assert_at_rest(&ledger);
    }
}

/// A device whose poll number `fails_at` fails, after the device has filled some pages and returned
/// others.
struct Fails {
    posted: Vec<Page>,
    polls: usize,
    fails_at: usize,
}

impl Fails {
    const POSTED: usize = 256;
}

impl RxQueue for Fails {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).posted(Self::POSTED).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.polls += 1;
        while self.posted.len() < Self::POSTED {
            self.posted.push(out.take_page().unwrap());
        }
        let fails = self.polls == self.fails_at;
        for _ in 0..budget / if fails { 2 } else { 1 } {
            let page = self.posted.remove(0);
            self.posted.push(out.rx_finish(page, HEADROOM, Filled::whole(60)));
        }
        if fails {
            return Err(DeviceError::new("fails", "go on", io::Error::other("planted")));
        }
        Ok(Polled::More)
    }

    fn close(&mut self, _: &Region, pages: &mut Vec<Page>) {
        pages.append(&mut self.posted);
    }
}

#[derive(Default)]
struct Panics {
    kept: Vec<Kept>,
    batches: usize,
}

impl Handler for Panics {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        self.batches += 1;
        for packet in batch.iter_mut() {
            let Ok(kept) = packet.keep() else { break };
            self.kept.push(kept);
            assert!(self.batches % 3 > 0 || self.kept.len() % 20 != 10, "planted: a panic with pages in hand");
        }
        if self.batches % 2 == 0 {
            self.kept.clear();
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn pages_are_home_after_panics_and_after_a_device_s_failure() {
    quiet_panics();
    for fails_at in [1, 2, 3, 50] {
        let queue = |_| Box::new(Fails { posted: Vec::new(), polls: 0, fails_at }) as Box<dyn RxQueue>;
        let outcome = Builder::new()
            .virtual_cpus(2)
            .input(Input::new("fails", "test", (0..2).map(queue).collect()))
            .build(|_| Panics::default())
            .unwrap()
            .start()
            .unwrap()
            .join();
        let ledger = outcome.snapshot;
        let of_each = (fails_at - 1) * POLL_BUDGET + POLL_BUDGET / 2;
        for queue in &ledger.queues {
            assert!(queue.error.as_ref().is_some_and(|error| error.message.contains("planted")), "{:?}", queue.error);
            assert_eq!(queue.received, of_each as u64);
        }
        let panics: u64 = ledger.cpus.iter().map(|cpu| cpu.panics).sum();
        assert!(panics > 0 || fails_at < 50, "nobody ever panicked: this tests little");
        assert_at_rest(&ledger);
    }
}

/// A device that, if `greedy` is true, first takes all pages and returns them.
struct Notes {
    region: Option<Arc<Region>>,
    parts: Arc<Mutex<Vec<usize>>>,
    polls: usize,
    greedy: bool,
}

impl RxQueue for Notes {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).can_wait()
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        self.region = Some(Arc::clone(region));
        Ok(Opened::default())
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.polls += 1;
        let region = self.region.as_ref().unwrap();
        if self.greedy && self.polls == 1 {
            let all: Vec<Page> = std::iter::from_fn(|| out.take_page()).collect();
            all.into_iter().for_each(|page| out.give_page(page));
            return Ok(Polled::More);
        }
        for _ in 0..budget {
            let Some(page) = out.take_page() else { break };
            self.parts.lock().unwrap().push(region.part_of(&page));
            out.push(steerage::device::Completion::new(page, HEADROOM, 60), 60);
        }
        Ok(if self.polls == 100 { Polled::Ended } else { Polled::More })
    }
}

#[test]
fn pages_are_of_the_node_of_the_queue_s_cpu() {
    for greedy in [false, true] {
        let noted: Vec<Arc<Mutex<Vec<usize>>>> = (0..2).map(|_| Arc::default()).collect();
        let queues = if greedy { 1 } else { 2 };
        let queue = |parts: &Arc<_>| {
            Box::new(Notes { region: None, parts: Arc::clone(parts), polls: 0, greedy }) as Box<dyn RxQueue>
        };
        let node = |cpu| [CpuId(cpu)].into_iter().collect::<CpuMask>();
        let rx_cpus = [CpuId(1), CpuId(0)];
        let outcome = Builder::new()
            .virtual_cpus(2)
            .nodes(NodeMap::simulated([node(0), node(1)]))
            .input_on(Input::new("notes", "test", noted[..queues].iter().map(queue).collect()), &rx_cpus, None)
            .build(|_| Holds::default())
            .unwrap()
            .start()
            .unwrap()
            .join();
        for (nth, own) in [1, 0].into_iter().enumerate().take(queues) {
            let parts = noted[nth].lock().unwrap();
            assert!(
                parts.len() > 1000 && parts.iter().all(|part| *part == own),
                "queue {nth} had pages of another node"
            );
            let foreign = outcome.snapshot.queues[nth].pool.lpc_wrong_numa;
            assert_eq!(foreign > 0, greedy, "{foreign} pages of another node came home");
        }
        assert_at_rest(&outcome.snapshot);
    }
}

struct Endless;

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        assert_eq!(out.fill(budget, |_| Some(Filled::whole(60))), budget, "a queue found no page");
        Ok(Polled::More)
    }
}

// The test and its handlers share this data, because the handler of a CPU runs on the thread of its
// CPU, here the test's thread.
thread_local! {
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

struct KeepsAll;

impl Handler for KeepsAll {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        KEPT.with_borrow_mut(|all| all.extend(batch.iter_mut().map_while(|packet| packet.keep().ok())));
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// In this test, all backlogs are full, and handlers keep as many packets as they may.
#[test]
fn with_every_worker_stalled_no_queue_lacks_a_page() {
    const BACKLOG: usize = 200;
    const KEPT_MAX: usize = 150;
    const QUEUES: usize = 3;
    const CAP: usize = 13 << 20;
    let queues = (0..QUEUES).map(|_| Box::new(Endless) as Box<dyn RxQueue>).collect();
    let (parts, handle) = Builder::new()
        .virtual_cpus(2)
        .rps_cpus([CpuId(1)].into_iter().collect())
        .backlog(BACKLOG)
        .kept_max(KEPT_MAX)
        .memory_max(CAP)
        .lpc_pages(steerage::limits::LPC_PAGES_MAX)
        .input_on(Input::new("endless", "test", queues), &[CpuId(0)], None)
        .build(|_| KeepsAll)
        .unwrap()
        .split();
    let clock = ManualClock::default();
    let [mut receiver, mut worker] =
        <[_; 2]>::try_from(parts.into_iter().map(|part| part.enter(clock.clone())).collect::<Vec<_>>()).unwrap();
    for keeps in [false, true] {
        if keeps {
            while KEPT.with_borrow(Vec::len) < QUEUES * KEPT_MAX {
                worker.step();
                receiver.step();
            }
        }
        for _ in 0..200 {
            receiver.step();
            clock.advance(Duration::from_micros(10));
        }
        let ledger = handle.snapshot();
        assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total() + ledger.in_flight());
        assert_eq!((ledger.in_flight(), handle.held()), (BACKLOG as u64, BACKLOG as u64), "over all queues");
        assert_eq!(ledger.dropped().total(), ledger.dropped().get(DropReason::BacklogFull));
        assert!(ledger.dropped().total() > 0 && ledger.memory_bytes <= CAP as u64);
        for queue in &ledger.queues {
            assert_eq!((queue.pool.alloc_empty, queue.pool.kept), (0, if keeps { KEPT_MAX as u64 } else { 0 }));
        }
    }
    handle.stop();
    while !handle.is_finished() {
        KEPT.take();
        worker.step();
        receiver.step();
    }
    KEPT.take();
    assert_at_rest(&handle.snapshot());
}
