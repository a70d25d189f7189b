//! Computes how long one phase (step of a CPU's loop) takes on the described machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use steerage::{limits::POLL_BUDGET, threads::Phase};

use crate::machine::{Machine, Profile};

/// Costs are counted in picoseconds, so that a cost of 2.4 ns is exact.
const PICOS: f64 = 1000.0;

/// With costs of 0, virtual time would stand still.
const PHASE_PICOS_MIN: u64 = 1000;

#[derive(Debug, Default)]
struct Account {
    spent: AtomicU64,
    /// The time for handing packets over and waking CPUs that is not yet part of a phase's
    /// duration.
    charged: AtomicU64,
    slowness: AtomicU64,
}

/// The time accounts of all CPUs of a simulated world, shared by handlers and the scheduler. A
/// world runs on one thread, so memory order does not matter.
#[derive(Debug)]
pub struct Meter {
    profile: Profile,
    machine: Machine,
    owners: Vec<usize>,
    queues: Vec<Vec<usize>>,
    /// True if several live queues hand packets over, so that their CPUs share a counter.
    is_contended: bool,
    accounts: Vec<Account>,
}

impl Meter {
    /// Creates a meter for a run in which the CPU `owners[queue]` polls the queue `queue`.
    pub fn new(profile: Profile, machine: Machine, owners: Vec<usize>) -> Arc<Self> {
        let is_contended = owners.len() > 1;
        let accounts = (0..machine.cpus()).map(|_| Account::default()).collect();
        let mut queues = vec![Vec::new(); machine.cpus()];
        owners.iter().enumerate().for_each(|(queue, cpu)| queues[*cpu].push(queue));
        Arc::new(Self { profile, machine, owners, queues, is_contended, accounts })
    }

    /// Returns the costs of the receive path.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the machine's description.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn queues_of(&self, cpu: usize) -> impl Iterator<Item = usize> {
        self.queues[cpu].iter().copied()
    }

    /// Charges `cpu` for taking a batch of `packets` packets, and the owner of `queue` for handing
    /// the batch over.
    pub fn take(&self, cpu: usize, queue: usize, packets: usize) {
        let owner = self.owners[queue];
        if owner == cpu {
            return;
        }
        let (far, packets) = (usize::from(self.machine.is_far(owner, cpu)), packets as f64);
        let take = (self.profile.take_over[far] - self.profile.round / POLL_BUDGET as f64).max(0.0);
        self.spend(cpu, take * packets);
        let contention = if self.is_contended { self.profile.line[far] } else { 0.0 };
        self.charge(owner, self.profile.hand_over[far] * packets + contention);
    }

    /// Charges `cpu` for work in its current phase.
    pub fn spend(&self, cpu: usize, nanos: f64) {
        add(&self.accounts[cpu].spent, nanos);
    }

    /// Charges `cpu` for handing packets over or waking a CPU. The time is added to the next phase
    /// in which `cpu` publishes frames, so that it counts as receiving.
    pub fn charge(&self, cpu: usize, nanos: f64) {
        add(&self.accounts[cpu].charged, nanos);
    }

    /// Returns the number of nanoseconds since the current phase of the CPU began.
    pub fn since_phase_began(&self, cpu: usize) -> u64 {
        let account = &self.accounts[cpu];
        (account.spent.load(Relaxed) as f64 * f64::from_bits(account.slowness.load(Relaxed)) / PICOS) as u64
    }

    pub(crate) fn begin_phase(&self, cpu: usize, is_sibling_busy: bool) {
        let slowness = if is_sibling_busy { self.machine.smt_slowdown } else { 1.0 };
        self.accounts[cpu].slowness.store(slowness.to_bits(), Relaxed);
    }

    /// Returns the duration of a phase in picoseconds, including the time charged for earlier work.
    /// `received` and `hashed` are numbers of packets.
    pub(crate) fn end_phase(&self, cpu: usize, phase: Phase, received: u64, hashed: u64) -> u64 {
        if phase == Phase::Control {
            self.spend(cpu, self.profile.round);
        }
        let receive = (self.profile.receive - self.profile.round / POLL_BUDGET as f64).max(0.0);
        self.spend(cpu, receive * received as f64 + self.profile.hash * hashed as f64);
        let account = &self.accounts[cpu];
        let takes = matches!(phase, Phase::Publish(_)) || self.queues[cpu].is_empty();
        let charged = if takes { account.charged.swap(0, Relaxed) } else { 0 };
        let spent = account.spent.swap(0, Relaxed) + charged;
        let slowness = f64::from_bits(account.slowness.load(Relaxed));
        ((spent as f64 * slowness) as u64).max(PHASE_PICOS_MIN)
    }
}

fn add(to: &AtomicU64, nanos: f64) {
    to.store(to.load(Relaxed) + (nanos * PICOS) as u64, Relaxed);
}
