//! A Unix datagram socket as a device that receives and sends. A virtual machine monitor, or
//! another process that simulates a network card, could use such a device: `cargo run --release -p
//! steerage-device --example unix_device`
//!
//! A frame is split into up to three datagrams, because the buffers of the other process are short.
//! Each datagram begins with a header of four bytes: the number of the flow (or 0), and flags for
//! the first and the last datagram of a frame. An empty datagram ends the input.
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::os::{fd::AsFd, fd::BorrowedFd, unix::net::UnixDatagram};
use std::{error::Error, io, io::ErrorKind, sync::Arc, thread, time::Duration};

use steerage::device::{
    Capabilities, Completions, Gather, Outgoing, OutgoingPacket, Page, Polled, Region, RxQueue, Sent, TxQueue,
};
use steerage::{Affinity, Builder, DeviceError, Input, Output, Snapshot};
use steerage::{flow::FlowHash, limits::HEADROOM, packet::each};

const HEADER_BYTES: usize = 4;
const FIRST: u8 = 1;
const LAST: u8 = 2;

/// The maximum length in bytes of one part of a frame, and the maximum number of parts of a frame.
const PART_BYTES_MAX: usize = 1500;
const PARTS_MAX: usize = 3;
const DATAGRAM_BYTES_MAX: usize = HEADER_BYTES + PART_BYTES_MAX;

pub(crate) struct Receiver {
    socket: UnixDatagram,
    frame: Gather,
}

impl Receiver {
    pub(crate) fn new(socket: UnixDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?; // A poll must not block.
        Ok(Self { socket, frame: Gather::default() })
    }

    /// A frame with a missing part counts as one lost frame.
    fn add(&mut self, out: &mut Completions<'_>, page: Page, len: usize, [low, high, marks, _]: [u8; HEADER_BYTES]) {
        match (marks & FIRST != 0, self.frame.is_empty()) {
            (true, false) => {
                out.spoil(&mut self.frame);
                out.push_gathered(&mut self.frame, None);
            }
            (false, true) => out.spoil(&mut self.frame),
            _ => {}
        }
        out.gather(&mut self.frame, page, HEADROOM, len);
        if marks & LAST != 0 {
            let flow = u16::from_le_bytes([low, high]);
            out.push_gathered(&mut self.frame, (flow > 0).then(|| FlowHash::from_low_bits(flow.into())));
        }
    }
}

impl RxQueue for Receiver {
    /// The sender waits for room in the socket, so no frame is lost while the queue is not polled.
    fn capabilities(&self) -> Capabilities {
        // The page is one byte longer than a part, so that a longer datagram is noticed.
        Capabilities::pages(PART_BYTES_MAX + 1).segments(PARTS_MAX).hashes(Affinity::BothDirections).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            let Some(mut page) = out.take_page() else { break }; // All pages are in use.
            // The datagram's header is received into the headroom, so that the part begins where a
            // frame must begin.
            let place = &mut out.page_mut(&mut page)[HEADROOM - HEADER_BYTES..][..=DATAGRAM_BYTES_MAX];
            let received = self.socket.recv(place);
            let header = [place[0], place[1], place[2], place[3]];
            match received {
                Ok(len @ HEADER_BYTES..=DATAGRAM_BYTES_MAX) => self.add(out, page, len - HEADER_BYTES, header),
                other => {
                    out.give_page(page);
                    match other {
                        Ok(0) => return Ok(Polled::Ended),
                        Ok(_) => out.spoil(&mut self.frame),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Polled::Drained),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(DeviceError::new("socket", "receive a datagram", error)),
                    }
                }
            }
        }
        Ok(Polled::More)
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd()) // After `Polled::Drained`, the CPU sleeps until the socket is readable.
    }

    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        self.frame.close(region, pages);
    }
}

/// Sends each part of a frame in a datagram of its own. All CPUs send through one socket.
struct Sender(Arc<UnixDatagram>, Vec<u8>);

impl Sender {
    fn send_parts(&mut self, packet: &OutgoingPacket<'_>, parts: usize) -> io::Result<()> {
        for (nth, part) in packet.segments().flat_map(|segment| segment.chunks(PART_BYTES_MAX)).enumerate() {
            let marks = if nth == 0 { FIRST } else { 0 } | if nth + 1 == parts { LAST } else { 0 };
            self.1.clear();
            self.1.extend_from_slice(&[0, 0, marks, 0]);
            self.1.extend_from_slice(part);
            self.0.send(&self.1)?;
        }
        Ok(())
    }
}

impl TxQueue for Sender {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let parts = packet.segments().map(|segment| segment.len().div_ceil(PART_BYTES_MAX)).sum();
            if packet.offload().is_some() {
                sent.refused += 1;
            } else if parts > PARTS_MAX {
                sent.too_long += 1;
            } else {
                match self.send_parts(&packet, parts) {
                    Ok(()) => (sent.packets, sent.bytes) = (sent.packets + 1, sent.bytes + bytes(&packet)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {} // Counts as `tx_full`.
                    Err(error) => return Err(DeviceError::new("socket", "send a datagram", error)),
                }
            }
        }
        Ok(sent)
    }
}

fn bytes(packet: &OutgoingPacket<'_>) -> u64 {
    packet.received().total_len as u64
}

pub(crate) fn echo(socket: UnixDatagram, cpus: usize) -> Result<Snapshot, Box<dyn Error>> {
    let input = Input::new("socket", "unix", vec![Box::new(Receiver::new(socket.try_clone()?)?)]);
    let socket = Arc::new(socket);
    let open = move |_cpu| -> Result<Box<dyn TxQueue>, DeviceError> {
        Ok(Box::new(Sender(Arc::clone(&socket), Vec::with_capacity(DATAGRAM_BYTES_MAX))))
    };
    let mut builder = Builder::new().virtual_cpus(cpus).input(input);
    let to = builder.add_output(Output::new("socket", "unix", open));
    Ok(builder.build(each(move |packet| packet.transmit(to)))?.start()?.join().snapshot)
}

pub(crate) fn peer(socket: &UnixDatagram, frames: &[Vec<u8>], flows: u16) -> io::Result<Vec<Vec<u8>>> {
    socket.set_read_timeout(Some(Duration::from_secs(60)))?; // If a frame is lost, this is an error.
    let (mut received, mut buffer) = (Vec::new(), [0; DATAGRAM_BYTES_MAX]);
    for (nth, frame) in frames.iter().enumerate() {
        let flow = 1 + (nth % usize::from(flows)) as u16;
        let parts = frame.chunks(PART_BYTES_MAX).count();
        for (part, bytes) in frame.chunks(PART_BYTES_MAX).enumerate() {
            let marks = if part == 0 { FIRST } else { 0 } | if part + 1 == parts { LAST } else { 0 };
            let [low, high] = flow.to_le_bytes();
            socket.send(&[&[low, high, marks, 0], bytes].concat())?;
        }
        // At most eight frames are in flight, which fit into the socket's buffer.
        while nth + 1 - received.len() >= 8 || (nth + 1 == frames.len() && received.len() < frames.len()) {
            let mut frame = Vec::new();
            while frame.is_empty() || buffer[2] & LAST == 0 {
                let len = socket.recv(&mut buffer)?;
                frame.extend_from_slice(&buffer[HEADER_BYTES..len]);
            }
            received.push(frame);
        }
    }
    socket.send(&[])?;
    Ok(received)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (ours, other) = UnixDatagram::pair()?;
    let frames: Vec<_> = [60, 1500, 4000].iter().cycle().take(30_000).map(|len| vec![0x45; *len]).collect();
    let echoes = thread::spawn(move || peer(&other, &frames, 100));
    let ledger = echo(ours, 2)?;
    println!("{} frames sent back, {} dropped", echoes.join().expect("no panic")?.len(), ledger.dropped().total());
    Ok(())
}

#[cfg(test)]
mod tests {
    use steerage::Timestamp;
    use steerage::testing::QueueTester;

    use super::*;

    fn frames(count: u32) -> Vec<Vec<u8>> {
        let frame = |number: u32| {
            let mut frame = vec![number as u8; [60, 1500, 1501, 4000][number as usize % 4]];
            frame[12..18].copy_from_slice(&[0x12, 0x34, 0, 0, 0, number as u8]); // No IP.
            frame
        };
        (0..count).map(frame).collect()
    }

    #[test]
    fn frames_of_several_parts_come_back_on_all_cpus() {
        let (ours, other) = UnixDatagram::pair().unwrap();
        let sent = frames(2000);
        let (ledger, mut received) = thread::scope(|scope| {
            let peer = scope.spawn(|| peer(&other, &sent, 100).unwrap());
            (echo(ours, 2).unwrap(), peer.join().unwrap())
        });
        // Frames of different flows may overtake each other.
        let mut sent = sent;
        sent.sort();
        received.sort();
        assert!(sent == received);
        let queue = &ledger.queues[0];
        assert_eq!((ledger.received(), ledger.verdicts().transmitted, &*queue.hash), (2000, 2000, "device"));
        steerage_fixtures::assert_at_rest(&ledger);
    }

    #[test]
    fn frames_with_a_missing_part_are_lost_and_counted() {
        let (ours, other) = UnixDatagram::pair().unwrap();
        let mut tester = QueueTester::new(Box::new(Receiver::new(ours).unwrap())).unwrap();
        let send =
            |marks: u8, len: usize| _ = other.send(&[&[1, 0, marks, 0][..], &vec![marks; len]].concat()).unwrap();
        send(0, 20); // A frame without a beginning.
        send(LAST, 20);
        send(FIRST | LAST, 60);
        send(FIRST, 1500); // A frame without an end.
        send(FIRST, 1500);
        send(LAST, 20);
        send(FIRST | LAST, 1501); // A datagram that is too long, and one without a header.
        other.send(&[1]).unwrap();
        send(FIRST, 100);
        let (polled, received) = tester.poll(Timestamp::ZERO, 64).unwrap();
        assert_eq!((polled, received.iter().map(Vec::len).collect::<Vec<_>>()), (Polled::Drained, vec![60, 1520]));
        assert_eq!((tester.lost(), tester.pages_out()), (3, 1));
        other.send(&[]).unwrap();
        assert_eq!(tester.poll(Timestamp::ZERO, 64).unwrap().0, Polled::Ended);
    }
}
