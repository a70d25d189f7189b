use std::sync::{Arc, Mutex};
use std::time::Duration;

use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, LinkType, NoRoom, Output, Snapshot, Timestamp, TxId,
    device::{Capabilities, Completions, Filled, Outgoing, Polled, RxQueue, Sent, TxQueue},
};
use steerage_fixtures::assert_at_rest;

struct Frames(u8, u8);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        if self.0 == self.1 {
            return Ok(Polled::Ended);
        }
        out.fill(1, |page| {
            page[0] = self.0;
            Some(Filled::whole(1))
        });
        self.0 += 1;
        Ok(Polled::More)
    }
}

struct Silence(bool);

impl RxQueue for Silence {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let later = Timestamp::from_nanos(out.now().as_nanos() + 1_000_000);
        Ok(if self.0 { Polled::Ended } else { Polled::NotBefore(later) })
    }

    fn stop(&mut self) -> bool {
        self.0 = true;
        true
    }
}

type Wire = Arc<Mutex<Vec<(Vec<u8>, LinkType)>>>;

struct Cable(Wire);

impl TxQueue for Cable {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let received = packet.received();
            if received.data[0] >= 200 {
                sent.refused += 1;
                continue;
            }
            self.0.lock().unwrap().push((received.data.to_vec(), received.link));
            sent.packets += 1;
            sent.bytes += received.data.len() as u64;
        }
        Ok(sent)
    }
}

fn cable(wire: &Wire) -> Output {
    let wire = Arc::clone(wire);
    Output::new("cable", "test", move |_| Ok(Box::new(Cable(Arc::clone(&wire)))))
}

struct Echoes {
    own: usize,
    full: bool,
}

impl Handler for Echoes {
    type Moved = ();
    type Report = bool;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let number = packet.data()[0];
            for nth in 0..self.own {
                let left = cpu.sends_left();
                match cpu.send(TxId(nth as u8 % 2), LinkType::RAW, &[number, nth as u8]) {
                    Ok(()) => assert_eq!(cpu.sends_left(), left - 1),
                    Err(why) => {
                        assert_eq!((left, why), (0, NoRoom::OriginatedMax));
                        self.full = true;
                    }
                }
            }
            let why = if cpu.sends_left() == 0 { NoRoom::OriginatedMax } else { NoRoom::TooLong };
            assert_eq!(cpu.send(TxId(0), LinkType::RAW, &[0; 4000]), Err(why), "longer than a page");
            packet.transmit(TxId(0));
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> bool {
        self.full
    }
}

fn run(frames: std::ops::Range<u8>, own: usize, most: usize) -> (Snapshot, bool, [Wire; 2]) {
    let wires = [Wire::default(), Wire::default()];
    let input = Input::new("frames", "test", vec![Box::new(Frames(frames.start, frames.end))]);
    let builder = Builder::new().virtual_cpus(1).dev_weight(1).input(input).originated_max(most);
    let builder = wires.iter().map(cable).fold(builder, Builder::output);
    let outcome = builder.build(move |_| Echoes { own, full: false }).unwrap().start().unwrap().join();
    let ledger = outcome.snapshot;
    assert_at_rest(&ledger);
    (ledger, outcome.reports[0].1, wires)
}

#[test]
fn they_leave_behind_the_batch_each_by_its_output() {
    let (ledger, full, wires) = run(0..100, 5, 5);
    assert!(!full);
    let expected =
        |number: u8, own: &[u8]| own.iter().map(move |nth| (vec![number, *nth], LinkType::RAW)).collect::<Vec<_>>();
    for number in 0..100 {
        let first: Vec<_> = wires[0].lock().unwrap()[usize::from(number) * 4..][..4].to_vec();
        assert_eq!(first[0].0, [number]);
        assert_eq!(first[1..].to_vec(), expected(number, &[0, 2, 4]));
        let second: Vec<_> = wires[1].lock().unwrap()[usize::from(number) * 2..][..2].to_vec();
        assert_eq!(second, expected(number, &[1, 3]));
    }
    assert_eq!((ledger.cpus[0].originated, ledger.cpus[0].originated_dropped), (500, 0));
    assert_eq!((ledger.outputs[0].packets, ledger.outputs[1].packets), (400, 200));
}

#[test]
fn there_is_room_for_as_many_as_was_asked_for() {
    // Each call of `send` gets fewer than 150 packets. The limit of 150 packets applies to each
    // batch separately.
    let (ledger, full, _) = run(0..3, 200, 150);
    assert!(full);
    assert_eq!(ledger.cpus[0].originated, 450);
    let (ledger, full, _) = run(0..3, 1, 0);
    assert!(full);
    assert_eq!(ledger.cpus[0].originated, 0);
}

#[test]
fn what_an_output_does_not_take_is_counted() {
    let (ledger, _, _) = run(199..203, 3, 8);
    assert_eq!((ledger.cpus[0].originated, ledger.cpus[0].originated_dropped), (3, 9));
}

/// Each timer tick requests the next timer tick, so the handler sends packets without receiving
/// any.
struct Clock(u8);

impl Handler for Clock {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        cpu.send(TxId(0), LinkType::ETHERNET, &[self.0]).unwrap();
        self.0 += 1;
        cpu.tick_by(cpu.now() + Duration::from_millis(1));
        cpu.tick_by(cpu.now() + Duration::from_secs(3600));
        None
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn a_tick_sends_and_the_earliest_wish_counts() {
    let wire = Wire::default();
    let input = Input::new("silence", "test", vec![Box::new(Silence(false))]);
    let builder = Builder::new().virtual_cpus(1).input(input).output(cable(&wire)).originated_max(1);
    let running = builder.build(|_| Clock(0)).unwrap().start().unwrap();
    while wire.lock().unwrap().len() < 10 {
        std::thread::yield_now();
    }
    running.handle().stop();
    running.join();
    let said: Vec<u8> = wire.lock().unwrap().iter().map(|(bytes, _)| bytes[0]).collect();
    assert!(said.iter().copied().eq(0..said.len() as u8), "{said:?}");
}
