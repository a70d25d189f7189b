//! When frames that a device lends come home to it.

use std::sync::{Arc, Mutex};

use steerage::{
    Builder, DeviceError, Input,
    device::{Blocks, Capabilities, Claim, Completions, FrameHeader, Opened, Polled, Region, RxQueue},
    threads::{Softnet, Stepped},
};
use steerage_core::limits::RECLAIM_POLLS;
use steerage_fixtures::by_hand::ByHand;
use steerage_fixtures::handlers::Nothing;

const BLOCK_BYTES: usize = 1 << 14;
const HEADER: FrameHeader = FrameHeader { nanos: 0, wire_len: 60, link: 1, interface: 0 };

/// Lends a frame in each poll. Notes first how many frames are out.
struct Lends {
    says: Polled,
    claim: Option<Claim>,
    out: Arc<Mutex<Vec<u32>>>,
}

impl RxQueue for Lends {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(60)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = Blocks::map(1, BLOCK_BYTES).unwrap();
        self.claim = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let claim = self.claim.as_ref().unwrap();
        self.out.lock().unwrap().push(out.blocks(claim).unwrap().out(0));
        assert!(out.lending(claim, 0, BLOCK_BYTES).unwrap().push(FrameHeader::BYTES, 60, HEADER));
        Ok(self.says)
    }
}

/// How many frames were out at each of 100 polls. The handler is done with a frame before the next poll.
fn out_at_polls(says: Polled) -> Vec<u32> {
    let out = Arc::default();
    let queue = Lends { says, claim: None, out: Arc::clone(&out) };
    let builder = Builder::new().virtual_cpus(1).input(Input::new("lends", "test", vec![Box::new(queue)]));
    let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
    let part = parts.into_iter().next().unwrap();
    let mut cpu: Softnet<Nothing, ByHand> = part.enter(ByHand::default());
    for _ in 0..100 {
        assert_eq!(cpu.step(), Stepped::Worked);
    }
    let noted = out.lock().unwrap().clone();
    assert_eq!((noted.len(), handle.snapshot().delivered()), (100, 100));
    handle.stop();
    while cpu.step() != Stepped::Finished {}
    noted
}

#[test]
fn a_device_that_is_drained_has_its_frames_back_at_the_next_poll() {
    assert_eq!(out_at_polls(Polled::Drained), [0; 100]);
}

#[test]
fn a_device_with_more_to_come_has_its_frames_back_after_some_polls() {
    let out = out_at_polls(Polled::More);
    assert!(out.iter().all(|out| *out as usize <= RECLAIM_POLLS), "{out:?}");
}

/// Lends memory, but copies each frame to a page, as AF_PACKET does with frames whose block has to go back.
struct Copies(usize);

impl RxQueue for Copies {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(60)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        Ok(Opened::lending(Blocks::map(1, BLOCK_BYTES).unwrap().0))
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget.min(self.0) {
            assert!(out.copy_in(&[0; 60]));
            self.0 -= 1;
        }
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::Drained })
    }
}

#[test]
fn a_queue_that_lends_caches_pages_if_asked_to() {
    for (lpc_pages, cached) in [(None, false), (Some(0), false), (Some(256), true)] {
        let input = || Input::new("copies", "test", vec![Box::new(Copies(10_000)) as Box<dyn RxQueue>]);
        let builder = Builder::new().virtual_cpus(1).input(input());
        let builder = lpc_pages.into_iter().fold(builder, Builder::lpc_pages);
        let snapshot = builder.build(|_| Nothing).unwrap().start().unwrap().join().snapshot;
        let pool = snapshot.queues[0].pool;
        assert_eq!((snapshot.delivered(), pool.alloc_fast + pool.alloc_slow >= 10_000), (10_000, true));
        assert_eq!(pool.alloc_fast > 9_000, cached, "{pool:?}");
        assert_eq!(snapshot.pages_free, snapshot.pages);
    }
}
