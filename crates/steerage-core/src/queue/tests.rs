use steerage_flow::dissect::Layers;
use steerage_flow::{Affinity, FlowHasher, HashKey};
use steerage_mem::ring::{Consumer, RingOptions, parking_lot, ring};
use steerage_mem::{Admission, Inbox, KeptPages, Memory, Page, Region, SharedPool};

use super::hash::QueueHasher;
use super::*;
use crate::backlog::{Backlog, Backlogs, Source};
use crate::ids::InputId;
use crate::page_cache::PagePool;

struct Silent;

impl RxQueue for Silent {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(60)
    }

    fn poll(&mut self, _: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        Ok(Polled::Drained)
    }
}

/// The CPU that polls the queue. The test code takes the role of the two other CPUs.
const OWNER: usize = 2;

struct Three {
    queue: OwnedQueue,
    consumers: Vec<Consumer>,
    pages: Vec<Page>,
    kept_pages: Arc<KeptPages>,
}

fn hasher() -> QueueHasher {
    QueueHasher::by_flow(FlowHasher::keyed(&HashKey::MICROSOFT), Affinity::BothDirections, Layers::default())
}

impl Three {
    fn new(id: usize, admissions: Option<Arc<[Admission]>>) -> Self {
        let (region, mut pages) = Region::map(2 * POLL_BUDGET + 1, 256).unwrap();
        let options = RingOptions { slots: POLL_BUDGET, slots_max: POLL_BUDGET, limit: POLL_BUDGET, arrivals: false };
        let memory = Memory::new(Arc::clone(&region), None);
        let (by_cpu, consumers): (Vec<_>, Vec<_>) = (0..3).map(|_| ring(options, memory.clone())).unzip();
        let ledgers = by_cpu.iter().map(|ring| Arc::new(RingLedger::of(ring.gauge()))).collect();
        let shared = SharedPool::by_node(&region, vec![pages.pop().unwrap()]).remove(0);
        let kept_pages = KeptPages::new(memory.clone(), 0);
        let pool = PagePool::new(region, shared, Arc::clone(&kept_pages), 4 * POLL_BUDGET);
        let outbox = Outbox::new(by_cpu, parking_lot(options), (OWNER, POLL_BUDGET, memory.clone()), admissions, None);
        let (pages_of_queue, hashing) =
            (QueuePages { pool, blocks: None, memory }, Hashing::new(hasher(), false, false));
        let ledgers = (Arc::new(QueueLedger::new(BUCKETS)), ledgers);
        let queue = OwnedQueue::new(id, Box::new(Silent), pages_of_queue, hashing, outbox, ledgers);
        Self { queue, consumers, pages, kept_pages }
    }

    fn stage(&mut self, cpu: usize, frames: usize) {
        let at = self.pages.len() - frames;
        self.queue.outbox.touch_one(cpu);
        for page in self.pages.split_off(at) {
            self.queue.stage(cpu, Completion::new(page, 0, 60), 0);
        }
    }

    fn publish(&mut self, polled: usize) -> Vec<CpuIndex> {
        let mut published = Vec::new();
        self.queue.frames_polled = polled;
        self.queue.publish(&mut published);
        published.into_iter().map(|(cpu, _)| cpu).collect()
    }

    fn handle(&mut self, cpu: usize, admissions: &[Admission]) -> usize {
        let count = self.consumers[cpu].take(POLL_BUDGET);
        self.consumers[cpu].finish();
        admissions[cpu].finish(count as u64);
        count
    }
}

#[test]
fn frames_are_published_only_for_cpus_that_get_some() {
    let mut three = Three::new(0, None);
    assert_eq!(three.publish(POLL_BUDGET), []);
    three.stage(1, 1);
    assert_eq!(three.publish(POLL_BUDGET), [], "another CPU's share waits while polls are full");
    assert_eq!(three.publish(POLL_BUDGET - 1), [1]);
    assert_eq!(three.publish(0), []);
    assert_eq!(three.consumers[1].waiting(), 1);
}

#[test]
fn frames_for_the_owner_are_published_to_nobody() {
    let mut three = Three::new(0, None);
    assert!(three.queue.outbox.has_owner_finished());
    three.stage(OWNER, 1);
    assert_eq!(three.publish(0), []);
    assert_eq!((three.queue.outbox.staying(), three.consumers[OWNER].waiting()), (1, 0));
    assert!(!three.queue.outbox.has_owner_finished());
    assert_eq!(three.queue.take(POLL_BUDGET).len(), 1);
    assert!(!three.queue.outbox.has_owner_finished(), "the handler has the frame");
    three.queue.finish();
    assert!(three.queue.outbox.has_owner_finished() && three.queue.outbox.is_empty());
    assert_eq!(three.queue.pages.pool.cached(), 1);
}

#[test]
fn only_a_cpu_without_room_for_a_poll_is_asked_to_wake_the_owner() {
    const WEIGHT: usize = POLL_BUDGET / 2;
    let mut three = Three::new(0, None);
    three.stage(0, POLL_BUDGET - WEIGHT);
    three.stage(1, POLL_BUDGET - WEIGHT + 1);
    three.publish(0);
    three.queue.limits.weight = WEIGHT;
    three.queue.wake_when_there_is_room();
    let asked: Vec<bool> = three
        .consumers
        .iter_mut()
        .map(|consumer| {
            consumer.take(POLL_BUDGET);
            consumer.finish();
            consumer.producer_waits()
        })
        .collect();
    assert_eq!(asked, [false, true, false]);
}

/// As in Linux, the backlog belongs to a CPU and not to a queue.
#[test]
fn queues_share_the_backlog_of_a_cpu() {
    let admissions: Arc<[Admission]> = (0..2).map(|_| Admission::default()).collect();
    let [mut one, mut other] = [0, 1].map(|queue| Three::new(queue, Some(Arc::clone(&admissions))));
    let dropped = |three: &Three| three.queue.ledger.dropped.read().get(DropReason::BacklogFull);
    one.stage(1, 40);
    assert_eq!(one.publish(0), [1]);
    other.stage(1, 40);
    other.stage(0, 20);
    assert_eq!(other.publish(0), [0, 1], "the other CPU has room");
    assert_eq!((dropped(&one), dropped(&other)), (0, 16));
    assert_eq!(other.queue.ring_ledgers[1].by_producer.backlog_full.get(), 16);
    assert_eq!(other.queue.pages.pool.cached(), 16, "what was dropped is home");
    assert!(
        one.queue.outbox.is_half_full(1) && other.queue.outbox.is_half_full(1) && !one.queue.outbox.is_half_full(0)
    );
    one.stage(1, 4);
    assert_eq!(one.publish(0), []);
    assert_eq!(one.queue.room_everywhere(), 0);
    assert_eq!((one.handle(1, &admissions), other.handle(1, &admissions)), (40, 24));
    other.stage(1, 20);
    one.stage(1, 20);
    assert_eq!((one.publish(0), other.publish(0)), (vec![1], vec![1]));
    assert_eq!((dropped(&one), dropped(&other)), (4, 16));
}

#[test]
fn only_rings_in_use_are_looked_at() {
    let admissions: Arc<[Admission]> = (0..2).map(|_| Admission::default()).collect();
    let mut three = Three::new(0, Some(Arc::clone(&admissions)));
    assert!(three.queue.outbox.is_empty() && !three.queue.outbox.keeps_pages_from_others());
    three.stage(1, 3);
    assert!(!three.queue.outbox.is_empty());
    three.publish(0);
    three.handle(1, &admissions);
    assert!(three.queue.outbox.keeps_pages_from_others());
    three.queue.reclaim_all();
    assert!(three.queue.outbox.is_empty() && !three.queue.outbox.keeps_pages_from_others());
    assert_eq!(three.queue.pages.pool.cached(), 3);
}

fn backlog(three: &mut Three, is_admitted: bool) -> Backlog {
    Backlog {
        source: Source {
            input: InputId(0),
            queue: three.queue.id,
            sends: None,
            kept_pages: Arc::clone(&three.kept_pages),
            hasher: hasher(),
            copies: false,
            coalesces: false,
            order: None,
            ledger: Arc::clone(&three.queue.ring_ledgers[0]),
        },
        consumer: three.consumers.remove(0),
        can_wait: false,
        is_admitted,
        idle_looks: 0,
    }
}

/// A CPU checks its rings only if its counter of waiting frames is not 0.
#[test]
fn the_rings_of_many_queues_are_checked_less() {
    let admissions: Arc<[Admission]> = (0..2).map(|_| Admission::default()).collect();
    let inbox = |cpu| Inbox::new(64, Some((Arc::clone(&admissions), cpu)));
    let inboxes: Arc<[Inbox]> = (0..2).map(inbox).collect();
    let looks_max = inboxes[0].looks_max();
    let mut threes: Vec<Three> = (0..64).map(|queue| Three::new(queue, Some(Arc::clone(&admissions)))).collect();
    let rings = threes.iter_mut().map(|three| backlog(three, true)).collect();
    let mut backlogs = Backlogs::new(rings, 0, Arc::clone(&inboxes), || 0);
    let is_noted = |ring| inboxes[0].next(&mut inboxes[0].begin(ring)) == Some(ring);
    let mut check = |rounds| {
        (0..rounds).for_each(|_| {
            backlogs.begin();
            assert_eq!(backlogs.next_to_serve(false), None);
        });
        backlogs.waiting().count()
    };
    inboxes[0].note(7);
    check(2 * looks_max);
    admissions[0].admit(1, 10);
    assert!(is_noted(7), "the ring was checked although no frame waited");
    check(looks_max - 1);
    assert!(is_noted(7));
    check(1);
    assert!(!is_noted(7));
    admissions[0].finish(1);
    threes[9].stage(0, 1);
    threes[9].publish(0);
    assert_eq!(check(1), 0, "a ring was read whose bit is not set");
    inboxes[0].note(9);
    assert_eq!(backlogs.waiting().count(), 1);
    backlogs.begin();
    assert_eq!(backlogs.next_to_serve(false), Some(9));
}

#[test]
fn a_ring_is_forgotten_after_many_empty_looks() {
    let mut three = Three::new(0, None);
    let inboxes: Arc<[Inbox]> = (0..2).map(|_| Inbox::new(1, None)).collect();
    let looks_max = inboxes[0].looks_max();
    assert!(looks_max > 10 * Inbox::new(256, None).looks_max());
    let backlog = backlog(&mut three, false);
    let mut backlogs = Backlogs::new(vec![backlog], 0, Arc::clone(&inboxes), || 0);
    let next = |backlogs: &mut Backlogs| {
        backlogs.begin();
        backlogs.next_to_serve(false)
    };
    let is_noted = || inboxes[0].next(&mut inboxes[0].begin(0)).is_some();
    inboxes[0].note(0);
    for _ in 1..looks_max {
        assert_eq!(next(&mut backlogs), None);
        assert!(is_noted(), "it was forgotten too early");
    }
    three.stage(0, 1);
    three.publish(0);
    assert_eq!(next(&mut backlogs), Some(0));
    let ring = &mut backlogs.at(0).consumer;
    ring.take(1);
    ring.finish();
    for _ in 1..looks_max {
        assert_eq!((next(&mut backlogs), is_noted()), (None, true));
    }
    assert_eq!((next(&mut backlogs), is_noted()), (None, false));
}
