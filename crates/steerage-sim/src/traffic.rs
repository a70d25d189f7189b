//! A receive queue of numbered frames, each with its flow and its number within the flow.

use std::time::Duration;

use steerage::flow::wire::checksum::{finish_transport, sum};
use steerage::flow::wire::{IpHeader, ethernet, ethertype, ipv4, protocol, put, udp};
use steerage::{
    DeviceError, Input, Packet, Timestamp,
    device::{Capabilities, Completion, Completions, Gather, Page, Polled, Region, RxQueue},
    limits::HEADROOM,
};

use crate::chance::{Chance, Zipf};

/// The length of a frame: headers of Ethernet, IPv4 and UDP, and then two big-endian numbers. The
/// first number is the flow (4 bytes), and the second number is the frame's number in the flow (8
/// bytes).
pub const FRAME_BYTES: usize = ethernet::BYTES + ipv4::BYTES + udp::BYTES + 12;
const PAYLOAD_AT: usize = FRAME_BYTES - 12;
const UDP_AT: usize = ethernet::BYTES + ipv4::BYTES;

/// The maximum number of pages of a frame, each with at most [`FRAME_BYTES`] bytes.
const PAGES_MAX: usize = 3;

/// The kind of traffic.
#[derive(Clone, Debug)]
pub struct TrafficOptions {
    /// The number of queues. Packets of one direction of each flow arrive at the even queues, and
    /// those of the other direction at the odd queues. Both directions of a flow must be handled on
    /// the same CPU.
    pub queues: usize,
    /// The number of flows.
    pub flows: usize,
    /// The exponent of Zipf's law.
    pub zipf: f64,
    /// The number of frames per queue.
    pub frames: u64,
    /// True if the queue loses no packet while it is not polled.
    pub can_wait: bool,
    /// One of this many frames is stored in several pages, or none if 0.
    pub chained_once_in: u64,
    /// The time between frames. With a time of zero, the next frame is always ready.
    pub gap: Duration,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl TrafficOptions {
    /// Creates the device.
    pub fn input(&self) -> Input {
        let zipf = Zipf::new(self.flows, self.zipf);
        let queue = |number: usize| -> Box<dyn RxQueue> {
            Box::new(Traffic {
                reverse: number % 2 == 1,
                left: self.frames,
                can_wait: self.can_wait,
                chained_once_in: self.chained_once_in,
                begun: Gather::default(),
                left_of_it: Vec::with_capacity(PAGES_MAX),
                gap: self.gap,
                due: Timestamp::ZERO,
                next: vec![0; self.flows],
                zipf: zipf.clone(),
                chance: Chance::new(self.seed ^ (number as u64) << 32),
            })
        };
        Input::new("traffic", "simulated", (0..self.queues).map(queue).collect())
    }
}

/// One receive queue of the simulated device.
#[derive(Debug)]
pub struct Traffic {
    reverse: bool,
    left: u64,
    can_wait: bool,
    chained_once_in: u64,
    begun: Gather,
    left_of_it: Vec<(u8, usize)>,
    gap: Duration,
    due: Timestamp,
    next: Vec<u64>,
    zipf: Zipf,
    chance: Chance,
}

impl Traffic {
    fn write(&mut self, frame: &mut [u8], behind: usize) {
        let flow = self.zipf.draw(&mut self.chance);
        self.next[flow] += 1;
        let address = 0x0a00_0000_u32 + flow as u32;
        let (there, here) = (address.to_be_bytes(), [192, 168, 0, 1]);
        let port = 1024 + (flow % 60_000) as u16;
        let (source, destination) = if self.reverse { (here, there) } else { (there, here) };
        let (from, to) = if self.reverse { (9, port) } else { (port, 9) };
        let ip = IpHeader::new(source, destination, protocol::UDP);
        frame.fill(0);
        frame[ethernet::TYPE_AT..ethernet::BYTES].copy_from_slice(&ethertype::IPV4.to_be_bytes());
        let pseudo = ip.write(&mut frame[ethernet::BYTES..], FRAME_BYTES - UDP_AT + behind).expect("IPv4");
        frame[34..36].copy_from_slice(&from.to_be_bytes());
        frame[36..38].copy_from_slice(&to.to_be_bytes());
        frame[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&(flow as u32).to_be_bytes());
        frame[PAYLOAD_AT + 4..].copy_from_slice(&self.next[flow].to_be_bytes());
        // A datagram in a single page gets a valid length and checksum, so that it can be merged.
        if behind == 0 {
            let datagram = &mut frame[UDP_AT..];
            put(datagram, udp::LENGTH_AT, ((FRAME_BYTES - UDP_AT) as u16).to_be_bytes());
            let checksum = finish_transport(sum(datagram, pseudo));
            put(datagram, udp::CHECKSUM_AT, checksum.to_be_bytes());
        }
    }

    fn draw_parts(&mut self) {
        if self.chance.once_in(self.chained_once_in) {
            for _ in 0..=self.chance.below(PAGES_MAX as u64 - 1) {
                self.left_of_it.push((0, self.chance.below(FRAME_BYTES as u64 + 1) as usize));
            }
        }
    }

    fn gather(&mut self, out: &mut Completions<'_>) -> bool {
        while let Some((first, len)) = self.left_of_it.first().copied() {
            let Some(mut page) = out.take_page() else { return false };
            for (at, byte) in out.page_mut(&mut page)[HEADROOM..][..len].iter_mut().enumerate() {
                *byte = first.wrapping_add(at as u8);
            }
            out.gather(&mut self.begun, page, HEADROOM, len);
            self.left_of_it.remove(0);
        }
        assert!(out.push_gathered(&mut self.begun, None), "so many pages are a frame");
        true
    }
}

/// Returns the flow of a frame, and the frame's number in the flow.
pub fn read(frame: &[u8]) -> Option<(u32, u64)> {
    let flow = frame.get(PAYLOAD_AT..PAYLOAD_AT + 4)?.try_into().ok()?;
    let number = frame.get(PAYLOAD_AT + 4..FRAME_BYTES)?.try_into().ok()?;
    Some((u32::from_be_bytes(flow), u64::from_be_bytes(number)))
}

/// Returns true if a packet has the length in its IP header, and its further pages are unchanged.
pub fn is_whole(packet: &Packet<'_>) -> bool {
    let data = packet.data();
    let Some((_, number)) = read(data) else { return false };
    let stated = 14 + usize::from(u16::from_be_bytes([data[16], data[17]]));
    let behind = packet.segments().flatten().skip(FRAME_BYTES);
    stated == packet.total_len() && behind.enumerate().all(|(at, byte)| *byte == (number as u8).wrapping_add(at as u8))
}

impl RxQueue for Traffic {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES).segments(if self.chained_once_in > 0 { PAGES_MAX } else { 1 });
        can.can_wait = self.can_wait;
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            if self.left == 0 {
                return Ok(Polled::Ended);
            }
            if self.due > out.now() {
                return Ok(Polled::NotBefore(self.due));
            }
            if self.begun.is_empty() {
                let Some(mut page) = out.take_page() else { return Ok(Polled::More) };
                self.draw_parts();
                let behind = self.left_of_it.iter().map(|(_, len)| len).sum();
                let head = &mut out.page_mut(&mut page)[HEADROOM..HEADROOM + FRAME_BYTES];
                self.write(head, behind);
                let mut first = head[FRAME_BYTES - 1];
                for (byte, len) in &mut self.left_of_it {
                    *byte = first;
                    first = first.wrapping_add(*len as u8);
                }
                match self.left_of_it.is_empty() {
                    true => out.push(Completion::new(page, HEADROOM, FRAME_BYTES), FRAME_BYTES),
                    false => out.gather(&mut self.begun, page, HEADROOM, FRAME_BYTES),
                }
            }
            if !self.begun.is_empty() && !self.gather(out) {
                return Ok(Polled::More);
            }
            self.left -= 1;
            if !self.gap.is_zero() {
                self.due = self.due + self.gap;
            }
        }
        Ok(Polled::More)
    }

    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        self.begun.close(region, pages);
    }
}
