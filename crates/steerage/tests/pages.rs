//! Pages in their hard cases: one that is held for ever, a ring of a device that gets none in exchange.

use steerage::{
    Batch, Builder, Completions, Cpu, DeviceError, DropReason, Filled, HEADROOM, Handler, Input, Kept, Page, Polled,
    QueueMemory, RxQueue, Snapshot,
};

const FRAMES: usize = 100_000;
const QUEUES: usize = 4;

struct Frames(usize);

impl RxQueue for Frames {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        Ok(QueueMemory::Pages { frame_bytes_max: 64 })
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.0 -= out.fill(budget.min(self.0), |_| Filled::whole(60));
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }

    fn can_wait(&self) -> bool {
        true
    }
}

/// Keeps the first packet of each queue, for ever, and every so often one for a while.
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

    fn finish(self) -> usize {
        self.for_ever.len()
    }
}

fn at_rest(ledger: &Snapshot) {
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!((ledger.in_flight(), ledger.pages_free), (0, ledger.pages));
}

/// ENA's cache is walked in order, so that a page that is held stops it. Not so this one.
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
    // Of each queue, on each CPU that saw some of it.
    assert!(outcome.reports.iter().map(|(_, held)| held).sum::<usize>() >= QUEUES);
    for queue in &outcome.snapshot.queues {
        let (hits, misses) = (queue.pool.alloc_fast, queue.pool.alloc_slow);
        assert!(hits * 100 >= (hits + misses) * 95 && hits > 0, "{hits} pages from the local cache, {misses} others");
        assert_eq!(queue.pool.alloc_empty, 0);
    }
    at_rest(&outcome.snapshot);
}

/// Posts all pages that there are, though it said that it would post none.
#[derive(Default)]
struct Greedy(Vec<Page>);

impl RxQueue for Greedy {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        Ok(QueueMemory::Pages { frame_bytes_max: 64 })
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        while let Some(page) = out.take_page() {
            self.0.push(page);
        }
        for len in [60, 8, 60] {
            let page = self.0.pop().unwrap();
            let number = page.number();
            let posted = out.rx_finish(page, HEADROOM as u32, Filled::whole(len));
            assert_eq!(posted.number(), number, "there was no other");
            self.0.push(posted);
        }
        // One comes free: it goes in exchange, once.
        out.give_page(self.0.pop().unwrap());
        let page = self.0.pop().unwrap();
        let number = page.number();
        let posted = out.rx_finish(page, HEADROOM as u32, Filled::whole(60));
        assert_ne!(posted.number(), number);
        self.0.push(posted);
        self.0.drain(..).for_each(|page| out.give_page(page));
        Ok(Polled::Ended)
    }
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
        at_rest(&ledger);
    }
}
