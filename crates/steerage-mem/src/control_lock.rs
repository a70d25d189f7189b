//! The control lock. Threads of control may wait for it. Packet CPUs only try to take it.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::round;

/// How many times a control thread tries the lock again without a pause. A packet CPU holds the
/// lock for less than 50 us.
const LOOKS: u32 = 100;

/// The pause between two later attempts. The thread that holds the lock was interrupted.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// A lock that only control threads wait for. A build with debug assertions panics if a packet CPU
/// would wait.
#[derive(Debug)]
pub struct ControlLock<T>(Mutex<T>);

impl<T> ControlLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock. Only for control threads.
    ///
    /// Control threads try the lock repeatedly instead of sleeping on it. If they slept, the packet
    /// CPU that releases the lock would have to wake them. That system call takes up to 100 us on a
    /// virtual machine.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        assert!(!round::is_inside(), "a packet CPU would wait for the control lock in its round");
        for looks in 0_u32.. {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(BETWEEN_LOOKS);
            }
        }
        unreachable!("the loop has no end")
    }

    /// Takes the lock if no other thread has it. The state behind the lock is consistent between
    /// any two events, so a panic in another thread does no harm.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
