use std::sync::Arc;

use steerage_core::limits::{BACKLOG_DEFAULT, HEADROOM, PAGE_BYTES_MIN, POOL_BULK};
use steerage_core::page_cache::PagePool;
use steerage_mem::ring::{Consumer, Producer, RingOptions, ring};
use steerage_mem::{Completion, KeptPages, Memory, Page, Region, RegionError, STACKS, SharedPool};

/// The page pool of a receive queue and a ring to one CPU, without a device.
pub(super) struct PageLoop {
    pool: PagePool,
    producer: Producer,
    frames: Vec<Completion>,
}

impl PageLoop {
    /// Creates `queues` queues that share one page pool, each with a local cache of `local_pages`
    /// pages, and the consumers of their rings. Consumers return pages by [`Consumer::finish`].
    pub(super) fn new(queues: usize, local_pages: usize) -> Result<Vec<(Self, Consumer)>, RegionError> {
        let slots = BACKLOG_DEFAULT.next_power_of_two();
        let (region, mut pages) = Region::map(queues * (slots + 2 * POOL_BULK), PAGE_BYTES_MIN)?;
        // The writes make the kernel map the pages now, and not during a benchmark.
        pages.iter_mut().for_each(|page| region.page_mut(page).fill(0));
        let shared = SharedPool::by_node(&region, pages);
        let memory = Memory::new(Arc::clone(&region), None);
        // Another CPU can run half of the queues, so the two halves take pages from different
        // stacks of the shared pool.
        let one = |nth| {
            let shared = shared[0].of_cpu(nth * STACKS / queues);
            let kept_pages = KeptPages::new(memory.clone(), 0);
            let pool = PagePool::new(Arc::clone(&region), shared, kept_pages, local_pages);
            let options = RingOptions { slots, slots_max: slots, limit: BACKLOG_DEFAULT, arrivals: false };
            let (producer, consumer) = ring(options, memory.clone());
            (Self { pool, producer, frames: Vec::with_capacity(slots) }, consumer)
        };
        Ok((0..queues).map(one).collect())
    }

    /// Takes `count` pages from the pool and hands them over to the CPU, as one poll does. If the
    /// ring has too few free slots even after finished pages were taken back, hands over no page.
    /// Returns the number of pages that were handed over.
    #[inline]
    pub(super) fn send(&mut self, count: usize) -> usize {
        self.hand_over(count, |_, page| Completion::new(page, 0, 0))
    }

    /// Like [`send`](Self::send), but writes a frame to each page. The function `write` gets the
    /// bytes of the page after its headroom, and returns the length of the frame that it wrote.
    #[inline]
    pub(super) fn send_frames(&mut self, count: usize, mut write: impl FnMut(&mut [u8]) -> usize) -> usize {
        self.hand_over(count, |region, mut page| {
            let len = write(&mut region.page_mut(&mut page)[HEADROOM..]);
            Completion::new(page, HEADROOM, len)
        })
    }

    #[inline(always)]
    fn hand_over(&mut self, count: usize, mut complete: impl FnMut(&Region, Page) -> Completion) -> usize {
        let Self { pool, producer, frames } = self;
        if pool.cached() < count || producer.room() < count as u64 {
            let home = producer.reclaim_many(|frames| pool.recycle_many(frames));
            if home > 0 {
                pool.recycled();
            }
        }
        let count = if producer.room() < count as u64 { 0 } else { count };
        let (region, pages) = pool.take_many(count);
        frames.extend(pages.map(|page| complete(region, page)));
        let sent = frames.len();
        producer.stage_all(frames, 0, |_| ());
        producer.publish();
        sent
    }

    /// Returns how many pages the queue has taken from its local page cache, and how many from the
    /// shared pool. The numbers of `served` change only when pages return to the queue.
    pub(super) fn served(&self) -> (u64, u64) {
        self.pool.served()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_round_by_the_cache_or_past_it() {
        for local_pages in [0, 1024] {
            let mut loops = PageLoop::new(2, local_pages).unwrap();
            for _ in 0..100 {
                for (queue, consumer) in &mut loops {
                    assert_eq!(queue.send(POOL_BULK), POOL_BULK);
                    assert_eq!(consumer.take(POOL_BULK), POOL_BULK);
                    consumer.finish();
                }
            }
            let (fast, slow) = loops[0].0.served();
            assert!(if local_pages == 0 { fast == 0 } else { fast > 9 * slow }, "{fast} {slow}");
        }
    }

    #[test]
    fn frames_arrive_as_they_were_written() {
        let (mut queue, mut consumer) = PageLoop::new(1, 100).unwrap().pop().unwrap();
        let mut next = 0_u8;
        let sent = queue.send_frames(POOL_BULK, |page| {
            next += 1;
            page[..1500].fill(next);
            1500
        });
        assert_eq!((sent, consumer.take(POOL_BULK)), (POOL_BULK, POOL_BULK));
        for (frame, number) in consumer.frames().zip(1_u8..) {
            assert_eq!(frame.bytes(), [number; 1500]);
        }
    }

    #[test]
    fn a_ring_that_nobody_works_off_is_full() {
        let (mut queue, _consumer) = PageLoop::new(1, 2).unwrap().pop().unwrap();
        let sent: usize = (0..100).map(|_| queue.send(POOL_BULK)).sum();
        assert_eq!(sent, BACKLOG_DEFAULT / POOL_BULK * POOL_BULK);
    }
}
