//! Embedded in tokio by `split()`: the receive path shares its threads with async tasks, and packets reach async code
//! through an ordinary tokio channel.
//!
//! ```text
//! cargo run --release -p steerage-device --example tokio -- synthetic:packets=1000000,rate=200000
//! ```
//!
//! Each CPU of the path is a future on a current-thread runtime, since a handler need not be `Send`; the threads are the
//! caller's, and unpinned. The future hands packets to the handler while there are any and lets other tasks have their
//! turn after each `BUDGET`. With nothing to do it arms, which makes the other CPUs ring from then on, and awaits its
//! event file descriptor, or the time at which a tick, a timed device or a move wants it back. One more task lets the policy
//! look at the load: without it, no CPU ever joins.
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use steerage::{
    Batch, Builder, Cpu, Handle, Handler, Snapshot,
    packet::Kept,
    threads::{Armed, CpuPart, Machine, Softnet, Stepped},
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime;
use tokio::sync::mpsc;

/// How many packets a CPU handles before other tasks of its runtime have their turn: four batches, some 10 us.
const BUDGET: usize = 256;

/// How many packets may be on their way to async code.
const ON_THE_WAY_MAX: usize = 512;

// ---- the packet function

/// Sends each packet to async code, as far as that keeps up.
struct ToAsync {
    packets: mpsc::Sender<Kept>,
    counts: Counts,
}

/// What became of one CPU's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    /// Discarded, because async code was behind.
    pub(crate) full: u64,
    /// Not kept, because too many are: cannot be while `kept_max` is no less than `ON_THE_WAY_MAX` and what the
    /// receivers hold.
    pub(crate) no_room: u64,
}

impl Handler for ToAsync {
    type Moved = ();
    type Report = Counts;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            // The place first, then the packet: one that was kept only to be dropped would count as kept.
            let Ok(place) = self.packets.try_reserve() else {
                packet.discard();
                self.counts.full += 1;
                continue;
            };
            match packet.keep() {
                Ok(kept) => {
                    place.send(kept);
                    self.counts.sent += 1;
                }
                Err(_) => self.counts.no_room += 1,
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Counts {
        self.counts
    }
}

// ---- one CPU of the path, as a future

/// Serves one CPU until every queue has ended.
async fn serve<H: Handler>(mut softnet: Softnet<H, Machine>) -> io::Result<H::Report> {
    let events = events_of(&mut softnet)?;
    loop {
        match softnet.poll(BUDGET) {
            Stepped::Worked => {}
            Stepped::Finished => return Ok(softnet.finish()),
            Stepped::Idle => {
                if let Armed::Sleep(until) = softnet.arm() {
                    wait(&events, until.map(|until| until.since(softnet.now()))).await?;
                }
            }
        }
        // Even when it was idle and may not sleep: it may wait for pages that a task of this runtime holds.
        tokio::task::yield_now().await;
    }
}

/// A CPU's bell and devices, registered with the runtime once.
#[allow(deprecated, reason = "what replaces it is unsafe, for callers who own no file descriptor; we do")]
fn events_of<H: Handler>(softnet: &mut Softnet<H, Machine>) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(softnet.event_fd()?, Interest::READABLE)
}

/// Waits for an event or until the time is over. It is taken as seen: the next poll looks at everything.
async fn wait(events: &AsyncFd<OwnedFd>, time: Option<Duration>) -> io::Result<()> {
    let readable = events.readable();
    let ready = match time {
        Some(time) => tokio::time::timeout(time, readable).await.ok(),
        None => Some(readable.await),
    };
    if let Some(ready) = ready {
        ready?.clear_ready();
    }
    Ok(())
}

fn runtime() -> io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// Lets the policy look at the load whenever it wants to.
async fn control(handle: Handle) {
    while let Some(next) = handle.control(handle.now()) {
        tokio::time::sleep(next.since(handle.now())).await;
    }
}

// ---- the whole

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) counts: Vec<Counts>,
    /// Packets and bytes that came to async code.
    pub(crate) received: (u64, u64),
    pub(crate) snapshot: Snapshot,
}

pub(crate) fn run(device: &str, cpus: usize) -> Result<Outcome, Box<dyn Error>> {
    let (sender, mut receiver) = mpsc::channel(ON_THE_WAY_MAX);
    // What makes handlers lives as long as the last CPU, so the channel closes when that has ended.
    let make = move |_cpu| ToAsync { packets: sender.clone(), counts: Counts::default() };
    let instance = Builder::new().virtual_cpus(cpus).input(steerage_device::open(device)?).build(make)?;
    let (parts, handle) = instance.split();

    let serve_on_thread = |part: CpuPart<ToAsync>| {
        thread::spawn(move || runtime()?.block_on(async { serve(part.enter_machine()).await }))
    };
    let threads: Vec<_> = parts.into_iter().map(serve_on_thread).collect();

    // Async code, on this thread's runtime, until the last CPU has ended.
    let received = runtime()?.block_on(async {
        // It ends with the runtime.
        tokio::spawn(control(handle.clone()));
        let mut received = (0, 0);
        while let Some(packet) = receiver.recv().await {
            received.0 += 1;
            received.1 += packet.len() as u64;
        }
        received
    });
    let counts = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
    let counts = counts.collect::<io::Result<_>>()?;
    Ok(Outcome { counts, received, snapshot: handle.snapshot() })
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=1000000,rate=200000".into());
    let Outcome { counts, received: (packets, bytes), snapshot } = run(&device, 2)?;
    for (cpu, Counts { sent, full, .. }) in counts.iter().enumerate() {
        println!("CPU {cpu}: {sent} packets sent to async code, {full} discarded because it was behind");
    }
    println!("async code received {packets} packets, {bytes} bytes");
    println!("lost: {} of {}", snapshot.dropped().total(), snapshot.received());
    Ok(())
}
