//! Builds an instance: creates queues, memory, rings and CPUs from a [`Spec`].

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use steerage_flow::{Affinity, FragmentTable};
use steerage_mem::gate::Gate;
use steerage_mem::park::{Bell, Requests, Sleepers};
use steerage_mem::ring::{Consumer, Producer, RingOptions, Rings, parking_lot};
use steerage_mem::supply::{LPC_PAGES_MAX, LpcMemory};
use steerage_mem::supply::{Needs, QueueNeeds};
use steerage_mem::{
    Admission, Blocks, FRAME_BYTES_MAX, Inbox, Memory, Outbox, Part, Region, SEGMENTS_MAX, SharedPool, Supply,
};
use steerage_topology::{CpuId, CpuMask, NodeMap, Nodes};

use crate::backlog::{Backlog, Source};
use crate::control::{Handle, mask_indices};
use crate::device::{Capabilities, DeviceCounts, Opened};
use crate::device::{DeviceError, DeviceName};
use crate::error::{BuildError, SetError};
use crate::handler::{Handler, MakeHandler};
use crate::ids::{CpuIndex, InputId, TxSource};
use crate::limits::{
    BUCKETS, CPUS_MAX, Limits, OUTPUTS_MAX, PARKING_LOT_SLOTS, POLL_BUDGET, POOL_BULK, PUBLISH_AT, PUBLISH_POLLS,
    QUEUES_MAX, QueueLimits, SLICE_BUCKETS,
};
use crate::origin::Origin;
use crate::page_cache::{PagePool, QueuePages};
use crate::placement::{Plan, PolicyInfo};
use crate::queue::OwnedQueue;
use crate::queue::hash::Hashing;
use crate::queue::hash::QueueHasher;
use crate::rx::{Input, RxQueue};
use crate::sender::Sender;
use crate::shared::{Shared, StopsUnlessFinished};
use crate::softnet::{CpuPart, CpuSide};
use crate::steering::{InTransit, Steering};
use crate::tx::{Output, OwnedTx, make_outputs};
use steerage_ledger::{Ledgers, OrderCheck, QueueInfo, QueueLedger, RingLedger};
use steerage_mem::signal::Signal;
use steerage_moves::{QueueSetup, Setup, Transit};

/// An input of the instance, and the options that the user set for it.
#[derive(Debug)]
pub struct InputSpec {
    /// The device.
    pub input: Input,
    /// The CPUs to which the input's queues are assigned in turn. If empty, all CPUs of the
    /// instance.
    pub rx_cpus: Vec<CpuId>,
    /// The input's RPS mask, if the input has a mask of its own.
    pub mask: Option<CpuMask>,
}

/// All parts and settings from which an instance is built, with all defaults filled in.
#[derive(Debug)]
pub struct Spec {
    /// The CPUs that handle packets.
    pub workers: CpuMask,
    /// The CPUs over which packets are spread if neither queue nor input has a mask of its own.
    pub mask: CpuMask,
    /// Masks of single queues, by the queue's number over all inputs. A queue's mask replaces the
    /// mask of its input. If a queue has several entries, the last entry applies.
    pub queue_masks: Vec<(usize, CpuMask)>,
    /// The inputs.
    pub inputs: Vec<InputSpec>,
    /// The outputs, in the order of their numbers.
    pub outputs: Vec<Output>,
    /// How steerage hashes frames that have no usable hash of the device.
    pub hasher: QueueHasher,
    /// States which packets must get equal hashes from a device. `None` if steerage uses no hashes
    /// of devices.
    pub device_hash: Option<Affinity>,
    /// States which packets must go to the same CPU, and so must get the same bucket from every
    /// hash.
    pub affinity: Affinity,
    /// Limits of all CPUs.
    pub limits: Limits,
    /// Limits of each queue.
    pub queue_limits: QueueLimits,
    /// The number of pages in each queue's local page cache, if the user set a number.
    pub lpc_pages: Option<usize>,
    /// The NUMA nodes of the CPUs.
    pub nodes: NodeMap,
    /// The maximum number of packets of a queue that handlers may keep at the same time.
    pub kept_max: usize,
    /// The length in bytes of the longest frame that must fit in one page.
    pub linear_bytes: usize,
    /// The maximum number of packets that a CPU originates, or gets from `senders`, before it sends
    /// them.
    pub originated_max: usize,
    /// The `Sender`s through which threads outside of the receive path send packets.
    pub senders: Vec<Sender>,
    /// The limit on the memory of packets and rings together, in bytes.
    pub memory_max: usize,
    /// The memory that this process may use, in bytes.
    pub usable_memory: u64,
    /// True if the instance checks that the packets of each flow are finished in order.
    pub check_order: bool,
    /// True if consecutive segments of a flow are merged before the handler is called.
    pub coalesce: bool,
    /// True if steerage hashes all frames, even while one CPU has all buckets.
    pub always_hash: bool,
    /// The policy's name for reports, and whether CPUs sample their load.
    pub policy: PolicyInfo,
    /// Creates the first plan of a group of queues. Gets the group's CPUs, in the order in which
    /// they should get buckets (CPUs that poll queues first), and the number of CPUs that poll
    /// queues.
    pub bucket_plan: BeginWith,
}

type PlanOfGroup = dyn FnMut(&[CpuIndex], usize) -> Plan + Send;

/// The function that [`Spec::bucket_plan`] describes.
pub struct BeginWith(pub Box<PlanOfGroup>);

impl fmt::Debug for BeginWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeginWith")
    }
}

/// An instance that has been built but not started. Handlers are not part of `Built`, so that
/// [`build`] is compiled once and not for each handler type.
#[derive(Debug)]
pub struct Built {
    sides: Vec<CpuSide>,
    /// The handle that changes, reads and stops the instance.
    pub handle: Handle,
}

impl Built {
    /// Returns the [`CpuPart`] of each CPU. `make` creates a CPU's handler on the CPU's thread.
    pub fn into_parts<H: Handler>(self, make: &MakeHandler<H>) -> Vec<CpuPart<H>> {
        let in_transit = Arc::new(InTransit::new(Transit::with_capacity(BUCKETS)));
        let part = |side| CpuPart { side, make: Arc::clone(make), in_transit: Arc::clone(&in_transit) };
        self.sides.into_iter().map(part).collect()
    }
}

type Nearness<'a> = &'a dyn Fn(&[CpuId], &[CpuIndex]) -> Vec<Vec<CpuIndex>>;

/// Builds an instance. The function `nearness` gets the instance's CPUs and the indices of the CPUs
/// that poll queues. `nearness` returns, for each CPU, the other CPUs in the order in which they
/// should get buckets.
///
/// # Errors
/// [`BuildError`] says what does not fit and what to do.
pub fn build(spec: Spec, nearness: Nearness<'_>) -> Result<Built, BuildError> {
    let start = Instant::now();
    let (mut plan, inputs) = CheckedSpec::of(spec)?;
    let mut queues = plan.plan_queues(inputs)?;
    let (outputs, mut sends) = make_outputs(std::mem::take(&mut plan.spec.outputs), &plan.cpus, queues.len())?;
    let mut supply = plan.map_memory(&queues, &sends)?;
    let region = Arc::clone(supply.region());
    let lent_bytes = plan.open_queues(&mut queues, &mut supply)?;
    let pools = plan.nodes.by_cpu(supply.pools());
    let pools: Vec<_> = pools.iter().enumerate().map(|(cpu, pool)| pool.of_cpu(cpu)).collect();
    for (outputs, pool) in sends.iter_mut().zip(&pools) {
        outputs.iter_mut().try_for_each(|output| output.open(&region, pool))?;
    }
    let source = TxSource::originated(queues.len());
    let senders: Vec<_> = plan.spec.senders.iter().map(|sender| Arc::clone(&sender.0)).collect();
    let origin = |pool| Origin::new(&region, pool, plan.spec.originated_max, source, senders.clone());
    let origins: Vec<Origin> = pools.iter().map(origin).collect();

    let cpus = plan.cpus.len();
    let (setups, limits, infos) = (Vec::new(), Vec::new(), Vec::new());
    let admissions: Arc<[Admission]> = (0..cpus).map(|_| Admission::default()).collect();
    let mut wiring =
        Wiring { plan: &plan, supply: &supply, pools: &pools, admissions: &admissions, setups, limits, infos };
    let mut owned: Vec<Vec<OwnedQueue>> = (0..cpus).map(|_| Vec::new()).collect();
    let mut backlogs: Vec<Vec<Backlog>> = (0..cpus).map(|_| Vec::new()).collect();
    for (id, queue) in queues.drain(..).enumerate() {
        let owner = usize::from(queue.owner);
        owned[owner].push(wiring.wire(id, queue, &mut backlogs)?);
    }
    let Wiring { setups, limits, infos, .. } = wiring;

    let mut owners: Vec<CpuIndex> = setups.iter().map(|queue: &QueueSetup| queue.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let nearness = nearness(&plan.cpus, &owners);
    let setup = Setup { cpus, buckets: BUCKETS, slice_buckets: SLICE_BUCKETS, queues: setups, nearness };
    let no_fd = |error| BuildError::System { operation: "make an eventfd for each CPU", error };
    let (bucket_plan, limits) = (plan.spec.bucket_plan.0, (plan.spec.limits, limits));
    let steering = Steering::new(setup, bucket_plan, limits, plan.spec.policy).map_err(no_fd)?;
    let state = steering.lock();
    owned.iter_mut().flatten().for_each(|queue| queue.adopt(state.moves.map_of(queue.id).0));
    // The queues' limits are set before the first round, in which a CPU may not get the control
    // lock.
    let limits = &state.limits;
    owned.iter_mut().flatten().for_each(|queue| queue.set_limits(limits.all, limits.of_queues[queue.id], &[]));
    infos.iter().enumerate().for_each(|(queue, info)| info.set_group(state.moves.map_of(queue).1));
    drop(state);
    let counts = |cpu: usize| backlogs[cpu].iter().all(|of| of.is_admitted).then(|| (Arc::clone(&admissions), cpu));
    let bells = (0..cpus).map(|_| Bell::new()).collect::<Result<_, _>>();
    let shared = Arc::new(Shared {
        steering,
        sleepers: Sleepers::new(cpus),
        bells: bells.map_err(no_fd)?,
        gates: (0..cpus).map(|_| Gate::default()).collect(),
        inboxes: (0..cpus).map(|cpu| Inbox::new(infos.len(), counts(cpu))).collect(),
        admissions,
        open_queues: AtomicUsize::new(infos.len()),
        ledgers: Ledgers::new(cpus, infos, outputs),
        pools,
        supply,
        lent_bytes,
        start,
        stopping: AtomicBool::new(false),
        finished: Signal::new().map_err(no_fd)?,
        requests: Requests::new(cpus),
        cpus: plan.cpus,
    });
    senders.iter().for_each(|sender| sender.open(&shared, &plan.spec.hasher));
    let sides = owned.into_iter().zip(backlogs).zip(sends.into_iter().zip(origins)).enumerate();
    let sides = sides.map(|(at, ((queues, backlogs), (outputs, origin)))| CpuSide {
        index: at as CpuIndex,
        shared: Arc::clone(&shared),
        stops: StopsUnlessFinished { shared: Arc::clone(&shared), finished: false },
        queues,
        backlogs,
        outputs,
        origin,
    });
    Ok(Built { sides: sides.collect(), handle: Handle(Arc::clone(&shared)) })
}

struct CheckedSpec {
    cpus: Vec<CpuId>,
    nodes: Nodes,
    spec: Spec,
}

struct PlannedQueue {
    rx: Box<dyn RxQueue>,
    input: InputId,
    device: DeviceName,
    kind: &'static str,
    mode: &'static str,
    number: usize,
    owner: CpuIndex,
    owner_is_chosen: bool,
    mask: Vec<CpuIndex>,
    can: Capabilities,
    blocks: Option<Blocks>,
    counts: Option<Arc<DeviceCounts>>,
    hashed_by_device: bool,
}

impl PlannedQueue {
    fn open(&mut self, region: &Arc<Region>) -> Result<u64, DeviceError> {
        let Opened { blocks, mode, counts } = self.rx.open(region)?;
        if blocks.is_some() != self.can.lends {
            let cause =
                io::Error::other("a queue supplies blocks if its capabilities say that it lends, and only then");
            return Err(DeviceError::new(self.device.get(), "receive into its memory", cause));
        }
        self.mode = mode.unwrap_or(self.mode);
        (self.blocks, self.counts) = (blocks, counts);
        Ok(self.blocks.as_ref().map_or(0, Blocks::memory_bytes) as u64)
    }
}

impl CheckedSpec {
    fn of(mut spec: Spec) -> Result<(Self, Vec<InputSpec>), BuildError> {
        let inputs = std::mem::take(&mut spec.inputs);
        let queues: usize = inputs.iter().map(|asked| asked.input.queues.len()).sum();
        if queues == 0 {
            return Err(BuildError::NoInput);
        }
        if spec.workers.is_empty() {
            return Err(BuildError::NoCpus);
        }
        let receivers = inputs.iter().flat_map(|asked| asked.rx_cpus.iter().copied());
        let all: CpuMask = spec.workers.iter().chain(receivers).collect();
        let cpus: Vec<CpuId> = all.iter().collect();
        let counts = [
            ("receive queues", queues, QUEUES_MAX),
            ("outputs", spec.outputs.len(), OUTPUTS_MAX),
            ("CPUs", cpus.len(), CPUS_MAX),
        ];
        if let Some((what, asked, most)) = counts.into_iter().find(|(_, asked, most)| asked > most) {
            return Err(BuildError::TooMany { what, asked, most });
        }
        spec.limits = spec.limits.clamped(steerage_mem::ring::RING_SLOTS_MAX);
        let nodes = Nodes::of(&spec.nodes, &cpus);
        Ok((Self { cpus, nodes, spec }, inputs))
    }

    fn plan_queues(&self, inputs: Vec<InputSpec>) -> Result<Vec<PlannedQueue>, BuildError> {
        let spec = &self.spec;
        let workers: Vec<CpuId> = spec.workers.iter().collect();
        let mut queues = Vec::new();
        for (nth, InputSpec { input, rx_cpus, mask }) in inputs.into_iter().enumerate() {
            let receivers = if rx_cpus.is_empty() { &workers } else { &rx_cpus };
            for (number, rx) in input.queues.into_iter().enumerate() {
                let cpu = receivers[if rx_cpus.is_empty() { queues.len() } else { number } % receivers.len()];
                let owner = self.cpus.iter().position(|ours| *ours == cpu).unwrap_or(0) as CpuIndex;
                let own = spec.queue_masks.iter().rfind(|(queue, _)| *queue == queues.len()).map(|(_, mask)| mask);
                let mask = own.or(mask.as_ref()).unwrap_or(&spec.mask);
                let mut mask = mask_indices(&self.cpus, mask, owner)?;
                mask.sort_unstable();
                let can = rx.capabilities();
                if spec.queue_limits.copybreak > 0 && !can.has_copybreak() {
                    return Err(SetError::NoCopybreak { device: input.name.get(), queue: queues.len() }.into());
                }
                if can.fit.bytes() > FRAME_BYTES_MAX {
                    let (device, asked) = (input.name.get(), can.fit.bytes());
                    return Err(BuildError::FrameTooLong { device, asked, most: FRAME_BYTES_MAX });
                }
                let wanted = spec.device_hash.or(can.names_buckets.then_some(spec.affinity));
                let hashed_by_device =
                    wanted.is_some_and(|wanted| can.hash.is_some_and(|device| device.satisfies(wanted)));
                queues.push(PlannedQueue {
                    rx,
                    input: InputId(nth as u16),
                    device: input.name.clone(),
                    kind: input.kind,
                    mode: input.mode,
                    number,
                    owner,
                    owner_is_chosen: !rx_cpus.is_empty(),
                    mask,
                    can,
                    blocks: None,
                    counts: None,
                    hashed_by_device,
                });
            }
        }
        Ok(queues)
    }

    /// The pool has a page for each frame that can be in flight, so that the frames of a stalled
    /// CPU leave enough pages for other CPUs. If the memory limit is too low, backlogs and other
    /// limits are reduced. A CPU's pages are in the memory of its NUMA node.
    fn map_memory(&mut self, queues: &[PlannedQueue], sends: &[Vec<OwnedTx>]) -> Result<Supply, BuildError> {
        let spec = &self.spec;
        let page_bytes =
            queues.iter().map(|queue| queue.can.fit.or_longer(spec.linear_bytes).page_bytes()).max().unwrap_or(0);
        self.size_caches(queues, page_bytes);
        let spec = &self.spec;
        let in_pages = queues.iter().filter(|queue| !queue.can.lends).count();
        // The shared backlog limit does not count frames that are staged but not published.
        let unpublished = (PUBLISH_POLLS as usize * POLL_BUDGET).min(self.cpus.len() * PUBLISH_AT as usize);
        let unpublished = if in_pages > 1 { unpublished } else { 0 };
        let each = |queue: &PlannedQueue| {
            let Capabilities { lends, can_wait, posted_max, .. } = queue.can;
            let segments = queue.can.segments_max.clamp(1, SEGMENTS_MAX);
            let own = if lends { 0 } else { segments * (POLL_BUDGET + unpublished) + posted_max };
            let caches = self.caches(lends);
            QueueNeeds { segments, lends, waits: can_wait, caches, fixed: own + 2 * POOL_BULK }
        };
        // Pages for copies of lent frames (in memory of the device), for packets that packet
        // functions originate, and for outputs that send from pages.
        let for_others = |outputs: &Vec<OwnedTx>| {
            POOL_BULK + spec.originated_max + outputs.iter().map(|output| output.can.pages_max).sum::<usize>()
        };
        let others: Vec<usize> = sends.iter().map(for_others).collect();
        let needs = Needs {
            cpus: self.cpus.len(),
            queues: queues.iter().map(each).collect(),
            backlog: spec.limits.backlog,
            lot_slots: PARKING_LOT_SLOTS,
            kept_max: spec.kept_max,
            cache_pages: spec.queue_limits.lpc_pages,
            page_bytes,
            slot_bytes: if spec.check_order { 24 } else { 16 },
            other_pages: others.iter().sum(),
            other_bytes: queues.len() * FragmentTable::BYTES,
        };
        let needs = needs.fit_caches(spec.memory_max as u64);
        needs.check(&needs.within(spec.memory_max as u64, spec.limits.backlog), 0, spec.memory_max as u64)?;
        let parts = |budget: &steerage_mem::supply::Budget| {
            let of_queues = queues.iter().map(|queue| queue.owner).zip(budget.of_queues.iter().copied());
            let wanted = of_queues.chain((0..).zip(others.iter().copied()));
            self.nodes.divide(wanted).into_iter().map(|(pages, node)| Part { pages, node }).collect()
        };
        let pinned = queues.iter().any(|queue| queue.can.posted_max > 0);
        let supply = Supply::map(needs, spec.memory_max as u64, pinned, parts)?;
        if let Some(error) = supply.region().unbound() {
            tracing::warn!(
                "cannot place packet memory on its NUMA nodes: {error}; it lies wherever it is first touched"
            );
        }
        Ok(supply)
    }

    /// Returns the size of all devices' blocks, in bytes. The size of the blocks is known only
    /// after the queues are open. If the memory limit requires it, all other memory is reduced by
    /// the size of the blocks.
    fn open_queues(&mut self, queues: &mut [PlannedQueue], supply: &mut Supply) -> Result<u64, BuildError> {
        let lent = queues.iter_mut().map(|queue| queue.open(supply.region())).sum::<Result<u64, DeviceError>>()?;
        supply.lend(lent);
        supply.check(lent)?;
        let (budget, asked) = (supply.budget(), self.spec.limits.backlog);
        (self.spec.limits.backlog, self.spec.kept_max) = (budget.backlog, budget.kept_max);
        let backlog = budget.backlog;
        if backlog < asked {
            tracing::info!(asked, backlog, "each CPU's share of the memory is smaller than the backlog asked for");
        }
        Ok(lent)
    }

    /// By default, a queue whose device supplies memory blocks has no local page cache.
    fn caches(&self, lends: bool) -> bool {
        !lends || self.spec.lpc_pages.is_some()
    }

    fn size_caches(&mut self, queues: &[PlannedQueue], page_bytes: usize) {
        let memory = self.spec.usable_memory.min(self.spec.memory_max as u64);
        let with_caches = || queues.iter().filter(|queue| self.caches(queue.can.lends));
        let of_cpu = |cpu: usize| with_caches().filter(|queue| usize::from(queue.owner) == cpu).count();
        let (queues, per_cpu) = (with_caches().count(), (0..self.cpus.len()).map(of_cpu).max().unwrap_or(0));
        let by_default = || LpcMemory::default_pages(queues, per_cpu, page_bytes, memory);
        let lpc_pages = self.spec.lpc_pages.unwrap_or_else(by_default).min(LPC_PAGES_MAX);
        self.spec.queue_limits.lpc_pages = lpc_pages;
        let bytes = LpcMemory { queues, lpc_pages, page_bytes }.bytes();
        tracing::info!(queues, lpc_pages, page_bytes, bytes, "local page caches, of the packet memory at most");
    }
}

struct Wiring<'a> {
    plan: &'a CheckedSpec,
    supply: &'a Supply,
    pools: &'a [Arc<SharedPool>],
    admissions: &'a Arc<[Admission]>,
    setups: Vec<QueueSetup>,
    limits: Vec<QueueLimits>,
    infos: Vec<QueueInfo>,
}

impl Wiring<'_> {
    fn wire(
        &mut self,
        id: usize,
        mut queue: PlannedQueue,
        backlogs: &mut [Vec<Backlog>],
    ) -> Result<OwnedQueue, BuildError> {
        let (spec, region) = (&self.plan.spec, self.supply.region());
        let (limit, slots_max) = (spec.limits.backlog, self.supply.backlog_max());
        let options = RingOptions { slots: limit, slots_max, limit, arrivals: spec.check_order };
        let is_admitted = self.supply.shares_backlog() && !queue.can.can_wait;
        let blocks_region = queue.blocks.as_ref().map(|blocks| Arc::clone(blocks.region()));
        let memory = Memory::new(Arc::clone(region), blocks_region);
        let kept_pages = steerage_mem::KeptPages::new(memory.clone(), spec.kept_max);
        let order = spec.check_order.then(|| Arc::new(OrderCheck::new(BUCKETS)));
        let Capabilities { can_wait, lends, .. } = queue.can;

        let no_room = |error| BuildError::System { operation: "reserve room for the rings", error };
        let mut slots = Rings::reserve(self.plan.cpus.len(), options).map_err(no_room)?;
        let ends: Vec<(Producer, Consumer)> = self.plan.cpus.iter().map(|_| slots.ring(memory.clone())).collect();
        let (mut producers, mut rings) = (Vec::with_capacity(ends.len()), Vec::with_capacity(ends.len()));
        for (cpu, (producer, consumer)) in ends.into_iter().enumerate() {
            rings.push(Arc::new(RingLedger::of(producer.gauge())));
            producers.push(producer);
            backlogs[cpu].push(Backlog {
                source: Source {
                    input: queue.input,
                    queue: id,
                    sends: (!spec.senders.is_empty()).then_some(cpu as CpuIndex),
                    kept_pages: Arc::clone(&kept_pages),
                    hasher: spec.hasher.clone(),
                    copies: lends || spec.coalesce,
                    coalesces: spec.coalesce,
                    order: order.clone(),
                    ledger: Arc::clone(&rings[cpu]),
                },
                consumer,
                can_wait,
                is_admitted,
                idle_looks: 0,
            });
        }
        let lot_slots = self.supply.budget().lot_slots;
        let lot = parking_lot(RingOptions { slots: lot_slots, slots_max: lot_slots, limit: lot_slots, ..options });
        // A CPU takes pages from the pool for copies of lent frames that its handler keeps. If the
        // queue has no local page cache, the pages of kept copies return to the shared pool.
        let most = if self.plan.caches(lends) { self.supply.cache_pages() } else { 0 };
        let limits = QueueLimits { lpc_pages: spec.queue_limits.lpc_pages.min(most), ..spec.queue_limits };
        let shared = Arc::clone(&self.pools[usize::from(queue.owner)]);
        let pool = PagePool::new(Arc::clone(region), shared, Arc::clone(&kept_pages), limits.lpc_pages);
        let ledger = Arc::new(QueueLedger::new(BUCKETS));
        self.infos.push(QueueInfo {
            device: queue.device,
            kind: queue.kind,
            mode: queue.mode,
            number: queue.number,
            owner: AtomicU16::new(queue.owner),
            owner_is_chosen: AtomicBool::new(queue.owner_is_chosen),
            hash: if queue.hashed_by_device { "device" } else { spec.hasher.name() },
            checks_order: spec.check_order,
            ledger: Arc::clone(&ledger),
            rings: rings.clone(),
            pool: Arc::clone(&pool.counters),
            kept_pages,
            device_counts: queue.counts,
            lends,
            has_copybreak: queue.can.has_copybreak(),
            error: Mutex::new(None),
            group: AtomicU16::new(0),
        });
        self.setups.push(QueueSetup { owner: queue.owner, can_wait, mask: queue.mask });
        self.limits.push(limits);
        let admissions = is_admitted.then(|| Arc::clone(self.admissions));
        let blocks = queue.blocks.as_mut().filter(|_| !can_wait);
        let owner = (usize::from(queue.owner), POLL_BUDGET, memory.clone());
        let outbox = Outbox::new(producers, lot, owner, admissions, blocks);
        let pages = QueuePages { pool, blocks: queue.blocks, memory };
        let hashing = Hashing::new(spec.hasher.clone(), queue.hashed_by_device, spec.always_hash);
        Ok(OwnedQueue::new(id, queue.rx, pages, hashing, outbox, (ledger, rings)))
    }
}
