//! Control threads may wait for a [`ControlLock`]. Packet CPUs (threads that handle packets) try to
//! take the lock, and never wait for it if another thread holds it.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use crate::round;

/// The number of times that a control thread tries the lock without a pause between attempts. A
/// packet CPU holds the lock for less than 50 us.
const LOOKS: u32 = 100;

/// The pause between the attempts of a control thread to take the lock, after the attempts without
/// a pause. If the lock is held for so long that these attempts fail, the kernel has probably
/// interrupted the thread that holds it.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// A lock for which only control threads wait. In a build with debug assertions, the lock panics if
/// a packet CPU (a thread that handles packets) would wait.
#[derive(Debug)]
pub struct ControlLock<T>(Mutex<T>);

impl<T> ControlLock<T> {
    /// Creates a lock around `value`.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock. Only control threads may call this function.
    ///
    /// A waiting control thread tries the lock repeatedly and does not sleep in the kernel. If the
    /// control thread slept, the packet CPU that releases the lock would have to wake it. The
    /// wake-up needs a system call, which takes up to 100 us on a virtual machine.
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

    /// Takes the lock if no other thread holds it. The state that the lock protects is consistent
    /// after each event that changes it. Therefore the protected state is still valid if another
    /// thread panicked while it held the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
