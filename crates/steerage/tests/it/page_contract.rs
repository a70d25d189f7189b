//! Tests the headroom, the alignment and the tailroom of a page, on which devices and handlers may
//! rely.

use std::sync::{Arc, Mutex};

use steerage::flow::wire::ethernet;
use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input,
    device::{Capabilities, Completion, Completions, Filled, Fit, Gather, Page, Polled, Region, RxQueue},
    limits::{HEADROOM, SEGMENTS_MAX, TAILROOM},
    stats::{DropReason, Snapshot},
};
use steerage_fixtures::assert_at_rest;

/// The maximum length of a frame, at which it fills its page.
const LONGEST: usize = 2000;
const FIT: Fit = Fit::new(LONGEST);
/// The IP header after an Ethernet header lies at a multiple of 4, as with Linux's `NET_IP_ALIGN`.
const AT: usize = HEADROOM + 2;
const RING: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    ip_at: usize,
    headroom: usize,
    tailroom: usize,
    truesize: usize,
    parts: usize,
    len: usize,
    sum: u64,
}

struct Looks(Arc<Mutex<Vec<Seen>>>);

impl Handler for Looks {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for mut packet in batch.iter_mut() {
            let before: u64 = packet.segments().flatten().map(|byte| u64::from(*byte)).sum();
            let parts = packet.segments_mut().unwrap().map(|part| part[0] += 1).count();
            let sum: u64 = packet.segments().flatten().map(|byte| u64::from(*byte)).sum();
            assert_eq!(sum, before + parts as u64);
            let data = packet.data();
            self.0.lock().unwrap().push(Seen {
                ip_at: (data.as_ptr() as usize + ethernet::BYTES) % 4,
                headroom: packet.headroom(),
                tailroom: packet.tailroom(),
                truesize: packet.truesize(),
                parts,
                len: packet.total_len(),
                sum: before,
            });
            let truesize = packet.truesize();
            let mut kept = packet.keep().unwrap();
            assert_eq!((kept.truesize(), kept.segments_mut().count()), (truesize, parts));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn run(queue: impl RxQueue + 'static, copybreak: usize) -> (Vec<Seen>, Snapshot) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&seen);
    let outcome = Builder::new()
        .virtual_cpus(1)
        .copybreak(copybreak)
        .input(Input::new("device", "test", vec![Box::new(queue)]))
        .build(move |_| Looks(Arc::clone(&to)))
        .unwrap()
        .start()
        .unwrap()
        .join();
    assert_at_rest(&outcome.snapshot);
    let seen = seen.lock().unwrap().clone();
    (seen, outcome.snapshot)
}

struct Writes;

impl RxQueue for Writes {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(0).fit(FIT)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let mut page = out.alloc(FIT).unwrap();
        out.page_mut(&mut page)[AT..][..LONGEST].fill(1);
        out.push(Completion::new(page, AT, LONGEST), LONGEST);
        Ok(Polled::Ended)
    }
}

#[test]
fn frames_that_are_written_lie_as_their_device_asked() {
    let (seen, ledger) = run(Writes, 0);
    assert_eq!(seen.len(), 1);
    for one in seen {
        assert_eq!((one.ip_at, one.headroom, one.len, one.sum), (0, AT, LONGEST, LONGEST as u64));
        assert!(one.tailroom >= TAILROOM);
        assert_eq!(one.truesize, ledger.page_bytes as usize);
    }
}

fn post(ring: &mut Vec<Page>, page: Page) -> Result<(), Page> {
    ring.push(page);
    Ok(())
}

#[derive(Default)]
struct Ring {
    posted: Vec<Page>,
    lens: Vec<usize>,
}

impl RxQueue for Ring {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(0).fit(FIT).posted(RING)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        assert!(out.alloc(Fit::new(LONGEST + 2 * TAILROOM)).is_none(), "pages are not so long");
        assert_eq!(out.refill(1, Fit::new(LONGEST + 2 * TAILROOM), |_| panic!("pages are not so long")), 0);
        let mut pages = 0;
        let posted = out.refill(RING, FIT, |page| {
            pages += 1;
            if pages > 3 { Err(page) } else { post(&mut self.posted, page) }
        });
        assert_eq!((posted, pages, self.posted.len()), (3, 4, 3), "the fourth page could not be posted");
        self.posted.drain(..).for_each(|page| out.give_page(page));
        assert_eq!(out.refill(RING, FIT, |page| post(&mut self.posted, page)), RING);
        for len in std::mem::take(&mut self.lens) {
            let mut page = self.posted.remove(0);
            out.page_mut(&mut page)[AT..][..len].fill(1);
            let number = page.number();
            let next = out.rx_finish(page, AT, Filled::whole(len));
            assert_eq!(next.number() == number, len <= 256, "a frame that was copied leaves its page in the ring");
            self.posted.push(next);
        }
        Ok(Polled::Ended)
    }

    fn close(&mut self, _: &Region, pages: &mut Vec<Page>) {
        assert_eq!(self.posted.len(), RING);
        pages.append(&mut self.posted);
    }
}

#[test]
fn a_ring_is_refilled_and_its_frames_lie_as_they_fit() {
    let (seen, ledger) = run(Ring { lens: vec![60, 256, 257, LONGEST], ..Ring::default() }, 256);
    let lens: Vec<usize> = seen.iter().map(|one| one.len).collect();
    assert_eq!(lens, [60, 256, 257, LONGEST]);
    assert_eq!(ledger.queues[0].pool.rx_copybreak, 2);
    for one in seen {
        assert_eq!((one.ip_at, one.headroom, one.sum), (0, AT, one.len as u64));
        assert!(one.tailroom >= TAILROOM);
    }
}

#[test]
fn a_copybreak_without_a_meaning_is_refused() {
    for (copybreak, refuses) in [(0, false), (1, true)] {
        let [ring, writes] = [Box::<Ring>::default() as Box<dyn RxQueue>, Box::new(Writes)];
        let input = Input::new("device", "test", vec![ring, writes]);
        let built = Builder::new().virtual_cpus(1).copybreak(copybreak).input(input).build(|_| Looks(Arc::default()));
        let error = built.err().map(|error| error.to_string()).unwrap_or_default();
        let says = "device: cannot set copybreak of receive queue 1: Operation not supported: ";
        assert_eq!(error.starts_with(says), refuses, "{error}");
    }
}

/// A device that takes all pages. `refill` must return the number of pages that the device got.
struct Empties(Vec<Page>);

impl RxQueue for Empties {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(60)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let fit = Fit::new(60);
        while let Some(page) = out.alloc(fit) {
            self.0.push(page);
        }
        assert_eq!(out.refill(RING, fit, |page| post(&mut self.0, page)), 0);
        self.0.drain(..3).for_each(|page| out.give_page(page));
        assert_eq!(out.refill(RING, fit, |page| post(&mut self.0, page)), 3);
        Ok(Polled::Ended)
    }

    fn close(&mut self, _: &Region, pages: &mut Vec<Page>) {
        pages.append(&mut self.0);
    }
}

#[test]
fn a_refill_says_how_many_pages_there_were() {
    let (seen, ledger) = run(Empties(Vec::new()), 0);
    assert_eq!((seen, ledger.received()), (vec![], 0));
}

#[derive(Default)]
struct Parts {
    lens: Vec<Vec<usize>>,
    begun: Gather,
}

impl RxQueue for Parts {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).segments(SEGMENTS_MAX)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        for parts in std::mem::take(&mut self.lens) {
            for len in parts {
                let mut page = out.take_page().unwrap();
                out.page_mut(&mut page)[HEADROOM..][..len].fill(1);
                out.gather(&mut self.begun, page, HEADROOM, len);
            }
            assert!(out.push_gathered(&mut self.begun, None));
        }
        Ok(Polled::Ended)
    }
}

#[test]
fn short_frames_of_several_parts_are_copied_to_one_page() {
    let lens = vec![vec![50, 50], vec![100], vec![40; SEGMENTS_MAX], vec![100, 100, 56], vec![100, 100, 57]];
    for (copybreak, parts, pages) in
        [(0, vec![2, 1, SEGMENTS_MAX, 3, 3], 27), (256, vec![1, 1, SEGMENTS_MAX, 1, 3], 24)]
    {
        let (seen, ledger) = run(Parts { lens: lens.clone(), ..Parts::default() }, copybreak);
        let totals = lens.iter().map(|parts| parts.iter().sum::<usize>());
        for ((one, total), parts) in seen.iter().zip(totals).zip(parts) {
            assert_eq!((one.len, one.sum, one.parts), (total, total as u64, parts));
            assert!(one.headroom >= HEADROOM && one.tailroom >= TAILROOM);
        }
        assert_eq!(seen.iter().map(|one| one.truesize).sum::<usize>(), pages * ledger.page_bytes as usize);
        assert_eq!(ledger.queues[0].pool.rx_copybreak, if copybreak > 0 { 2 } else { 0 });
        assert_eq!((ledger.received(), ledger.dropped().get(DropReason::Device)), (5, 0));
    }
}
