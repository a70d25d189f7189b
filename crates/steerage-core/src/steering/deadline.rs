//! Phases of a move that take too long, and CPUs that make no progress.

use steerage_flow::Timestamp;
use steerage_mem::gate::Gate;
use steerage_moves::{MovePhase, Slice};

use crate::ids::CpuIndex;
use crate::limits::{DEAD_AFTER, MOVE_WAIT};

#[derive(Clone, Copy, Debug)]
struct Suspect {
    cpu: CpuIndex,
    sign: u64,
    since: Timestamp,
}

#[derive(Debug)]
pub(super) struct Deadline {
    phase: Option<(u64, MovePhase)>,
    since: Timestamp,
    suspects: Vec<Suspect>,
}

impl Deadline {
    pub(super) fn new(cpus: usize) -> Self {
        Self { phase: None, since: Timestamp::ZERO, suspects: Vec::with_capacity(cpus) }
    }

    pub(super) fn is_over(&mut self, slice: &Slice, now: Timestamp) -> bool {
        let phase = Some((slice.epoch, slice.phase));
        if self.phase != phase {
            (self.phase, self.since) = (phase, now);
            self.suspects.clear();
        }
        now.since(self.since) >= MOVE_WAIT
    }

    /// Declares a CPU dead if it was suspected long ago and has made no progress since then.
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
