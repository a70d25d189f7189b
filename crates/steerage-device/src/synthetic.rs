//! Generates valid Ethernet frames with sequence numbers, which reveal losses and reordering.
//!
//! ```text
//! synthetic
//! synthetic:flows=1000,zipf=1.1,mix=udp4+tcp6,rate=1000000
//! ```
//!
//! | option | meaning | default | allowed |
//! |---|---|---|---|
//! | `flows` | number of flows | 65536 | 1 to [`FLOWS_MAX`] |
//! | `size` | bytes of a frame in memory, without its checksum | 64 | [`SIZE_MIN`] to [`SIZE_MAX`] |
//! | `zipf` | unevenness: flow `f` has weight `1 / (f + 1)^zipf` | 0: all alike | 0 to [`ZIPF_MAX`] |
//! | `packets` | number of frames over all queues | no end | 1 or more |
//! | `rate` | frames per second over all queues | as fast as they are taken | 1 to [`RATE_MAX`] |
//! | `seed` | seed of the random generator | 1 | any number of 64 bits |
//! | `mix` | kinds of flows: `udp4`, `tcp4`, `udp6`, `tcp6`, `vlan` | `udp4` | up to [`MIX_MAX`] |
//! | `queues` | number of receive queues | 1 | 1 to 1024, and at most `flows` |
//! | `buffer` | bytes of a receive buffer | frames are whole | [`BUFFER_MIN`] to [`SIZE_MAX`] |
//!
//! - `seed`: options with the same values and the same seed generate the same frames.
//! - `mix`: each kind in the list gets the same number of flows.
//! - `queues`: each flow belongs to one queue.
//! - `buffer`: a frame that is longer than a buffer is received in several buffers, as a chain of
//!   at most 18 pages.
//!
//! # The frames
//!
//! Checksums are correct. The data after the UDP or TCP header is in big-endian order: the magic
//! number [`MAGIC`] (32 bits), the flow's number (32 bits), and the frame's number within its flow
//! (64 bits), which starts at 0. [`parse_payload`] reads these numbers. If `size` is too small for
//! the headers and numbers of a kind, the frames of this kind are longer: at least 70 (`tcp4`), 78
//! (`udp6`) or 90 bytes (`tcp6`).
//!
//! Each flow has its own source address in 10.0.0.0/8 or 2001:db8:0:1::/104, permuted by the seed,
//! and a source port between 32768 and 65535. The destination of all flows is port 9 (discard) of
//! 198.18.0.1 or 2001:db8:0:2::1. Flow `f` is in queue `f % queues`, and has the kind with the
//! index `f / queues % kinds` in `mix`. Every TCP segment continues the sequence numbers of the
//! flow's previous segment.
//!
//! # Timing
//!
//! Without `rate`, the device [can wait](steerage::device::Capabilities::can_wait): it generates
//! the frames that a poll requests. With `rate`, the device is live: frames become due by the clock
//! of the receive path, and fill a ring of [`RING`] descriptors per queue. Frames that do not fit
//! into the ring are lost, counted, and not numbered, so a gap in a flow's numbers shows that
//! frames were lost after the device. The weights of a queue's flows determine the queue's part of
//! the packets and of the rate.
//!
//! # Memory
//!
//! The device needs 8 bytes per flow. With `zipf`, the device needs 16 bytes per flow, and at the
//! start 20 bytes per flow.

mod frame;
mod queue;
mod sample;
mod spec;

use steerage::{Input, device::RxQueue};

pub use crate::options::SpecError;
use crate::options::setters;
use crate::schedule::{NANOS_PER_SECOND, Schedule};
pub use frame::{Kind, MAGIC, parse_payload};

use queue::SyntheticQueue;
use sample::Sampler;

/// The maximum number of flows: the 24 free bits of 10.0.0.0/8 distinguish all flows.
pub const FLOWS_MAX: u32 = 1 << 24;

/// The shortest frame in bytes: one cache line. (The minimum of Ethernet is 60 bytes.)
pub const SIZE_MIN: usize = 64;

/// The longest frame in bytes: the 9000 bytes of a jumbo frame, an Ethernet header, and a VLAN tag.
pub const SIZE_MAX: usize = 9018;

/// The shortest receive buffer in bytes, with room for the headers, the flow number and the frame
/// number of each frame.
pub const BUFFER_MIN: usize = 128;

/// The highest exponent of the weights. With this exponent, all but one packet in a thousand belong
/// to the first flow.
pub const ZIPF_MAX: f64 = 10.0;

/// The highest rate in packets per second. One CPU can generate about a tenth of this rate.
pub const RATE_MAX: u64 = 1_000_000_000;

/// The maximum number of kinds in a mix. A kind that occurs several times in the mix gets more
/// flows.
pub const MIX_MAX: usize = 16;

/// The maximum number of receive queues, which is also the limit of a steerage instance.
pub const QUEUES_MAX: usize = 1024;

/// The length of the ring of a live queue, in which frames wait for a poll. If the ring is full,
/// further frames are lost. Common network cards have rings of at most 4096 descriptors.
pub const RING: u64 = 4096;

/// The options of the device: see the [module's table](self).
///
/// ```
/// use steerage_device::synthetic::{Kind, SyntheticOptions};
///
/// let input = SyntheticOptions::new().packets(1000).flows(64).mix([Kind::Udp4, Kind::Tcp6]).queues(2).open()?;
/// assert_eq!(input.queues.len(), 2);
/// # Ok::<(), steerage_device::synthetic::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SyntheticOptions {
    /// The name of the input. [`parse`](Self::parse) uses the parsed text as the name.
    pub name: String,
    /// The number of flows.
    pub flows: u32,
    /// The length of a frame in bytes, without its checksum.
    pub size: usize,
    /// The exponent of the flows' weights.
    pub zipf: f64,
    /// The number of frames over all queues. If `packets` is `None`, the device does not end.
    pub packets: Option<u64>,
    /// The rate in frames per second over all queues. `None`: as fast as polls take frames.
    pub rate: Option<u64>,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The kinds of flows. Each kind in the list has the same number of flows.
    pub mix: Vec<Kind>,
    /// The number of receive queues.
    pub queues: usize,
    /// The length of a receive buffer in bytes. `None` means that every frame fits into one buffer.
    pub buffer: Option<usize>,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        Self {
            name: "synthetic".to_owned(),
            flows: 1 << 16,
            size: SIZE_MIN,
            zipf: 0.0,
            packets: None,
            rate: None,
            seed: 1,
            mix: vec![Kind::Udp4],
            queues: 1,
            buffer: None,
        }
    }
}

impl SyntheticOptions {
    /// Creates options with their default values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The input's name. Default: `synthetic`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The kinds of flows, up to [`MIX_MAX`], with equally many flows. Default: UDP over IPv4.
    #[must_use]
    pub fn mix(mut self, mix: impl Into<Vec<Kind>>) -> Self {
        self.mix = mix.into();
        self
    }

    setters! {
        /// The number of flows, 1 to [`FLOWS_MAX`]. Default: 65536.
        flows: u32;
        /// The length of a frame in bytes, without its checksum, [`SIZE_MIN`] (default) to
        /// [`SIZE_MAX`].
        size: usize;
        /// The exponent of the flows' weights, 0 (default, equal weights) to [`ZIPF_MAX`].
        zipf: f64;
        /// The number of frames over all queues after which the device ends. Default: no end.
        packets: u64 => Some;
        /// Frames per second over all queues, 1 to [`RATE_MAX`]. Default: no limit.
        rate: u64 => Some;
        /// The seed of the random numbers. Default: 1.
        seed: u64;
        /// The number of receive queues, 1 to [`QUEUES_MAX`]. Default: 1.
        queues: usize;
        /// The length of a receive buffer in bytes, [`BUFFER_MIN`] to [`SIZE_MAX`]. Default: each
        /// frame fits into a buffer.
        buffer: usize => Some;
    }

    /// Creates the device with its tables.
    ///
    /// # Errors
    /// [`SpecError`] for an option that is out of range.
    pub fn open(&self) -> Result<Input, SpecError> {
        self.check()?;
        let samplers: Vec<Sampler> = (0..self.queues).map(|queue| Sampler::new(self, queue)).collect();
        let weights: Vec<f64> = samplers.iter().map(|sampler| sampler.weight).collect();
        let bounds = share_bounds(&weights);
        let queues = samplers.into_iter().enumerate().map(|(i, sampler)| -> Box<dyn RxQueue> {
            Box::new(SyntheticQueue::new(self, i, sampler, Share { from: bounds[i], to: bounds[i + 1] }))
        });
        Ok(Input::new(self.name.as_str(), "synthetic", queues.collect()))
    }

    /// The flow `f` is in the queue `f % queues`.
    fn flows_of(&self, queue: usize) -> u32 {
        let before = queue as u32;
        (self.flows - before).div_ceil(self.queues as u32)
    }
}

/// A queue's share of the packets and of the rate: a range in 0 to [`Share::WHOLE`], so that the
/// shares of all queues add up exactly.
#[derive(Clone, Copy, Debug)]
struct Share {
    from: u64,
    to: u64,
}

impl Share {
    const BITS: u32 = 32;
    const WHOLE: u64 = 1 << Self::BITS;

    fn of(self, total: u64) -> u64 {
        let up_to = |bound: u64| ((u128::from(total) * u128::from(bound)) >> Self::BITS) as u64;
        up_to(self.to) - up_to(self.from)
    }

    fn schedule(self, rate: u64) -> Schedule {
        // A rate is at most `10^9` and a share `2^32` parts, so both products stay below `2^63`.
        Schedule::new(rate * (self.to - self.from), NANOS_PER_SECOND * Self::WHOLE)
    }
}

/// Returns the bounds of shares proportional to `weights`: one more bound than weights.
fn share_bounds(weights: &[f64]) -> Vec<u64> {
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let mut bounds = vec![0];
    for weight in weights {
        sum += weight;
        bounds.push(((sum / total * Share::WHOLE as f64).round() as u64).min(Share::WHOLE));
    }
    // Set the upper bound of the last share exactly, so that rounding does not lose the last
    // packet.
    *bounds.last_mut().expect("it holds a 0 at least") = Share::WHOLE;
    bounds
}
