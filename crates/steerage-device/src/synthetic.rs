//! A device that generates its packets: valid Ethernet frames, each with a number that proves a loss or a reordering
//! further on.
//!
//! ```text
//! synthetic
//! synthetic:flows=1000,zipf=1.1,mix=udp4+tcp6,rate=1000000
//! ```
//!
//! | option | what it is | default | allowed |
//! |---|---|---|---|
//! | `flows` | how many flows there are | 65536 | 1 to [`FLOWS_MAX`] |
//! | `size` | bytes of a frame in memory, without the checksum that ends it on the wire | 64 | [`SIZE_MIN`] to [`SIZE_MAX`] |
//! | `zipf` | how uneven flows are: flow `f` has weight `1 / (f + 1)^zipf`; 0: all alike | 0 | 0 to [`ZIPF_MAX`] |
//! | `packets` | how many frames there are, over all queues | no end | 1 or more |
//! | `rate` | frames per second, over all queues | as fast as they are taken | 1 to [`RATE_MAX`] |
//! | `seed` | the seed of the random generator: the same options and seed make the same frames | 1 | any number of 64 bits |
//! | `mix` | kinds of flows, equally many of each: `udp4`, `tcp4`, `udp6`, `tcp6`, `vlan` | `udp4` | up to [`MIX_MAX`] |
//! | `queues` | receive queues; a flow is in one of them | 1 | 1 to 1024, and to the number of flows |
//! | `buffer` | bytes of a receive buffer: a longer frame comes in several, a chain of pages | frames are whole | [`BUFFER_MIN`] to [`SIZE_MAX`], and a frame in 18 at most |
//! | `profile` | conversations instead of numbered frames: `office`. Only `packets` and `seed` go with it | none | see below |
//!
//! # The frames
//!
//! Checksums are right. The data begins behind the UDP or TCP header, big-endian: the magic number [`MAGIC`] (32
//! bits), the flow's number (32), and the frame's number in its flow (64), from 0 on; [`parse_payload`] reads them.
//! A kind whose headers need more than `size` takes what it needs: 70 bytes for `tcp4`, 78 for `udp6`, 90 for `tcp6`.
//!
//! Flow `f` comes from an address of its own in 10.0.0.0/8 or 2001:db8:0:1::/104, permuted by the seed, and from a port
//! between 32768 and 65535; all go to port 9 (discard) of 198.18.0.1 or 2001:db8:0:2::1. It is in queue
//! `f % queues` and of kind number `f / queues % kinds`. TCP flows are in the midst of sending: every segment
//! continues the one before.
//!
//! # The profile `office`
//!
//! With `profile=office` the frames are those of conversations, in both directions and with times, such as a capture at an
//! office's router has. [`parse_payload`] finds no numbers in them.
//!
//! - 48 clients (10.20.0.0/16, 2001:db8:20::/48), a quarter of them in VLAN 10, a quarter in VLAN 20. Every third
//!   conversation is over IPv6.
//! - Each conversation begins with a DNS query and its reply (A or AAAA). On average, 14 out of 16 continue with a web page
//!   over TCP and 1 with a call (RTP). In 1 the name does not exist.
//! - TCP has handshakes with options, HTTP in segments of up to the MSS, acknowledgements, and an orderly end.
//! - The first conversation uploads to port 9 (discard) and never ends: the elephant, with more than half of all bytes.
//! - The times begin at 2026-01-01 09:00 UTC, with 12 new conversations per second. They do not delay the frames, which are made
//!   as fast as they are taken.
//!
//! Checksums are correct, and no segment is lost. The last frame cuts open conversations off, as in any capture.
//!
//! # Timing
//!
//! Without `rate` the device [can wait](steerage::device::Capabilities::can_wait): it makes the frames that a poll asks for. With `rate` it is
//! live: frames become due by the path's clock, and fill a ring of [`RING`] descriptors for each queue. Frames that find
//! the ring full are lost and counted, as in a network card. They take no number, so a gap in a flow's numbers is a loss
//! further on. Queues share packets and rate in proportion to the weights of their flows.
//!
//! # Memory
//!
//! 8 bytes per flow; with `zipf` 16, and 20 during the start.

mod frame;
mod office;
mod profile;
mod queue;
mod sample;
mod schedule;
mod spec;

use steerage::{Input, device::RxQueue};

pub use crate::options::SpecError;
use crate::options::setters;
pub use frame::{Kind, MAGIC, parse_payload};
pub use profile::Profile;
pub use schedule::RING;

use office::OfficeQueue;
use queue::SyntheticQueue;
use sample::Sampler;

/// The most flows: what the 24 free bits of 10.0.0.0/8 tell apart.
pub const FLOWS_MAX: u32 = 1 << 24;

/// The shortest frame in bytes: one cache line. (Ethernet's own least is 60 without the checksum.)
pub const SIZE_MIN: usize = 64;

/// The longest frame in bytes: a jumbo frame's 9000, an Ethernet header of 14 and a VLAN tag of 4.
pub const SIZE_MAX: usize = 9018;

/// The shortest receive buffer in bytes: all headers and the numbers behind them are in a frame's first.
pub const BUFFER_MIN: usize = 128;

/// The most uneven flows can be: at 10, all but one packet in a thousand are of the first flow.
pub const ZIPF_MAX: f64 = 10.0;

/// The most packets a second: a full poll each 64 ns, ten times what one CPU makes.
pub const RATE_MAX: u64 = 1_000_000_000;

/// The most kinds in a mix. One may stand in it several times, for a larger part.
pub const MIX_MAX: usize = 16;

/// The most receive queues: as many as an instance of steerage takes.
pub const QUEUES_MAX: usize = 1024;

/// What to make: the options of the [module's table](self).
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
    /// What the input is called. [`parse`](Self::parse) puts the text here that it was given.
    pub name: String,
    /// How many flows.
    pub flows: u32,
    /// Bytes of a frame, without its checksum.
    pub size: usize,
    /// The exponent of the flows' weights.
    pub zipf: f64,
    /// How many frames over all queues. `None`: no end.
    pub packets: Option<u64>,
    /// Frames a second over all queues. `None`: as fast as they are taken.
    pub rate: Option<u64>,
    /// Where chance starts.
    pub seed: u64,
    /// The kinds of flows, equally many of each.
    pub mix: Vec<Kind>,
    /// How many receive queues.
    pub queues: usize,
    /// Bytes of a receive buffer. `None`: every frame has one that is long enough.
    pub buffer: Option<usize>,
    /// Conversations of this profile instead of numbered frames. Of the other options only `packets` and `seed` count then.
    pub profile: Option<Profile>,
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
            profile: None,
        }
    }
}

impl SyntheticOptions {
    /// Every option with its default.
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

    /// The kinds of flows, equally many of each, at most [`MIX_MAX`]. Default: UDP over IPv4.
    #[must_use]
    pub fn mix(mut self, mix: impl Into<Vec<Kind>>) -> Self {
        self.mix = mix.into();
        self
    }

    setters! {
        /// The number of flows, 1 to [`FLOWS_MAX`]. Default: 65536.
        flows: u32;
        /// The bytes of a frame, without its checksum, [`SIZE_MIN`] to [`SIZE_MAX`]. Default: [`SIZE_MIN`].
        size: usize;
        /// The exponent of the flows' weights, 0 to [`ZIPF_MAX`]. Default: 0, all flows are alike.
        zipf: f64;
        /// Ends after this many frames over all queues. Default: no end.
        packets: u64 => Some;
        /// The rate in frames per second over all queues, 1 to [`RATE_MAX`]. Default: as fast as they are taken.
        rate: u64 => Some;
        /// The seed of the random numbers. Default: 1.
        seed: u64;
        /// The number of receive queues, 1 to [`QUEUES_MAX`]. Default: 1.
        queues: usize;
        /// The bytes of a receive buffer, [`BUFFER_MIN`] to [`SIZE_MAX`]. Default: every frame has one that is long enough.
        buffer: usize => Some;
        /// Conversations of this profile. Only the number of packets and the seed count then. Default: numbered frames.
        profile: Profile => Some;
    }

    /// Makes the device, with its tables.
    ///
    /// # Errors
    /// [`SpecError`] for an option outside of what is allowed.
    pub fn open(&self) -> Result<Input, SpecError> {
        self.check()?;
        if self.profile == Some(Profile::Office) {
            let queue = OfficeQueue::new(self.seed, self.packets);
            return Ok(Input::new(self.name.as_str(), "synthetic", vec![Box::new(queue)]));
        }
        let samplers: Vec<Sampler> = (0..self.queues).map(|queue| Sampler::new(self, queue)).collect();
        let weights: Vec<f64> = samplers.iter().map(Sampler::weight).collect();
        let bounds = share_bounds(&weights);
        let queues = samplers.into_iter().enumerate().map(|(i, sampler)| -> Box<dyn RxQueue> {
            Box::new(SyntheticQueue::new(self, i, sampler, Share { from: bounds[i], to: bounds[i + 1] }))
        });
        Ok(Input::new(self.name.as_str(), "synthetic", queues.collect()))
    }

    /// How many flows queue `queue` has: those whose number leaves `queue` as the remainder.
    fn flows_of(&self, queue: usize) -> u32 {
        let before = queue as u32;
        (self.flows - before).div_ceil(self.queues as u32)
    }
}

/// A queue's part of the whole: a stretch of the numbers 0 to [`Share::WHOLE`]. As a stretch and not a fraction, so
/// that what the queues get adds up to exactly what there is.
#[derive(Clone, Copy, Debug)]
struct Share {
    from: u64,
    to: u64,
}

impl Share {
    const BITS: u32 = 32;
    const WHOLE: u64 = 1 << Self::BITS;

    /// Its part of `total` things.
    fn of(self, total: u64) -> u64 {
        let up_to = |bound: u64| ((u128::from(total) * u128::from(bound)) >> Self::BITS) as u64;
        up_to(self.to) - up_to(self.from)
    }

    /// Its length, in parts of [`Share::WHOLE`].
    fn parts(self) -> u64 {
        self.to - self.from
    }
}

/// Cuts the whole in the proportion of `weights`: one bound more than there are weights.
fn share_bounds(weights: &[f64]) -> Vec<u64> {
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let mut bounds = vec![0];
    for weight in weights {
        sum += weight;
        bounds.push(((sum / total * Share::WHOLE as f64).round() as u64).min(Share::WHOLE));
    }
    // Rounding must not lose the last packet.
    *bounds.last_mut().expect("it holds a 0 at least") = Share::WHOLE;
    bounds
}
