use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steerage_mem::park::{Bell, Requests, Sleepers};
use steerage_mem::{Admission, Inbox, SharedPool, Supply, gate::Gate, signal::Signal};
use steerage_topology::CpuId;

use crate::ids::{BucketId, CpuIndex};
use crate::placement::GroupSnapshot;
use crate::queue::Published;
use crate::steering::{State, Steering};
use steerage_ledger::{Facts, Ledgers, MemoryUse, Snapshot};
use steerage_moves::cpus_in;

/// The state that all CPUs of an instance share. It does not contain `make`, the function that
/// creates handlers, so that a handle that outlives the instance does not keep `make` alive.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) steering: Steering,
    pub(crate) cpus: Vec<CpuId>,
    pub(crate) sleepers: Sleepers,
    pub(crate) bells: Vec<Bell>,
    pub(crate) inboxes: Arc<[Inbox]>,
    /// For each CPU, the number of waiting frames, if the instance has several live queues.
    pub(crate) admissions: Arc<[Admission]>,
    pub(crate) gates: Vec<Gate>,
    pub(crate) ledgers: Ledgers,
    pub(crate) pools: Vec<Arc<SharedPool>>,
    pub(crate) supply: Supply,
    pub(crate) lent_bytes: u64,
    pub(crate) start: Instant,
    /// The number of queues that are not closed yet. When no queue is open, all received packets
    /// are finished.
    pub(crate) open_queues: AtomicUsize,
    pub(crate) stopping: AtomicBool,
    pub(crate) finished: Signal,
    /// The CPUs that another thread asks to call [`woken`] and to send packets.
    ///
    /// [`woken`]: crate::handler::Handler::woken
    pub(crate) requests: Requests,
}

impl Shared {
    /// Wakes those of `cpus` that sleep, except `by`, for any reason other than new packets.
    pub(crate) fn wake(&self, cpus: impl IntoIterator<Item = CpuIndex>, by: Option<CpuIndex>) {
        self.sleepers.after_publishing();
        self.wake_sleepers(cpus, by, false);
    }

    /// The only function that rings bells (eventfds).
    fn wake_sleepers(&self, cpus: impl IntoIterator<Item = CpuIndex>, by: Option<CpuIndex>, for_packets: bool) {
        for cpu in cpus.into_iter().filter(|cpu| Some(*cpu) != by).map(usize::from) {
            if self.sleepers.must_wake(cpu) {
                self.ledgers.count_wake(cpu, by.filter(|_| for_packets).map(usize::from));
                self.bells[cpu].ring();
            }
        }
    }

    /// For each CPU and queue in `published`, sets the queue's bit in the inbox of the CPU, and wakes
    /// the CPU if it sleeps. A CPU that is awake finds the published frames through its inbox.
    pub(crate) fn set_inbox_bits_and_wake(&self, published: &mut Vec<Published>, by: CpuIndex) {
        self.sleepers.after_publishing();
        published.iter().for_each(|(cpu, queue)| self.inboxes[usize::from(*cpu)].note(*queue));
        self.wake_sleepers(published.iter().map(|(cpu, _)| *cpu), Some(by), true);
        published.clear();
    }

    fn wake_all(&self) {
        self.wake(0..self.cpus.len() as CpuIndex, None);
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.steering.lock();
        let result = change(&mut state);
        let mut wake = Vec::new();
        self.steering.publish(state, &mut wake);
        if !wake.is_empty() {
            self.wake(wake, None);
        }
        result
    }

    pub(crate) fn stop(&self) {
        // T1. Relaxed: publishes no other memory. The fence in `wake_all` makes the flag visible to
        // CPUs that go to sleep.
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_all();
    }

    pub(crate) fn request(&self, cpu: CpuIndex) {
        if self.requests.set(usize::from(cpu)) {
            self.wake([cpu], None);
        }
    }

    pub(crate) fn owner_of(&self, state: &State, bucket: BucketId) -> Option<(CpuId, bool)> {
        let moves = &state.moves;
        let queue = (0..self.ledgers.queues.len()).find(|queue| moves.map_of(*queue).1 == bucket.group)?;
        let cpu = moves.buckets_of(queue).nth(usize::from(bucket.bucket))?.0;
        Some((self.cpus[usize::from(cpu)], moves.awaits_move(queue) || moves.concerns(queue)))
    }

    #[inline(always)]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn close_one(&self) {
        // O1, release: pairs with O2. The acquire half pairs with earlier calls on other CPUs, so
        // that the last call publishes their stores too.
        if self.open_queues.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finished.set(true);
            self.wake_all();
        }
    }

    #[inline(always)]
    pub(crate) fn all_closed(&self) -> bool {
        // O2, acquire: pairs with O1. If no queue is open, all counters are final, and all pages
        // are in the pool.
        self.open_queues.load(Ordering::Acquire) == 0
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.collect_kept();
        let state = self.steering.lock();
        let id = |cpu: &CpuIndex| self.cpus[usize::from(*cpu)];
        let now = self.start.elapsed();
        let in_handler = |gate: &Gate| Some(now.saturating_sub(Duration::from_nanos(gate.inside_since()?)));
        let facts = Facts {
            cpus: &self.cpus,
            elapsed: now,
            masks: (0..self.ledgers.queues.len())
                .map(|queue| state.moves.mask_of(queue).iter().map(id).collect())
                .collect(),
            others: state.others.clone(),
            in_handler: self.gates.iter().map(in_handler).collect(),
            moves: state.moves.counts(),
            groups: self.group_snapshots(&state),
            backing: self.supply.region().backing(),
            page_bytes: self.supply.region().page_bytes() as u64,
            pages: self.supply.pages() as u64,
            pages_free: self.pools[0].free() as u64,
            memory: MemoryUse::of(&self.supply, self.lent_bytes),
        };
        drop(state);
        self.ledgers.snapshot(facts)
    }

    fn group_snapshots(&self, state: &State) -> Vec<GroupSnapshot> {
        let visible = (0..state.moves.groups()).filter_map(|at| {
            let queues: Vec<usize> = state.moves.queues_of(at).collect();
            if queues.is_empty() {
                return None;
            }
            let (version, map) = state.moves.group(at);
            let has = cpus_in(map);
            let order = state.moves.order_of(at).0.into_iter();
            let active = order.filter(|cpu| has.contains(cpu)).map(|cpu| self.cpus[usize::from(cpu)]).collect();
            let found = state.findings.get(at).filter(|found| found.version.begun == version.begun);
            let (findings, elephants) =
                found.map(|found| (found.findings.clone(), found.elephants.clone())).unwrap_or_default();
            Some(GroupSnapshot::new(state.policy.name, queues, active, elephants, findings))
        });
        visible.collect()
    }

    /// Collects the pages of kept packets after all queues were closed, because the queues' owners
    /// no longer collect them.
    pub(crate) fn collect_kept(&self) {
        if self.all_closed() {
            let mut pages = Vec::new();
            self.ledgers.queues.iter().for_each(|queue| queue.kept_pages.collect(|page| pages.push(page)));
            self.pools[0].give_back(&mut pages);
        }
    }
}

/// Stops the instance if a CPU's loop ends early, because the other CPUs would wait forever.
#[derive(Debug)]
pub(crate) struct StopsUnlessFinished {
    pub(crate) shared: Arc<Shared>,
    pub(crate) finished: bool,
}

impl Drop for StopsUnlessFinished {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.stop();
        }
    }
}
