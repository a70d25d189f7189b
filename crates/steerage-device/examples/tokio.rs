//! Packets reach async code. Each CPU is a future on a runtime of its own, which it shares with other tasks:
//! `cargo run --release -p steerage-device --example tokio -- eth0`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::{error::Error, io, os::fd::OwnedFd, thread, time::Duration};

use steerage::packet::Kept;
use steerage::threads::{Armed, CpuPart, Stepped};
use steerage::{Batch, Builder, Cpu, Handle, Handler, Snapshot};
use tokio::{io::unix::AsyncFd, runtime, sync::mpsc, time::timeout};

/// Sends packets to async code, as far as that keeps up.
pub(crate) struct ToAsync(pub(crate) mpsc::Sender<Kept>);

impl Handler for ToAsync {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            // The place first: a packet that was kept only to be dropped would count as kept.
            match self.0.try_reserve() {
                Ok(place) => drop(packet.keep().map(|kept| place.send(kept))),
                Err(_) => packet.discard(),
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// Runs one CPU until every queue has ended.
async fn serve(part: CpuPart<ToAsync>) -> io::Result<()> {
    let mut softnet = part.enter_machine();
    // SAFETY: the file descriptor is owned, so it stays open as long as the runtime knows it.
    let event: AsyncFd<OwnedFd> = unsafe { AsyncFd::register(softnet.event_fd()?) }?;
    loop {
        match softnet.poll(256) {
            Stepped::Finished => break,
            Stepped::Worked => {}
            Stepped::Idle => {
                if let Armed::Sleep(until) = softnet.arm() {
                    let time = until.map_or(Duration::from_secs(60), |until| until.since(softnet.now()));
                    // Readiness is forgotten, because the next poll looks at everything.
                    if let Ok(ready) = timeout(time, event.readable()).await {
                        ready?.clear_ready();
                    }
                }
            }
        }
        // Also if it is idle and may not sleep: it may wait for a page that a task of this runtime has.
        tokio::task::yield_now().await;
    }
    softnet.finish();
    Ok(())
}

/// Lets the policy look at the load whenever it wants to. Without it, no CPU ever joins.
async fn control(handle: Handle) {
    while let Some(next) = handle.control(handle.now()) {
        tokio::time::sleep(next.since(handle.now())).await;
    }
}

/// The number of packets and bytes that async code received, and the ledger.
pub(crate) fn run(device: &str, cpus: usize) -> Result<(u64, u64, Snapshot), Box<dyn Error>> {
    let runtime = || runtime::Builder::new_current_thread().enable_all().build();
    let (sender, mut receiver) = mpsc::channel(512);
    let builder = Builder::new().virtual_cpus(cpus).input(steerage_device::open(device)?);
    let (parts, handle) = builder.build(move |_cpu| ToAsync(sender.clone()))?.split();
    let serve = |part| thread::spawn(move || runtime()?.block_on(serve(part)));
    let threads: Vec<_> = parts.into_iter().map(serve).collect();
    let (packets, bytes) = runtime()?.block_on(async {
        tokio::spawn(control(handle.clone())); // It ends with this runtime.
        let mut received = (0, 0);
        while let Some(packet) = receiver.recv().await {
            received = (received.0 + 1, received.1 + packet.len() as u64);
        }
        received
    });
    threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))?;
    Ok((packets, bytes, handle.snapshot()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=1000000,rate=200000".into());
    let (packets, bytes, ledger) = run(&device, 2)?;
    println!("async code received {packets} packets, {bytes} bytes; {} came too fast", ledger.verdicts().discarded);
    Ok(())
}

#[cfg(test)]
mod tests {
    use steerage::packet::Verdict;
    use steerage::testing;

    use super::*;

    #[test]
    fn packets_that_find_no_place_are_discarded() {
        let (sender, mut receiver) = mpsc::channel(1);
        let tested = testing::run(move |_| ToAsync(sender.clone()), [[1; 60], [2; 60]]);
        assert_eq!(tested.verdicts, [Verdict::Kept, Verdict::Discarded]);
        assert_eq!(receiver.blocking_recv().as_deref(), Some(&[1; 60][..]));
    }

    #[test]
    fn each_packet_is_received_or_discarded() {
        for (cpus, rate) in [(1, ""), (2, ""), (4, ""), (2, ",rate=100000")] {
            let (packets, bytes, ledger) = run(&format!("synthetic:packets=20000,size=64{rate}"), cpus).unwrap();
            let verdicts = ledger.verdicts();
            assert_eq!((verdicts.consumed, verdicts.kept, bytes), (0, packets, 64 * packets));
            assert!(packets > 0);
            if rate.is_empty() {
                assert_eq!(verdicts.total(), 20_000, "a source that can wait loses nothing");
            }
            assert_eq!(ledger.received(), 20_000);
            steerage_fixtures::assert_at_rest(&ledger);
        }
    }
}
