use std::sync::{Arc, Mutex};

use steerage::{
    Builder, DeviceError, Input,
    device::{Blocks, Capabilities, Claim, Completions, Filled, FrameHeader, Opened, Polled, Region, RxQueue},
    threads::{Softnet, Stepped},
};
use steerage_core::limits::RECLAIM_POLLS;
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::manual_clock::ManualClock;

const BLOCK_BYTES: usize = 1 << 14;
const HEADER: FrameHeader = FrameHeader { nanos: 0, wire_len: 60, link: 1, interface: 0 };

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

/// Returns the number of lent frames that have not been returned to the device, at each of 100
/// polls. The handler keeps no frames.
fn out_at_polls(says: Polled) -> Vec<u32> {
    let out = Arc::default();
    let queue = Lends { says, claim: None, out: Arc::clone(&out) };
    let builder = Builder::new().virtual_cpus(1).input(Input::new("lends", "test", vec![Box::new(queue)]));
    let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
    let part = parts.into_iter().next().unwrap();
    let mut cpu: Softnet<Nothing, ManualClock> = part.enter(ManualClock::default());
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

/// A device that provides blocks, but copies each frame to a page, as AF_PACKET does if it must
/// return a block.
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

/// If `memory_max` is small, memory blocks of devices leave less memory for the backlogs.
#[test]
fn under_the_cap_backlogs_give_way_to_what_devices_lend() {
    let build = |memory_max: usize| {
        let queue = || Box::new(Copies(1000)) as Box<dyn RxQueue>;
        let lends = Input::new("lends", "test", (0..16).map(|_| queue()).collect());
        let frames = Input::new("pages", "test", vec![Box::new(Fills(1000)) as Box<dyn RxQueue>]);
        let builder = Builder::new().virtual_cpus(2).memory_max(memory_max).kept_max(16);
        builder.input(lends).input(frames).build(|_| Nothing)
    };
    let full = build(1 << 30).unwrap().start().unwrap().join().snapshot.memory;
    assert!(full.lent >= 16 * BLOCK_BYTES as u64 && full.backlog == 1000, "{full:?}");
    let ample = full.bytes() as usize;
    let outcome = build(ample - full.lent as usize / 2).unwrap().start().unwrap().join();
    let memory = outcome.snapshot.memory;
    assert!(memory.bytes() <= memory.cap && memory.lent == full.lent, "{memory:?}");
    assert!((64..1000).contains(&memory.backlog) && memory.backlog_asked == 1000, "{memory:?}");
    assert_eq!((outcome.snapshot.received(), outcome.snapshot.pages_free), (17_000, outcome.snapshot.pages));
    let error = build(full.lent as usize).unwrap_err().to_string();
    assert!(error.contains("memory_max is"), "{error}");
}

struct Fills(usize);

impl RxQueue for Fills {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(60).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.0 -= out.fill(budget.min(self.0), |_| Some(Filled::whole(60)));
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }
}
