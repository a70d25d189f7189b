use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, Output, Snapshot, TxId,
    device::{
        Capabilities, Completion, Completions, Filled, Outgoing, Page, Polled, Region, RxQueue, Sent, TxCapabilities,
        TxQueue, TxResources,
    },
    stats::DropReason,
};
use steerage_fixtures::assert_at_rest;

struct Numbers(std::ops::Range<u64>);

impl RxQueue for Numbers {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let numbers = &mut self.0;
        out.fill(budget, |page| {
            page[..8].copy_from_slice(&numbers.next()?.to_be_bytes());
            Some(Filled::whole(8))
        });
        Ok(if numbers.is_empty() { Polled::Ended } else { Polled::More })
    }
}

type Wire = Arc<Mutex<Vec<u64>>>;

struct Choosy(Wire);

impl TxQueue for Choosy {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let number = u64::from_be_bytes(packet.received().data.try_into().expect("eight bytes"));
            if number % 7 == 0 {
                sent.refused += 1;
                continue;
            }
            self.0.lock().unwrap().push(number);
            sent.packets += 1;
            sent.bytes += 8;
            if number % 100 == 63 {
                break;
            }
        }
        Ok(sent)
    }
}

struct Failing(u32);

impl TxQueue for Failing {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        self.0 += 1;
        if self.0 == 2 {
            return Err(DeviceError::new("failing", "send", std::io::Error::other("the cable is out")));
        }
        let mut sent = Sent::default();
        while packets.next_packet().is_some() {
            sent.packets += 1;
        }
        Ok(sent)
    }
}

struct Acts<F>(F);

impl<F: FnMut(u64, steerage::Packet<'_>) + 'static> Handler for Acts<F> {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let number = u64::from_be_bytes(packet.data().try_into().expect("eight bytes"));
            (self.0)(number, packet);
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn run<F>(frames: u64, outputs: Vec<Output>, acts: F) -> Snapshot
where
    F: FnMut(u64, steerage::Packet<'_>) + Clone + Send + Sync + 'static,
{
    let input = Input::new("numbers", "test", vec![Box::new(Numbers(0..frames))]);
    let builder = outputs.into_iter().fold(Builder::new().virtual_cpus(1).input(input), Builder::output);
    let outcome = builder.build(move |_| Acts(acts.clone())).unwrap().start().unwrap().join();
    let ledger = outcome.snapshot;
    assert_eq!(ledger.received(), frames);
    assert_at_rest(&ledger);
    ledger
}

fn output(name: &str, mut queue: impl FnMut() -> Box<dyn TxQueue> + Send + 'static) -> Output {
    Output::new(name, "test", move |_| Ok(queue()))
}

fn choosy(wire: &Wire) -> Output {
    let wire = Arc::clone(wire);
    output("choosy", move || Box::new(Choosy(Arc::clone(&wire))))
}

#[test]
fn what_is_sent_refused_and_has_no_room_is_told_apart() {
    let wire = Wire::default();
    let ledger = run(200, vec![choosy(&wire)], |_, packet| packet.transmit(TxId(0)));
    let sent: Vec<u64> = (0..200).filter(|number| number % 7 != 0 && !(164..192).contains(number)).collect();
    // The output refuses frames whose number is a multiple of seven, and has no room after frame
    // 163 of the batch.
    assert_eq!(*wire.lock().unwrap(), sent);
    let refused = (0..164).chain(192..200).filter(|number| number % 7 == 0).count() as u64;
    assert_eq!(ledger.dropped().get(DropReason::TxRefused), refused);
    assert_eq!(ledger.dropped().get(DropReason::TxFull), 28);
    let outputs = &ledger.outputs[0];
    assert_eq!(
        (outputs.device.as_str(), outputs.packets, outputs.bytes),
        ("choosy", sent.len() as u64, 8 * sent.len() as u64)
    );
    assert_eq!(ledger.verdicts().transmitted, sent.len() as u64);
}

#[test]
fn each_output_has_its_own_and_an_unknown_one_refuses() {
    let (one, other) = (Wire::default(), Wire::default());
    let ledger = run(1000, vec![choosy(&one), choosy(&other)], |number, packet| match number % 3 {
        0 => packet.transmit(TxId(0)),
        1 => packet.transmit(TxId(1)),
        _ => packet.transmit(TxId(2)),
    });
    assert!(one.lock().unwrap().iter().all(|number| number % 3 == 0));
    assert!(other.lock().unwrap().iter().all(|number| number % 3 == 1));
    assert!(one.lock().unwrap().is_sorted() && other.lock().unwrap().is_sorted());
    assert!(ledger.dropped().get(DropReason::TxRefused) >= 333);
    assert!(ledger.outputs.iter().all(|output| output.packets > 200));
}

#[test]
fn the_first_verdict_stands_and_what_was_written_is_sent() {
    struct Reads(Wire);
    impl TxQueue for Reads {
        fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
            let mut sent = Sent::default();
            while let Some(packet) = packets.next_packet() {
                self.0.lock().unwrap().push(u64::from_be_bytes(packet.received().data.try_into().unwrap()));
                sent.packets += 1;
            }
            Ok(sent)
        }
    }
    let wire = Wire::default();
    let to = Arc::clone(&wire);
    let ledger = run(64, vec![output("reads", move || Box::new(Reads(Arc::clone(&to))))], |number, mut packet| {
        packet.data_mut().unwrap().copy_from_slice(&(number + 1000).to_be_bytes());
        match number % 4 {
            0 => packet.discard(),
            1 => drop(packet.keep().expect("room")),
            _ => packet.transmit(TxId(0)),
        }
    });
    let verdicts = ledger.verdicts();
    assert_eq!((verdicts.discarded, verdicts.kept, verdicts.transmitted, verdicts.consumed), (16, 16, 32, 0));
    let sent: Vec<u64> = (1000..1064).filter(|number| number % 4 > 1).collect();
    assert_eq!(*wire.lock().unwrap(), sent);
}

struct Holding {
    region: Option<Arc<Region>>,
    free: Vec<Page>,
    held: VecDeque<Completion>,
    wire: Wire,
}

const HOLDING_PAGES: usize = 48;

impl Holding {
    fn let_go(&mut self) {
        let Some(frame) = self.held.pop_front() else { return };
        let (at, len) = (frame.offset(), frame.len());
        let mut page = frame.into_page().expect("a page of its own");
        let bytes = &self.region.as_ref().unwrap().page_mut(&mut page)[at..at + len];
        self.wire.lock().unwrap().push(u64::from_be_bytes(bytes.try_into().unwrap()));
        self.free.push(page);
    }
}

impl TxQueue for Holding {
    fn capabilities(&self) -> TxCapabilities {
        TxCapabilities::default().pages(HOLDING_PAGES)
    }

    fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
        let TxResources { region, pages, .. } = resources;
        assert!(pages.len() == HOLDING_PAGES && pages.iter().all(|page| region.holds(page)));
        (self.region, self.free) = (Some(region), pages);
        Ok(())
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(mut packet) = packets.next_packet() {
            if self.free.is_empty() {
                self.let_go();
            }
            let frame = packet.swap(&mut self.free).expect("it lies in a page of the pool, and one was let go");
            assert!(packet.received().data.is_empty(), "it is taken");
            self.held.push_back(frame);
            sent.packets += 1;
        }
        Ok(sent)
    }

    fn close(&mut self, pages: &mut Vec<Page>) {
        while !self.held.is_empty() {
            self.let_go();
        }
        pages.append(&mut self.free);
    }
}

#[test]
fn a_page_that_is_sent_from_is_nobody_elses_meanwhile() {
    let wire = Wire::default();
    let to = Arc::clone(&wire);
    let holding = move || -> Box<dyn TxQueue> {
        Box::new(Holding { region: None, free: Vec::new(), held: VecDeque::new(), wire: Arc::clone(&to) })
    };
    let ledger = run(100_000, vec![output("holding", holding)], |_, packet| packet.transmit(TxId(0)));
    assert!(ledger.pages < 100_000);
    assert!(wire.lock().unwrap().iter().copied().eq(0..100_000));
}

#[test]
fn only_outputs_that_want_pages_get_some() {
    struct WantsNone(Choosy);
    impl TxQueue for WantsNone {
        fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
            assert!(resources.pages.is_empty() && resources.account.is_none());
            Ok(())
        }

        fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
            self.0.send(packets)
        }
    }
    let wire = Wire::default();
    let to = Arc::clone(&wire);
    let wants_none = move || -> Box<dyn TxQueue> { Box::new(WantsNone(Choosy(Arc::clone(&to)))) };
    run(7, vec![output("wants none", wants_none)], |_, packet| packet.transmit(TxId(0)));
    assert_eq!(*wire.lock().unwrap(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn what_was_transmitted_before_a_panic_is_sent() {
    let wire = Wire::default();
    std::panic::set_hook(Box::new(|_| {}));
    let ledger = run(64, vec![choosy(&wire)], |number, packet| {
        assert!(number < 20, "a planted panic");
        packet.transmit(TxId(0));
    });
    assert_eq!(*wire.lock().unwrap(), (0..20).filter(|number| number % 7 != 0).collect::<Vec<_>>());
    assert_eq!(ledger.dropped().get(DropReason::HandlerPanicked), 44);
}

#[test]
fn an_output_that_fails_refuses_from_then_on() {
    let ledger = run(640, vec![output("failing", || Box::new(Failing(0)))], |_, packet| packet.transmit(TxId(0)));
    assert_eq!(ledger.outputs[0].packets, 64);
    assert_eq!(ledger.dropped().get(DropReason::TxRefused), 640 - 64);
    assert_eq!(ledger.outputs[0].error.as_deref(), Some("failing: cannot send: the cable is out"));
}
