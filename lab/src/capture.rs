//! A capture in memory that is read repeatedly, and the minimum work of a flow meter.

use std::io::{self, Read};
use std::sync::Arc;

use steerage::flow::wire::{FrameBuilder, ethernet, ethertype, ipv4};
use steerage::testing::SplitMix64;

/// The length of each packet.
pub const FRAME_BYTES: usize = 60;

const HEAD_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;

const PACKETS_A_SECOND: u32 = 1_000_000;

/// The flows of the packets in their order: the order is random, so that no cache can predict the
/// flows. `lab/peers/capture/generate.c` makes captures with the same flows in the same order.
fn flows_of_packets(packets: u32, flows: u32) -> impl Iterator<Item = u32> {
    let mut random = SplitMix64::new(0);
    (0..packets).map(move |_| (random.draw() % u64::from(flows)) as u32)
}

/// A classic capture of UDP over IPv4, with at most `flows` flows.
pub fn capture(packets: u32, flows: u32) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEAD_BYTES + packets as usize * (RECORD_BYTES + FRAME_BYTES));
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    let mut frame = FrameBuilder::udp(([0; 4], 0), ([0; 4], 0)).frame_of(FRAME_BYTES);
    let len = FRAME_BYTES as u32;
    for (nth, flow) in (0_u32..).zip(flows_of_packets(packets, flows)) {
        [nth / PACKETS_A_SECOND, nth % PACKETS_A_SECOND, len, len]
            .iter()
            .for_each(|word| file.extend(word.to_le_bytes()));
        frame[26..30].copy_from_slice(&flow.to_be_bytes());
        frame[35] = flow as u8;
        file.extend(&frame);
    }
    file
}

/// The number of flows in a [`capture`] with these arguments.
pub fn flows_in(packets: u32, flows: u32) -> u64 {
    let mut seen = vec![false; flows as usize];
    flows_of_packets(packets, flows).for_each(|flow| seen[flow as usize] = true);
    seen.iter().filter(|seen| **seen).count() as u64
}

/// An endless [`capture`], whose packets are repeated with later times.
#[derive(Debug)]
pub struct RepeatedCapture {
    file: Arc<[u8]>,
    at: usize,
    /// The seconds that are added to the times in the file, and the increase for the next
    /// repetition.
    later: u32,
    lap: u32,
}

impl RepeatedCapture {
    /// Repeats a capture of `packets` packets.
    pub fn of(file: Arc<[u8]>, packets: u32) -> Self {
        Self { file, at: 0, later: 0, lap: packets.div_ceil(PACKETS_A_SECOND) }
    }

    /// Corrects the times of the records whose first bytes, the seconds, were just read.
    fn shift_times(&self, read: &mut [u8]) {
        const RECORD: usize = RECORD_BYTES + FRAME_BYTES;
        let first = self.at.saturating_sub(HEAD_BYTES) / RECORD * RECORD + HEAD_BYTES;
        for record in (first..self.at + read.len()).step_by(RECORD) {
            let Some(seconds) = self.file[record..].first_chunk() else { break };
            let seconds = u32::from_le_bytes(*seconds).wrapping_add(self.later);
            for (nth, byte) in seconds.to_le_bytes().into_iter().enumerate() {
                if let Some(to) = (record + nth).checked_sub(self.at).and_then(|to| read.get_mut(to)) {
                    *to = byte;
                }
            }
        }
    }
}

impl Read for RepeatedCapture {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.file.len() {
            (self.at, self.later) = (HEAD_BYTES, self.later.wrapping_add(self.lap));
        }
        let len = to.len().min(self.file.len() - self.at);
        let read = &mut to[..len];
        read.copy_from_slice(&self.file[self.at..self.at + len]);
        if self.later > 0 {
            self.shift_times(read);
        }
        self.at += len;
        Ok(len)
    }
}

/// A flow: both endpoints, the lower endpoint first, then the protocol and the counts.
#[derive(Clone, Copy, Default)]
struct Flow {
    ends: [u64; 2],
    packets: u64,
    bytes: u64,
}

struct Flows {
    places: Vec<Flow>,
    known: usize,
}

impl Flows {
    fn count(&mut self, ends: [u64; 2], bytes: u64) {
        let place = self.find(ends);
        let flow = &mut self.places[place];
        (flow.packets, flow.bytes) = (flow.packets + 1, flow.bytes + bytes);
        if flow.packets == 1 {
            flow.ends = ends;
            self.known += 1;
            if self.known * 2 > self.places.len() {
                self.grow();
            }
        }
    }

    fn find(&self, ends: [u64; 2]) -> usize {
        let mask = self.places.len() - 1;
        // With only one multiplication, consecutive flows would form runs, which cost hundreds of
        // probes in a half-full table.
        let mixed = (ends[0] ^ ends[1].rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut place = (mixed >> 32) as usize & mask;
        while self.places[place].packets > 0 && self.places[place].ends != ends {
            place = (place + 1) & mask;
        }
        place
    }

    #[cold]
    fn grow(&mut self) {
        let places = vec![Flow::default(); 2 * self.places.len()];
        for flow in std::mem::replace(&mut self.places, places).into_iter().filter(|flow| flow.packets > 0) {
            let place = self.find(flow.ends);
            self.places[place] = flow;
        }
    }
}

/// Reads a capture of this form and counts the packets and bytes of each IPv4 flow, both directions
/// together. The function uses one thread, and has no timeouts, records and fragments. Returns the
/// numbers of packets and flows.
pub fn count_by_flow(file: &[u8]) -> (u64, u64) {
    let mut flows = Flows { places: vec![Flow::default(); 1 << 16], known: 0 };
    let (mut rest, mut packets) = (file.get(HEAD_BYTES..).unwrap_or_default(), 0);
    while let Some((record, after)) = rest.split_first_chunk::<RECORD_BYTES>() {
        let word = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let Some((frame, next)) = after.split_at_checked(word(8) as usize) else { break };
        (rest, packets) = (next, packets + 1);
        let Some(head) = frame.first_chunk::<38>() else { continue };
        if !head[ethernet::TYPE_AT..].starts_with(&ethertype::IPV4.to_be_bytes()) || head[14] != ipv4::PLAIN {
            continue;
        }
        let end = |address: usize, port: usize| {
            let address = u32::from_be_bytes([head[address], head[address + 1], head[address + 2], head[address + 3]]);
            u64::from(address) << 16 | u64::from(u16::from_be_bytes([head[port], head[port + 1]]))
        };
        let (one, other) = (end(26, 34), end(30, 36));
        let protocol = u64::from(head[23]) << 48;
        flows.count([one.min(other), one.max(other) | protocol], u64::from(word(12)));
    }
    std::hint::black_box(flows.places.iter().map(|flow| flow.bytes).max());
    (packets, flows.known as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_follow_each_other() {
        let once = capture(2000, 7);
        let later = |by: u8| {
            let mut later = once[HEAD_BYTES..].to_vec();
            later.iter_mut().step_by(RECORD_BYTES + FRAME_BYTES).for_each(|seconds| *seconds += by);
            later
        };
        let wanted = [&once[..], &later(1), &later(2)].concat();
        for piece in [1, 3, 75, 76, 77, 1000, 100_000] {
            let mut laps = RepeatedCapture::of(once.clone().into(), 2000);
            let mut read = vec![0; wanted.len()];
            let mut at = 0;
            while at < read.len() {
                let end = read.len().min(at + piece);
                at += laps.read(&mut read[at..end]).unwrap();
            }
            assert!(read == wanted, "in pieces of {piece}");
        }
    }

    #[test]
    fn the_plain_loop_finds_the_flows_that_are_there() {
        for (packets, flows) in [(5000, 7), (20_000, 1024), (200_000, 65_536)] {
            assert_eq!(count_by_flow(&capture(packets, flows)), (packets.into(), flows_in(packets, flows)));
        }
        assert!(flows_in(200_000, 65_536) > 60_000);
        assert_eq!(count_by_flow(&capture(3, 2)[..HEAD_BYTES + 100]), (1, 1));
        assert_eq!(count_by_flow(&[]), (0, 0));
    }
}
