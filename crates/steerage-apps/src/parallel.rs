//! Splits traffic among jobs: programs that run in parallel. Each job receives whole flows.

mod together;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steerage::flow::{FlowHash, FlowHasher, Layers, SteeringKeys};
use steerage::{Affinity, Batch, Cpu, Handler, TxId, limits::OUTPUTS_MAX};

pub use together::{Together, UnknownTogether};

/// The options of [`Split`].
///
/// ```
/// use steerage::flow::{FlowHasher, HashKey, Layers};
/// use steerage::{Builder, testing};
/// use steerage_apps::parallel::{SplitOptions, Together};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hasher = FlowHasher::keyed(&HashKey::random()?);
/// let split = SplitOptions::new(2, Together::Hosts, hasher, Layers::Inner);
/// let handed_on = split.handed_on();
/// let ((left, at_left), (right, at_right)) = (testing::output(), testing::output());
/// let input = steerage_device::open("synthetic:packets=1000")?;
/// // One CPU: packets of other flows that have to stay together are in order too.
/// let builder = Builder::new().virtual_cpus(1).input(input).always_hash(true).output(left).output(right);
/// builder.build(move |_| split.split())?.start()?.join();
/// assert_eq!(at_left.packets().len() + at_right.packets().len(), 1000);
/// assert_eq!(handed_on.packets(), 1000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SplitOptions {
    jobs: usize,
    together: Together,
    hasher: FlowHasher,
    layers: Layers,
    handed_on: Arc<HandedOn>,
}

impl SplitOptions {
    /// Splits traffic over the outputs 0 to `jobs` - 1 of the instance. `jobs` must be at least 1.
    /// `hasher` and `layers` must be the same as those of the instance.
    pub fn new(jobs: usize, together: Together, hasher: FlowHasher, layers: Layers) -> Self {
        Self { jobs: jobs.clamp(1, OUTPUTS_MAX), together, hasher, layers, handed_on: Arc::default() }
    }

    /// Returns the counter of packets sent to jobs, which can be read during the run.
    pub fn handed_on(&self) -> Arc<HandedOn> {
        Arc::clone(&self.handed_on)
    }

    /// Creates the handler of a CPU.
    pub fn split(&self) -> Split {
        let hasher = self.hasher.clone();
        let keys = SteeringKeys::new(hasher.clone(), Affinity::OneDirection);
        let Self { jobs, together, layers, .. } = *self;
        Split { jobs, together, layers, hasher, keys, handed_on: Arc::clone(&self.handed_on) }
    }
}

/// The count of packets that were sent to jobs.
#[derive(Debug, Default)]
pub struct HandedOn {
    packets: AtomicU64,
}

impl HandedOn {
    /// The number of packets that were sent to jobs.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
}

/// Sends each packet to the output of its job. Job and output have the same number.
///
/// The instance needs [hashes at arrival](steerage::Builder::always_hash), which keep fragments
/// together. Unless `together` is [`Together::Flow`], the instance must have exactly one CPU.
#[derive(Debug)]
pub struct Split {
    jobs: usize,
    together: Together,
    layers: Layers,
    hasher: FlowHasher,
    /// Keeps the fragments of a datagram together if the job does not depend on the flow hash.
    keys: SteeringKeys,
    handed_on: Arc<HandedOn>,
}

impl Split {
    fn job(&self, hash: FlowHash) -> TxId {
        TxId(((u64::from(hash.0) * self.jobs as u64) >> 32) as u8)
    }
}

impl Handler for Split {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let (packets, now) = (batch.len() as u64, cpu.now());
        for packet in batch.iter_mut() {
            let hash = match self.together {
                Together::Flow => packet.flow_hash(),
                together => {
                    let found = steerage::flow::dissect(packet.data(), packet.link(), self.layers);
                    self.hasher.hash(&together.key(self.keys.of(&found, now).flow))
                }
            };
            let job = self.job(hash);
            packet.transmit(job);
        }
        self.handed_on.packets.fetch_add(packets, Ordering::Relaxed);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}
