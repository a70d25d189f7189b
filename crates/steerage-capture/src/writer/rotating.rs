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

#[derive(Debug)]
pub(super) struct Rotating {
    rotate: Rotate,
    /// The headers of the file and of all interfaces so far, with which each new file begins. An
    /// interface therefore has the same number in all files.
    head: Vec<u8>,
    /// The end of the file's period. `None` before the first file.
    ends: Option<u64>,
    bytes: u64,
}

impl Rotating {
    pub(super) fn new(rotate: Rotate) -> Self {
        Self { rotate, head: Vec::new(), ends: None, bytes: 0 }
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
                (self.ends.is_none_or(|ends| nanos >= ends), start, start.saturating_add(period))
            }
            Rotate::Bytes(most) => {
                let has_packets = self.bytes > self.head.len() as u64;
                (self.ends.is_none() || (has_packets && self.bytes + len > most), nanos, u64::MAX)
            }
        };
        if is_new {
            (self.ends, self.bytes) = (Some(ends), self.head.len() as u64);
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
}
