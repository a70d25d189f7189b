//! If a handler writes to or keeps a frame that lies in a device's memory, the frame is copied to a
//! page, which returns to the pool.

use std::path::PathBuf;

use steerage::flow::wire::FrameBuilder;
use steerage::{Batch, Builder, Cpu, Handler, packet::Kept};
use steerage_capture as capture;
use steerage_fixtures::capture::pcap;
use steerage_fixtures::until;

const PACKETS: usize = 20_000;

/// Makes UDP packets, each with its own flow, and with its number in the last four bytes.
fn capture_file() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("lent.pcap");
    let bytes = pcap((0..PACKETS as u32).map(|number| {
        let udp = FrameBuilder::udp((number.to_be_bytes(), 0), ([0; 4], 0));
        let frame = udp.frame(&[&[0; 14][..], &number.to_be_bytes()].concat());
        (0, 0, frame)
    }));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[derive(Default)]
struct WritesAndKeeps {
    kept: Vec<Kept>,
    sum: u64,
}

impl Handler for WritesAndKeeps {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        self.kept.clear();
        for mut packet in batch.iter_mut() {
            let before = packet.data().to_vec();
            // The receiving thread may be preempted before it returns the pages of freed copies to
            // the pool.
            until("a page for a copy is free", || packet.data_mut().is_ok());
            packet.data_mut().unwrap()[0] = 0xff;
            assert_eq!(packet.data()[1..], before[1..], "the copy is another frame");
            let kept = packet.keep().expect("no page for a copy though all but a batch of them are free");
            self.sum += u64::from(u32::from_be_bytes(kept[56..60].try_into().unwrap()));
            assert_eq!(kept[0], 0xff);
            self.kept.push(kept);
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        self.sum
    }
}

#[test]
fn pages_of_copies_come_round() {
    let path = capture_file();
    let running = Builder::new()
        .virtual_cpus(2)
        .kept_max(256)
        .input(capture::open(&path).unwrap())
        .build(|_| WritesAndKeeps::default())
        .unwrap()
        .start()
        .unwrap();
    let handle = running.handle();
    let outcome = running.join();
    let ledger = handle.snapshot();
    assert_eq!((ledger.received(), ledger.delivered()), (PACKETS as u64, PACKETS as u64));
    assert_eq!(ledger.queues[0].verdicts.kept, PACKETS as u64);
    assert!(ledger.pages < 2_000, "there are as many pages as packets: this tests nothing");
    assert_eq!(ledger.pages_free, ledger.pages, "pages are not home");
    let expected = (0..PACKETS as u64).sum::<u64>();
    assert_eq!(outcome.reports.iter().map(|(_, sum)| sum).sum::<u64>(), expected);
}
