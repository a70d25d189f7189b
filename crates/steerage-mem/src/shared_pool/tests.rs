use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::{Kept, Memory, Part};

/// A part of a region takes at least 2 MiB, so pages are long here to have only a few pages in a
/// part.
const PAGE_BYTES: usize = 16 << 10;
const BULK: usize = BULK_MAX;

fn by_node(parts: &[usize]) -> (Arc<Region>, Vec<Arc<SharedPool>>) {
    let parts: Vec<Part> = parts.iter().map(|pages| Part { pages: *pages, node: None }).collect();
    let (region, pages) = Region::map_parts(&parts, PAGE_BYTES).unwrap();
    let pools = SharedPool::by_node(&region, pages);
    (region, pools)
}

fn taken(pool: &SharedPool, most: usize) -> Vec<Page> {
    let mut to = Vec::new();
    assert_eq!(pool.take(&mut to, most), to.len());
    to
}

fn numbers(pages: &[Page]) -> Vec<u32> {
    pages.iter().map(Page::number).collect()
}

fn assert_whole(region: &Region, pool: &SharedPool) {
    assert_eq!(pool.free(), region.pages());
    let mut all = Vec::new();
    assert_eq!(pool.take_out(&mut all, usize::MAX), region.pages(), "pages are missing");
    assert_eq!(pool.free(), 0);
    let distinct: BTreeSet<u32> = all.iter().map(Page::number).collect();
    assert_eq!(distinct.len(), region.pages(), "a page is there twice");
    pool.give_back(&mut all);
}

#[test]
fn pages_begin_in_random_order() {
    let (region, pools) = by_node(&[500]);
    let first = numbers(&taken(&pools[0], BULK));
    let neighbours = first.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
    assert!(neighbours < 3, "{first:?}");
    let spread = first.iter().max().unwrap() - first.iter().min().unwrap();
    assert!(spread > region.pages() as u32 / 2, "{first:?}");
}

#[test]
fn pages_that_were_given_last_are_taken_first() {
    let (_, pools) = by_node(&[300]);
    for count in [1, 13, 14, 15, 28, 63, 64, 65, 200] {
        let mut pages = taken(&pools[0], count);
        let given = numbers(&pages);
        pools[0].give(&mut pages);
        assert_eq!(pages.len(), 0);
        let mut again = taken(&pools[0], count);
        let (given, back): (BTreeSet<u32>, BTreeSet<u32>) =
            (given.into_iter().collect(), numbers(&again).into_iter().collect());
        let others = back.difference(&given).count();
        assert!(others <= count.div_ceil(BULK), "{count}: {others} pages are not those given last");
        pools[0].give(&mut again);
    }
}

#[test]
fn pages_of_another_region_do_not_belong_to_the_pool() {
    let (region, pools) = by_node(&[10, 10]);
    let (_, mut foreign) = Region::map(100, PAGE_BYTES).unwrap();
    let mut pages = taken(&pools[1], 5);
    pages.splice(2..2, foreign.drain(..50));
    pools[0].give(&mut pages);
    pools[0].give_back(&mut foreign);
    assert_eq!((pages.len(), foreign.len()), (0, 0));
    assert_whole(&region, &pools[0]);
}

#[derive(Clone, Debug)]
enum Step {
    Take { node: usize, cpu: usize, most: usize },
    TakeOut { node: usize, cpu: usize, most: usize },
    Give { cpu: usize, count: usize, from: prop::sample::Index },
}

fn step() -> impl Strategy<Value = Step> {
    let most = || prop_oneof![0..20_usize, 0..400_usize];
    let cpu = || 0..2 * STACKS;
    prop_oneof![
        (0..3_usize, cpu(), most()).prop_map(|(node, cpu, most)| Step::Take { node, cpu, most }),
        (0..3_usize, cpu(), most()).prop_map(|(node, cpu, most)| Step::TakeOut { node, cpu, most }),
        (cpu(), most(), any::<prop::sample::Index>()).prop_map(|(cpu, count, from)| Step::Give { cpu, count, from }),
    ]
}

struct Model(Vec<BTreeSet<u32>>);

impl Model {
    fn take(&mut self, node: usize, most: usize, pages: &[Page]) {
        let nodes = self.0.len();
        let by_turns = (node..nodes).chain(0..node);
        let from = by_turns.into_iter().find(|node| !self.0[*node].is_empty()).unwrap_or(node);
        assert_eq!(pages.len(), most.min(self.0[from].len()));
        pages
            .iter()
            .for_each(|page| assert!(self.0[from].remove(&page.number()), "{page:?} is not free on node {from}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 200 }))]

    #[test]
    fn a_pool_is_a_set_per_node(nodes in 1..4_usize, steps in prop::collection::vec(step(), 1..60)) {
        let (region, pools) = by_node(&[100, 130, 90][..nodes]);
        let mut model = Model((0..nodes).map(|node| region.numbers(node).collect()).collect());
        let mut hand = Vec::new();
        for step in steps {
            match step {
                Step::Take { node, cpu, most } => {
                    let node = node % nodes;
                    let pages = taken(&pools[node].of_cpu(cpu), most);
                    model.take(node, most, &pages);
                    hand.extend(pages);
                }
                Step::TakeOut { node, cpu, most } => {
                    let free: usize = model.0.iter().map(BTreeSet::len).sum();
                    let before = hand.len();
                    prop_assert_eq!(pools[node % nodes].of_cpu(cpu).take_out(&mut hand, most), most.min(free));
                    for page in &hand[before..] {
                        prop_assert!(model.0[region.part_of(page)].remove(&page.number()), "{:?} is not free", page);
                    }
                }
                Step::Give { cpu, count, from } => {
                    let from = from.index(hand.len() + 1);
                    let mut pages: Vec<Page> = hand.drain(from..hand.len().min(from + count)).collect();
                    pages.iter().for_each(|page| assert!(model.0[region.part_of(page)].insert(page.number())));
                    pools[0].of_cpu(cpu).give(&mut pages);
                    prop_assert_eq!(pages.len(), 0);
                }
            }
            prop_assert_eq!(pools[0].free(), model.0.iter().map(BTreeSet::len).sum::<usize>());
        }
        pools[0].give(&mut hand);
        assert_whole(&region, &pools[0]);
    }
}

const THREADS: usize = 4;
const ROUNDS: usize = if cfg!(miri) { 10 } else { 5_000 };

fn on_threads(each: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for nth in 0..THREADS {
            let (barrier, each) = (&barrier, &each);
            scope.spawn(move || {
                barrier.wait();
                each(nth);
            });
        }
    });
}

#[test]
fn no_page_is_in_two_hands() {
    let (region, pools) = by_node(&[100, 60]);
    let first = region.numbers(0).start;
    let held: Vec<AtomicBool> = (0..region.pages()).map(|_| AtomicBool::new(false)).collect();
    let mark = |pages: &[Page], now: bool| {
        for page in pages {
            let was = held[(page.number() - first) as usize].swap(now, Ordering::Relaxed);
            assert_ne!(was, now, "{page:?} is in two hands");
        }
    };
    on_threads(|nth| {
        let mut random = fastrand::Rng::with_seed(nth as u64);
        let (mut hand, pool) = (Vec::new(), pools[nth % pools.len()].of_cpu(nth));
        for _ in 0..ROUNDS {
            let before = hand.len();
            let count = pool.take(&mut hand, random.usize(..80));
            assert_eq!(hand.len(), before + count);
            mark(&hand[before..], true);
            assert!(pool.free() <= region.pages() + 2 * BULK, "{}", pool.free());
            let rest = random.usize(..=hand.len());
            let mut pages = hand.split_off(rest);
            mark(&pages, false);
            pool.give(&mut pages);
        }
        mark(&hand, false);
        pool.give(&mut hand);
    });
    assert_whole(&region, &pools[0]);
}

/// The pool has 64 pages (one bulk) for each thread, so a thread without pages always finds 64
/// pages.
#[test]
fn contention_hides_no_page() {
    let (region, pages) = Region::map(THREADS * BULK, PAGE_BYTES).unwrap();
    let pool = &SharedPool::by_node(&region, pages)[0];
    on_threads(|nth| {
        let mut random = fastrand::Rng::with_seed(nth as u64);
        let mut hand = Vec::with_capacity(BULK);
        for round in 0..ROUNDS {
            let most = 1 + random.usize(..BULK);
            assert_eq!(pool.take(&mut hand, most), most, "round {round}");
            let mut some = hand.split_off(random.usize(..most));
            pool.give(&mut some);
            pool.give(&mut hand);
        }
    });
    assert_whole(&region, pool);
}

/// Like `contention_hides_no_page`, but with a stack for each thread.
#[test]
fn pages_that_change_between_stacks_are_found() {
    let (region, pages) = Region::map(THREADS, PAGE_BYTES).unwrap();
    let pool = &SharedPool::by_node(&region, pages)[0];
    on_threads(|nth| {
        let mut hand = Vec::with_capacity(1);
        for round in 0..ROUNDS {
            assert_eq!(pool.of_cpu(nth).take(&mut hand, 1), 1, "round {round}");
            pool.of_cpu(nth + round).give(&mut hand);
        }
    });
    assert_whole(&region, pool);
}

#[test]
fn a_cpu_gets_the_pages_of_all_stacks_of_its_node() {
    let (region, pools) = by_node(&[100, 100]);
    let mut all = Vec::new();
    pools[0].take_out(&mut all, usize::MAX);
    for (nth, page) in all.drain(..).enumerate() {
        pools[1].of_cpu(nth).give_back(&mut vec![page]);
    }
    let own = region.numbers(0);
    let pages = taken(&pools[0].of_cpu(3), region.pages());
    assert_eq!(pages.len(), own.len());
    assert!(pages.iter().all(|page| own.contains(&page.number())));
}

fn keep_all(kept_pages: &Arc<KeptPages>, pages: Vec<Page>) -> Vec<Kept> {
    pages.into_iter().map(|page| kept_pages.keep_copy(page, 0, None, &[b"x"]).unwrap()).collect()
}

#[test]
fn contention_hides_no_kept_page() {
    let (region, pages) = Region::map(THREADS * BULK, 64).unwrap();
    let pool = &SharedPool::by_node(&region, pages)[0];
    let kept_pages = &KeptPages::new(Memory::new(Arc::clone(&region), None), region.pages());
    let mut all = Vec::new();
    pool.take_out(&mut all, usize::MAX);
    drop(keep_all(kept_pages, all));
    on_threads(|nth| {
        let mut random = fastrand::Rng::with_seed(nth as u64);
        let mut hand = Vec::with_capacity(BULK);
        for round in 0..ROUNDS / 5 {
            pool.take_or_collect(&mut hand, BULK, kept_pages);
            assert!((1..=BULK).contains(&hand.len()), "round {round}: {}", hand.len());
            let mut some = hand.split_off(random.usize(..=hand.len()));
            drop(keep_all(kept_pages, std::mem::take(&mut hand)));
            pool.give_back(&mut some);
        }
    });
    let mut back = Vec::new();
    kept_pages.collect(|page| back.push(page));
    pool.give_back(&mut back);
    assert_whole(&region, pool);
}

#[test]
fn the_caller_gets_no_more_kept_pages_than_it_asks_for() {
    let (region, pools) = by_node(&[100]);
    let kept_pages = KeptPages::new(Memory::new(Arc::clone(&region), None), region.pages());
    let mut pages = Vec::new();
    pools[0].take_out(&mut pages, usize::MAX);
    drop(keep_all(&kept_pages, pages));
    let mut hand = Vec::with_capacity(7);
    pools[0].take_or_collect(&mut hand, 7, &kept_pages);
    assert_eq!((hand.len(), hand.capacity(), pools[0].free()), (7, 7, 0));
    assert!(kept_pages.waiting());
    kept_pages.collect(|page| hand.push(page));
    pools[0].give_back(&mut hand);
    assert_whole(&region, &pools[0]);
}
