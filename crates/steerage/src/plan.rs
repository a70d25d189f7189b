//! From what was asked for to queues, memory and rings.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, Mutex};

use steerage_mem::hash::{FlowHasher, HashKey};
use steerage_mem::ring::{Consumer, Gauge, Producer, RingOptions, parking_lot, ring};
use steerage_mem::{Blocks, FRAME_BYTES_MAX, Home, Memory, Page, Region, SEGMENTS_MAX, part_ends};

use crate::builder::{AskedInput, BuildError, Builder};
use crate::cpu::{CpuId, CpuMask};
use crate::device_name::DeviceName;
use crate::flow::fragments::FragmentTable;
use crate::handler::Affinity;
use crate::hashing::Hashing;
use crate::ledger::RingLedger;
use crate::limits::{
    BACKLOG_MAX, CPUS_MAX, HEADROOM, OUTPUTS_MAX, PAGE_BYTES_MIN, PARKING_LOT_SLOTS, POLL_BUDGET, POOL_BULK, QUEUES_MAX,
};
use crate::lpc::{LpcMemory, usable_memory};
use crate::moves::QueueControl;
use crate::numa::{NodeMap, Nodes};
use crate::pool::{PagePool, SharedPool};
use crate::queue::{OrderCheck, OwnedQueue, QueueParts};
use crate::rps_map::CpuIndex;
use crate::rx::{QueueMemory, RxQueue};
use crate::shared::QueueInfo;
use crate::softnet::Inbound;
use crate::topology::Topology;
use crate::tx::OwnedTx;

/// The indices of a mask's CPUs among the instance's. Of none: the owner alone, since steering is off.
pub(crate) fn mask_indices(cpus: &[CpuId], mask: &CpuMask, owner: CpuIndex) -> Result<Vec<CpuIndex>, BuildError> {
    if mask.is_empty() {
        return Ok(vec![owner]);
    }
    mask.iter()
        .map(|cpu| match cpus.iter().position(|ours| *ours == cpu) {
            Some(at) => Ok(at as CpuIndex),
            None => Err(BuildError::NotOurCpu { cpu, ours: cpus.iter().copied().collect::<CpuMask>().to_list() }),
        })
        .collect()
}

/// For each CPU that polls, the others in the order in which they are to join it: by what the kernel tells of the machine and,
/// where there is a choice, by what is measured, since virtual machines tell what is not so.
pub(crate) fn nearness(cpus: &[CpuId], owners: BTreeSet<CpuIndex>) -> Vec<Vec<CpuIndex>> {
    let all: CpuMask = cpus.iter().copied().collect();
    let mut near = vec![Vec::new(); cpus.len()];
    if cpus.len() < 3 {
        return near;
    }
    let mut topology = Topology::read();
    for owner in owners {
        let cpu = cpus[usize::from(owner)];
        topology.measure(cpu, &all);
        let order = topology.joining_order(cpu, &all).into_iter();
        let place = |cpu: CpuId| cpus.iter().position(|ours| *ours == cpu).map(|at| at as CpuIndex);
        near[usize::from(owner)] = order.filter_map(place).collect();
    }
    near
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) cpus: Vec<CpuId>,
    pub(crate) nodes: Nodes,
    /// Those of them that packets may be spread over by default.
    workers: Vec<CpuId>,
    default_mask: CpuMask,
    pub(crate) asked: Builder,
}

/// A queue that is ready, before it is wired.
pub(crate) struct OpenQueue {
    rx: Box<dyn RxQueue>,
    device: DeviceName,
    kind: &'static str,
    mode: &'static str,
    number: usize,
    pub(crate) owner: CpuIndex,
    mask: Vec<CpuIndex>,
    frame_bytes_max: usize,
    blocks: Option<Blocks>,
    /// Ours; used for each frame unless `by_device`.
    hashing: Hashing,
    by_device: bool,
}

impl Plan {
    /// Checks what was asked for and works out who does what.
    pub(crate) fn of(mut asked: Builder) -> Result<(Self, Vec<AskedInput>), BuildError> {
        let inputs = std::mem::take(&mut asked.inputs);
        let count: usize = inputs.iter().map(|asked| asked.input.queues.len()).sum();
        if count == 0 {
            return Err(BuildError::NoInput);
        }
        if count > QUEUES_MAX {
            return Err(BuildError::TooMany { what: "receive queues", asked: count, most: QUEUES_MAX });
        }
        if asked.outputs.len() > OUTPUTS_MAX {
            return Err(BuildError::TooMany { what: "outputs", asked: asked.outputs.len(), most: OUTPUTS_MAX });
        }
        let workers = match asked.cpus.take() {
            Some(cpus) => cpus,
            None => Topology::read().default_mask(),
        };
        if workers.is_empty() {
            return Err(BuildError::NoCpus);
        }
        // A CPU that only receives is one of the instance's as well.
        let receivers = inputs.iter().flat_map(|asked| asked.rx_cpus.iter().copied());
        let all: CpuMask = workers.iter().chain(receivers).collect();
        let cpus: Vec<CpuId> = all.iter().collect();
        if cpus.len() > CPUS_MAX {
            return Err(BuildError::TooMany { what: "CPUs", asked: cpus.len(), most: CPUS_MAX });
        }
        asked.limits = asked.limits.clamped(BACKLOG_MAX);
        let default_mask = asked.rps_cpus.take().unwrap_or_else(|| workers.clone());
        let workers = workers.iter().collect();
        let map =
            asked.nodes.take().unwrap_or_else(|| if asked.pin { NodeMap::of_machine() } else { NodeMap::default() });
        let nodes = Nodes::of(&map, &cpus);
        Ok((Self { cpus, nodes, workers, default_mask, asked }, inputs))
    }

    /// Makes the devices ready, and settles for each of their queues who polls it and who hashes.
    pub(crate) fn open_queues(
        &self,
        inputs: Vec<AskedInput>,
        affinity: Affinity,
    ) -> Result<Vec<OpenQueue>, BuildError> {
        let hasher = match &self.asked.hasher {
            Some(hasher) => hasher.clone(),
            None => FlowHasher::keyed(
                &HashKey::random()
                    .map_err(|error| BuildError::System { operation: "read a hash key from /dev/urandom", error })?,
            ),
        };
        let hashing = match &self.asked.flow_key {
            Some(by_key) => by_key(hasher, affinity, self.asked.layers),
            None => Hashing::by_flow(hasher, affinity, self.asked.layers),
        };
        let mut queues = Vec::new();
        for AskedInput { input, rx_cpus, mask } in inputs {
            let receivers = if rx_cpus.is_empty() { &self.workers } else { &rx_cpus };
            for (number, mut rx) in input.queues.into_iter().enumerate() {
                let cpu = receivers[if rx_cpus.is_empty() { queues.len() } else { number } % receivers.len()];
                let owner = self.cpus.iter().position(|ours| *ours == cpu).unwrap_or(0) as CpuIndex;
                let mut mask = mask_indices(&self.cpus, mask.as_ref().unwrap_or(&self.default_mask), owner)?;
                mask.sort_unstable();
                let (frame_bytes_max, blocks) = match rx.memory()? {
                    QueueMemory::Pages { frame_bytes_max } => (frame_bytes_max, None),
                    QueueMemory::Blocks { blocks, copy_bytes_max } => (copy_bytes_max, Some(blocks)),
                };
                if frame_bytes_max > FRAME_BYTES_MAX {
                    let device = input.name.get();
                    return Err(BuildError::FrameTooLong { device, asked: frame_bytes_max, most: FRAME_BYTES_MAX });
                }
                let by_device = self.asked.device_hash
                    && self.asked.flow_key.is_none()
                    && rx.device_hash().is_some_and(|device| device.satisfies(affinity));
                queues.push(OpenQueue {
                    rx,
                    device: input.name.clone(),
                    kind: input.kind,
                    mode: input.mode,
                    number,
                    owner,
                    mask,
                    frame_bytes_max,
                    blocks,
                    hashing: hashing.clone(),
                    by_device,
                });
            }
        }
        Ok(queues)
    }

    pub(crate) fn ring_slots(&self) -> usize {
        self.asked.limits.backlog.max(2).next_power_of_two()
    }

    /// Maps as many pages as can be under way at a time, if the cap allows them: then a stalled CPU costs its own packets
    /// only. Each CPU's lie on its own node.
    pub(crate) fn map_memory(
        &mut self,
        queues: &mut [OpenQueue],
        sends: &[Vec<OwnedTx>],
    ) -> Result<(Arc<Region>, Vec<Page>, u64), BuildError> {
        let frame_bytes_max = queues.iter().map(|queue| queue.frame_bytes_max).max().unwrap_or(0);
        let page_bytes = page_bytes_for(frame_bytes_max.max(self.asked.linear_bytes));
        let in_rings = self.cpus.len() * self.ring_slots() + PARKING_LOT_SLOTS + POLL_BUDGET;
        let each = |queue: &OpenQueue| {
            let segments = queue.rx.segments_max().clamp(1, SEGMENTS_MAX);
            let own = if queue.blocks.is_some() { 0 } else { segments * in_rings + queue.rx.posted_max() };
            (queue.owner, self.asked.kept_max.saturating_mul(segments).saturating_add(own + 2 * POOL_BULK))
        };
        // A bulk for each CPU that may copy lent frames, what it sends of its own making, and what outputs send from.
        let for_others = |(cpu, outputs): (usize, &Vec<OwnedTx>)| {
            (
                cpu as CpuIndex,
                POOL_BULK + self.asked.originated_max + outputs.iter().map(OwnedTx::pages_max).sum::<usize>(),
            )
        };
        let parts = self.nodes.parts(queues.iter().map(each).chain(sends.iter().enumerate().map(for_others)));
        let pages = part_ends(&parts, page_bytes)?.last().copied().unwrap_or(0);
        let slot_bytes = if self.asked.check_order { 24 } else { 16 };
        let rings = queues.len() * (self.cpus.len() * self.ring_slots() + PARKING_LOT_SLOTS) * slot_bytes;
        let lent: usize = queues.iter().filter_map(|q| q.blocks.as_ref()).map(Blocks::memory_bytes).sum();
        let tables = queues.len() * FragmentTable::BYTES;
        let needed = (pages as u64).saturating_mul(page_bytes as u64).saturating_add((rings + lent + tables) as u64);
        if needed > self.asked.memory_max as u64 {
            return Err(BuildError::Memory {
                needed,
                cap: self.asked.memory_max as u64,
                queues: queues.len(),
                cpus: self.cpus.len(),
                backlog: self.asked.limits.backlog,
            });
        }
        let (region, pages) = Region::map_parts(&parts, page_bytes)?;
        if let Some(error) = region.unbound() {
            tracing::warn!(
                "cannot place packet memory on its NUMA nodes: {error}; it lies wherever it is first touched"
            );
        }
        for queue in queues.iter_mut().filter(|queue| queue.blocks.is_none()) {
            queue.rx.mapped(&region)?;
            queue.mode = queue.rx.mode().unwrap_or(queue.mode);
        }
        self.size_caches(queues.iter().filter(|queue| queue.blocks.is_none()).count(), page_bytes);
        Ok((region, pages, needed))
    }

    /// Settles how many pages queues keep to themselves, and tells what that may come to.
    fn size_caches(&mut self, queues: usize, page_bytes: usize) {
        let memory = usable_memory().unwrap_or(u64::MAX).min(self.asked.memory_max as u64);
        let by_default = || LpcMemory::default_size(queues, page_bytes, memory);
        let limits = &mut self.asked.queue_limits;
        limits.lpc_size = self.asked.lpc_size.unwrap_or_else(by_default);
        *limits = limits.clamped(false);
        let lpc_size = limits.lpc_size;
        let bytes = LpcMemory { queues, lpc_size, page_bytes }.bytes();
        tracing::info!(queues, lpc_size, page_bytes, bytes, "local page caches, of the packet memory at most");
    }
}

/// The page size for frames of up to `frame_bytes_max`: whole cache lines, and no stride at which they fall into few
/// cache sets.
fn page_bytes_for(frame_bytes_max: usize) -> usize {
    let bytes = (HEADROOM + frame_bytes_max).next_multiple_of(64).max(PAGE_BYTES_MIN);
    if bytes % 1024 == 0 { bytes + 64 } else { bytes }
}

/// Makes a queue's rings to all CPUs, and hands the ends out.
pub(crate) struct Wiring<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) region: &'a Arc<Region>,
    /// By CPU.
    pub(crate) pools: &'a [Arc<SharedPool>],
    pub(crate) controls: Vec<QueueControl>,
    pub(crate) infos: Vec<QueueInfo>,
}

impl Wiring<'_> {
    pub(crate) fn wire(&mut self, id: usize, queue: OpenQueue, inbound: &mut [Vec<Inbound>]) -> OwnedQueue {
        let asked = &self.plan.asked;
        let options =
            RingOptions { slots: self.plan.ring_slots(), limit: asked.limits.backlog, arrivals: asked.check_order };
        let blocks_region = queue.blocks.as_ref().map(|blocks| Arc::clone(blocks.region()));
        let memory = Memory::new(Arc::clone(self.region), blocks_region);
        let home = Home::new(memory.clone(), asked.kept_max);
        let order = asked.check_order.then(|| Arc::new(OrderCheck::new()));
        let can_wait = queue.rx.can_wait();

        let ends: Vec<(Producer, Consumer)> = self.plan.cpus.iter().map(|_| ring(options, memory.clone())).collect();
        let gauges: Vec<Gauge> = ends.iter().map(|(producer, _)| producer.gauge()).collect();
        let rings: Vec<Arc<RingLedger>> = gauges
            .iter()
            .map(|gauge| {
                let (by_producer, by_consumer) = Default::default();
                Arc::new(RingLedger { by_producer, by_consumer, gauge: gauge.clone() })
            })
            .collect();
        let mut producers = Vec::with_capacity(ends.len() + 1);
        for (cpu, (producer, consumer)) in ends.into_iter().enumerate() {
            producers.push(producer);
            inbound[cpu].push(Inbound {
                queue: id,
                owner: queue.owner,
                consumer,
                home: Arc::clone(&home),
                hashing: queue.hashing.clone(),
                lent: queue.blocks.is_some(),
                can_wait,
                order: order.clone(),
                ledger: Arc::clone(&rings[cpu]),
            });
        }
        let lot = RingOptions { slots: PARKING_LOT_SLOTS, limit: PARKING_LOT_SLOTS, ..options };
        // Pages that copies of lent frames were kept in are wanted by whoever copies next, not by this queue.
        let lends = queue.blocks.is_some();
        let limits = asked.queue_limits.clamped(lends);
        let shared = Arc::clone(&self.pools[usize::from(queue.owner)]);
        let pool = PagePool::new(Arc::clone(self.region), shared, Arc::clone(&home), limits.local_pages());
        let pool_counters = Arc::clone(&pool.counters);
        let hash = if queue.by_device { "device" } else { queue.hashing.name() };
        let ledger = Arc::default();
        self.infos.push(QueueInfo {
            device: queue.device,
            kind: queue.kind,
            mode: queue.mode,
            number: queue.number,
            owner: queue.owner,
            hash,
            checks_order: asked.check_order,
            ledger: Arc::clone(&ledger),
            rings: rings.clone(),
            pool: pool_counters,
            home,
            lends,
            error: Mutex::new(None),
            group: AtomicU16::new(0),
        });
        self.controls.push(QueueControl { owner: queue.owner, can_wait, gauges, mask: queue.mask, limits });
        OwnedQueue::new(QueueParts {
            id,
            rx: queue.rx,
            pool,
            blocks: queue.blocks,
            memory,
            hashing: (!queue.by_device).then_some(queue.hashing),
            always_hash: asked.always_hash,
            producers,
            lot: parking_lot(lot),
            ledger,
            rings,
        })
    }
}
