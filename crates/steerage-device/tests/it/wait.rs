//! A live input waits for an output without room. A stop ends the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use steerage::device::{Capabilities, Completions, Filled, Outgoing, Polled, RxQueue, Sent, TxQueue};
use steerage::limits::{DRAIN_MAX, HANDLE_BUDGET, POLL_BUDGET};
use steerage::stats::DropReason;
use steerage::threads::{Armed, Softnet};
use steerage::{Builder, CpuId, CpuMask, DeviceError, Handle, Hash, Input, Output};
use steerage_device::wait::Wait;
use steerage_fixtures::handlers::SendAll;
use steerage_fixtures::manual_clock::{self, ManualClock};

const BATCH: u64 = HANDLE_BUDGET as u64;
const BACKLOG: usize = 2 * POLL_BUDGET;

struct Live {
    buffered: Arc<AtomicU64>,
    stopping: bool,
}

impl RxQueue for Live {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let buffered = self.buffered.load(Relaxed);
        let filled = out.fill(budget.min(buffered as usize), |_| Some(Filled::whole(60)));
        self.buffered.store(buffered - filled as u64, Relaxed);
        Ok(if self.stopping && buffered == filled as u64 { Polled::Ended } else { Polled::More })
    }

    fn stop(&mut self) -> bool {
        self.stopping = true;
        true
    }
}

struct Slow(Arc<AtomicU64>);

impl TxQueue for Slow {
    fn has_room(&self) -> bool {
        self.0.load(Relaxed) >= BATCH
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while packets.next_packet().is_some() {
            if self.0.load(Relaxed) > 0 {
                self.0.fetch_sub(1, Relaxed);
                sent.packets += 1;
            }
        }
        Ok(sent)
    }
}

struct Run {
    cpus: [Softnet<SendAll, ManualClock>; 2],
    handle: Handle,
    clock: ManualClock,
    buffered: Arc<AtomicU64>,
    room: Arc<AtomicU64>,
}

impl Run {
    fn new(waits: bool, handles: u16) -> Self {
        let (buffered, room) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let queue = Live { buffered: Arc::clone(&buffered), stopping: false };
        let input = Input::new("live", "test", vec![Box::new(queue)]);
        let input = if waits { Wait::new(input) } else { input };
        let to = Arc::clone(&room);
        let output = Output::new("slow", "test", move |_| Ok(Box::new(Slow(Arc::clone(&to))) as Box<dyn TxQueue>));
        let builder = Builder::new().virtual_cpus(2).policy(Hash).backlog(BACKLOG).output(output);
        let builder = builder.rps_cpus(CpuMask::from_iter([CpuId(handles)])).input_on(input, &[CpuId(0)], None);
        let (parts, handle) = builder.build(|_| SendAll).unwrap().split();
        let clock = ManualClock::default();
        let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
        Self { cpus: cpus.try_into().unwrap(), handle, clock, buffered, room }
    }

    fn step(&mut self, rounds: usize) {
        (0..rounds).for_each(|_| self.cpus.iter_mut().for_each(|cpu| _ = cpu.step()));
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.handle.snapshot().dropped().get(reason)
    }
}

#[test]
fn a_live_input_does_not_wait_for_an_output() {
    for handles in [0, 1] {
        let mut run = Run::new(false, handles);
        run.buffered.store(1000, Relaxed);
        run.step(100);
        assert_eq!((run.buffered.load(Relaxed), run.dropped(DropReason::TxFull)), (0, 1000));
    }
}

#[test]
fn one_that_waits_loses_nothing_and_ends_when_it_is_stopped() {
    for handles in [0, 1] {
        let mut run = Run::new(true, handles);
        run.buffered.store(1000, Relaxed);
        run.step(100);
        let held = if handles == 0 { BATCH } else { BACKLOG as u64 };
        assert_eq!((run.buffered.load(Relaxed), run.handle.snapshot().in_flight()), (1000 - held, held));
        let armed = run.cpus[usize::from(handles)].arm();
        assert!(matches!(armed, Armed::Sleep(Some(_))), "it sleeps until it asks the output again: {armed:?}");

        for _ in 0..2 * 1000_u64.div_ceil(BATCH) {
            run.room.store(BATCH, Relaxed);
            run.step(10);
        }
        let ledger = run.handle.snapshot();
        assert_eq!((ledger.received(), ledger.outputs[0].packets, ledger.dropped().total()), (1000, 1000, 0));

        run.room.store(0, Relaxed);
        run.buffered.store(200, Relaxed);
        run.step(10);
        run.handle.stop();
        run.step(10);
        assert_eq!(
            (run.handle.snapshot().delivered(), run.dropped(DropReason::TxFull)),
            (1000, 0),
            "there is still time"
        );
        run.clock.advance(DRAIN_MAX / 2);
        let [first, second] = &mut run.cpus;
        manual_clock::end(&run.handle, [first, second]);
        assert_eq!((run.handle.snapshot().received(), run.dropped(DropReason::TxFull)), (1200, 200));
    }
}
