use std::sync::{Arc, Mutex};

use steerage::device::{Outgoing, TxQueue};
use steerage::flow::wire::FrameBuilder;
use steerage::testing::{self, Frame};
use steerage::{Builder, DeviceError, Snapshot};
use steerage_fixtures::handlers::SendAll;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    TakesAll,
    RefusesSuperFrames,
    Full(usize),
    Down,
    /// Refuses packets that end with this byte, and super-frames whose last packet ends with this
    /// byte.
    Dislikes(u8),
}

#[derive(Debug, Default)]
struct Written {
    frames: Vec<Vec<u8>>,
    tried: usize,
}

#[derive(Debug)]
struct Queue {
    kernel: Kernel,
    whole: Arc<Whole>,
    written: Arc<Mutex<Written>>,
}

struct Sending<'q> {
    queue: &'q Queue,
}

impl Queue {
    fn take(&self, header: &Header, frame: Vec<u8>) -> Outcome {
        let mut written = self.written.lock().unwrap();
        let is_super_frame = header[1] != 0;
        written.tried += usize::from(is_super_frame);
        match self.kernel {
            Kernel::RefusesSuperFrames if is_super_frame => return Outcome::Unfit,
            Kernel::Full(most) if written.frames.len() >= most => return Outcome::Full,
            Kernel::Down => return Outcome::Refused,
            Kernel::Dislikes(byte) if frame.last() == Some(&byte) => return Outcome::Unfit,
            _ => {}
        }
        written.frames.push(frame);
        Outcome::Sent
    }
}

impl Wire for Sending<'_> {
    fn write<'a>(&mut self, header: &'a Header, parts: impl Iterator<Item = &'a [u8]>) -> Outcome {
        self.queue.take(header, parts.flatten().copied().collect())
    }
}

impl TxQueue for Queue {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let packets: Packets<'_> = std::array::from_fn(|_| packets.next_packet());
        let (wire, whole) = (&mut Sending { queue: self }, Some(&*self.whole));
        Ok(Output { name: "test", link: LinkType::RAW, whole, wire, sent: Sent::default() }.send(&packets))
    }
}

fn datagram(nth: usize) -> Vec<u8> {
    FrameBuilder::udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9)).packet(&[nth as u8; 100])
}

const DATAGRAMS: usize = 640;

fn sent_to(kernel: Kernel) -> (Snapshot, Arc<Whole>, Written) {
    let (whole, written) = (Arc::new(Whole::new(true)), Arc::<Mutex<Written>>::default());
    let frames = (0..DATAGRAMS).map(|nth| Frame::new(datagram(nth)).with_link(LinkType::RAW));
    let (of_queues, all) = (Arc::clone(&whole), Arc::clone(&written));
    let output = steerage::Output::new("test", "test", move |_| {
        Ok(Box::new(Queue { kernel, whole: Arc::clone(&of_queues), written: Arc::clone(&all) }) as Box<dyn TxQueue>)
    });
    let builder = Builder::new().virtual_cpus(1).input(testing::input(frames)).output(output);
    let snapshot = builder.build(|_| SendAll).unwrap().start().unwrap().join().snapshot;
    steerage_fixtures::assert_at_rest(&snapshot);
    let written = std::mem::take(&mut *written.lock().unwrap());
    (snapshot, whole, written)
}

fn dropped(snapshot: &Snapshot) -> (u64, u64) {
    use steerage::stats::DropReason;
    (snapshot.dropped().get(DropReason::TxRefused), snapshot.dropped().get(DropReason::TxFull))
}

#[test]
fn packets_of_a_flow_leave_in_one_piece() {
    let (snapshot, whole, written) = sent_to(Kernel::TakesAll);
    assert_eq!((snapshot.outputs[0].packets, dropped(&snapshot)), (DATAGRAMS as u64, (0, 0)));
    assert_eq!(snapshot.outputs[0].bytes, 128 * DATAGRAMS as u64);
    assert!(written.frames.len() < DATAGRAMS / 10, "{}", written.frames.len());
    assert!(written.tried > 0 && whole.merges());
}

#[test]
fn a_kernel_without_super_frames_gets_every_packet_unchanged() {
    let (snapshot, whole, written) = sent_to(Kernel::RefusesSuperFrames);
    assert_eq!((snapshot.outputs[0].packets, dropped(&snapshot)), (DATAGRAMS as u64, (0, 0)));
    assert!(written.frames.iter().enumerate().all(|(nth, frame)| *frame == datagram(nth)));
    assert_eq!(written.frames.len(), DATAGRAMS);
    // After a refusal, the output sends no super-frame of that length or longer.
    assert!(!whole.takes(steerage::flow::offload::OffloadKind::Udp, 64));
    assert!(written.tried < DATAGRAMS / 64 / 2, "{}", written.tried);
}

#[test]
fn what_a_full_kernel_does_not_take_is_counted() {
    let (snapshot, whole, written) = sent_to(Kernel::Full(1));
    assert_eq!(written.frames.len(), 1);
    let packets = snapshot.outputs[0].packets;
    assert_eq!(dropped(&snapshot), (0, DATAGRAMS as u64 - packets));
    assert!((1..DATAGRAMS as u64).contains(&packets) && whole.merges());
}

#[test]
fn an_interface_that_is_down_teaches_nothing() {
    let (snapshot, whole, written) = sent_to(Kernel::Down);
    assert_eq!((dropped(&snapshot), written.frames.len()), ((DATAGRAMS as u64, 0), 0));
    // A refusal while the interface is down does not limit later super-frames.
    assert!(written.tried <= DATAGRAMS / 64 && whole.takes(steerage::flow::offload::OffloadKind::Udp, 64));
}

#[test]
fn a_packet_that_the_kernel_does_not_take_teaches_nothing() {
    let (snapshot, whole, written) = sent_to(Kernel::Dislikes(63));
    let disliked = (0..DATAGRAMS).filter(|nth| *nth as u8 == 63).count() as u64;
    assert_eq!((dropped(&snapshot), snapshot.outputs[0].packets), ((disliked, 0), DATAGRAMS as u64 - disliked));
    assert!(whole.takes(steerage::flow::offload::OffloadKind::Udp, 64));
    assert!(!written.frames.contains(&datagram(63)) && written.frames.contains(&datagram(62)));
}
