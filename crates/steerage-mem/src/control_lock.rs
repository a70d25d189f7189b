//! The control lock. Threads of control may wait for it. Packet CPUs only try to take it.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::round;

/// How often a thread of control looks again without a pause. A packet CPU has the lock for less than 50 us.
const LOOKS: u32 = 100;

/// The pause between two looks after that. Whichever thread has the lock was interrupted.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// A lock that only threads of control wait for. A build with debug assertions panics if a packet CPU would wait.
#[derive(Debug)]
pub struct ControlLock<T>(Mutex<T>);

impl<T> ControlLock<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock. Only for threads of control.
    ///
    /// A thread that slept on the lock would have to be woken by the packet CPU that gives the lock back, which costs that CPU a
    /// system call of up to 100 us on a virtual machine. So threads of control look again instead.
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

    /// Takes the lock if no other thread has it. The state behind it is consistent between any two events, so a panic elsewhere does
    /// no harm.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
