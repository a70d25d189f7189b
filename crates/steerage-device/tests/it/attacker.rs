//! Attacks on a device's memory by a crate without `unsafe` code. Only the owner of a device's
//! `Claim` can write, read and lend its memory blocks.
#![forbid(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use steerage::testing::QueueTester;
use steerage::{
    DeviceError, Timestamp,
    device::{Blocks, Capabilities, Claim, Completions, Opened, Polled, Region, RxQueue},
    limits::PAGE_BYTES_MIN,
};
use steerage_capture::Capture;
use steerage_device::af_packet::{AfPacketOptions, BUFFER_MIN, Direction};
use steerage_fixtures::HANG;
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::capture::pcap;

fn live(net: &Net) -> Box<dyn RxQueue> {
    let options = AfPacketOptions::new("near0").buffer(BUFFER_MIN).direction(Direction::In);
    net.near(|| options.open().unwrap()).input.queues.pop().unwrap()
}

fn capture() -> Capture {
    Capture::from_reader("one frame", io::Cursor::new(pcap([(1, 0, [7; 60])])))
}

fn blocks(queue: &mut dyn RxQueue) -> Blocks {
    queue.open(&region()).unwrap().blocks.expect("it lends blocks")
}

fn region() -> Arc<Region> {
    Region::map(1, PAGE_BYTES_MIN).unwrap().0
}

/// If a block had two owners, safe code could get two mutable slices of the same memory.
#[test]
fn a_device_gives_its_memory_away_once() {
    let mut queues: Vec<Box<dyn RxQueue>> = vec![Box::new(capture())];
    let net = Net::new();
    queues.extend(net.as_ref().map(live));
    for mut queue in queues {
        let _first = blocks(&mut *queue);
        let error = queue.open(&region()).expect_err("it was given away before").to_string();
        assert!(error.ends_with("its memory was given away before; open a queue once"), "{error}");
    }
}

/// The kernel may write to a live device's memory blocks at any time, even while a slice (`&[u8]`)
/// of a block is borrowed.
#[test]
fn blocks_without_their_claim_show_no_byte() {
    let Some(net) = Net::new() else { return };
    let mut blocks = blocks(&mut *live(&net));
    let (_, claim) = Blocks::map(1, 64).unwrap();
    for block in 0..blocks.count() {
        assert!(blocks.readable(&claim, block).is_empty());
        assert!(blocks.tail(&claim, block).is_none() && blocks.lend(&claim, block, 0, 1).is_none());
    }
    assert_eq!(blocks.out_in_all(), 0);
}

/// Wraps a device. With `exchanges`, replaces the inner device's memory blocks with the wrapper's
/// own blocks.
struct Around {
    inner: Box<dyn RxQueue>,
    own: (Option<Blocks>, Claim),
    stolen: Option<Blocks>,
    exchanges: bool,
    /// True if the wrapper could access the memory blocks of the inner device during a poll.
    touched: Arc<Mutex<bool>>,
}

impl Around {
    fn new(inner: Box<dyn RxQueue>, exchanges: bool) -> (Box<Self>, Arc<Mutex<bool>>) {
        let (blocks, claim) = Blocks::map(4, 1 << 20).unwrap();
        let touched = Arc::default();
        let own = (Some(blocks), claim);
        (Box::new(Self { inner, own, stolen: None, exchanges, touched: Arc::clone(&touched) }), touched)
    }
}

impl RxQueue for Around {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let mut opened = self.inner.open(region)?;
        if self.exchanges {
            self.stolen = std::mem::replace(&mut opened.blocks, self.own.0.take());
        }
        Ok(opened)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let claim = &self.own.1;
        if !self.exchanges {
            *self.touched.lock().unwrap() |= out.blocks(claim).is_some() || out.lending(claim, 0, 64).is_some();
        }
        self.inner.poll(out, budget)
    }
}

/// If the blocks of a wrapped device were exchanged, the device would not notice that frames are
/// lent to handlers, and would let the kernel overwrite memory that handlers still read.
#[test]
fn a_device_around_another_one_does_not_get_at_its_blocks() {
    let Some(net) = Net::new() else { return };
    let (queue, touched) = Around::new(live(&net), false);
    let mut tester = QueueTester::new(queue).unwrap();
    let socket = net.far(|| UdpSocket::bind((FAR, 0)).unwrap());
    let (start, mut received) = (Instant::now(), 0);
    while received < 10 {
        assert!(start.elapsed() < HANG, "{received} frames came");
        let _ = socket.send_to(&[7; 500], (NEAR, 9));
        received += tester.poll_and_count(Timestamp::ZERO, 64).unwrap().1;
    }
    assert!(!*touched.lock().unwrap());
}

#[test]
fn a_device_is_not_polled_with_blocks_that_it_did_not_bring() {
    let mut queues: Vec<Box<dyn RxQueue>> = vec![Box::new(capture())];
    let net = Net::new();
    queues.extend(net.as_ref().map(live));
    for queue in queues {
        let mut tester = QueueTester::new(Around::new(queue, true).0).unwrap();
        let error = tester.poll(Timestamp::ZERO, 64).expect_err("they are not its own").to_string();
        assert!(error.contains("the blocks that it is polled with are not those that it brought"), "{error}");
    }
}
