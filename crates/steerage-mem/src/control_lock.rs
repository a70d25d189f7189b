//! Control threads may wait for a [`ControlLock`]. Packet CPUs only try to take the lock.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::round;

/// The number of attempts to take the lock without a pause. A packet CPU holds the lock for less
/// than 50 us.
const LOOKS: u32 = 100;

/// The pause between attempts after the first `LOOKS` attempts, when the kernel has probably
/// interrupted the thread that holds the lock.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// A lock for which only control threads wait. Debug builds panic if a packet CPU would wait.
#[derive(Debug)]
pub struct ControlLock<T>(Mutex<T>);

impl<T> ControlLock<T> {
    /// Creates a lock around `value`.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock, in a control thread, by repeated attempts. If a control thread slept
    /// until the lock is free, a packet CPU would have to wake it, which takes up to 100 us on a
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

    /// Takes the lock if no other thread holds it, even if another thread panicked while it held
    /// the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
