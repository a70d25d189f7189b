//! Tests devices that report impossible values. A frame outside of the device's memory is lost and
//! counted. A frame's length on the wire counts as at most `u32::MAX`.

use std::sync::{Arc, Mutex};

use steerage::testing::QueueTester;
use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, Snapshot, Timestamp,
    device::{
        Blocks, Capabilities, Claim, Completion, Completions, Filled, FrameHeader, Gather, Opened, Page, Polled,
        Region, RxQueue, Spot,
    },
    limits::{FRAME_BYTES_MAX, HEADROOM},
    stats::DropReason,
};

const FRAME: [u8; 60] = [7; 60];
const AT: usize = HEADROOM;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// The length of a frame that the device hands over with `push`.
    Len(usize),
    /// The offset at which the frame starts.
    Offset(usize),
    /// A frame in a page of another memory region.
    OtherRegion,
    /// A frame in blocks that the queue did not register.
    OtherBlocks,
    /// The length of a filled page.
    Filled(usize),
    /// The offset and the length of a frame in a page of the ring.
    Posted(usize, usize),
    /// The offset and the length of the first part of a frame in two pages.
    Head(usize, usize),
    /// The length of the second and third parts of a frame in three pages.
    Part(usize),
    /// The device returns a page of another memory region.
    Gives,
}

/// A device that hands over an impossible frame between two correct frames.
struct Liar(Lie);

impl RxQueue for Liar {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME.len()).segments(2)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        assert!(out.copy_in(&FRAME));
        self.lie(out);
        assert!(out.copy_in(&FRAME));
        Ok(Polled::Ended)
    }
}

impl Liar {
    fn lie(&self, out: &mut Completions<'_>) {
        let mut page = out.take_page().unwrap();
        out.page_mut(&mut page).fill(9);
        match self.0 {
            Lie::Len(len) => out.push(Completion::new(page, AT, len), len),
            Lie::Offset(offset) => out.push(Completion::new(page, offset, FRAME.len()), FRAME.len()),
            Lie::OtherRegion => {
                out.give_page(page);
                out.push(Completion::new(other_page(), AT, FRAME.len()), FRAME.len());
            }
            Lie::OtherBlocks => {
                out.give_page(page);
                let (mut blocks, claim) = Blocks::map(1, 4096).unwrap();
                out.push(blocks.lend(&claim, 0, 0, FRAME.len()).unwrap(), FRAME.len());
            }
            Lie::Filled(len) => {
                out.give_page(page);
                let filled = out.fill(2, |_| Some(Filled::cut(len, usize::MAX)));
                assert_eq!(filled, 0, "nothing was handed over for it");
            }
            Lie::Posted(offset, len) => {
                let number = page.number();
                let posted = out.rx_finish(page, offset, Filled::cut(len, usize::MAX));
                assert_eq!(posted.number(), number, "nothing was handed over for it");
                out.give_page(posted);
            }
            Lie::Head(offset, len) => {
                let mut frame = Gather::default();
                out.gather(&mut frame, page, offset, len);
                let second = out.take_page().unwrap();
                out.gather(&mut frame, second, AT, FRAME.len());
                assert!(!out.push_gathered(&mut frame, None), "there is no such frame");
            }
            Lie::Part(len) => {
                let mut frame = Gather::default();
                out.gather(&mut frame, page, AT, FRAME.len());
                let second = out.take_page().unwrap();
                out.gather(&mut frame, second, AT, len);
                let third = out.take_page().unwrap();
                out.gather(&mut frame, third, AT, len);
                assert!(!out.push_gathered(&mut frame, None), "there is no such frame");
            }
            Lie::Gives => {
                out.give_page(page);
                out.give_page(other_page());
                out.lost(1);
            }
        }
    }

    fn run(self) -> (Snapshot, Vec<Vec<u8>>) {
        run(Box::new(self))
    }
}

fn other_page() -> Page {
    Region::map(1, 4096).unwrap().1.pop().unwrap()
}

#[derive(Default)]
struct Copies(Vec<Vec<u8>>);

impl Handler for Copies {
    type Moved = ();
    type Report = Vec<Vec<u8>>;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        self.0.extend(batch.iter_mut().map(|packet| packet.segments().flatten().copied().collect::<Vec<u8>>()));
    }

    fn finish(self, _cpu: &mut Cpu) -> Vec<Vec<u8>> {
        self.0
    }
}

fn run(queue: Box<dyn RxQueue>) -> (Snapshot, Vec<Vec<u8>>) {
    let builder = Builder::new().virtual_cpus(1).input(Input::new("liar", "test", vec![queue]));
    let outcome = builder.build(|_| Copies::default()).unwrap().start().unwrap().join();
    let frames = outcome.reports.into_iter().flat_map(|(_, frames)| frames).collect();
    (outcome.snapshot, frames)
}

#[test]
fn a_frame_that_does_not_lie_in_its_memory_is_counted_as_lost() {
    let lies = [
        Lie::Len(1 << 14),
        Lie::Len(FRAME_BYTES_MAX),
        Lie::Len(usize::MAX),
        Lie::Offset(1 << 14),
        Lie::Offset(usize::MAX),
        Lie::OtherRegion,
        Lie::OtherBlocks,
        Lie::Filled(1 << 14),
        Lie::Filled(usize::MAX),
        Lie::Posted(AT, 1 << 14),
        Lie::Posted(AT, usize::MAX),
        Lie::Posted(usize::MAX, 60),
        Lie::Posted(1 << 14, 0),
        Lie::Head(AT, 1 << 14),
        Lie::Head(usize::MAX, 60),
        Lie::Part(usize::MAX),
        Lie::Gives,
    ];
    for lie in lies {
        let (ledger, frames) = Liar(lie).run();
        assert_eq!(frames, [FRAME, FRAME], "{lie:?}");
        assert_eq!((ledger.received(), ledger.delivered()), (3, 2), "{lie:?}");
        assert_eq!(ledger.dropped().get(DropReason::Device), 1, "{lie:?}");
        assert_eq!(ledger.received_bytes(), 2 * FRAME.len() as u64, "{lie:?}");
    }
}

#[test]
fn what_lies_costs_no_page() {
    for lie in [Lie::Len(1 << 14), Lie::Posted(AT, 1 << 14), Lie::Head(AT, 1 << 14), Lie::Part(usize::MAX), Lie::Gives]
    {
        let mut tester = QueueTester::new(Box::new(Liar(lie))).unwrap();
        for _ in 0..1000 {
            let (_, frames) = tester.poll(Timestamp::ZERO, 64).unwrap();
            assert_eq!(frames, [FRAME, FRAME], "{lie:?}");
        }
        assert_eq!((tester.pages_out(), tester.lost()), (0, 1000), "{lie:?}");
    }
}

struct Long(Option<Claim>, bool);

impl RxQueue for Long {
    fn capabilities(&self) -> Capabilities {
        if self.1 { Capabilities::blocks(60) } else { Capabilities::pages(FRAME.len()) }
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        if !self.1 {
            return Ok(Opened::default());
        }
        let (blocks, claim) = Blocks::map(1, 4096).unwrap();
        self.0 = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let Some(claim) = &self.0 else {
            let page = out.take_page().unwrap();
            out.push(Completion::new(page, AT, 60), usize::MAX);
            let page = out.take_page().unwrap();
            let posted = out.rx_finish(page, AT, Filled::cut(60, 1 << 40));
            out.give_page(posted);
            return Ok(Polled::Ended);
        };
        let header = FrameHeader { nanos: 0, wire_len: u32::MAX, link: 1, interface: 0 };
        let mut lending = out.lending(claim, 0, 4096).unwrap();
        assert!(lending.push(16, 60, header));
        let mut left = 1;
        let end = lending.push_each(
            9,
            || "outside",
            |_| {
                left -= 1;
                Ok(Spot::new(if left < 0 { 1 << 20 } else { 16 }, 60, header))
            },
        );
        assert_eq!(end, Some("outside"));
        Ok(Polled::Ended)
    }
}

#[test]
fn no_frame_is_longer_on_the_wire_than_a_header_can_state() {
    for lends in [false, true] {
        let (ledger, frames) = run(Box::new(Long(None, lends)));
        assert_eq!((frames.len(), ledger.received()), (2, 2));
        assert_eq!(ledger.received_bytes(), 2 * u64::from(u32::MAX));
    }
}

/// A device whose frames have an increasing length on the wire.
struct Growing(Option<Claim>);

impl RxQueue for Growing {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(60)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = Blocks::map(1, 4096).unwrap();
        self.0 = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let mut lending = out.lending(self.0.as_ref().unwrap(), 0, 4096).unwrap();
        let mut wire_len = 0;
        let end = lending.push_each(
            3,
            || "outside",
            |_| {
                wire_len += 100;
                Ok(Spot::new(16, 60, FrameHeader { nanos: 0, wire_len, link: 1, interface: 0 }))
            },
        );
        assert_eq!(end, None);
        Ok(Polled::Ended)
    }
}

#[test]
fn every_frame_of_a_block_counts_by_its_length_on_the_wire() {
    let (ledger, frames) = run(Box::new(Growing(None)));
    assert_eq!((frames.len(), ledger.received(), ledger.received_bytes()), (3, 3, 100 + 200 + 300));
}

/// A frame that an outer device removes counts neither as a frame nor with its bytes.
#[test]
fn what_is_taken_back_takes_its_bytes_along() {
    struct Takes(Long, Arc<Mutex<usize>>);

    impl RxQueue for Takes {
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
            self.0.open(region)
        }

        fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
            let polled = self.0.poll(out, budget);
            *self.1.lock().unwrap() = out.len();
            out.retain(1, |_| false);
            polled
        }
    }

    let seen = Arc::default();
    let (ledger, frames) = run(Box::new(Takes(Long(None, true), Arc::clone(&seen))));
    assert_eq!((*seen.lock().unwrap(), frames.len()), (2, 1));
    assert_eq!((ledger.received(), ledger.received_bytes()), (1, u64::from(u32::MAX)));
}
