//! [`Gate`] decides whether a batch of packets counts as handled: only if its CPU was not declared
//! dead during the batch.
//!
//! A CPU can be declared dead only while it runs its handler. Outside of its handler, the CPU may
//! be steering packets by a table that is about to change, so the other CPUs wait for this CPU.
//!
//! The gate is one 64-bit word in a cache line of its own, changed by compare-and-exchange at the
//! start and at the end of each batch (less than one clock tick per packet).
//!
//! All changes of one word have a single order, so a batch counts or its CPU is declared dead, but
//! never both, with any memory order. The CPU that declares the death revokes the last packets that
//! the dead CPU handed over, and adds the dead CPU's counts to the ledger, so it must see
//! everything that the dead CPU did before its batch. Therefore entering the handler is a release
//! operation (G1), and the declaration of death is an acquire operation (G2). All other operations
//! are relaxed.

use crate::sync::{AtomicU64, Ordering};

const STATE: u64 = 0b11;
const OUTSIDE: u64 = 0;
const INSIDE: u64 = 1;
const DEAD: u64 = 2;
const NEXT_BATCH: u64 = STATE + 1;

/// The error for a CPU that has been declared dead.
#[derive(Debug, PartialEq, Eq)]
pub struct Dead;

/// A CPU's gate.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Gate {
    word: AtomicU64,
    /// The time at which the CPU last entered its handler, in the gate's cache line, which the CPU
    /// needs anyway.
    entered: AtomicU64,
}

impl Gate {
    /// Enters the handler at the time `now`, in nanoseconds of the caller's clock.
    ///
    /// # Errors
    /// Fails with [`Dead`] if the CPU was declared dead and was not [revived](Self::revive) since.
    pub fn enter(&self, now: u64) -> Result<(), Dead> {
        self.entered.store(now, Ordering::Relaxed);
        // G1, release: pairs with G2.
        self.change(OUTSIDE, |word| word | INSIDE, Ordering::Release)
    }

    /// Leaves the handler. After this call, the packets of the batch count as handled.
    ///
    /// # Errors
    /// Fails with [`Dead`] if the CPU was declared dead during the batch. The batch of a dead CPU
    /// does not count as handled.
    pub fn leave(&self) -> Result<(), Dead> {
        // The memory order `Relaxed` suffices, because no CPU relies on this change to see the
        // results of the batch. The memory orders of rings and locks make the results of a batch
        // visible to other CPUs.
        self.change(INSIDE, |word| (word & !STATE) + NEXT_BATCH, Ordering::Relaxed)
    }

    fn change(&self, from: u64, to: impl Fn(u64) -> u64, order: Ordering) -> Result<(), Dead> {
        // Only a thread that declares this CPU dead can have changed the word.
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE != from {
            return Err(Dead);
        }
        // Relaxed on failure: a dead CPU takes the control lock before it continues, and the thread
        // that declared it dead held this lock.
        self.word.compare_exchange(word, to(word), order, Ordering::Relaxed).map(|_| ()).map_err(|_| Dead)
    }

    /// Lets a dead CPU handle packets again. The caller holds the control lock.
    pub fn revive(&self) {
        // Relaxed: only this thread changes the word, and the word's readers hold the control lock.
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word & !STATE) + NEXT_BATCH, Ordering::Relaxed);
    }

    /// The gate's current word. While the word stays the same, the CPU makes no progress.
    pub fn sign(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// The time at which the CPU entered its handler, in nanoseconds of the caller's clock, or
    /// `None` outside of the handler.
    pub fn inside_since(&self) -> Option<u64> {
        // Acquire: pairs with G1 (entering the handler), so `entered` is not older than `word`.
        let word = self.word.load(Ordering::Acquire);
        let entered = self.entered.load(Ordering::Relaxed);
        (word & STATE != OUTSIDE).then_some(entered)
    }

    /// Declares the CPU dead if it is in its handler and the word still equals `sign`, which the
    /// caller read earlier. Returns true if the CPU is dead. The caller holds the control lock.
    pub fn declare_dead(&self, sign: u64) -> bool {
        // G2, acquire: pairs with G1.
        sign & STATE == INSIDE
            && self.word.compare_exchange(sign, (sign & !STATE) | DEAD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_or_its_cpu_is_dead() {
        let gate = Gate::default();
        assert!(!gate.declare_dead(gate.sign()), "it is not in its handler");
        gate.enter(0).unwrap();
        let sign = gate.sign();
        gate.leave().unwrap();
        assert!(!gate.declare_dead(sign), "it has moved on");
        gate.enter(0).unwrap();
        assert!(gate.declare_dead(gate.sign()));
        assert_eq!(gate.leave(), Err(Dead));
        assert_eq!(gate.enter(0), Err(Dead));
        gate.revive();
        gate.enter(0).unwrap();
        gate.leave().unwrap();
    }

    #[test]
    fn a_sign_from_before_a_death_is_out_of_date() {
        let gate = Gate::default();
        gate.enter(0).unwrap();
        let sign = gate.sign();
        assert!(gate.declare_dead(sign) && !gate.declare_dead(sign));
        assert!(!gate.declare_dead(gate.sign()), "it is dead");
        gate.revive();
        assert!(!gate.declare_dead(gate.sign()), "it is not in its handler");
        gate.enter(0).unwrap();
        assert!(!gate.declare_dead(sign));
        gate.leave().unwrap();
    }

    #[test]
    fn a_stay_is_timed_from_its_entry_until_the_cpu_is_back() {
        let gate = Gate::default();
        assert_eq!(gate.inside_since(), None);
        for now in [5, 7] {
            gate.enter(now).unwrap();
            assert_eq!(gate.inside_since(), Some(now));
            gate.leave().unwrap();
            assert_eq!(gate.inside_since(), None);
        }
        gate.enter(9).unwrap();
        assert!(gate.declare_dead(gate.sign()));
        assert_eq!(gate.inside_since(), Some(9), "declared dead, it has still not returned");
        gate.revive();
        assert_eq!(gate.inside_since(), None);
    }
}
