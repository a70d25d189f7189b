//! [`SharedPool`] is the shared page pool: stacks of pages that belong to no receive queue. There
//! are a few stacks for each NUMA node, because CPUs that use the same stack wait for each other's
//! cache lines.

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

/// Groups of this many neighbouring pages are shuffled: 17 MB at the minimum page length. An
/// instance that needs few pages touches few groups of pages.
const SHUFFLED_TOGETHER: usize = 8192;

const SHUFFLE_SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number of stacks of a NUMA node: few, because a CPU whose stack is empty searches all
/// stacks.
pub const STACKS: usize = if cfg!(loom) { 2 } else { 8 };

/// The shared pool, as seen from one NUMA node or from one of its CPUs. No function waits for
/// another thread or allocates memory. If a call returns no page, there was a moment during the
/// call at which no page was free. A page that another thread is about to return is not free yet.
#[derive(Debug)]
pub struct SharedPool {
    node: usize,
    /// The stack of the node that this view tries first.
    stack: usize,
    nodes: Arc<Nodes>,
}

#[derive(Debug)]
struct Nodes {
    region: Arc<Region>,
    /// `STACKS` stacks for each node. Each part of a region counts as a NUMA node.
    free: Box<[BundleStack]>,
    table: Box<[Bundle]>,
}

impl SharedPool {
    /// Creates the pool of a region from its pages. Returns one view for each node.
    pub fn by_node(region: &Arc<Region>, mut pages: Vec<Page>) -> Vec<Arc<Self>> {
        shuffle(&mut pages);
        let nodes = region.parts();
        let free = (0..nodes * STACKS).map(|_| BundleStack::new()).collect();
        let table = bundles(region.pages());
        let all = Arc::new(Nodes { region: Arc::clone(region), free, table });
        all.give(&mut pages, 0);
        (0..nodes).map(|node| Arc::new(Self { node, stack: 0, nodes: Arc::clone(&all) })).collect()
    }

    /// Returns a view of the same pool for one CPU of this node.
    pub fn of_cpu(&self, cpu: usize) -> Arc<Self> {
        Arc::new(Self { node: self.node, stack: cpu % STACKS, nodes: Arc::clone(&self.nodes) })
    }

    /// The NUMA node from which this view sees the pool.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Moves up to `most` pages to `to`. The moved pages still count as pages of the pool. Returns
    /// their number.
    pub fn take(&self, to: &mut Vec<Page>, most: usize) -> usize {
        match self.take_from(self.node, to, most) {
            0 => self.unless_given(|| {
                let by_turns = (self.node..self.nodes.len()).chain(0..self.node);
                by_turns.map(|node| self.take_from(node, to, most)).find(|taken| *taken > 0).unwrap_or(0)
            }),
            taken => taken,
        }
    }

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

    /// Takes up to `most` pages of any node out of the pool. Returns their number.
    pub fn take_out(&self, to: &mut Vec<Page>, most: usize) -> usize {
        let before = to.len();
        while to.len() - before < most && self.take(to, most - (to.len() - before)) > 0 {}
        to[before..].iter_mut().for_each(|page| self.nodes.region.take(page));
        to.len() - before
    }

    /// Like [`take_out`](Self::take_out), but if the pool is empty, takes pages that have returned
    /// to `kept_pages`.
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

    /// Calls `take` again if it found no page but pages were returned meanwhile, perhaps to a stack
    /// that was already checked. If `gives()` returns the same number before and after `take`, all
    /// stacks were empty when `take` checked the last stack: the checks are acquire loads, so the
    /// second call of `gives()` follows the checks. The first call of `gives()` sees nothing newer
    /// than the checks, because both load the same values.
    fn unless_given(&self, mut take: impl FnMut() -> usize) -> usize {
        loop {
            let gives = self.nodes.gives();
            let taken = take();
            if taken > 0 || self.nodes.gives() == gives {
                return taken;
            }
        }
    }

    /// Returns pages that still count as pages of the pool, to stacks of their NUMA nodes.
    pub fn give(&self, pages: &mut Vec<Page>) {
        self.nodes.give(pages, self.stack);
    }

    /// Returns pages that were in use outside of the pool.
    pub fn give_back(&self, pages: &mut Vec<Page>) {
        pages.iter_mut().for_each(|page| self.nodes.region.release(page));
        self.nodes.give(pages, self.stack);
    }

    /// The number of pages in the pool: an estimate while other threads take or return pages.
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

    /// Pages of another region are lost.
    fn give(&self, pages: &mut Vec<Page>, stack: usize) {
        for some in pages.chunks(BULK_MAX) {
            for (node, stack) in self.free.iter().skip(stack).step_by(STACKS).enumerate() {
                let numbers = self.region.numbers(node);
                let index = |page: &Page| page.number().wrapping_sub(self.region.number_of(0));
                let is_own = |page: &Page| numbers.contains(&page.number());
                let mut bulk = [0; BULK_MAX];
                // The usual case. The loops have no branches, so the compiler vectorizes them.
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

    /// If the result of two calls is the same, no pages were returned to any stack between them.
    fn gives(&self) -> u64 {
        self.free.iter().map(BundleStack::gives).sum()
    }
}

/// Puts the pages into a random order, the same in every run, with low addresses last, because a
/// pool hands out the last page first. If the pages were in address order, the stride prefetcher of
/// a worker's CPU would take cache lines from the receiving CPU, which is writing them. Time of the
/// receiving CPU for each packet, on a Zen 4 CPU with one target CPU:
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
