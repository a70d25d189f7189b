//! The gate between a handler and the world: what it does counts only if its CPU was not declared dead meanwhile.
//!
//! A CPU can be declared dead only while it is in its handler. Outside of it, it may be in the midst of sending by a map
//! that is about to change; there it is merely late, and is waited for.
//!
//! One word a CPU, changed by compare-and-exchange at both ends of a batch, so that a declaration falls clearly before
//! or after each end. It is that CPU's own line: two exchanges a batch are under a tick a packet.

use std::sync::atomic::{AtomicU64, Ordering};

const STATE: u64 = 0b11;
const OUTSIDE: u64 = 0;
const INSIDE: u64 = 1;
const DEAD: u64 = 2;
/// The batch number stands above the state.
const NEXT_BATCH: u64 = STATE + 1;

/// This CPU has been declared dead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dead;

/// A CPU's gate.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Gate(AtomicU64);

impl Gate {
    /// Into the handler.
    pub(crate) fn enter(&self) -> Result<(), Dead> {
        self.change(OUTSIDE, |word| word | INSIDE)
    }

    /// Out of it: from here on what it did counts.
    pub(crate) fn leave(&self) -> Result<(), Dead> {
        self.change(INSIDE, |word| (word & !STATE) + NEXT_BATCH)
    }

    fn change(&self, from: u64, to: impl Fn(u64) -> u64) -> Result<(), Dead> {
        // Only this CPU changes the word but for `declare_dead`, so a word that is not in the state `from` is dead.
        let word = self.0.load(Ordering::Relaxed);
        if word & STATE != from {
            return Err(Dead);
        }
        // AcqRel, G1: pairs with G2. Who declares this CPU dead has not seen, and will not see, the batch count.
        self.0.compare_exchange(word, to(word), Ordering::AcqRel, Ordering::Acquire).map(|_| ()).map_err(|_| Dead)
    }

    /// Back from the dead, once everything is put in order.
    pub(crate) fn rise(&self) {
        let word = self.0.load(Ordering::Relaxed);
        // Release: pairs with the acquire of G2, of whoever declares it dead the next time. What puts things in order does so
        // under the control lock.
        self.0.store((word & !STATE) + NEXT_BATCH, Ordering::Release);
    }

    /// The word as it is: a CPU whose word does not change does nothing.
    pub(crate) fn sign(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Declares the CPU dead if it is in its handler and has been there since `sign`. Returns whether it is dead.
    pub(crate) fn declare_dead(&self, sign: u64) -> bool {
        // AcqRel, G2: pairs with G1.
        sign & STATE == INSIDE
            && self.0.compare_exchange(sign, (sign & !STATE) | DEAD, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_or_its_cpu_is_dead() {
        let gate = Gate::default();
        assert!(!gate.declare_dead(gate.sign()), "it is not in its handler");
        gate.enter().unwrap();
        let sign = gate.sign();
        gate.leave().unwrap();
        assert!(!gate.declare_dead(sign), "it has moved on");
        gate.enter().unwrap();
        assert!(gate.declare_dead(gate.sign()));
        assert_eq!(gate.leave(), Err(Dead));
        assert_eq!(gate.enter(), Err(Dead));
        gate.rise();
        gate.enter().unwrap();
        gate.leave().unwrap();
    }
}
