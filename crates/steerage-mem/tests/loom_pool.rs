//! loom explores every interleaving of the shared pool (see `loom.rs`). Bundles have two pages.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use steerage_mem::{KeptPages, Memory, Page, Part, Region, SharedPool};

const PAGE_BYTES: usize = 64;

struct Shared {
    region: Arc<Region>,
    pool: Arc<SharedPool>,
    /// One cell in place of the bytes of each page, because loom does not see accesses to these
    /// bytes.
    bytes: Vec<UnsafeCell<u32>>,
}

// SAFETY: the tests find out whether two threads access a cell at the same time. If they do, loom
// fails.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(pages: usize) -> Arc<Self> {
        let (region, all) = Region::map(pages, PAGE_BYTES).unwrap();
        let pool = Arc::clone(&SharedPool::by_node(&region, all)[0]);
        Arc::new(Self { region, pool, bytes: (0..pages).map(|_| UnsafeCell::new(0)).collect() })
    }

    fn write(&self, page: &Page) {
        let nth = page.number() - self.region.numbers(0).start;
        // SAFETY: as above.
        self.bytes[nth as usize].with_mut(|bytes| unsafe { *bytes += 1 });
    }

    fn take(&self, most: usize) -> Vec<Page> {
        let mut pages = Vec::new();
        self.pool.take(&mut pages, most);
        pages.iter().for_each(|page| self.write(page));
        pages
    }

    fn give(&self, pages: impl IntoIterator<Item = Page>) {
        let mut pages: Vec<Page> = pages.into_iter().collect();
        pages.iter().for_each(|page| self.write(page));
        self.pool.give(&mut pages);
    }

    fn assert_whole(&self) {
        assert_eq!(self.pool.free(), self.bytes.len(), "the number of free pages is wrong");
        let pages = self.take(usize::MAX);
        assert_distinct(&pages, self.bytes.len());
    }
}

fn assert_distinct(pages: &[Page], count: usize) {
    let mut numbers: Vec<u32> = pages.iter().map(Page::number).collect();
    numbers.sort_unstable();
    let all = numbers.len();
    numbers.dedup();
    assert_eq!((all, numbers.len()), (count, count), "a page is lost or was taken twice");
}

#[test]
fn two_who_take_and_give_lose_nothing() {
    loom::model(|| {
        let shared = Shared::new(5);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let pages = shared.take(3);
                assert_eq!(pages.len(), 3);
                shared.give(pages);
            })
        };
        let mut pages = shared.take(2);
        assert_eq!(pages.len(), 2);
        shared.give(pages.pop());
        shared.give(pages);
        other.join().unwrap();
        shared.assert_whole();
    });
}

/// The top bundle is the same as before, but the bundles below it are not.
#[test]
fn a_bundle_that_came_back_is_another() {
    loom::model(|| {
        let shared = Shared::new(4);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut pages = shared.take(4);
                if pages.len() == 4 {
                    shared.give(pages.drain(2..));
                }
                pages
            })
        };
        let mut pages = shared.take(2);
        pages.extend(shared.take(2));
        pages.extend(other.join().unwrap());
        pages.extend(shared.take(4));
        assert_distinct(&pages, 4);
    });
}

/// While one `give` replaces the top bundle, another call makes a bundle with the same first page,
/// but with other pages below.
#[test]
fn a_bundle_that_is_replaced_is_not_another() {
    loom::model(|| {
        let shared = Shared::new(4);
        let mut first = shared.take(1);
        let mut second = shared.take(1);
        shared.give(second.pop());
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut pages = shared.take(3);
                let last = pages.pop();
                shared.give(last);
                pages
            })
        };
        shared.give(first.pop());
        let mut pages = other.join().unwrap();
        pages.extend(shared.take(4));
        assert_distinct(&pages, 4);
    });
}

/// The pool has one page for each thread, so a thread without a page always finds one.
#[test]
fn contention_hides_no_page() {
    loom::model(|| {
        let shared = Shared::new(2);
        let rounds = |shared: &Shared| {
            for _ in 0..2 {
                let pages = shared.take(1);
                assert_eq!(pages.len(), 1);
                shared.give(pages);
            }
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || rounds(&shared))
        };
        rounds(&shared);
        other.join().unwrap();
        shared.assert_whole();
    });
}

/// The page of one node is taken after the page of the other node was returned.
#[test]
fn a_page_that_changes_places_is_found() {
    const ONE_A_NODE: usize = 2 << 20;
    loom::model(|| {
        let part = Part { pages: 1, node: None };
        let (region, all) = Region::map_parts(&[part, part], ONE_A_NODE).unwrap();
        assert_eq!(region.pages(), 2);
        let pools = SharedPool::by_node(&region, all);
        let mut first = Vec::new();
        assert_eq!(pools[0].take(&mut first, 1), 1);
        let other = {
            let pool = Arc::clone(&pools[1]);
            thread::spawn(move || {
                pool.give(&mut first);
                let mut second = Vec::new();
                pool.take(&mut second, 1);
                second.len()
            })
        };
        let mut pages = Vec::new();
        assert_eq!(pools[0].take(&mut pages, 1), 1, "there was a page at any time");
        other.join().unwrap();
    });
}

/// The pages change their stacks three times, once more than a pool searches its stacks.
#[test]
fn a_page_that_changes_stacks_is_found() {
    loom::model(|| {
        let (region, mut all) = Region::map(2, PAGE_BYTES).unwrap();
        let mut first = vec![all.pop().unwrap()];
        let pools = SharedPool::by_node(&region, Vec::new());
        let (own, other) = (pools[0].of_cpu(0), pools[0].of_cpu(1));
        other.give(&mut all);
        let thread = thread::spawn(move || {
            let mut page = first;
            for (to, from) in [(&own, &other), (&other, &own), (&own, &other)] {
                to.give(&mut page);
                from.take(&mut page, 1);
            }
            page.len()
        });
        let mut pages = Vec::new();
        assert_eq!(pools[0].take(&mut pages, 1), 1, "there was a page at any time");
        thread.join().unwrap();
    });
}

fn kept(pages: usize) -> (Arc<SharedPool>, Arc<KeptPages>, Vec<Page>) {
    let (region, all) = Region::map(pages, PAGE_BYTES).unwrap();
    let pool = Arc::clone(&SharedPool::by_node(&region, all)[0]);
    let kept_pages = KeptPages::new(Memory::new(region, None), pages);
    let mut all = Vec::new();
    pool.take_out(&mut all, pages);
    (pool, kept_pages, all)
}

fn keep_and_drop(kept_pages: &Arc<KeptPages>, pages: impl IntoIterator<Item = Page>) {
    pages.into_iter().for_each(|page| drop(kept_pages.keep_copy(page, 0, None, &[b"x"]).unwrap()));
}

fn take_or_collect(pool: &SharedPool, kept_pages: &KeptPages, most: usize) -> Vec<Page> {
    let mut pages = Vec::new();
    pool.take_or_collect(&mut pages, most, kept_pages);
    pages
}

#[test]
fn contention_hides_no_kept_page() {
    loom::model(|| {
        let (pool, kept_pages, pages) = kept(2);
        keep_and_drop(&kept_pages, pages);
        let other = {
            let (pool, kept_pages) = (Arc::clone(&pool), Arc::clone(&kept_pages));
            thread::spawn(move || take_or_collect(&pool, &kept_pages, 1))
        };
        let mut pages = take_or_collect(&pool, &kept_pages, 1);
        assert_eq!(pages.len(), 1);
        let others = other.join().unwrap();
        assert_eq!(others.len(), 1);
        pages.extend(others);
        assert_distinct(&pages, 2);
    });
}

#[test]
fn a_kept_page_that_came_back_is_another() {
    loom::model(|| {
        let (pool, kept_pages, pages) = kept(3);
        keep_and_drop(&kept_pages, pages);
        let other = {
            let (pool, kept_pages) = (Arc::clone(&pool), Arc::clone(&kept_pages));
            thread::spawn(move || {
                let mut pages = take_or_collect(&pool, &kept_pages, 2);
                keep_and_drop(&kept_pages, pages.drain(..pages.len().min(1)));
                pages
            })
        };
        let mut pages = take_or_collect(&pool, &kept_pages, 1);
        assert_eq!(pages.len(), 1);
        pages.extend(other.join().unwrap());
        kept_pages.collect(|page| pages.push(page));
        assert_distinct(&pages, 3);
    });
}

/// At every moment, the pool or the stack of kept pages has a page.
#[test]
fn a_page_that_was_collected_is_found() {
    loom::model(|| {
        let (pool, kept_pages, mut pages) = kept(2);
        keep_and_drop(&kept_pages, pages.pop());
        let owner = {
            let (pool, kept_pages) = (Arc::clone(&pool), Arc::clone(&kept_pages));
            thread::spawn(move || {
                pool.give_back(&mut pages);
                kept_pages.collect(|page| pages.push(page));
            })
        };
        assert_eq!(take_or_collect(&pool, &kept_pages, 1).len(), 1, "there was a page at any time");
        owner.join().unwrap();
    });
}
