//! A device that writes frames of 64 bytes: a template, then the few fields that differ between flows.

use fastrand::Rng;
use steerage::{
    Affinity, DeviceError, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    flow::FlowHash,
};

/// A frame's length.
pub const FRAME_BYTES: usize = 64;

/// The default number of flows: many for hardware.
pub const FLOWS: u32 = 65_536;

/// Every run has the same frames.
const SEED: u64 = 1;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Only UDP over IPv4.
    Uniform,
    /// IPv4, IPv6, and IPv4 with a VLAN tag, TCP and UDP, at random, so that the parser's branches cannot
    /// be predicted.
    Mixed,
}

/// The traffic of the device.
#[derive(Clone, Copy, Debug)]
pub struct FrameOptions {
    /// The kinds of frames.
    pub mix: Mix,
    /// Whether the device provides a hash.
    pub device_hash: bool,
    /// The most frames per poll, which are handed over as one list.
    pub list: usize,
    /// The number of flows, at most 2^24: each has its own address.
    pub flows: u32,
    /// The number of frames in all.
    pub frames: u64,
}

impl FrameOptions {
    /// Makes the device.
    pub fn input(self) -> Input {
        let queue = Frames { options: self, left: self.frames, rng: Rng::with_seed(SEED) };
        Input::new("bench", "bench", vec![Box::new(queue)])
    }
}

struct Frames {
    options: FrameOptions,
    left: u64,
    rng: Rng,
}

/// A frame of UDP over IPv4.
pub const UDP4: [u8; FRAME_BYTES] = {
    let mut frame = [0; FRAME_BYTES];
    (frame[0], frame[6]) = (2, 2);
    (frame[5], frame[11]) = (2, 1);
    (frame[12], frame[14], frame[17], frame[22], frame[23]) = (8, 0x45, 50, 64, 17);
    (frame[30], frame[31], frame[33]) = (192, 168, 1);
    (frame[37], frame[39]) = (9, 30);
    frame
};

const UDP6: [u8; FRAME_BYTES] = {
    let mut frame = [0; FRAME_BYTES];
    (frame[0], frame[6]) = (2, 2);
    (frame[12], frame[13], frame[14], frame[19], frame[20], frame[21]) = (0x86, 0xdd, 0x60, 10, 17, 64);
    (frame[22], frame[38], frame[53], frame[57]) = (0xfd, 0xfd, 1, 53);
    frame
};

const VLAN4: [u8; FRAME_BYTES] = {
    let mut frame = [0; FRAME_BYTES];
    (frame[0], frame[6]) = (2, 2);
    (frame[12], frame[15], frame[16]) = (0x81, 5, 8);
    let mut at = 14;
    while at < 56 {
        frame[at + 4] = UDP4[at];
        at += 1;
    }
    frame
};

impl Frames {
    #[inline(always)]
    fn write(&mut self, frame: &mut [u8; FRAME_BYTES]) -> u32 {
        let drawn = self.rng.u64(..);
        let flow = (((drawn >> 32) * u64::from(self.options.flows)) >> 32) as u32;
        let address = (0x0a00_0000 + flow).to_be_bytes();
        let port = (flow.wrapping_mul(40_503) as u16).to_be_bytes();
        if self.options.mix == Mix::Uniform {
            *frame = UDP4;
            frame[26..30].copy_from_slice(&address);
            frame[34..36].copy_from_slice(&port);
            return flow;
        }
        let protocol = if drawn & 4 != 0 { 6 } else { 17 };
        match drawn & 3 {
            0 => {
                *frame = UDP4;
                frame[23] = protocol;
                frame[26..30].copy_from_slice(&address);
                frame[34..36].copy_from_slice(&port);
            }
            1 => {
                *frame = VLAN4;
                frame[27] = protocol;
                frame[30..34].copy_from_slice(&address);
                frame[38..40].copy_from_slice(&port);
            }
            _ => {
                *frame = UDP6;
                frame[20] = protocol;
                frame[34..38].copy_from_slice(&address);
                frame[54..56].copy_from_slice(&port);
            }
        }
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
            let flow = self.write(page.first_chunk_mut().expect("a page holds a frame"));
            let hash = hashes.then(|| FlowHash(flow.wrapping_mul(0x9E37_79B1) ^ flow << 7));
            Some(Filled::whole(FRAME_BYTES).with_hash(hash))
        });
        out.prefetch_pages(self.options.list);
        self.left -= filled as u64;
        Ok(if self.left == 0 { Polled::Ended } else { Polled::More })
    }
}
