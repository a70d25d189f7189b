//! Simulated receive queues, whose frames arrive at random times, as at a network card.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steerage::flow::hash_of_bucket;
use steerage::flow::wire::{FrameBuilder, port::DISCARD};
use steerage::limits::BUCKETS;
use steerage::{
    Affinity, DeviceError, Input, Timestamp,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
};

use crate::chance::{Chance, Zipf};
use crate::machine::Bursts;

/// The length of a frame.
pub const FRAME_BYTES: usize = 64;

const STAMP: std::ops::Range<usize> = 42..50;

const FIRST_ADDRESS: u32 = 0x0a00_0000;

/// The maximum number of waiting frames: the default ring size of common network cards.
const RING: u64 = 512;

/// The distribution of the frames over flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flows {
    /// All flows are equally probable.
    Uniform,
    /// The flows of the frames follow Zipf's law with this exponent.
    Zipf(f64),
    /// One flow of each queue has this share of the queue's packets, and all other flows are
    /// equally probable.
    Elephant(f64),
    /// Each flow always has one request in flight. The next request arrives this many nanoseconds
    /// after the flow's last request was handled, so the rate depends on the speed of the machine.
    Streams(f64),
    /// The flows take turns, packet by packet. The flows' buckets are evenly spaced, so that each
    /// flow has a CPU of its own, and the CPUs get packets in turn.
    InTurn,
}

/// The traffic of all queues together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// The number of queues, each of which receives an equal share of the traffic.
    pub queues: usize,
    /// The number of flows of each queue.
    pub flows: usize,
    /// How the frames are distributed over flows.
    pub kind: Flows,
    /// The bursts in which frames arrive, if any.
    pub bursts: Option<Bursts>,
    /// The mean number of frames per second of all queues, with Poisson arrivals. If this number is
    /// infinite, frames wait until they are polled, and no frame is lost.
    pub per_second: f64,
    /// The seed of the random numbers.
    pub seed: u64,
}

type Due = BinaryHeap<Reverse<(u64, u32)>>;

/// The streams of requests and responses, and the times of their next requests.
#[derive(Debug)]
pub struct Streams {
    due: Vec<Mutex<Due>>,
    there_and_back: u64,
}

impl Streams {
    /// Records that a request of the flow `flow` was handled at the time `now`.
    pub fn answer(&self, queue: usize, flow: u32, now: u64) {
        self.of(queue).push(Reverse((now + self.there_and_back, flow)));
    }

    fn of(&self, queue: usize) -> MutexGuard<'_, Due> {
        self.due[queue].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrivals {
    /// Creates the device. With [`Flows::Streams`], also creates the streams, for which the packet
    /// function must call [`Streams::answer`]. `stretch` multiplies all times of the traffic.
    pub fn open(&self, stretch: f64) -> (Input, Option<Arc<Streams>>) {
        let streams = match self.kind {
            Flows::Streams(nanos) => {
                let each =
                    |_| Mutex::new((0..self.flows as u32).map(|flow| Reverse((u64::from(flow), flow))).collect());
                let there_and_back = (nanos * stretch) as u64;
                Some(Arc::new(Streams { due: (0..self.queues).map(each).collect(), there_and_back }))
            }
            _ => None,
        };
        let zipf = match self.kind {
            Flows::Zipf(exponent) => Some(Zipf::new(self.flows, exponent)),
            _ => None,
        };
        let template: [u8; FRAME_BYTES] = FrameBuilder::udp(([0; 4], 0), ([192, 168, 0, 1], DISCARD))
            .frame_of(FRAME_BYTES)
            .try_into()
            .expect("a frame of this length");
        let template = Arc::new(template);
        let queue = |number: usize| -> Box<dyn RxQueue> {
            let mut chance = Chance::new(self.seed ^ (number as u64 + 1) << 32);
            let gap = 1e9 * self.queues as f64 / self.per_second;
            Box::new(Arrived {
                options: *self,
                number: number as u32,
                zipf: zipf.clone(),
                template: Arc::clone(&template),
                next: gap * chance.unit(),
                gap,
                taken: 0,
                chance,
                streams: streams.clone(),
            })
        };
        (Input::new("arrivals", "simulated", (0..self.queues).map(queue).collect()), streams)
    }
}

/// Returns the number of a frame's flow among the flows of its queue.
pub fn flow_of(frame: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(frame.get(26..30)?.try_into().ok()?) - FIRST_ADDRESS)
}

/// Returns the time at which a frame arrived.
pub fn arrived(frame: &[u8]) -> Option<Timestamp> {
    Some(Timestamp::from_nanos(u64::from_le_bytes(frame.get(STAMP)?.try_into().ok()?)))
}

#[derive(Debug)]
struct Arrived {
    options: Arrivals,
    number: u32,
    zipf: Option<Zipf>,
    template: Arc<[u8; FRAME_BYTES]>,
    next: f64,
    gap: f64,
    taken: u64,
    chance: Chance,
    streams: Option<Arc<Streams>>,
}

impl Arrived {
    fn draw_gap(&mut self) -> f64 {
        let gap = -self.chance.unit().ln() * self.gap;
        let Some(Bursts { rate, frames }) = self.options.bursts else { return gap };
        let period = frames * self.gap;
        let next = self.next + gap / rate;
        if next % period < period / rate {
            gap / rate
        } else {
            (next / period).floor().mul_add(period, period) - self.next
        }
    }

    fn draw_flow(&mut self) -> u32 {
        let flows = self.options.flows as u64;
        match self.options.kind {
            Flows::Uniform => self.chance.below(flows) as u32,
            Flows::Zipf(_) => self.zipf.as_ref().map_or(0, |zipf| zipf.draw(&mut self.chance) as u32),
            Flows::Elephant(share) if self.chance.unit() <= share => 0,
            Flows::Elephant(_) => self.chance.below(flows) as u32,
            Flows::InTurn => (self.taken % flows) as u32,
            // `next_stream` chooses the flow.
            Flows::Streams(_) => 0,
        }
    }

    /// The mean number of frames that arrive before the time `until`.
    fn arrivals(&self, until: f64) -> f64 {
        let Some(Bursts { rate, frames }) = self.options.bursts else { return until / self.gap };
        let period = frames * self.gap;
        let in_burst = (until % period * rate / self.gap).min(frames);
        (until / period).floor() * frames + in_burst
    }

    /// The time by which `arrivals` frames have arrived on average.
    fn time_of(&self, arrivals: f64) -> f64 {
        let Some(Bursts { rate, frames }) = self.options.bursts else { return arrivals * self.gap };
        let periods = (arrivals / frames).floor();
        (periods * frames + (arrivals - periods * frames) / rate) * self.gap
    }

    /// Drops the oldest frames that do not fit. (Only the mean number of drops matters.)
    fn overflow(&mut self, now: f64, out: &mut Completions<'_>) {
        let before = self.arrivals(self.next);
        let waiting = self.arrivals(now) - before;
        if waiting > RING as f64 {
            let lost = (waiting - RING as f64).floor();
            out.lost(lost as u64);
            self.next = self.time_of(before + lost);
        }
    }
}

impl RxQueue for Arrived {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES);
        can.can_wait = self.gap == 0.0;
        if self.options.kind == Flows::InTurn { can.names_buckets(Affinity::BothDirections) } else { can }
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let now = out.now().as_nanos() as f64;
        if self.streams.is_none() && self.gap > 0.0 {
            self.overflow(now, out);
        }
        let count = out.fill(budget, |page| {
            let flow = match &self.streams {
                Some(streams) => {
                    let mut due = streams.of(self.number as usize);
                    let Reverse((at, flow)) = due.peek().copied().filter(|Reverse((at, _))| *at as f64 <= now)?;
                    due.pop();
                    self.next = at as f64;
                    flow
                }
                None if self.next > now => return None,
                None => self.draw_flow(),
            };
            let frame: &mut [u8; FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = *self.template;
            frame[26..30].copy_from_slice(&(FIRST_ADDRESS + flow).to_be_bytes());
            frame[34..36].copy_from_slice(&(self.number as u16).to_be_bytes());
            frame[STAMP].copy_from_slice(&(self.next as u64).to_le_bytes());
            self.taken += 1;
            if self.streams.is_none() {
                self.next += self.draw_gap();
            }
            let filled = Filled::whole(FRAME_BYTES);
            let in_turn = self.options.kind == Flows::InTurn;
            Some(if in_turn {
                filled.with_hash(Some(hash_of_bucket((flow as usize * BUCKETS / self.options.flows) as u16)))
            } else {
                filled
            })
        });
        if let Some(streams) = &self.streams {
            let next = streams
                .of(self.number as usize)
                .peek()
                .map_or(now + streams.there_and_back as f64, |next| next.0.0 as f64);
            // A response may cause a request that is earlier than all requests in `due`.
            self.next = next.min(now + streams.there_and_back as f64);
        }
        Ok(match count == budget || self.next <= now {
            true => Polled::More,
            false => Polled::NotBefore(Timestamp::from_nanos(self.next.ceil() as u64)),
        })
    }
}
