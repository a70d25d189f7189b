mod faults;

use std::sync::Arc;

use proptest::prelude::*;
use steerage_mem::ring::{RingOptions, ring};
use steerage_mem::{Completion, Kept, KeptPages, Memory, Page, Part, Region};

use super::PagePool;
use crate::limits::{HEADROOM, POOL_BULK};
use steerage_mem::SharedPool;

const PAGE_BYTES: usize = 256;

struct Two {
    region: Arc<Region>,
    shared: Vec<Arc<SharedPool>>,
    kept_pages: Vec<Arc<KeptPages>>,
    pools: Vec<PagePool>,
    pages: usize,
}

impl Two {
    fn new(parts: &[Part], cache_max: usize) -> Self {
        let (region, pages) = Region::map_parts(parts, PAGE_BYTES).unwrap();
        let count = pages.len();
        let shared = SharedPool::by_node(&region, pages);
        let memory = Memory::new(Arc::clone(&region), None);
        let kept_pages: Vec<_> = (0..2).map(|_| KeptPages::new(memory.clone(), count)).collect();
        let pool = |(nth, kept): (usize, &Arc<KeptPages>)| {
            PagePool::new(Arc::clone(&region), Arc::clone(&shared[nth % shared.len()]), Arc::clone(kept), cache_max)
        };
        let pools = kept_pages.iter().enumerate().map(pool).collect();
        Self { region, shared, kept_pages, pools, pages: count }
    }

    fn end(mut self) {
        self.pools.iter_mut().for_each(PagePool::close);
        assert_eq!(self.shared[0].free(), self.pages, "pages are missing");
        let mut all = Vec::new();
        assert_eq!(self.shared[0].take_out(&mut all, usize::MAX), self.pages);
        all.sort_by_key(Page::number);
        all.dedup();
        assert_eq!(all.len(), self.pages, "a page is there twice");
    }
}

fn parts(pages: &[usize]) -> Vec<Part> {
    pages.iter().map(|pages| Part { pages: *pages, node: None }).collect()
}

#[test]
fn pages_of_another_node_are_replaced() {
    let mut two = Two::new(&parts(&[100, 100]), 1 << 20);
    let region = Arc::clone(&two.region);
    let node = |page: &Page| region.part_of(page);
    let pool = &mut two.pools[1];
    let all: Vec<Page> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(all.len(), two.pages, "of either node, if there is nothing else");
    assert_eq!(pool.counters.alloc_empty.get(), 1);
    let own = region.numbers(1).len();
    assert!(all[..own].iter().all(|page| node(page) == 1), "its own come first");
    let foreign = all.len() - own;
    all.into_iter().for_each(|page| pool.recycle(page));
    pool.recycled();
    let counts = &pool.counters;
    assert_eq!((counts.lpc_wrong_numa.get(), counts.recycle_cached.get()), (foreign as u64, own as u64));
    assert_eq!((pool.cached(), counts.recycle_cache_full.get()), (own, 0));
    assert_eq!(counts.lpc_warm_up.get(), counts.alloc_slow.get());

    let other = &mut two.pools[0];
    let theirs: Vec<Page> = (0..foreign).map_while(|_| other.take()).collect();
    assert!(theirs.len() == foreign && theirs.iter().all(|page| node(page) == 0));
    theirs.into_iter().for_each(|page| other.recycle(page));
    other.recycled();
    assert_eq!(other.counters.lpc_wrong_numa.get(), 0);
    two.end();
}

#[test]
fn what_is_taken_is_counted_by_why() {
    let mut two = Two::new(&parts(&[1000]), 100);
    let pool = &mut two.pools[0];
    let round = |pool: &mut PagePool, pages: usize| {
        let taken: Vec<Page> = (0..pages).map_while(|_| pool.take()).collect();
        assert_eq!(taken.len(), pages);
        taken.into_iter().for_each(|page| pool.recycle(page));
        pool.recycled();
        let counts = &pool.counters;
        [&counts.alloc_slow, &counts.lpc_warm_up, &counts.lpc_full, &counts.lpc_passed_by].map(|count| count.get())
    };
    let bulk = POOL_BULK as u64;
    assert_eq!(round(pool, 1), [bulk, bulk, 0, 0], "warming up");
    assert_eq!(round(pool, 1), [bulk, bulk, 0, 0], "a hit");
    assert_eq!(round(pool, 300), [5 * bulk, 5 * bulk, 0, 0], "more than it ever had");
    assert_eq!((pool.cached(), pool.counters.recycle_cache_full.get()), (100, 5 * bulk - 100));
    let [slow, warm_up, full, _] = round(pool, 300);
    assert_eq!((slow, slow - warm_up - full), (9 * bulk, 0));
    assert!((3 * bulk..=4 * bulk).contains(&full), "{full}");
    pool.set_cache_max(0);
    assert_eq!(round(pool, 100), [slow + 2 * bulk, warm_up, full, 2 * bulk], "the cache is off");
    assert_eq!(pool.cached(), 28);
    pool.set_cache_max(100);
    let [_, warmer, _, _] = round(pool, 100);
    assert_eq!(round(pool, 100), [slow + 4 * bulk, warmer, full, 2 * bulk]);
    assert_eq!(warmer, warm_up + 2 * bulk);
    two.end();
}

#[test]
fn a_page_counts_as_a_hit_once_the_shared_ones_have_been_taken() {
    let mut two = Two::new(&parts(&[1000]), 100);
    let pool = &mut two.pools[0];
    let hits = |pool: &mut PagePool, takes: usize| {
        for _ in 0..takes {
            let page = pool.take().unwrap();
            pool.recycle(page);
        }
        pool.recycled();
        pool.served()
    };
    assert_eq!(hits(pool, POOL_BULK), (0, POOL_BULK as u64));
    assert_eq!(hits(pool, 1), (1, POOL_BULK as u64));
    two.end();
}

/// Pages go to the shared pool so early that the list `spill` never grows.
#[test]
fn many_pages_that_come_home_at_once_allocate_nothing() {
    let mut two = Two::new(&parts(&[1000]), 0);
    let pool = &mut two.pools[0];
    let room = pool.spill.capacity();
    let pages: Vec<Page> = (0..10 * room + 1).map_while(|_| pool.take()).collect();
    let count = pages.len() as u64;
    pages.into_iter().for_each(|page| pool.recycle(page));
    pool.recycled();
    assert_eq!(pool.spill.capacity(), room);
    assert_eq!((pool.counters.recycle_cached.get(), pool.counters.recycle_cache_full.get()), (0, count));
    two.end();
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    TakeMany(usize, usize),
    Recycle(usize),
    CopyOut,
    Keep,
    LetGo,
    Resize(usize),
    Spare(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40_usize).prop_map(Step::Take),
        (0..POOL_BULK, 0..POOL_BULK).prop_map(|(most, wanted)| Step::TakeMany(most, wanted)),
        (0..80_usize).prop_map(Step::Recycle),
        Just(Step::CopyOut),
        Just(Step::Keep),
        Just(Step::LetGo),
        (0..100_usize).prop_map(Step::Resize),
        (0..80_usize).prop_map(Step::Spare),
    ]
}

#[derive(Default)]
struct InHand {
    pages: Vec<(usize, Page)>,
    kept: Vec<Kept>,
    spare: Vec<Page>,
}

fn take_step(two: &mut Two, hand: &mut InHand, of: usize, step: Step) {
    let pool = &mut two.pools[of];
    match step {
        Step::Take(count) => hand.pages.extend((0..count).map_while(|_| pool.take()).map(|page| (of, page))),
        Step::TakeMany(most, wanted) => {
            let mut taken: Vec<Page> = pool.take_many(most).1.collect();
            for page in taken.drain(wanted.min(taken.len())..).rev() {
                pool.put_back(page);
            }
            hand.pages.extend(taken.into_iter().map(|page| (of, page)));
        }
        Step::Recycle(count) => {
            // A page that was sent may return to another queue than the queue that took it from the
            // pool.
            let rest = hand.pages.len().saturating_sub(count);
            hand.pages.drain(rest..).for_each(|(_, page)| pool.recycle(page));
            pool.recycled();
        }
        Step::CopyOut => {
            if let Some((_, mut page)) = hand.pages.pop() {
                two.region.page_mut(&mut page)[HEADROOM..HEADROOM + 4].copy_from_slice(b"copy");
                let copy = pool.copy_out(HEADROOM, |region, to| {
                    to[..4].copy_from_slice(&region.page_mut(&mut page)[HEADROOM..][..4]);
                    Some(4)
                });
                hand.pages.push((of, page));
                if let Some(copy) = copy {
                    let mut copy = copy.into_page().unwrap();
                    assert_eq!(&two.region.page_mut(&mut copy)[HEADROOM..HEADROOM + 4], b"copy");
                    hand.pages.push((of, copy));
                }
            }
        }
        Step::Keep => {
            if let Some((_, page)) = hand.pages.pop() {
                hand.kept.push(two.kept_pages[of].keep_copy(page, 0, None, &[&[of as u8]]).unwrap());
            }
        }
        Step::LetGo => drop(hand.kept.pop()),
        Step::Resize(cache_max) => pool.set_cache_max(cache_max),
        Step::Spare(count) => {
            two.shared[0].give_back(&mut hand.spare);
            two.shared[of % two.shared.len()].take_or_collect(&mut hand.spare, count, &two.kept_pages[of]);
        }
    }
    for (_, page) in &mut hand.pages {
        two.region.page_mut(page)[0] = of as u8;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_page_is_lost_or_had_twice(
        nodes in 1..3_usize,
        cache_max in 0..200_usize,
        steps in prop::collection::vec((0..2_usize, step()), 1..100),
    ) {
        let mut two = Two::new(&parts(&[100, 150][..nodes]), cache_max);
        let mut hand = InHand::default();
        for (of, step) in steps {
            take_step(&mut two, &mut hand, of, step);
            let mut numbers: Vec<u32> = hand.pages.iter().map(|(_, page)| page.number()).collect();
            numbers.sort_unstable();
            prop_assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
        }
        drop(hand.kept);
        hand.pages.into_iter().for_each(|(of, page)| two.pools[of].recycle(page));
        two.shared[0].give_back(&mut hand.spare);
        for counts in two.pools.iter().map(|pool| &pool.counters) {
            let reasons = [&counts.lpc_warm_up, &counts.lpc_full, &counts.lpc_passed_by];
            prop_assert_eq!(counts.alloc_slow.get(), reasons.iter().map(|count| count.get()).sum::<u64>());
        }
        two.end();
    }
}

/// Tests a local page cache that is off, full, or has room for some of the frames. Some frames
/// belong to another NUMA node, and a handler keeps one frame.
#[test]
fn finished_frames_that_find_no_room_go_to_the_shared_pool() {
    for cache_max in [0, 10, POOL_BULK, 1000] {
        let mut two = Two::new(&parts(&[80, 80]), cache_max);
        let memory = Memory::new(Arc::clone(&two.region), None);
        let slots = two.pages.next_power_of_two();
        let options = RingOptions { slots, slots_max: slots, limit: slots, arrivals: false };
        let (mut producer, mut consumer) = ring(options, memory);
        let pool = &mut two.pools[0];
        let mut frames: Vec<_> = std::iter::from_fn(|| pool.take()).map(|page| Completion::new(page, 0, 60)).collect();
        assert_eq!(frames.len(), two.pages, "of both nodes");
        producer.stage_all(&mut frames, 0, |_| ());
        producer.publish();
        assert_eq!(consumer.take(slots), two.pages);
        let kept = consumer.frames().nth(70).unwrap().take().unwrap().into_page().unwrap();
        consumer.finish();
        producer.reclaim_many(|frames| pool.recycle_many(frames));
        pool.recycled();
        let counts = &pool.counters;
        let own = pool.own.len() - usize::from(pool.own.contains(&kept.number()));
        assert_eq!(pool.cached(), cache_max.min(own), "cache of {cache_max}");
        assert_eq!(counts.recycle_cached.get(), pool.cached() as u64);
        assert_eq!(counts.recycle_cache_full.get(), (own - pool.cached()) as u64);
        assert_eq!(counts.lpc_wrong_numa.get(), (two.pages - 1 - own) as u64);
        pool.recycle(kept);
        two.end();
    }
}
