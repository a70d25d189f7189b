//! Makes a capture file for experiments, and reads it with a minimal flow meter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{env, fs, io, process};

use steerage::flow::wire::{FrameBuilder, ethernet, ethertype, ipv4};
use steerage::testing::SplitMix64;

/// The length of a short packet in bytes.
pub const FRAME_BYTES: usize = 60;

const HEAD_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;

const PACKETS_A_SECOND: u32 = 1_000_000;

/// The lengths of the packets of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All packets have the same length, in bytes.
    All(usize),
    /// The simple Internet mix: 7 of 12 IP packets have 40 bytes, 4 have 576, and 1 has 1,500.
    Mixed,
}

impl Lengths {
    const LONGEST: usize = 1514;

    fn draw(self, drawn: u64) -> usize {
        match (self, (drawn >> 32) % 12) {
            (Self::All(bytes), _) => bytes,
            (Self::Mixed, 0..7) => FRAME_BYTES,
            (Self::Mixed, 7..11) => 590,
            (Self::Mixed, _) => Self::LONGEST,
        }
    }

    /// Returns the mean length of a packet.
    pub fn mean(self) -> usize {
        (0..12).map(|part| self.draw(part << 32)).sum::<usize>() / 12
    }
}

/// Returns the flow and the length of each packet, in random order, so that no prefetcher predicts
/// the next flow. `lab/peers/capture/generate.c` makes the same sequence of packets.
fn packets_of(packets: u32, flows: u32, lengths: Lengths) -> impl Iterator<Item = (u32, usize)> {
    let mut random = SplitMix64::new(0);
    (0..packets).map(move |_| {
        let drawn = random.draw();
        ((drawn % u64::from(flows)) as u32, lengths.draw(drawn))
    })
}

/// Makes a classic pcap capture of UDP over IPv4, with at most `flows` flows.
pub fn capture(packets: u32, flows: u32, lengths: Lengths) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEAD_BYTES + packets as usize * (RECORD_BYTES + lengths.mean() + 1));
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    let frame = |bytes| FrameBuilder::udp(([0; 4], 0), ([0; 4], 0)).frame_of(bytes);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for (nth, (flow, bytes)) in (0_u32..).zip(packets_of(packets, flows, lengths)) {
        [nth / PACKETS_A_SECOND, nth % PACKETS_A_SECOND, bytes as u32, bytes as u32]
            .iter()
            .for_each(|word| file.extend(word.to_le_bytes()));
        let known = frames.iter().position(|frame| frame.len() == bytes).unwrap_or_else(|| {
            frames.push(frame(bytes));
            frames.len() - 1
        });
        let frame = &mut frames[known];
        frame[26..30].copy_from_slice(&flow.to_be_bytes());
        frame[35] = flow as u8;
        file.extend(&*frame);
    }
    file
}

/// Returns the number of flows in the result of [`capture`] for these arguments.
pub fn flows_in(packets: u32, flows: u32) -> u64 {
    let mut seen = vec![false; flows as usize];
    packets_of(packets, flows, Lengths::All(0)).for_each(|(flow, _)| seen[flow as usize] = true);
    seen.iter().filter(|seen| **seen).count() as u64
}

/// A capture file in the temporary directory, removed on drop.
#[derive(Debug)]
pub struct CaptureFile {
    /// The path of the file.
    pub path: PathBuf,
}

impl CaptureFile {
    /// Writes the file with one call, so that the page cache can use large folios.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(capture: &[u8]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("steerage-lab-{}-{}.pcap", process::id(), NEXT.fetch_add(1, Relaxed));
        let file = Self { path: env::temp_dir().join(name) };
        fs::write(&file.path, capture)?;
        Ok(file)
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The counters of a flow. `ends` has both endpoints (the lower one first) and the protocol.
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
        // If the addresses and ports were multiplied only once, flows with consecutive numbers
        // would be neighbours in the table, and a search in a half-full table would need hundreds
        // of probes.
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

/// Counts packets and bytes of each IPv4 flow of a [`capture`], both directions together, on one
/// thread, without timeouts, flow records or fragments. Returns the numbers of packets and flows.
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
    fn a_mix_has_the_lengths_of_the_internet_mix() {
        let count = |of| packets_of(120_000, 7, Lengths::Mixed).filter(|(_, bytes)| *bytes == of).count();
        let counts = [60, 590, 1514].map(count);
        assert_eq!(counts.iter().sum::<usize>(), 120_000);
        for (count, wanted) in counts.into_iter().zip([70_000_usize, 40_000, 10_000]) {
            assert!(count.abs_diff(wanted) < 1000, "{counts:?}");
        }
        assert_eq!(Lengths::Mixed.mean(), 357);
        let file = capture(5000, 7, Lengths::Mixed);
        let bytes: usize = packets_of(5000, 7, Lengths::Mixed).map(|(_, bytes)| RECORD_BYTES + bytes).sum();
        assert_eq!(file.len(), HEAD_BYTES + bytes);
    }

    #[test]
    fn a_capture_file_goes_with_its_value() {
        let file = CaptureFile::write(&capture(3, 2, Lengths::All(60))).unwrap();
        let path = file.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().len(), 24 + 3 * 76);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn the_plain_loop_finds_the_flows_that_are_there() {
        for (packets, flows) in [(5000, 7), (20_000, 1024), (200_000, 65_536)] {
            for lengths in [Lengths::All(60), Lengths::All(800), Lengths::Mixed] {
                let file = capture(packets, flows, lengths);
                assert_eq!(count_by_flow(&file), (packets.into(), flows_in(packets, flows)));
            }
        }
        assert!(flows_in(200_000, 65_536) > 60_000);
        assert_eq!(count_by_flow(&capture(3, 2, Lengths::All(60))[..HEAD_BYTES + 100]), (1, 1));
        assert_eq!(count_by_flow(&[]), (0, 0));
    }
}
