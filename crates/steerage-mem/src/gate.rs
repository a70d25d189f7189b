//! [`Gate`] decides whether a batch of packets counts as handled. A batch counts as handled only if
//! its CPU was not declared dead during the batch.
//!
//! A CPU can be declared dead only while it runs its handler. A CPU that does not run its handler
//! may be steering packets by a table that is about to change. If a CPU is slow outside of its
//! handler, the other CPUs wait for this CPU and do not declare it dead.
//!
//! The gate of a CPU is one 64-bit word in memory. The gate's word is changed by
//! compare-and-exchange at the start and at the end of each batch. Each change of the gate's word
//! happens either entirely before or entirely after a declaration of death. The gate's word has a
//! cache line of its own. The two compare-and-exchange operations per batch take less than one
//! clock tick per packet.
//!
//! Either a batch counts as handled or its CPU is declared dead, but never both. This guarantee
//! about a batch and its CPU needs no memory order, because all changes of one 64-bit word have a
//! single order. But a CPU that declares a second CPU dead must see everything that the second CPU
//! did before its batch. For example, a CPU that declares another CPU dead revokes the last packets
//! that the dead CPU handed over. As another example, the counts of a CPU that is declared dead are
//! part of the ledger. Therefore entering the handler is a release operation (memory order G1), and
//! the declaration of death is an acquire operation (G2). All other operations on the gate are
//! relaxed.

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
    /// The time at which the CPU last entered its handler, in nanoseconds of the caller's clock.
    /// The CPU that enters its handler already has the cache line of its gate in its cache.
    entered: AtomicU64,
}

impl Gate {
    /// Enters the handler at the time `now`, in nanoseconds of the caller's clock.
    ///
    /// # Errors
    /// Fails with [`Dead`] if the CPU was declared dead and has not been [revived](Self::revive)
    /// since then.
    pub fn enter(&self, now: u64) -> Result<(), Dead> {
        self.entered.store(now, Ordering::Relaxed);
        // G1, release: pairs with G2.
        self.change(OUTSIDE, |word| word | INSIDE, Ordering::Release)
    }

    /// Leaves the handler. After the atomic exchange in `leave`, the packets of the batch count as
    /// handled.
    ///
    /// # Errors
    /// Fails with [`Dead`] if the CPU was declared dead during the batch. The batch then does not
    /// count.
    pub fn leave(&self) -> Result<(), Dead> {
        // The memory order `Relaxed` suffices, because no CPU relies on this change to see the
        // results of the batch. The memory orders of rings and locks make the results of a batch
        // visible to other CPUs.
        self.change(INSIDE, |word| (word & !STATE) + NEXT_BATCH, Ordering::Relaxed)
    }

    fn change(&self, from: u64, to: impl Fn(u64) -> u64, order: Ordering) -> Result<(), Dead> {
        // Only `declare_dead` and this CPU change the 64-bit word of the gate. Therefore, if the
        // gate's word does not equal `from`, this CPU was declared dead.
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE != from {
            return Err(Dead);
        }
        // A failed exchange is relaxed: a dead CPU takes the control lock before it continues, and
        // the thread that declared it dead held this lock.
        self.word.compare_exchange(word, to(word), order, Ordering::Relaxed).map(|_| ()).map_err(|_| Dead)
    }

    /// Lets a dead CPU handle packets again after its state was cleaned up. The caller holds the
    /// control lock.
    pub fn revive(&self) {
        // Relaxed: only this thread changes the word of a dead CPU, and the word's readers hold the
        // control lock.
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word & !STATE) + NEXT_BATCH, Ordering::Relaxed);
    }

    /// The current word. If the gate's 64-bit word stays the same, the CPU of this gate makes no
    /// progress.
    pub fn sign(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// The time at which the CPU entered its handler, in nanoseconds of the clock that is passed to
    /// [`enter`](Self::enter). Returns `None` if the CPU is not in its handler.
    pub fn inside_since(&self) -> Option<u64> {
        // Acquire: pairs with G1. The loaded time is therefore not older than the entry into the
        // handler that the gate's word shows. If the CPU leaves its handler and enters it again
        // between the two loads, the loaded time may be that of the second entry, which is even
        // more recent.
        let word = self.word.load(Ordering::Acquire);
        let entered = self.entered.load(Ordering::Relaxed);
        (word & STATE != OUTSIDE).then_some(entered)
    }

    /// Declares the CPU dead if it is in its handler and the gate's word still equals `sign` (the
    /// CPU made no progress). Returns true if the CPU is dead. The caller holds the control lock.
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
