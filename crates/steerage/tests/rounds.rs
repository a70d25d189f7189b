//! A packet CPU neither waits for a lock nor allocates memory in a round (one pass of its loop).
//! During the run, the test changes masks a thousand times per second, reads snapshots in a loop,
//! has an active policy, and lets CPUs be declared dead.
//!
//! With debug assertions, each packet thread records whether it is in a round. In a round, waiting
//! for the control lock panics, and allocating ends the process. The test takes three seconds, or a
//! minute in the long checks, with `STEERAGE_SECONDS=60 cargo test -p steerage --test rounds`.
#![cfg(debug_assertions)]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use steerage::flow::wire::FrameBuilder;
use steerage::{
    Batch, BucketId, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Input, Output, TxId,
    device::{Capabilities, Completion, Completions, Outgoing, Polled, RxQueue, Sent, TxQueue},
    limits::HEADROOM,
    packet::Kept,
};
use steerage_fixtures::HANG;
use steerage_mem::round;

/// An allocator that ends the process if memory is allocated in a round.
struct NotInARound;

fn check() {
    if round::is_inside() {
        let _outside = round::leave();
        let _ = writeln!(std::io::stderr(), "memory is allocated in a round:\n{}", Backtrace::force_capture());
        std::process::abort();
    }
}

// SAFETY: all calls are passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for NotInARound {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: the caller keeps to the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: NotInARound = NotInARound;

const FRAME_BYTES: usize = 60;

struct Endless {
    next: u32,
    template: Vec<u8>,
}

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            let Some(mut page) = out.take_page() else { break };
            self.next = self.next.wrapping_add(1);
            let frame = &mut out.page_mut(&mut page)[HEADROOM..][..FRAME_BYTES];
            frame.copy_from_slice(&self.template);
            frame[26..30].copy_from_slice(&(self.next % 5000).to_be_bytes());
            out.push(Completion::new(page, HEADROOM, FRAME_BYTES), FRAME_BYTES);
        }
        Ok(Polled::More)
    }
}

struct Nowhere;

impl TxQueue for Nowhere {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            sent.packets += 1;
            sent.bytes += packet.received().data.len() as u64;
        }
        Ok(sent)
    }
}

#[derive(Default)]
struct Stall {
    wanted: AtomicBool,
    is_on: AtomicBool,
}

impl Stall {
    fn stay_away(&self) {
        if self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::SeqCst) {
            self.is_on.store(true, Ordering::SeqCst);
            let since = Instant::now();
            while self.is_on.load(Ordering::SeqCst) && since.elapsed() < HANG {
                std::thread::yield_now();
            }
        }
    }

    fn call_back(&self) {
        self.wanted.store(false, Ordering::SeqCst);
        self.is_on.store(false, Ordering::SeqCst);
    }
}

struct Counts {
    stall: Arc<Stall>,
    by_bucket: HashMap<BucketId, u64>,
    kept: VecDeque<Kept>,
}

impl Handler for Counts {
    type Moved = u64;
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for (nth, packet) in batch.iter_mut().enumerate() {
            *self.by_bucket.entry(packet.bucket()).or_default() += 1;
            match nth % 8 {
                0 => packet.transmit(TxId(0)),
                1 => packet.discard(),
                2 => self.kept.extend(packet.keep().ok()),
                _ => {}
            }
        }
        while self.kept.len() > 100 {
            self.kept.pop_front();
        }
        self.stall.stay_away();
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<u64> {
        self.by_bucket.remove(&bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: u64) {
        *self.by_bucket.entry(bucket).or_default() += state;
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

const CPUS: u16 = 4;

/// How long a handler stalls. A CPU is declared dead if the move of a bucket has waited for the CPU
/// for a second.
const AWAY: Duration = Duration::from_millis(1500);

fn change_masks(handle: &Handle, until: &AtomicBool) {
    for nth in 1_u16.. {
        if until.load(Ordering::SeqCst) {
            return;
        }
        let mask: CpuMask = (0..CPUS).filter(|cpu| (nth % 15 + 1) & (1 << cpu) != 0).map(CpuId).collect();
        match nth % 4 {
            3 => handle.set_queue_rps_cpus(usize::from(nth % 3), &mask).unwrap(),
            _ => handle.set_rps_cpus(&mask).unwrap(),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_round_neither_waits_nor_allocates() {
    let seconds: f64 = std::env::var("STEERAGE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3.0);
    let stall = Arc::new(Stall::default());
    let for_handlers = Arc::clone(&stall);
    let template = FrameBuilder::udp(([0; 4], 53), ([10, 0, 0, 1], 53)).frame_of(FRAME_BYTES);
    let input = |nth: u32| {
        Input::new(format!("endless{nth}"), "test", vec![Box::new(Endless { next: nth, template: template.clone() })])
    };
    let builder = (0..3).map(input).fold(Builder::new(), Builder::input);
    let output = Output::new("nowhere", "test", |_| Ok(Box::new(Nowhere)));
    let built = builder.output(output).virtual_cpus(usize::from(CPUS)).check_order(true).build(move |_| Counts {
        stall: Arc::clone(&for_handlers),
        by_bucket: HashMap::new(),
        kept: VecDeque::new(),
    });
    let running = built.unwrap().start().unwrap();
    let (handle, end, start) = (running.handle(), AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| change_masks(&handle, &end));
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(Ordering::SeqCst) {
                    let ledger = handle.snapshot();
                    let known = ledger.delivered() + ledger.dropped().total() + ledger.in_flight();
                    assert_eq!(ledger.received(), known);
                }
            });
        }
        let mut deaths = 0;
        while start.elapsed().as_secs_f64() < seconds || deaths == 0 {
            assert!(start.elapsed() < HANG + Duration::from_secs_f64(seconds), "no CPU is declared dead");
            let ledger = handle.snapshot();
            deaths = ledger.cpus.iter().map(|cpu| cpu.deaths).sum();
            if ledger.cpus.iter().any(|cpu| cpu.in_handler.is_some_and(|since| since > AWAY)) {
                stall.call_back();
            } else if !stall.is_on.load(Ordering::SeqCst) {
                stall.wanted.store(true, Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        end.store(true, Ordering::SeqCst);
        stall.call_back();
    });
    handle.stop();
    let ledger = running.join().snapshot;
    assert_eq!((ledger.in_flight(), ledger.reordered()), (0, Some(0)));
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert!(ledger.moves.buckets > 0);
}
