//! Packets that handlers keep must not stop the packet ring.

use std::net::UdpSocket;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use steerage::{Batch, Builder, Cpu, CpuId, Handle, Handler, Hash, Input, packet::Kept, stats::DropReason};
use steerage_device::af_packet::{AfPacketOptions, BUFFER_MIN, Direction};
use steerage_fixtures::HANG;
use steerage_fixtures::cable::{FAR, NEAR, Net};

const FLOWS: usize = 64;
/// A burst fills half of one of the ring's four blocks.
const BURST: u32 = 100;
/// The packet ring wraps around at least six times.
const BURSTS: u32 = 50;
const PAYLOAD: usize = 500;

fn input(net: &Net) -> Input {
    // The timeout is longer than it takes to send a burst on a busy machine, so that a burst needs
    // one block.
    let timeout = Duration::from_millis(40);
    let options = AfPacketOptions::new("near0").buffer(BUFFER_MIN).block_timeout(timeout).direction(Direction::In);
    net.near(|| options.open().unwrap()).input
}

fn send(net: &Net, handle: &Handle) -> u64 {
    let received = |expected: u64| {
        let start = Instant::now();
        while handle.snapshot().received() < expected {
            assert!(start.elapsed() < HANG, "{expected} expected: {:#?}", handle.snapshot().queues);
            thread::yield_now();
        }
    };
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..FLOWS).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for number in 0..BURST * BURSTS {
            // The payload shows whether a frame's memory was overwritten or cleared before the
            // handler read it.
            let payload = (number + 1).to_be_bytes().repeat(PAYLOAD / 4);
            // If an earlier datagram caused an ICMP error, `send_to` returns this error.
            while sockets[number as usize % FLOWS].send_to(&payload, (NEAR, 9)).is_err() {}
            if (number + 1) % BURST == 0 {
                received(u64::from(number + 1));
            }
        }
    });
    u64::from(BURST * BURSTS)
}

fn is_sound(frame: &[u8]) -> bool {
    let payload = frame.get(42..).unwrap_or_default();
    payload.len() == PAYLOAD && payload[..4] != [0; 4] && payload.chunks(4).all(|word| word == &payload[..4])
}

struct Stalls {
    told: Option<(Sender<()>, Receiver<()>)>,
    sound: u64,
    unsound: u64,
}

impl Handler for Stalls {
    type Moved = ();
    type Report = (u64, u64);

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let mut packets: Vec<_> = batch.iter_mut().collect();
        let first = packets.first().map(|packet| packet.data());
        if let Some((stalls, go_on)) = self.told.take() {
            stalls.send(()).unwrap();
            go_on.recv().unwrap();
        }
        // The handler borrowed packet data before it stalled. This data must be unchanged.
        assert!(first.is_some_and(is_sound));
        for packet in packets.drain(..) {
            let count = if is_sound(packet.data()) { &mut self.sound } else { &mut self.unsound };
            *count += 1;
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> (u64, u64) {
        (self.sound, self.unsound)
    }
}

#[test]
fn a_handler_that_stalls_does_not_stop_the_ring() {
    let Some(net) = Net::new() else { return };
    let ((stalls, stalled), (to_go_on, go_on)) = (mpsc::channel(), mpsc::channel());
    let told = Arc::new(Mutex::new(Some((stalls, go_on))));
    let make = move |cpu| {
        let told = if cpu == CpuId(1) { told.lock().unwrap().take() } else { None };
        Stalls { told, sound: 0, unsound: 0 }
    };
    let builder = Builder::new().virtual_cpus(2).policy(Hash).check_order(true).input(input(&net));
    let running = builder.build(make).unwrap().start().unwrap();
    let handle = running.handle();
    let sent = send(&net, &handle);
    stalled.recv_timeout(HANG).unwrap();
    let snapshot = handle.snapshot();
    let held = snapshot.in_flight();
    assert!(held >= 1000, "CPU 1 has no full backlog: {held}");
    to_go_on.send(()).unwrap();
    handle.stop();
    let outcome = running.join();
    let ledger = outcome.snapshot;
    assert_eq!((ledger.received(), ledger.in_flight(), ledger.reordered()), (sent, 0, Some(0)));
    assert_eq!(ledger.delivered() + ledger.dropped().total(), sent);
    let dropped = ledger.dropped();
    assert_eq!(dropped.get(DropReason::Device), 0, "the ring stood still: {dropped:?}");
    assert_eq!(dropped.get(DropReason::HandlerPanicked), 0, "a frame is not what it was: {dropped:?}");
    assert!(dropped.get(DropReason::BacklogFull) > 0 && ledger.queues[0].copied > 0, "{:?}", ledger.queues[0]);
    assert_eq!(outcome.reports.iter().map(|(_, (_, unsound))| unsound).sum::<u64>(), 0);
    assert_eq!(outcome.reports.iter().map(|(_, (sound, _))| sound).sum::<u64>(), ledger.delivered());
    assert_eq!(ledger.pages_free, ledger.pages);
}

#[derive(Default)]
struct Keeps(Vec<Kept>);

impl Handler for Keeps {
    type Moved = ();
    type Report = usize;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        self.0.extend(batch.iter_mut().filter_map(|packet| packet.keep().ok()));
        assert!(self.0.iter().all(|kept| is_sound(kept)));
    }

    fn finish(self, _cpu: &mut Cpu) -> usize {
        self.0.len()
    }
}

#[test]
fn a_handler_that_keeps_all_does_not_stop_the_ring() {
    let Some(net) = Net::new() else { return };
    let builder = Builder::new().virtual_cpus(2).policy(Hash).kept_max(256).check_order(true).input(input(&net));
    let running = builder.build(|_| Keeps::default()).unwrap().start().unwrap();
    let handle = running.handle();
    let sent = send(&net, &handle);
    handle.stop();
    let outcome = running.join();
    let ledger = &outcome.snapshot;
    assert_eq!((ledger.received(), ledger.delivered(), ledger.reordered()), (sent, sent, Some(0)));
    assert_eq!(ledger.queues[0].verdicts.kept, 256);
    assert_eq!(outcome.reports.iter().map(|(_, kept)| kept).sum::<usize>(), 256);
    assert_eq!(handle.snapshot().pages_free, ledger.pages);
}
