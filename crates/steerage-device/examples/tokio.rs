//! Passes packets to async code. Each CPU of the receive path is a future: `cargo run --release -p
//! steerage-device --example tokio -- eth0`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::{error::Error, io, os::fd::OwnedFd, thread, time::Duration};

use steerage::threads::{Armed, CpuPart, Stepped};
use steerage::{Batch, Builder, Cpu, Handler, Snapshot, packet::Kept};
use tokio::{io::unix::AsyncFd, runtime, signal, sync::mpsc, task, time::timeout};

/// Drops packets for which the channel has no room.
struct ToAsync(mpsc::Sender<Kept>);

impl Handler for ToAsync {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            // Reserve room in the channel first, so that no packet is kept only to be dropped.
            match self.0.try_reserve() {
                Ok(place) => drop(packet.keep().map(|kept| place.send(kept))),
                Err(_) => packet.discard(),
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

async fn serve<H: Handler>(part: CpuPart<H>) -> io::Result<H::Report> {
    let mut softnet = part.enter_machine();
    // SAFETY: the file descriptor is owned, so it stays open while the runtime uses it.
    let event: AsyncFd<OwnedFd> = unsafe { AsyncFd::register(softnet.event_fd()?) }?;
    while softnet.poll(256) != Stepped::Finished {
        if let Armed::Sleep(until) = softnet.arm() {
            let time = until.map_or(Duration::from_secs(60), |until| until.since(softnet.now()));
            if let Ok(ready) = timeout(time, event.readable()).await {
                ready?.clear_ready(); // The next poll looks at everything.
            }
        }
        task::yield_now().await; // Another task may have a page that this CPU waits for.
    }
    Ok(softnet.finish())
}

fn run<S: Future + Send + 'static>(device: &str, cpus: usize, stop: S) -> Result<(u64, Snapshot), Box<dyn Error>> {
    let runtime = || runtime::Builder::new_current_thread().enable_all().build();
    let (sender, mut receiver) = mpsc::channel(512);
    let builder = Builder::new().virtual_cpus(cpus).input(steerage_device::open(device)?);
    let (parts, handle) = builder.build(move |_cpu| ToAsync(sender.clone()))?.split();
    let serve = |part| thread::spawn(move || runtime()?.block_on(serve(part)));
    let threads: Vec<_> = parts.into_iter().map(serve).collect();
    let (policy, running, mut packets) = (handle.clone(), handle.clone(), 0);
    runtime()?.block_on(async {
        // Runs the policy, which lets further CPUs handle packets, until this runtime ends.
        task::spawn(async move {
            while let Some(next) = policy.control(policy.now()) {
                tokio::time::sleep(next.since(policy.now())).await;
            }
        });
        task::spawn(async move {
            stop.await;
            running.stop();
        });
        while receiver.recv().await.is_some() {
            packets += 1;
        }
    });
    threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))?;
    Ok((packets, handle.snapshot()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=1000000,rate=200000".into());
    let (packets, ledger) = run(&device, 2, signal::ctrl_c())?;
    println!("async code received {packets} packets; {} came too fast for it", ledger.verdicts().discarded);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

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
            let (packets, ledger) =
                run(&format!("synthetic:packets=20000,size=64{rate}"), cpus, pending::<()>()).unwrap();
            let verdicts = ledger.verdicts();
            assert_eq!((verdicts.consumed, verdicts.kept), (0, packets));
            assert!(packets > 0);
            if rate.is_empty() {
                assert_eq!(verdicts.total(), 20_000, "a source that can wait loses nothing");
            }
            assert_eq!(ledger.received(), 20_000);
            steerage_fixtures::assert_at_rest(&ledger);
        }
    }

    #[test]
    fn an_endless_device_runs_until_it_is_stopped() {
        let (packets, ledger) = run("synthetic:size=64", 2, ready(())).unwrap();
        assert_eq!(ledger.verdicts().kept, packets);
        steerage_fixtures::assert_at_rest(&ledger);
    }
}
