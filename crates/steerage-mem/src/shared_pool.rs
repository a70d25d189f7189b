//! [`SharedPool`] is the shared page pool: stacks of pages that belong to no receive queue. Each
//! NUMA node has a few stacks. Each CPU returns pages to one stack of its NUMA node, just as the
//! kernel's page allocator keeps free lists for each CPU. CPUs that use the same stack wait for
//! each other's cache lines.

mod bundles;
mod spare;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use crate::kept::KeptPages;
use crate::page::Page;
use crate::region::Region;
use bundles::{BULK_MAX, Bundle, BundleStack, bundles};

pub use spare::Spare;

/// The number of pages in a group of neighbouring pages. The pages of a group are put into a random
/// order. At the minimum page length, a group takes 17 MB. Pages of unused groups stay together
/// after the used pages. Therefore an instance that needs few pages touches little memory, even
/// with huge pages.
const SHUFFLED_TOGETHER: usize = 8192;

/// An arbitrary number. Any order of pages is good enough if it differs from the order of their
/// addresses.
const SHUFFLE_SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number of stacks of a NUMA node. A CPU that finds its own stack empty searches all
/// other stacks, so a NUMA node has only a few stacks for all of its CPUs. Loom needs small models.
pub const STACKS: usize = if cfg!(loom) { 2 } else { 8 };

/// The shared pool, as seen from one NUMA node or from one CPU of that node.
///
/// No function of the pool waits for another thread or allocates memory, however many threads use
/// the pool. The pool's functions move up to 64 pages with one atomic exchange. A call returns no
/// page only if there was a moment during the call at which no page was free. A page that another
/// thread is about to return does not count as free yet.
#[derive(Debug)]
pub struct SharedPool {
    node: usize,
    /// Of the stacks of this view's NUMA node, the index of the stack that the view tries first.
    stack: usize,
    nodes: Arc<Nodes>,
}

#[derive(Debug)]
struct Nodes {
    region: Arc<Region>,
    /// The free pages of each node: `STACKS` stacks. Each part of a region is treated as a NUMA
    /// node.
    free: Box<[BundleStack]>,
    table: Box<[Bundle]>,
}

impl SharedPool {
    /// Creates the pool of a region with all of its pages. Returns one view for each node.
    pub fn by_node(region: &Arc<Region>, mut pages: Vec<Page>) -> Vec<Arc<Self>> {
        shuffle(&mut pages);
        let nodes = region.parts();
        let free = (0..nodes * STACKS).map(|_| BundleStack::new()).collect();
        let table = bundles(region.pages());
        let all = Arc::new(Nodes { region: Arc::clone(region), free, table });
        all.give(&mut pages, 0);
        (0..nodes).map(|node| Arc::new(Self { node, stack: 0, nodes: Arc::clone(&all) })).collect()
    }

    /// Returns a view of the pool for one CPU of this node. All views have the same pages.
    pub fn of_cpu(&self, cpu: usize) -> Arc<Self> {
        Arc::new(Self { node: self.node, stack: cpu % STACKS, nodes: Arc::clone(&self.nodes) })
    }

    /// The NUMA node from which this view sees the pool.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Moves up to `most` pages from the pool to `to`. The moved pages still count as pages of the
    /// pool. If this node has no free pages, the pages come from another node. Returns the number
    /// of moved pages.
    pub fn take(&self, to: &mut Vec<Page>, most: usize) -> usize {
        match self.take_from(self.node, to, most) {
            0 => self.unless_given(|| {
                let by_turns = (self.node..self.nodes.len()).chain(0..self.node);
                by_turns.map(|node| self.take_from(node, to, most)).find(|taken| *taken > 0).unwrap_or(0)
            }),
            taken => taken,
        }
    }

    /// Takes pages of one node, beginning with the stack of this view.
    fn take_from(&self, node: usize, to: &mut Vec<Page>, most: usize) -> usize {
        let before = to.len();
        for nth in 0..STACKS {
            let taken = to.len() - before;
            if taken == most {
                break;
            }
            self.nodes.take_from(node * STACKS + (self.stack + nth) % STACKS, to, most - taken);
        }
        to.len() - before
    }

    /// Takes up to `most` pages of any node out of the pool. Returns the number of pages taken.
    pub fn take_out(&self, to: &mut Vec<Page>, most: usize) -> usize {
        let before = to.len();
        while to.len() - before < most && self.take(to, most - (to.len() - before)) > 0 {}
        to[before..].iter_mut().for_each(|page| self.nodes.region.take(page));
        to.len() - before
    }

    /// Like [`take_out`](Self::take_out), but has a second source of pages. If the pool has no
    /// pages, takes pages that have returned to `kept_pages`. The caller gets at most `most` of the
    /// pages that have returned. Returned pages that are not taken stay in `kept_pages`, where any
    /// CPU can take them.
    pub fn take_or_collect(&self, to: &mut Vec<Page>, most: usize, kept_pages: &KeptPages) {
        self.unless_given(|| match self.take_out(to, most) {
            0 => self.take_kept(to, most, kept_pages),
            taken => taken,
        });
    }

    fn take_kept(&self, to: &mut Vec<Page>, most: usize, kept_pages: &KeptPages) -> usize {
        let region = &self.nodes.region;
        kept_pages.take(most, |mut page| {
            if region.holds(&page) {
                region.release(&mut page);
                region.take(&mut page);
                to.push(page);
            }
        })
    }

    /// If `take` found no page, but other threads returned pages to the pool while `take` ran,
    /// calls `take` again. `take` checks several stacks one after another. Therefore pages may have
    /// been returned to a stack after `take` had checked that stack. If the number of returns did
    /// not change between its two reads, all stacks were empty at the time of the last check. The
    /// last check of a stack is an acquire load, so the second read of the number of returns
    /// happens after that check. The first read of the number of returns does not see a newer state
    /// than the checks of the stacks, because it reads the same 64-bit values as the checks.
    fn unless_given(&self, mut take: impl FnMut() -> usize) -> usize {
        loop {
            let gives = self.nodes.gives();
            let taken = take();
            if taken > 0 || self.nodes.gives() == gives {
                return taken;
            }
        }
    }

    /// Returns pages that still count as pages of the pool. Each page goes to a stack of its NUMA
    /// node.
    pub fn give(&self, pages: &mut Vec<Page>) {
        self.nodes.give(pages, self.stack);
    }

    /// Returns pages that were in use outside of the pool.
    pub fn give_back(&self, pages: &mut Vec<Page>) {
        pages.iter_mut().for_each(|page| self.nodes.region.release(page));
        self.nodes.give(pages, self.stack);
    }

    /// The number of pages in the pool, on all nodes. The result is an estimate while other threads
    /// take or return pages.
    pub fn free(&self) -> usize {
        self.nodes.free.iter().map(|stack| stack.len(&self.nodes.table)).sum()
    }
}

impl Nodes {
    fn len(&self) -> usize {
        self.free.len() / STACKS
    }

    fn take_from(&self, stack: usize, to: &mut Vec<Page>, most: usize) {
        let (mut bulk, before) = ([0; BULK_MAX], to.len());
        while to.len() - before < most {
            let taken = self.free[stack].take(&self.table, &mut bulk, most - (to.len() - before));
            if taken.is_empty() {
                break;
            }
            to.extend(taken.iter().map(|index| Page::new(self.region.number_of(*index))));
        }
    }

    /// Pushes each page to a stack of its node. Pages of another region are not pushed.
    fn give(&self, pages: &mut Vec<Page>, stack: usize) {
        for some in pages.chunks(BULK_MAX) {
            for (node, stack) in self.free.iter().skip(stack).step_by(STACKS).enumerate() {
                let numbers = self.region.numbers(node);
                let index = |page: &Page| page.number().wrapping_sub(self.region.number_of(0));
                let is_own = |page: &Page| numbers.contains(&page.number());
                let mut bulk = [0; BULK_MAX];
                // Usually all pages of a call belong to the same NUMA node. The following loops
                // have no branches, so the compiler vectorizes them.
                if some.iter().fold(true, |all, page| all & is_own(page)) {
                    bulk.iter_mut().zip(some).for_each(|(to, page)| *to = index(page));
                    stack.give(&self.table, &bulk[..some.len()]);
                    break;
                }
                let mut len = 0;
                for page in some.iter().filter(|page| is_own(page)) {
                    bulk[len] = index(page);
                    len += 1;
                }
                stack.give(&self.table, &bulk[..len]);
            }
        }
        pages.clear();
    }

    /// The number of times that pages were returned to any stack. If this number has not changed
    /// between two calls, no pages were returned.
    fn gives(&self) -> u64 {
        self.free.iter().map(BundleStack::gives).sum()
    }
}

/// Puts the pages into a random order. The random order is the same in every run. Pages with low
/// addresses come last, because a pool hands out the last page first. If the pages had the order of
/// their addresses, consecutive frames of a worker would lie at a constant distance. The stride
/// prefetcher of the worker's CPU would then also fetch the next frames. These prefetches take
/// cache lines from the receiving CPU, which is writing them. On a Zen 4 CPU, with one target CPU,
/// the receiving CPU needs the following time for each packet:
///
/// | target | in address order | shuffled |
/// |---|---|---|
/// | near | 24 ns | 13 ns |
/// | far | 92 ns | 33 ns |
pub(crate) fn shuffle(pages: &mut [Page]) {
    let mut random = fastrand::Rng::with_seed(SHUFFLE_SEED);
    pages.reverse();
    pages.rchunks_mut(SHUFFLED_TOGETHER).for_each(|some| random.shuffle(some));
}
