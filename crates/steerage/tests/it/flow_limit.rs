use steerage::flow::wire::FrameBuilder;
use steerage::{
    Affinity, Batch, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    flow::{FlowHash, FlowHasher, HashKey, limits::FLOW_LIMIT_HISTORY},
    stats::DropReason,
    threads::Softnet,
};

use steerage_fixtures::manual_clock::{self, ManualClock};

const BACKLOG: usize = 512;
/// The source port of the *elephant*, the flow with three of four packets.
const ELEPHANT: u16 = 1;

struct Udp {
    sent: u16,
    hashes: bool,
    can_wait: bool,
}

impl RxQueue for Udp {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(64);
        (can.can_wait, can.hash) = (self.can_wait, self.hashes.then_some(Affinity::BothDirections));
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |page| {
            self.sent = self.sent.wrapping_add(1);
            let port = if self.sent % 4 == 0 { self.sent } else { ELEPHANT };
            page[..60].copy_from_slice(&FrameBuilder::udp(([0; 4], port), ([0; 4], 0)).frame_of(60));
            let hash = self.hashes.then_some(FlowHash(u32::from(port).wrapping_mul(0x9E37_79B1)));
            Some(Filled::whole(60).with_hash(hash))
        });
        Ok(Polled::More)
    }
}

#[derive(Default)]
struct Counts([u64; 2]);

impl Handler for Counts {
    type Moved = ();
    type Report = [u64; 2];

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let port = u16::from_be_bytes([packet.data()[34], packet.data()[35]]);
            self.0[usize::from(port != ELEPHANT)] += 1;
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> [u64; 2] {
        self.0
    }
}

struct Two {
    receiver: Softnet<Counts, ManualClock>,
    worker: Softnet<Counts, ManualClock>,
    handle: Handle,
}

fn two(hashes: bool, can_wait: bool) -> Two {
    let queue = Udp { sent: 0, hashes, can_wait };
    let to_the_other: CpuMask = [CpuId(1)].into_iter().collect();
    let builder = Builder::new().virtual_cpus(2).backlog(BACKLOG).rps_cpus(to_the_other);
    // The hash key is fixed, because with a random key, one of twenty runs puts a small flow into
    // the elephant's table entry.
    let builder = builder.hash(FlowHasher::sip(&HashKey::MICROSOFT));
    let builder = builder.input_on(Input::new("udp", "test", vec![Box::new(queue)]), &[CpuId(0)], None);
    let (parts, handle) = builder.build(|_| Counts::default()).unwrap().split();
    let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
    let [receiver, worker] = <[_; 2]>::try_from(cpus).unwrap();
    Two { receiver, worker, handle }
}

impl Two {
    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| {
            self.receiver.step();
        });
    }

    fn lost(&self) -> [u64; 2] {
        let dropped = self.handle.snapshot().dropped();
        [dropped.get(DropReason::BacklogFull), dropped.get(DropReason::FlowLimit)]
    }

    fn end(mut self) -> [u64; 2] {
        manual_clock::end(&self.handle, [&mut self.receiver, &mut self.worker]);
        let ledger = self.handle.snapshot();
        assert_eq!(ledger.cpus[1].dropped.get(DropReason::FlowLimit), ledger.dropped().get(DropReason::FlowLimit));
        self.worker.finish()
    }
}

#[test]
fn small_flows_pass_where_a_large_one_fills_the_backlog() {
    for hashes in [true, false] {
        let mut two = two(hashes, false);
        let both: CpuMask = [CpuId(0), CpuId(1)].into_iter().collect();
        two.handle.set_flow_limit_cpus(&both).unwrap();
        assert_eq!(two.handle.flow_limit_cpus(), both);
        // Each round receives 64 frames, 48 of the elephant. All frames are accepted until the
        // backlog is half full.
        two.rounds(4);
        assert_eq!(two.lost(), [0, 0]);
        // When the backlog is half full, the elephant's packets are dropped as soon as the flow
        // limit's history is full.
        two.rounds(8);
        let [full, limited] = two.lost();
        assert_eq!((full, limited), (0, 8 * 48 - FLOW_LIMIT_HISTORY as u64 / 2), "{hashes}");
        let [elephant, others] = two.end();
        assert_eq!((elephant, others), (12 * 48 - limited, 12 * 16));
    }
}

#[test]
fn without_it_small_flows_lose_as_well() {
    let mut two = two(false, false);
    two.handle.set_flow_limit_cpus(&[CpuId(0)].into_iter().collect()).unwrap();
    two.rounds(12);
    assert_eq!(two.lost(), [4 * 64, 0]);
    assert_eq!(two.end(), [8 * 48, 8 * 16]);
}

#[test]
fn it_is_switched_off_again_and_knows_its_cpus() {
    let mut two = two(true, false);
    two.handle.set_flow_limit_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    two.rounds(10);
    assert!(two.lost()[1] > 0);
    let limited = two.lost()[1];
    assert!(two.handle.set_flow_limit_cpus(&[CpuId(2)].into_iter().collect()).is_err());
    two.handle.set_flow_limit_cpus(&CpuMask::default()).unwrap();
    two.rounds(10);
    assert_eq!(two.lost()[1], limited);
    assert!(two.lost()[0] > 0);
    two.end();
}

#[test]
fn what_waits_for_room_loses_nothing() {
    let mut two = two(true, true);
    two.handle.set_flow_limit_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    two.rounds(12);
    assert_eq!(two.lost(), [0, 0]);
    assert_eq!(two.end(), [8 * 48, 8 * 16]);
}
