//! Decides which packets begin a new file.

use std::time::Duration;

use steerage_guard::file::start_of_period;

/// The condition under which an output begins a new file.
///
/// ```
/// use std::time::Duration;
/// use steerage_capture::Rotate;
///
/// assert_ne!(Rotate::Every(Duration::from_secs(3600)), Rotate::Bytes(1 << 30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rotate {
    /// A new file begins after this period, measured by packet times. Periods begin at multiples of
    /// their length since 1970.
    Every(Duration),
    /// A new file begins before the current file would exceed this number of bytes.
    Bytes(u64),
}

/// If so many packets in a row come long before the current file's period, they get a file of their
/// own: the clock was set back, or a wrong time in a packet began the current file. Without this
/// limit, all later packets would stay in that file. With a smaller limit, interfaces whose clocks
/// differ would begin a new file with each batch.
const EARLY_MAX: u32 = 1024;

#[derive(Debug)]
pub(super) struct Rotating {
    rotate: Rotate,
    /// The headers of the file and of all interfaces so far, with which each new file begins. An
    /// interface therefore has the same number in all files.
    head: Vec<u8>,
    /// The end of the file's period. `None` before the first file.
    ends: Option<u64>,
    /// The number of packets in a row from before the file's period and the period before it.
    early: u32,
    bytes: u64,
}

impl Rotating {
    pub(super) fn new(rotate: Rotate) -> Self {
        Self { rotate, head: Vec::new(), ends: None, early: 0, bytes: 0 }
    }

    /// Adds the header of the file or of an interface. Returns true if the current file needs the
    /// header, too.
    pub(super) fn add_head(&mut self, bytes: &[u8]) -> bool {
        self.head.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        self.ends.is_some()
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Counts a packet with the time `nanos` and `len` bytes in the file. If the packet begins a
    /// new file, returns the time for the file's name.
    pub(super) fn place(&mut self, nanos: u64, len: usize) -> Option<u64> {
        let len = len as u64;
        let (is_new, start, ends) = match self.rotate {
            Rotate::Every(period) => {
                let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
                let start = start_of_period(nanos, period);
                // CPUs send at different times, so some packets of the previous period are usual.
                let is_early = |ends: u64| nanos < ends.saturating_sub(period.saturating_mul(2));
                self.early = if self.ends.is_some_and(is_early) { self.early + 1 } else { 0 };
                let is_new = self.early > EARLY_MAX || self.ends.is_none_or(|ends| nanos >= ends);
                (is_new, start, start.saturating_add(period))
            }
            Rotate::Bytes(most) => {
                let has_packets = self.bytes > self.head.len() as u64;
                (self.ends.is_none() || (has_packets && self.bytes + len > most), nanos, u64::MAX)
            }
        };
        if is_new {
            (self.ends, self.early, self.bytes) = (Some(ends), 0, self.head.len() as u64);
        }
        self.bytes += len;
        is_new.then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_never_longer_than_its_limit_unless_one_packet_is() {
        let mut rotating = Rotating::new(Rotate::Bytes(1000));
        rotating.add_head(&[0; 100]);
        let begins = [400, 500, 1, 2000, 900, 1].map(|len| rotating.place(7, len));
        assert_eq!(begins, [Some(7), None, Some(7), Some(7), Some(7), Some(7)]);
    }

    const PERIOD: u64 = 10;

    fn by_time() -> Rotating {
        Rotating::new(Rotate::Every(Duration::from_nanos(PERIOD)))
    }

    #[test]
    fn a_packet_of_the_far_future_stops_the_rotation_for_a_limited_number_of_packets() {
        for far in [1_000_000, u64::MAX - 1] {
            let mut rotating = by_time();
            assert_eq!([5, far, 6].map(|nanos| rotating.place(nanos, 1)), [Some(0), Some(far - far % PERIOD), None]);
            assert!((0..EARLY_MAX - 1).all(|_| rotating.place(7, 1).is_none()));
            assert_eq!(rotating.place(7, 1), Some(0));
            assert_eq!([8, 10, 11, 25].map(|nanos| rotating.place(nanos, 1)), [None, Some(10), None, Some(20)]);
        }
    }

    #[test]
    fn two_clocks_and_late_packets_begin_no_files() {
        let mut rotating = by_time();
        assert_eq!(rotating.place(1_000, 1), Some(1_000));
        for _ in 0..2 * EARLY_MAX {
            assert_eq!([5, 1_001].map(|nanos| rotating.place(nanos, 1)), [None, None]);
        }
        assert!((0..2 * EARLY_MAX).all(|_| rotating.place(990, 1).is_none()), "the previous period");
    }
}
