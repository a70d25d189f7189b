//! The gate between a handler and the world: what it does counts only if its CPU was not declared dead meanwhile.
//!
//! A CPU can be declared dead only while it is in its handler. Outside of it, it may be in the midst of sending by a map
//! that is about to change; there it is merely late, and is waited for.
//!
//! One word a CPU, changed by compare-and-exchange at both ends of a batch, so that a declaration falls clearly before
//! or after each end. It is that CPU's own line: two exchanges a batch are under a tick a packet.
//!
//! That a batch counts or its CPU is dead, and never both, takes no memory order: one word has one order of changes. What takes one
//! is that the CPU that declares another one dead sees all that the other did before its batch: what it sent last has to be revoked,
//! and what it counted is in the ledger. So the way in releases (G1) and the declaration acquires (G2). Everything else is relaxed.

use crate::sync::{AtomicU64, Ordering};

const STATE: u64 = 0b11;
const OUTSIDE: u64 = 0;
const INSIDE: u64 = 1;
const DEAD: u64 = 2;
/// The batch number stands above the state.
const NEXT_BATCH: u64 = STATE + 1;

/// This CPU has been declared dead.
#[derive(Debug, PartialEq, Eq)]
pub struct Dead;

/// A CPU's gate.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Gate {
    word: AtomicU64,
    /// When it was last entered, in nanoseconds of the caller's clock. The entering CPU has the time in hand, and the line.
    entered: AtomicU64,
}

impl Gate {
    /// Into the handler, at `now` in nanoseconds of the caller's clock.
    ///
    /// # Errors
    /// [`Dead`] if the CPU was declared dead and has not [risen](Self::rise).
    pub fn enter(&self, now: u64) -> Result<(), Dead> {
        // Relaxed: the change of the word follows, with release.
        self.entered.store(now, Ordering::Relaxed);
        // G1, release: pairs with G2.
        self.change(OUTSIDE, |word| word | INSIDE, Ordering::Release)
    }

    /// Out of it: from here on what it did counts.
    ///
    /// # Errors
    /// [`Dead`] if the CPU was declared dead meanwhile: nothing of the batch counts.
    pub fn leave(&self) -> Result<(), Dead> {
        // Relaxed: nobody acts on what a CPU that has left did; that is handed over by its rings and locks.
        self.change(INSIDE, |word| (word & !STATE) + NEXT_BATCH, Ordering::Relaxed)
    }

    fn change(&self, from: u64, to: impl Fn(u64) -> u64, order: Ordering) -> Result<(), Dead> {
        // Only this CPU changes the word but for `declare_dead`, so a word that is not in the state `from` is dead.
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE != from {
            return Err(Dead);
        }
        // Relaxed if it fails: a CPU that was declared dead takes the control lock before it goes on, and it was declared dead under
        // that lock.
        self.word.compare_exchange(word, to(word), order, Ordering::Relaxed).map(|_| ()).map_err(|_| Dead)
    }

    /// Back from the dead, once everything is put in order: under the control lock.
    pub fn rise(&self) {
        // Relaxed: nobody else changes the word of a dead CPU, and who looks at it holds the control lock.
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word & !STATE) + NEXT_BATCH, Ordering::Relaxed);
    }

    /// The word as it is: a CPU whose word does not change does nothing.
    pub fn sign(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// When the CPU entered its handler, if it is there now: in nanoseconds of the clock that [`enter`](Self::enter) is told of.
    pub fn inside_since(&self) -> Option<u64> {
        // Acquire: pairs with G1, so the time is not older than this stay. If the CPU moves on meanwhile, it may be that of the
        // next stay, which is short as well.
        let word = self.word.load(Ordering::Acquire);
        let entered = self.entered.load(Ordering::Relaxed);
        (word & STATE != OUTSIDE).then_some(entered)
    }

    /// Declares the CPU dead if it is in its handler and has been there since `sign`. Returns whether it is dead. Under the control
    /// lock.
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
        gate.rise();
        gate.enter(0).unwrap();
        gate.leave().unwrap();
    }

    /// A CPU cannot be declared dead by a sign that was read before it came back.
    #[test]
    fn a_sign_from_before_a_death_is_out_of_date() {
        let gate = Gate::default();
        gate.enter(0).unwrap();
        let sign = gate.sign();
        assert!(gate.declare_dead(sign) && !gate.declare_dead(sign));
        assert!(!gate.declare_dead(gate.sign()), "it is dead");
        gate.rise();
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
        gate.rise();
        assert_eq!(gate.inside_since(), None);
    }
}
