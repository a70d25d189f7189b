//! The handle of an instance. The handle of the crate `steerage` combines the handle of
//! `steerage-core` with the control of policies.

use std::ops::Deref;

use steerage_core::control;
use steerage_flow::Timestamp;
use steerage_ledger::CounterSnapshot;
use steerage_policy::{Guarded, Policy, SharedControl};

/// A handle changes, reads and stops an instance. A handle can be used on any thread, during the
/// run of the instance and after it. A handle also has the methods of [`control::Handle`].
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
    core: control::Handle,
    pub(crate) control: SharedControl,
}

impl Handle {
    pub(crate) fn new(core: control::Handle, control: SharedControl) -> Self {
        Self { core, control }
    }

    /// Replaces the policy. Every group of queues begins again with the new policy, and the state
    /// of the old policy is lost. When this function returns, the new policy has chosen its first
    /// CPUs, and buckets have begun to move to these CPUs.
    /// [`is_settled`](control::Handle::is_settled) returns true after all buckets have arrived.
    pub fn set_policy(&self, policy: impl Policy + 'static) {
        self.control.set_policy(Guarded::new(policy));
    }

    /// Reads the counters of the packet function, by CPU and in total: see
    /// [`Builder::counters`](crate::Builder::counters). Reading the counters does not interrupt any
    /// CPU.
    pub fn counters(&self) -> Vec<CounterSnapshot> {
        self.ledgers().counters(&self.cpus())
    }

    /// Does the policy's work that is due at the time `now`. Returns the time at which `control`
    /// should be called next. Returns `None` if the policy needs no further call until another
    /// policy is set. `now` and the returned time are on the clock of the CPUs. This clock is
    /// [`now`](control::Handle::now), unless the program supplies its own clock.
    ///
    /// [`Instance::start`](crate::Instance::start) starts a thread that calls this function. A
    /// program that runs CPUs on its own threads must call this function from another thread: see
    /// [`Instance::split`](crate::Instance::split).
    ///
    /// If `control` is called before the returned time, the call has no effect. If `control` is
    /// called late, no packets are lost. Until the call, packets are steered by the last map of
    /// buckets to CPUs. If another thread is executing `control`, the call returns immediately, and
    /// the returned time for the next call is soon.
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
