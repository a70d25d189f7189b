//! An output that accepts no data drops and counts only its own packets, and no other part of the
//! run waits for it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use steerage::{Batch, Builder, Cpu, Handle, Handler, Input, Instance, Snapshot, TxId, stats::DropReason};
use steerage_capture as capture;
use steerage_device::synthetic;
use steerage_fixtures::HANG;
use steerage_fixtures::capture::whole_packets;
use steerage_fixtures::handlers::Nothing;

struct Halves;

impl Handler for Halves {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let to = TxId((packet.flow_hash().0 & 1) as u8);
            packet.transmit(to);
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stuck-{name}"))
}

fn fifo(name: &str) -> (PathBuf, mpsc::Sender<()>, thread::JoinHandle<Vec<u8>>) {
    let path = target(name);
    let _ = fs::remove_file(&path);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (go, told) = mpsc::channel();
    let reader = thread::spawn({
        let path = path.clone();
        move || {
            let mut pipe = File::open(path).unwrap();
            told.recv().unwrap();
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).unwrap();
            all
        }
    });
    (path, go, reader)
}

fn traffic(packets: Option<u64>, rate: Option<u64>) -> Input {
    let mut options = synthetic::SyntheticOptions::new().flows(256).size(1500);
    (options.packets, options.rate) = (packets, rate);
    options.open().unwrap()
}

fn over(input: Input, outputs: [&Path; 2]) -> Instance<Halves> {
    let builder = Builder::new().virtual_cpus(2).always_hash(true).input(input);
    let builder = outputs.iter().fold(builder, |builder, path| builder.output(capture::create(path).unwrap()));
    builder.build(|_| Halves).unwrap()
}

fn wait_until(handle: &Handle, what: &str, mut reached: impl FnMut(&Snapshot) -> bool) {
    let start = Instant::now();
    loop {
        let now = handle.snapshot();
        assert_balanced(&now);
        if reached(&now) {
            return;
        }
        assert!(start.elapsed() < HANG, "{what}: {now:?}");
        thread::yield_now();
    }
}

fn assert_balanced(ledger: &Snapshot) {
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total() + ledger.in_flight());
}

/// steerage's own reader requires a complete file.
fn read_again(path: &Path) -> u64 {
    let input = capture::open(path).unwrap();
    let ledger =
        Builder::new().virtual_cpus(1).input(input).build(|_| Nothing).unwrap().start().unwrap().join().snapshot;
    assert_eq!(ledger.queues[0].error, None);
    ledger.received()
}

#[test]
fn a_reader_that_pauses_costs_its_own_packets_while_it_pauses() {
    let (pipe, go, reader) = fifo("pauses");
    let file = target("pauses.pcapng");
    let running = over(traffic(None, Some(50_000)), [&pipe, &file]).start().unwrap();
    let handle = running.handle();
    wait_until(&handle, "drops", |now| now.outputs[0].dropped.get(DropReason::TxFull) > 100);
    let before = handle.snapshot().outputs;
    wait_until(&handle, "the other output", |now| now.outputs[1].packets > before[1].packets + 10_000);
    assert_eq!(handle.snapshot().outputs[0].packets, before[0].packets, "nobody reads it");
    assert!(handle.snapshot().outputs[0].held > 0);
    go.send(()).unwrap();
    wait_until(&handle, "the reader", |now| now.outputs[0].packets > before[0].packets + before[0].held);
    handle.stop();
    let ledger = running.join().snapshot;
    assert_balanced(&ledger);
    assert_eq!((ledger.in_flight(), ledger.outputs[0].held, ledger.outputs[1].dropped.total()), (0, 0, 0));
    assert_eq!((&ledger.outputs[0].error, &ledger.outputs[1].error), (&None, &None));
    assert_eq!(ledger.outputs[0].dropped.get(DropReason::TxFull), ledger.dropped().get(DropReason::TxFull));
    assert_eq!(whole_packets(&reader.join().unwrap()), ledger.outputs[0].packets);
    assert_eq!(read_again(&file), ledger.outputs[1].packets);
    assert_eq!(ledger.verdicts().transmitted, ledger.outputs.iter().map(|output| output.packets).sum::<u64>());
}

#[test]
fn a_reader_that_never_comes_back_costs_its_own_packets_and_holds_nothing_up() {
    let (pipe, go, reader) = fifo("never");
    let file = target("never.pcapng");
    let running = over(traffic(None, Some(50_000)), [&pipe, &file]).start().unwrap();
    let handle = running.handle();
    // The output must have more packets than fit into the pipe, whose size is at most 1 MiB.
    wait_until(&handle, "traffic", |now| now.outputs[0].held > 2000 && now.outputs[1].packets > 1000);
    handle.stop();
    let outcome = running.join();
    let ledger = outcome.snapshot;
    assert!(outcome.left_behind.is_empty());
    assert_balanced(&ledger);
    assert_eq!((ledger.in_flight(), ledger.outputs[0].held), (0, 0));
    let error = ledger.outputs[0].error.as_ref().expect("it is named");
    assert!(error.contains("stuck-never: cannot write to: its reader takes nothing any more"), "{error}");
    assert_eq!(ledger.outputs[1].error, None);
    assert_eq!(ledger.dropped().get(DropReason::TxLost), ledger.outputs[0].dropped.get(DropReason::TxLost));
    assert!(ledger.dropped().get(DropReason::TxLost) > 1000);
    // Only the packets in the pipe count as sent.
    go.send(()).unwrap();
    assert_eq!(whole_packets(&reader.join().unwrap()), ledger.outputs[0].packets);
    assert_eq!(read_again(&file), ledger.outputs[1].packets);
}

#[test]
fn the_end_of_the_input_waits_for_a_reader_and_not_for_ever() {
    for comes_back in [true, false] {
        let (pipe, go, reader) = fifo(if comes_back { "end-back" } else { "end-never" });
        let file = target("end.pcapng");
        let running = over(traffic(Some(2000), None), [&pipe, &file]).start().unwrap();
        let handle = running.handle();
        // After the last batches were handled, packets are left only in the pipe.
        wait_until(&handle, "only the pipe has packets", |now| {
            handle.is_finished() && now.in_flight() > 0 && now.in_flight() == now.outputs[0].held
        });
        if comes_back {
            go.send(()).unwrap();
        }
        let ledger = running.join().snapshot;
        assert_balanced(&ledger);
        assert_eq!((ledger.received(), ledger.in_flight()), (2000, 0));
        assert_eq!(ledger.dropped().total() == 0, comes_back);
        assert_eq!(ledger.outputs[0].error.is_none(), comes_back);
        if !comes_back {
            go.send(()).unwrap();
        }
        assert_eq!(whole_packets(&reader.join().unwrap()), ledger.outputs[0].packets);
        assert_eq!(read_again(&file), ledger.outputs[1].packets);
    }
}

/// An output gets more packets than fit into its buffer, and its reader starts late.
#[test]
fn a_slow_output_slows_a_source_that_can_wait() {
    let (pipe, go, reader) = fifo("slow");
    let file = target("slow.pcapng");
    let count = 100_000;
    let running = over(traffic(Some(count), None), [&pipe, &file]).start().unwrap();
    let handle = running.handle();
    // The source waits when half of a CPU's share of the buffer of 32 MiB is used.
    wait_until(&handle, "a full buffer", |now| now.outputs[0].held * 1500 > 7 << 20);
    go.send(()).unwrap();
    let ledger = running.join().snapshot;
    assert_eq!((ledger.received(), ledger.dropped().total(), ledger.delivered()), (count, 0, count));
    assert_eq!(whole_packets(&reader.join().unwrap()) + read_again(&file), count);
}

#[test]
fn a_device_is_written_to_as_it_is() {
    let null = over(traffic(Some(10_000), None), [Path::new("/dev/null"), Path::new("/dev/null")]);
    let ledger = null.start().unwrap().join().snapshot;
    assert_eq!((ledger.delivered(), ledger.dropped().total()), (10_000, 0));
    File::options().write(true).open("/dev/null").unwrap().write_all(b"nothing").unwrap();
    assert_eq!(fs::read("/dev/null").unwrap(), b"");
}
