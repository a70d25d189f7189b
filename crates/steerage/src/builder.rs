//! Putting an instance together.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steerage_mem::RegionError;
use steerage_mem::hash::{FlowHasher, FlowKey};
use steerage_mem::park::{Bell, Sleepers};

use crate::cpu::{CpuId, CpuMask};
use crate::flow::Layers;
use crate::gate::Gate;
use crate::handler::{Affinity, Handler};
use crate::hashing::Hashing;
use crate::instance::{CpuPart, Instance, MakeHandler};
use crate::ledger::CpuLedger;
use crate::limits::{CPUS_MAX, IDLE_POLL, KEPT_DEFAULT, Limits, MEMORY_MAX_DEFAULT, ORIGINATED_MAX, QueueLimits};
use crate::moves::Steering;
use crate::numa::NodeMap;
use crate::origin::Origin;
use crate::plan::{self, Plan, Wiring};
use crate::policy::{Balance, Policy};
use crate::pool::SharedPool;
use crate::queue::OwnedQueue;
use crate::rps_map::CpuIndex;
use crate::rx::{DeviceError, Input};
use crate::shared::{Core, Shared};
use crate::softnet::Inbound;
use crate::tx::{Output, TxSource, open_outputs};

/// Why an instance could not be put together. Its text says what was tried and what to do.
#[non_exhaustive]
pub enum BuildError {
    /// There is no input, or inputs without queues.
    NoInput,
    /// There are no CPUs.
    NoCpus,
    /// More CPUs, queues or outputs than an instance can have.
    TooMany {
        /// `CPUs`, `receive queues` or `outputs`.
        what: &'static str,
        /// How many were asked for.
        asked: usize,
        /// How many there can be.
        most: usize,
    },
    /// A mask names a CPU that is not one of the instance's.
    NotOurCpu {
        /// The CPU.
        cpu: CpuId,
        /// The instance's CPUs, as a list.
        ours: String,
    },
    /// There is no receive queue of that number.
    NoSuchQueue {
        /// The number.
        queue: usize,
        /// How many there are.
        queues: usize,
    },
    /// A device has longer frames than a slot can describe.
    FrameTooLong {
        /// The device.
        device: String,
        /// Its longest frame, in bytes.
        asked: usize,
        /// The longest there can be.
        most: usize,
    },
    /// The memory that full backlogs can take is more than the cap.
    Memory {
        /// What it takes, in bytes.
        needed: u64,
        /// The cap, in bytes.
        cap: u64,
        /// Receive queues.
        queues: usize,
        /// CPUs.
        cpus: usize,
        /// `netdev_max_backlog`.
        backlog: usize,
    },
    /// A device could not be made ready.
    Device(DeviceError),
    /// There is no memory.
    Region(RegionError),
    /// The kernel refused something else.
    System {
        /// What was tried: completes "cannot ...".
        operation: &'static str,
        /// What it said.
        error: io::Error,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInput => f.write_str("nothing to receive from: give at least one input with a queue"),
            Self::NoCpus => f.write_str("no CPU to work on: give at least one"),
            Self::TooMany { what, asked, most } => {
                write!(f, "{asked} {what} are more than an instance can have: {most}")
            }
            Self::NotOurCpu { cpu, ours } => {
                write!(
                    f,
                    "CPU {cpu} is not one of this instance's ({ours}): add it to its CPUs or leave it out of the mask"
                )
            }
            Self::NoSuchQueue { queue, queues } => {
                write!(f, "there is no receive queue {queue}: they are numbered from 0, and there are {queues}")
            }
            Self::FrameTooLong { device, asked, most } => {
                write!(f, "{device}: frames of {asked} bytes are longer than the longest there can be, {most}")
            }
            Self::Memory { needed, cap, queues, cpus, backlog } => write!(
                f,
                "{queues} queue(s) x {cpus} CPU(s) x {backlog} backlog slots can hold {needed} bytes, more than the cap of {cap}: \
                 use fewer CPUs, a shorter backlog, or raise the cap"
            ),
            Self::Device(error) => error.fmt(f),
            Self::Region(error) => error.fmt(f),
            Self::System { operation, error } => write!(f, "cannot {operation}: {error}"),
        }
    }
}

/// As its text: it is what `main` shows of an error that it returns.
impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            Self::Region(error) => Some(error),
            Self::System { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<DeviceError> for BuildError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<RegionError> for BuildError {
    fn from(error: RegionError) -> Self {
        Self::Region(error)
    }
}

/// An input and what was asked for it.
#[derive(Debug)]
pub(crate) struct AskedInput {
    pub(crate) input: Input,
    pub(crate) rx_cpus: Vec<CpuId>,
    pub(crate) mask: Option<CpuMask>,
}

type FlowKeyFn = Arc<dyn Fn(FlowHasher, Affinity, Layers) -> Hashing + Send + Sync>;

/// Says what an instance is to be made of. Everything has a default but the inputs.
pub struct Builder {
    pub(crate) cpus: Option<CpuMask>,
    pub(crate) rps_cpus: Option<CpuMask>,
    pub(crate) inputs: Vec<AskedInput>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) hasher: Option<FlowHasher>,
    pub(crate) flow_key: Option<FlowKeyFn>,
    pub(crate) layers: Layers,
    pub(crate) device_hash: bool,
    pub(crate) limits: Limits,
    pub(crate) queue_limits: QueueLimits,
    pub(crate) lpc_size: Option<usize>,
    pub(crate) nodes: Option<NodeMap>,
    pub(crate) kept_max: usize,
    pub(crate) linear_bytes: usize,
    pub(crate) originated_max: usize,
    pub(crate) memory_max: usize,
    pub(crate) check_order: bool,
    pub(crate) always_hash: bool,
    pub(crate) pin: bool,
    pub(crate) idle_poll: Duration,
    pub(crate) policy: Box<dyn Policy>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("cpus", &self.cpus).field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// Every default.
    pub fn new() -> Self {
        Self {
            cpus: None,
            rps_cpus: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            hasher: None,
            flow_key: None,
            layers: Layers::Inner,
            device_hash: true,
            limits: Limits::DEFAULT,
            queue_limits: QueueLimits::DEFAULT,
            lpc_size: None,
            nodes: None,
            kept_max: KEPT_DEFAULT,
            linear_bytes: 0,
            originated_max: 0,
            memory_max: MEMORY_MAX_DEFAULT,
            check_order: false,
            always_hash: false,
            pin: true,
            idle_poll: IDLE_POLL,
            policy: Box::new(Balance::new()),
        }
    }

    /// The CPUs to work on; one thread each. Default: those that this process may use.
    #[must_use]
    pub fn cpus(mut self, cpus: CpuMask) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// CPUs 0 to `count - 1`, whether the machine has them or not: threads that are not pinned and sleep at once when
    /// there is nothing to do. For tests.
    #[must_use]
    pub fn virtual_cpus(mut self, count: usize) -> Self {
        self.cpus = Some((0..count.min(CPUS_MAX + 1)).map(|cpu| CpuId(cpu as u16)).collect());
        self.pin = false;
        self.idle_poll = Duration::ZERO;
        self
    }

    /// Whether each thread is pinned to its CPU, if that is allowed. Default: yes.
    #[must_use]
    pub fn pin(mut self, yes: bool) -> Self {
        self.pin = yes;
        self
    }

    /// The CPUs that packets are spread over, where that is not all of them: a CPU left out only receives. Of no CPU:
    /// steering is off, and each packet is handled where it arrived.
    #[must_use]
    pub fn rps_cpus(mut self, mask: CpuMask) -> Self {
        self.rps_cpus = Some(mask);
        self
    }

    /// A device to receive from. Its queues are polled by the CPUs in turn.
    #[must_use]
    pub fn input(self, input: Input) -> Self {
        self.input_on(input, &[], None)
    }

    /// The same, polled by `rx_cpus` in turn (of none: by all), with a mask of its own if it is not the instance's.
    #[must_use]
    pub fn input_on(mut self, input: Input, rx_cpus: &[CpuId], mask: Option<CpuMask>) -> Self {
        self.inputs.push(AskedInput { input, rx_cpus: rx_cpus.to_vec(), mask });
        self
    }

    /// A device to send by. The first that is given is [`TxId(0)`](crate::TxId), and so on.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.outputs.push(output);
        self
    }

    /// The hash, with its key. Default: AES, or SipHash-1-3 where the CPU has no AES, with a key of chance.
    #[must_use]
    pub fn hash(mut self, hasher: FlowHasher) -> Self {
        self.hasher = Some(hasher);
        self
    }

    /// What to hash, in place of the flow that the headers tell; that is what decides where it returns `None`, and of links
    /// other than Ethernet, whose frames it is not asked about. For both directions to stay together, return
    /// [`FlowKey::both_directions`].
    #[must_use]
    pub fn flow_key<K>(mut self, key: K) -> Self
    where
        K: Fn(&[u8]) -> Option<FlowKey> + Clone + Send + Sync + 'static,
    {
        self.flow_key =
            Some(Arc::new(move |hasher, affinity, layers| Hashing::by_key(hasher, affinity, layers, key.clone())));
        self
    }

    /// Which flow counts where packets are in tunnels. Default: the innermost. Ours to choose only where the hash is ours: a
    /// device knows what it knows.
    #[must_use]
    pub fn layers(mut self, layers: Layers) -> Self {
        self.layers = layers;
        self
    }

    /// Whether a device's own hash is used where it keeps together what the handler wants together. Default: yes.
    #[must_use]
    pub fn device_hash(mut self, yes: bool) -> Self {
        self.device_hash = yes;
        self
    }

    /// How many frames of a queue may wait for a CPU: `netdev_max_backlog`. Default 1000.
    #[must_use]
    pub fn backlog(mut self, frames: usize) -> Self {
        self.limits.backlog = frames;
        self
    }

    /// How many frames one poll takes of a queue, and so how long the lists are that are handed over: `dev_weight`. Default
    /// and most [`POLL_BUDGET`](crate::POLL_BUDGET).
    #[must_use]
    pub fn dev_weight(mut self, frames: usize) -> Self {
        self.limits.dev_weight = frames;
        self
    }

    /// How many pages each queue keeps to itself, in units of [`LPC_UNIT_PAGES`](crate::LPC_UNIT_PAGES): its local page cache. 0
    /// switches it off. Default [`LPC_SIZE_DEFAULT`](crate::LPC_SIZE_DEFAULT), and 0 where memory is small:
    /// [`LpcMemory::default_size`](crate::LpcMemory::default_size).
    #[must_use]
    pub fn lpc_size(mut self, units: usize) -> Self {
        self.lpc_size = Some(units);
        self
    }

    /// Which NUMA node each CPU is of. Default: as the machine says; one node where threads are not pinned.
    #[must_use]
    pub fn nodes(mut self, nodes: NodeMap) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Up to how many bytes a frame is copied out of its device's page, where the device has a ring of pages: `rx-copybreak`.
    /// Default 0: none is.
    #[must_use]
    pub fn copybreak(mut self, bytes: usize) -> Self {
        self.queue_limits.copybreak = bytes;
        self
    }

    /// The longest frame, in bytes, that [`Packet::linearise`](crate::Packet::linearise) is to be able to bring into one page: pages
    /// are at least so long, whatever is received into one. Default 0: as long as the inputs need, which is long enough unless
    /// one receives into several buffers. At most [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX).
    #[must_use]
    pub fn linear_bytes(mut self, bytes: usize) -> Self {
        self.linear_bytes = bytes.min(crate::FRAME_BYTES_MAX);
        self
    }

    /// How many packets of a queue handlers may keep at a time. Default 1024.
    #[must_use]
    pub fn kept_max(mut self, packets: usize) -> Self {
        self.kept_max = packets;
        self
    }

    /// How many packets of its own making a CPU's handler may send at a time: [`Cpu::send`](crate::Cpu::send). Each takes a
    /// page of the pool for good. Default 0, at most [`ORIGINATED_MAX`](crate::ORIGINATED_MAX).
    #[must_use]
    pub fn originated_max(mut self, packets: usize) -> Self {
        self.originated_max = packets.min(ORIGINATED_MAX);
        self
    }

    /// The cap on packet memory and rings, in bytes. Default 1 GiB.
    #[must_use]
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.memory_max = bytes;
        self
    }

    /// Whether to check at completion that each bucket's packets come in the order of their arrival.
    #[must_use]
    pub fn check_order(mut self, yes: bool) -> Self {
        self.check_order = yes;
        self
    }

    /// Whether frames are hashed also where nothing has to be chosen, since one CPU has all of them. For functions that go by
    /// [`flow_hash`](crate::Packet::flow_hash) and want a datagram's fragments together: only hashing at arrival remembers
    /// them. Default: no.
    #[must_use]
    pub fn always_hash(mut self, yes: bool) -> Self {
        self.always_hash = yes;
        self
    }

    /// How long a CPU polls on before it sleeps. Default 50 us.
    #[must_use]
    pub fn idle_poll(mut self, time: Duration) -> Self {
        self.idle_poll = time;
        self
    }

    /// How buckets are spread over the CPUs of a mask: [`Balance`](crate::Balance), the default, has the CPU that receives do
    /// all while it keeps up, and others join as the load grows; with [`Hash`](crate::Hash) every CPU has an equal share of
    /// them from the beginning, as in Linux. Each steering group has one of its own, made by [`Policy::fresh`].
    #[must_use]
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Box::new(policy);
        self
    }

    /// Puts it together, with a handler for each CPU made by `make`, there. Nothing runs yet.
    ///
    /// # Errors
    /// [`BuildError`] says what does not fit and what to do.
    pub fn build<H, F>(self, make: F) -> Result<Instance<H>, BuildError>
    where
        H: Handler,
        F: Fn(CpuId) -> H + Send + Sync + 'static,
    {
        let start = Instant::now();
        let (mut plan, inputs) = Plan::of(self)?;
        let mut queues = plan.open_queues(inputs, H::AFFINITY)?;
        let (outputs, mut sends) = open_outputs(std::mem::take(&mut plan.asked.outputs), &plan.cpus, queues.len())?;
        let (region, pages, memory_bytes) = plan.map_memory(&mut queues, &sends)?;
        let pools = plan.nodes.by_cpu(&SharedPool::by_node(&region, pages));
        let of_cpus = sends.iter_mut().zip(&pools);
        of_cpus
            .flat_map(|(outputs, pool)| outputs.iter_mut().map(move |output| (output, pool)))
            .try_for_each(|(output, pool)| output.map(&region, pool))?;
        let cpus = plan.cpus.len();
        let originated = plan.asked.originated_max;
        let origins: Vec<Origin> = pools
            .iter()
            .map(|pool| Origin::new(&region, pool, originated, TxSource::originated(queues.len())))
            .collect();

        let (controls, infos) = (Vec::new(), Vec::new());
        let mut wiring = Wiring { plan: &plan, region: &region, pools: &pools, controls, infos };
        let mut owned: Vec<Vec<OwnedQueue>> = (0..cpus).map(|_| Vec::new()).collect();
        let mut inbound: Vec<Vec<Inbound>> = (0..cpus).map(|_| Vec::new()).collect();
        for (id, queue) in queues.drain(..).enumerate() {
            let owner = usize::from(queue.owner);
            owned[owner].push(wiring.wire(id, queue, &mut inbound));
        }
        let Wiring { controls, infos, .. } = wiring;

        let bells = (0..cpus).map(|_| Bell::new()).collect::<Result<_, _>>();
        let core = Core {
            sleepers: Sleepers::new(cpus),
            bells: bells.map_err(|error| BuildError::System { operation: "make an eventfd for each CPU", error })?,
            gates: (0..cpus).map(|_| Gate::default()).collect(),
            cpu_ledgers: (0..cpus).map(|_| CpuLedger::default()).collect(),
            open_queues: AtomicUsize::new(infos.len()),
            queues: infos,
            outputs,
            pools,
            region,
            memory_bytes,
            ring_slots: plan.ring_slots(),
            start,
            stopping: AtomicBool::new(false),
            cpus: plan.cpus,
        };
        let owners = controls.iter().map(|queue| queue.owner).collect();
        let nearness = if plan.asked.pin { plan::nearness(&core.cpus, owners) } else { Vec::new() };
        let steering = Steering::new(cpus, controls, plan.asked.limits, plan.asked.policy, nearness);
        steering.lock().distances.are_real = plan.asked.pin;
        owned.iter_mut().flatten().for_each(|queue| queue.adopt(steering.lock().map_of(queue.id).0));
        for (queue, info) in core.queues.iter().enumerate() {
            info.group.store(steering.lock().map_of(queue).1, Ordering::Relaxed);
        }
        let shared = Arc::new(Shared { steering, core: Arc::new(core) });
        let make: MakeHandler<H> = Arc::new(make);
        let parts = owned.into_iter().zip(inbound).zip(sends.into_iter().zip(origins)).enumerate();
        let parts = parts.map(|(at, ((queues, inbound), outputs))| {
            CpuPart::new(at as CpuIndex, Arc::clone(&make), Arc::clone(&shared), queues, inbound, outputs)
        });
        Ok(Instance::new(parts.collect(), shared, plan.asked.pin, plan.asked.idle_poll))
    }
}
