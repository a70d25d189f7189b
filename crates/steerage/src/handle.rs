use std::ops::Deref;

use steerage_core::control;
use steerage_flow::Timestamp;
use steerage_ledger::CounterSnapshot;
use steerage_policy::{Guarded, Policy, SharedControl};

/// Changes, reads and stops an instance. A handle can be used on any thread, during the run and
/// after it, and has the methods of [`control::Handle`].
///
/// ```
/// use std::time::Duration;
///
/// use steerage::{CpuMask, Handle, SetError};
///
/// /// Spreads packets over these CPUs. Returns whether everything has moved there within a second.
/// fn spread(handle: &Handle, cpus: &CpuMask) -> Result<bool, SetError> {
///     handle.set_rps_cpus(cpus)?;
///     Ok(handle.wait_settled(Duration::from_secs(1)))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) core: control::Handle,
    pub(crate) control: SharedControl,
}

impl Handle {
    /// Replaces the policy of every group of queues (the queues with the same mask). The state of
    /// the old policy is lost. When this function returns, buckets have begun to move to the CPUs
    /// of the new policy. [`is_settled`](control::Handle::is_settled) returns true after all
    /// buckets have arrived.
    pub fn set_policy(&self, policy: impl Policy + 'static) {
        self.control.set_policy(Guarded::new(policy));
    }

    /// Reads the packet function's counters, by CPU and in total, without interrupting any CPU: see
    /// [`Builder::counters`](crate::Builder::counters).
    pub fn counters(&self) -> Vec<CounterSnapshot> {
        self.ledgers().counters(&self.cpus())
    }

    /// Does the policy's work that is due at the time `now`. Returns the time at which the program
    /// must call `control` again, or `None` if no call is needed until another policy is set. `now`
    /// is the time of [`Handle::now`](control::Handle::now), or of the clock that the program
    /// supplies for its CPUs.
    ///
    /// [`Instance::start`](crate::Instance::start) starts a thread that calls `control`. A program
    /// that runs CPUs on its own threads must call this function from another thread: see
    /// [`Instance::split`](crate::Instance::split).
    ///
    /// A call of `control` before the due time has no effect. A late call loses no packets: until
    /// the call, the last map of buckets to CPUs steers packets. If another thread is executing
    /// `control`, the call does nothing, and the returned time is shortly after `now`.
    pub fn control(&self, now: Timestamp) -> Option<Timestamp> {
        self.control.check(now)
    }
}

impl Deref for Handle {
    type Target = control::Handle;

    fn deref(&self) -> &control::Handle {
        &self.core
    }
}
