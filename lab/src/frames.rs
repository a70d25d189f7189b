//! A device that writes frames of 64 bytes from templates.

use fastrand::Rng;
use steerage::{
    Affinity, DeviceError, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    flow::FlowHash,
    flow::wire::{FrameBuilder, port::DISCARD, protocol::TCP, protocol::UDP},
};

/// The length of a frame in bytes.
pub const FRAME_BYTES: usize = 64;

/// The number of flows, which is large even for hardware that tracks flows.
pub const FLOWS: u32 = 65_536;

/// The seed of the random numbers is constant, so that every run has the same frames.
const SEED: u64 = 1;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Only UDP over IPv4.
    Uniform,
    /// Random IPv4, IPv6 and VLAN frames with TCP or UDP. The CPU cannot predict a parser's
    /// branches for this mix of frames.
    Mixed,
}

/// The traffic of the device.
#[derive(Clone, Copy, Debug)]
pub struct FrameOptions {
    /// The kinds of frames.
    pub mix: Mix,
    /// If true, the device provides a hash for each frame.
    pub device_hash: bool,
    /// The maximum number of frames that a poll delivers, as one list of packets.
    pub list: usize,
    /// The number of flows, at most 2^24, because each flow has its own address.
    pub flows: u32,
    /// The total number of frames.
    pub frames: u64,
}

impl FrameOptions {
    /// Creates the device.
    pub fn input(self) -> Input {
        let queue = Frames { options: self, left: self.frames, writer: self.writer() };
        Input::new("bench", "bench", vec![Box::new(queue)])
    }

    pub(crate) fn writer(self) -> FrameWriter {
        FrameWriter { mix: self.mix, flows: self.flows, shapes: shapes(), rng: Rng::with_seed(SEED) }
    }
}

struct Frames {
    options: FrameOptions,
    left: u64,
    writer: FrameWriter,
}

pub(crate) struct FrameWriter {
    mix: Mix,
    flows: u32,
    shapes: [Shape; 4],
    rng: Rng,
}

/// Makes the template of a UDP frame. Devices replace the template's source address and port, but
/// not its checksums, to save time.
pub(crate) fn udp4() -> [u8; FRAME_BYTES] {
    of_udp(&FrameBuilder::udp(([0; 4], 0), ([192, 168, 0, 1], DISCARD)))
}

fn of_udp(frame: &FrameBuilder) -> [u8; FRAME_BYTES] {
    frame.frame_of(FRAME_BYTES).try_into().expect("a frame of this length")
}

#[derive(Clone, Copy)]
struct Shape {
    frame: [u8; FRAME_BYTES],
    protocol: usize,
    address: usize,
    port: usize,
}

/// Makes the templates of the mixed frames: a quarter IPv4, a quarter IPv4 with a VLAN tag, and
/// half IPv6.
fn shapes() -> [Shape; 4] {
    let v6 = FrameBuilder::udp((V6, 0), (V6, DISCARD));
    let tagged = FrameBuilder::udp(([0; 4], 0), ([192, 168, 0, 1], DISCARD)).vlan(5);
    let v6 = Shape { frame: of_udp(&v6), protocol: 20, address: 34, port: 54 };
    let tagged = Shape { frame: of_udp(&tagged), protocol: 27, address: 30, port: 38 };
    [Shape { frame: udp4(), protocol: 23, address: 26, port: 34 }, tagged, v6, v6]
}

/// A unique local IPv6 address (RFC 4193).
const V6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 1];

const PROTOCOLS: [u8; 2] = [UDP, TCP];

impl FrameWriter {
    /// Writes a frame, and returns the hash that a network card would provide.
    #[inline(always)]
    pub(crate) fn write(&mut self, frame: &mut [u8; FRAME_BYTES]) -> u32 {
        let flow = self.write_flow(frame);
        flow.wrapping_mul(0x9E37_79B1) ^ flow << 7
    }

    #[inline(always)]
    fn write_flow(&mut self, frame: &mut [u8; FRAME_BYTES]) -> u32 {
        let drawn = self.rng.u64(..);
        let flow = (((drawn >> 32) * u64::from(self.flows)) >> 32) as u32;
        let address = (0x0a00_0000 + flow).to_be_bytes();
        let port = (flow.wrapping_mul(40_503) as u16).to_be_bytes();
        if self.mix == Mix::Uniform {
            *frame = self.shapes[0].frame;
            frame[26..30].copy_from_slice(&address);
            frame[34..36].copy_from_slice(&port);
            return flow;
        }
        // The code has no branches, because the measurement would include their mispredictions.
        let shape = &self.shapes[(drawn & 3) as usize];
        *frame = shape.frame;
        frame[shape.protocol] = PROTOCOLS[(drawn >> 2 & 1) as usize];
        frame[shape.address..][..4].copy_from_slice(&address);
        frame[shape.port..][..2].copy_from_slice(&port);
        flow
    }
}

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES).can_wait();
        can.hash = self.options.device_hash.then_some(Affinity::BothDirections);
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = (budget.min(self.options.list) as u64).min(self.left);
        let hashes = self.options.device_hash;
        let filled = out.fill(count as usize, |page| {
            let hash = self.writer.write(page.first_chunk_mut().expect("a page holds a frame"));
            let hash = hashes.then_some(FlowHash(hash));
            Some(Filled::whole(FRAME_BYTES).with_hash(hash))
        });
        out.prefetch_pages(self.options.list);
        self.left -= filled as u64;
        Ok(if self.left == 0 { Polled::Ended } else { Polled::More })
    }
}
