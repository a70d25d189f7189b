//! Makes the n-th page allocation of a run fail, for all n. No packet or page is lost.

use std::sync::Arc;

use steerage_mem::{Blocks, Claim, Fit, Page, Region};
use steerage_topology::{CpuId, NodeMap};

use crate::build::{InputSpec, build};
use crate::completions::{Completions, Filled};
use crate::device::DeviceError;
use crate::device::{Capabilities, Opened};
use crate::device::{TxCapabilities, TxResources};
use crate::handler::{Cpu, Handler, MakeHandler};
use crate::ids::{DropReason, TxId};
use crate::limits::{HEADROOM, POLL_BUDGET};
use crate::packet::{Batch, Kept};
use crate::page_cache::fault;
use crate::rx::{Input, Polled, RxQueue};
use crate::softnet::{Softnet, Stepped};
use crate::test_support::{Still, spec};
use crate::tx::{Outgoing, Output, Sent, TxQueue};
use steerage_ledger::Snapshot;

const FRAMES: usize = 300;
const FRAME_BYTES: usize = 60;

const ROUNDS_MAX: usize = 100_000;

struct Fills(usize);

impl RxQueue for Fills {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.0 -= out.fill(budget.min(self.0), |_| Some(Filled::whole(FRAME_BYTES)));
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }
}

struct Posts {
    ring: Vec<Page>,
    left: usize,
}

impl Posts {
    const RING: usize = 32;
}

impl RxQueue for Posts {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES).posted(Self::RING)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.refill(Self::RING - self.ring.len(), Fit::new(FRAME_BYTES), |page| {
            self.ring.push(page);
            Ok(())
        });
        for nth in 0..budget.min(self.ring.len()).min(self.left) {
            let page = self.ring.remove(0);
            self.ring.push(out.rx_finish(page, HEADROOM, Filled::whole(if nth % 2 == 0 { 8 } else { 60 })));
            self.left -= 1;
        }
        if self.left > 0 {
            return Ok(Polled::More);
        }
        self.ring.drain(..self.ring.len() / 2).for_each(|page| out.give_page(page));
        Ok(Polled::Ended)
    }

    fn close(&mut self, _: &Region, pages: &mut Vec<Page>) {
        pages.append(&mut self.ring);
    }
}

struct Lends(usize, Option<Claim>);

impl RxQueue for Lends {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(FRAME_BYTES)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = Blocks::map(1, FRAMES * FRAME_BYTES).unwrap();
        self.1 = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget.min(self.0) {
            self.0 -= 1;
            let (claim, offset) = (self.1.as_ref().unwrap(), self.0 * FRAME_BYTES);
            let frame = out.blocks(claim).and_then(|blocks| blocks.lend(claim, 0, offset, FRAME_BYTES));
            out.push(frame.unwrap(), FRAME_BYTES);
        }
        Ok(if self.0 == 0 { Polled::Ended } else { Polled::More })
    }
}

#[derive(Default)]
struct Swaps(Vec<Page>);

impl Swaps {
    const PAGES: usize = 4;
}

impl TxQueue for Swaps {
    fn capabilities(&self) -> TxCapabilities {
        TxCapabilities::default().pages(Self::PAGES)
    }

    fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
        assert!(resources.pages.len() <= Self::PAGES);
        self.0 = resources.pages;
        Ok(())
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(mut packet) = packets.next_packet() {
            sent.packets += 1;
            if let Some(taken) = packet.swap(&mut self.0) {
                self.0.push(taken.into_page().unwrap());
            }
        }
        Ok(sent)
    }

    fn close(&mut self, pages: &mut Vec<Page>) {
        pages.append(&mut self.0);
    }
}

#[derive(Default)]
struct Varied {
    seen: usize,
    kept: Vec<Kept>,
}

impl Handler for Varied {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for mut packet in batch.iter_mut() {
            self.seen += 1;
            match self.seen % 5 {
                0 => drop(packet.data_mut().map(|bytes| bytes.fill(1))),
                1 => drop(packet.prepend(8).map(|bytes| bytes.fill(2))),
                2 => self.kept.extend(packet.keep()),
                3 => packet.transmit(TxId(0)),
                _ => packet.discard(),
            }
        }
        if self.kept.len() > 40 {
            self.kept.clear();
        }
        assert!(self.seen % 401 > 5, "planted: a panic now and then");
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// One thread runs both CPUs, because only allocations of this thread fail. Returns the ledger and
/// the number of frames still in rings.
fn run(nodes: Option<NodeMap>, lpc_pages: usize) -> (Snapshot, u64) {
    let queues: Vec<Box<dyn RxQueue>> = vec![
        Box::new(Fills(FRAMES)),
        Box::new(Posts { ring: Vec::new(), left: FRAMES }),
        Box::new(Lends(FRAMES, None)),
        Box::new(Fills(FRAMES)),
    ];
    let open = |_: CpuId| Ok(Box::<Swaps>::default() as Box<dyn TxQueue>);
    let mut spec = spec(2);
    (spec.limits.backlog, spec.kept_max) = (POLL_BUDGET, 64);
    spec.lpc_pages = Some(lpc_pages);
    spec.nodes = nodes.unwrap_or_default();
    spec.outputs = vec![Output { name: "swaps".into(), kind: "test", open: Box::new(open) }];
    let input = Input::new("varied", "test", queues);
    spec.inputs = vec![InputSpec { input, rx_cpus: Vec::new(), mask: None }];
    let built = build(spec, &|_, _| Vec::new()).unwrap();
    let handle = built.handle.clone();
    let make: MakeHandler<Varied> = Arc::new(|_| Varied::default());
    let parts = built.into_parts(&make);
    handle.set_queue_limits(1, |limits| limits.copybreak = 8).unwrap();
    let mut cpus: Vec<Softnet<Varied, Still>> = parts.into_iter().map(|part| part.enter(Still)).collect();
    let mut rounds = 0;
    while !handle.is_finished() {
        cpus[0].step();
        if rounds % 3 == 0 {
            cpus[1].step();
        }
        rounds += 1;
        assert!(rounds < ROUNDS_MAX, "a hang: {:#?}", handle.snapshot());
    }
    while cpus.iter_mut().any(|cpu| cpu.step() != Stepped::Finished) {}
    cpus.into_iter().for_each(Softnet::finish);
    (handle.snapshot(), handle.held())
}

fn check(k: u64, (ledger, held): &(Snapshot, u64)) {
    let lost = ledger.dropped();
    assert_eq!(ledger.received(), 4 * FRAMES as u64, "allocation {k}: a frame was lost before it was counted");
    assert_eq!(ledger.received(), ledger.delivered() + lost.total(), "allocation {k}");
    assert_eq!((ledger.in_flight(), *held), (0, 0), "allocation {k}");
    assert_eq!(ledger.pages_free, ledger.pages, "allocation {k}: pages are not home");
    assert!(
        lost.get(DropReason::NoPage) <= POLL_BUDGET as u64,
        "allocation {k}: one failure, at most one poll of drops"
    );
}

fn quiet_panics() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("planted") {
            loud(info);
        }
    }));
}

#[test]
fn whichever_allocation_fails_nothing_is_lost() {
    quiet_panics();
    let mask = |cpu| [CpuId(cpu)].into_iter().collect();
    let two_nodes = || Some(NodeMap::simulated([mask(0), mask(1)]));
    for (nodes, lpc_pages) in [(None, 2048), (None, 0), (two_nodes(), 2048)] {
        let (mut k, mut no_page) = (0, 0);
        loop {
            fault::fail(k);
            let ended = run(nodes.clone(), lpc_pages);
            let reached = k == 0 || fault::has_failed();
            fault::fail(0);
            check(k, &ended);
            no_page += ended.0.dropped().get(DropReason::NoPage);
            assert!(lpc_pages > 0 || ended.0.queues[0].pool.recycle_cached == 0);
            if !reached {
                break;
            }
            k += 1;
        }
        assert!(k > 50, "{k} allocations in all: this tests little");
        assert!(no_page > 0, "no failure ever cost a frame: the device with a ring was not reached");
    }
}
