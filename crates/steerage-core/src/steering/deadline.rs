//! Phases of a move that take too long, and CPUs that show no sign of life. The machine itself has no clock.

use steerage_flow::Timestamp;
use steerage_mem::gate::Gate;
use steerage_mem::ring::Gauge;
use steerage_moves::{MovePhase, Slice};

use crate::ids::CpuIndex;
use crate::limits::{DEAD_AFTER, MOVE_WAIT};

/// A CPU that holds up a phase.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    cpu: CpuIndex,
    /// The state of its gate at the time `since`.
    sign: u64,
    since: Timestamp,
}

/// The duration of the current phase, and the CPUs that hold it up.
#[derive(Debug)]
pub(super) struct Deadline {
    phase: Option<(u64, MovePhase)>,
    /// When a CPU first checked how long this phase takes.
    since: Timestamp,
    suspects: Vec<Suspect>,
}

impl Deadline {
    pub(super) fn new(cpus: usize) -> Self {
        Self { phase: None, since: Timestamp::ZERO, suspects: Vec::with_capacity(cpus) }
    }

    /// Whether the phase of `slice` takes too long.
    pub(super) fn is_over(&mut self, slice: &Slice, now: Timestamp) -> bool {
        let phase = Some((slice.epoch, slice.phase));
        if self.phase != phase {
            (self.phase, self.since) = (phase, now);
            self.suspects.clear();
        }
        now.since(self.since) >= MOVE_WAIT
    }

    /// Declares a CPU dead at its gate if it has been suspected for long enough and has shown no sign of life since.
    /// Returns whether it did.
    pub(super) fn declare(&mut self, cpu: CpuIndex, gate: &Gate, now: Timestamp) -> bool {
        let sign = gate.sign();
        match self.suspects.iter_mut().find(|suspect| suspect.cpu == cpu) {
            None => self.suspects.push(Suspect { cpu, sign, since: now }),
            Some(suspect) if suspect.sign != sign => (suspect.sign, suspect.since) = (sign, now),
            Some(suspect) => return now.since(suspect.since) >= DEAD_AFTER && gate.declare_dead(sign),
        }
        false
    }
}

/// The view of a queue for control threads and for the heirs of dead CPUs.
#[derive(Debug)]
pub(crate) struct QueueGauges {
    pub(crate) can_wait: bool,
    /// Its rings, by CPU.
    pub(crate) gauges: Vec<Gauge>,
}

impl QueueGauges {
    /// Whether everything that was published to `cpu` is finished.
    pub(super) fn is_finished(&self, cpu: CpuIndex) -> bool {
        let (published, finished) = self.gauges[usize::from(cpu)].read();
        published == finished
    }

    /// Revokes everything that was published to `cpu`.
    pub(super) fn revoke(&self, cpu: CpuIndex) {
        self.gauges[usize::from(cpu)].revoke_published();
    }
}
