//! Limits the rate of ICMP errors, as RFC 1812, 4.3.2.8, and RFC 4443, 2.4 f, require.

use steerage::Timestamp;

/// The maximum number of ICMP errors per second and CPU. Linux has such a limit per machine
/// (`icmp_msgs_per_sec`).
pub const ICMP_ERRORS_PER_SECOND: u64 = 1000;

/// The maximum number of ICMP errors in a burst of a CPU, as in Linux (`icmp_msgs_burst`).
pub const ICMP_ERRORS_BURST: u64 = 50;

const NANOS_EACH: u64 = 1_000_000_000 / ICMP_ERRORS_PER_SECOND;

/// A token bucket of nanoseconds, of which each ICMP error takes [`NANOS_EACH`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    nanos: u64,
    filled: Option<Timestamp>,
}

impl Bucket {
    pub(super) fn new() -> Self {
        Self { nanos: ICMP_ERRORS_BURST * NANOS_EACH, filled: None }
    }

    pub(super) fn take(&mut self, now: Timestamp) -> bool {
        let passed = self.filled.replace(now).map_or(0, |then| now.since(then).as_nanos() as u64);
        self.nanos = self.nanos.saturating_add(passed).min(ICMP_ERRORS_BURST * NANOS_EACH);
        let taken = self.nanos.checked_sub(NANOS_EACH);
        self.nanos = taken.unwrap_or(self.nanos);
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let (mut bucket, start) = (Bucket::new(), Timestamp::ZERO);
        let taken = |bucket: &mut Bucket, at: Duration| (0..10_000).filter(|_| bucket.take(start + at)).count() as u64;
        assert_eq!(taken(&mut bucket, Duration::ZERO), ICMP_ERRORS_BURST);
        assert_eq!(taken(&mut bucket, Duration::from_millis(10)), 10);
        assert_eq!(taken(&mut bucket, Duration::from_secs(3600)), ICMP_ERRORS_BURST);
    }
}
