//! A receive queue whose frames say which flow they are of and which they are in it.

use std::time::Duration;

use steerage::{Completion, Completions, DeviceError, HEADROOM, Input, Polled, QueueMemory, RxQueue, Timestamp};

use crate::chance::{Chance, Zipf};

/// Ethernet, IPv4, UDP, and 12 bytes: flow (4), number in the flow (8), big-endian.
pub const FRAME_BYTES: usize = 14 + 20 + 8 + 12;
const PAYLOAD_AT: usize = FRAME_BYTES - 12;

/// What traffic to make.
#[derive(Clone, Debug)]
pub struct TrafficOptions {
    /// How many queues. Flows are seen by all of them, in one direction by the even and in the other by the odd ones, so
    /// that both directions have to meet.
    pub queues: usize,
    /// How many flows.
    pub flows: usize,
    /// Zipf's exponent.
    pub zipf: f64,
    /// How many frames a queue.
    pub frames: u64,
    /// Whether nothing is lost while it is not polled.
    pub can_wait: bool,
    /// Time between frames; of none, they are always there.
    pub gap: Duration,
    /// Where the numbers begin.
    pub seed: u64,
}

impl TrafficOptions {
    /// The device.
    pub fn input(&self) -> Input {
        let zipf = Zipf::new(self.flows, self.zipf);
        let queue = |number: usize| -> Box<dyn RxQueue> {
            Box::new(Traffic {
                reverse: number % 2 == 1,
                left: self.frames,
                can_wait: self.can_wait,
                gap: self.gap,
                due: Timestamp::ZERO,
                next: vec![0; self.flows],
                zipf: zipf.clone(),
                chance: Chance::new(self.seed ^ (number as u64) << 32),
            })
        };
        Input { name: "traffic".into(), kind: "simulated", mode: "", queues: (0..self.queues).map(queue).collect() }
    }
}

/// One of its queues.
#[derive(Debug)]
pub struct Traffic {
    reverse: bool,
    left: u64,
    can_wait: bool,
    gap: Duration,
    /// When the next frame comes.
    due: Timestamp,
    /// For each flow, the number of its next frame, from 1.
    next: Vec<u64>,
    zipf: Zipf,
    chance: Chance,
}

impl Traffic {
    fn write(&mut self, frame: &mut [u8]) {
        let flow = self.zipf.draw(&mut self.chance);
        self.next[flow] += 1;
        let address = 0x0a00_0000_u32 + flow as u32;
        let (there, here) = (address.to_be_bytes(), [192, 168, 0, 1]);
        let port = 1024 + (flow % 60_000) as u16;
        let (source, destination) = if self.reverse { (here, there) } else { (there, here) };
        let (from, to) = if self.reverse { (9, port) } else { (port, 9) };
        frame.fill(0);
        frame[12] = 8;
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&((FRAME_BYTES - 14) as u16).to_be_bytes());
        frame[22] = 64;
        frame[23] = 17;
        frame[26..30].copy_from_slice(&source);
        frame[30..34].copy_from_slice(&destination);
        frame[34..36].copy_from_slice(&from.to_be_bytes());
        frame[36..38].copy_from_slice(&to.to_be_bytes());
        frame[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&(flow as u32).to_be_bytes());
        frame[PAYLOAD_AT + 4..].copy_from_slice(&self.next[flow].to_be_bytes());
    }
}

/// The flow and the number in it that a frame carries.
pub fn read(frame: &[u8]) -> Option<(u32, u64)> {
    let flow = frame.get(PAYLOAD_AT..PAYLOAD_AT + 4)?.try_into().ok()?;
    let number = frame.get(PAYLOAD_AT + 4..FRAME_BYTES)?.try_into().ok()?;
    Some((u32::from_be_bytes(flow), u64::from_be_bytes(number)))
}

impl RxQueue for Traffic {
    fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
        Ok(QueueMemory::Pages { frame_bytes_max: FRAME_BYTES })
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            if self.left == 0 {
                return Ok(Polled::Ended);
            }
            if self.due > out.now() {
                return Ok(Polled::NotBefore(self.due));
            }
            let Some(mut page) = out.take_page() else { return Ok(Polled::More) };
            self.write(&mut out.page_mut(&mut page)[HEADROOM..HEADROOM + FRAME_BYTES]);
            out.push(Completion::new(page, HEADROOM as u32, FRAME_BYTES), FRAME_BYTES);
            self.left -= 1;
            if !self.gap.is_zero() {
                self.due = self.due + self.gap;
            }
        }
        Ok(Polled::More)
    }

    fn can_wait(&self) -> bool {
        self.can_wait
    }
}
