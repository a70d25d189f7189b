use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use steerage::{LinkType, WallTime};

use super::encode::StreamFormat;
use super::walk::Met;

/// Information about a capture, which every thread may read. The queue updates the information at
/// most once per poll.
#[derive(Debug)]
pub struct CaptureInfo {
    // All accesses are relaxed, because the fields publish no other memory. The queue writes all
    // fields. The thread that unpacks also adds to `bytes_read`.
    packets: AtomicU64,
    filtered: AtomicU64,
    bad_times: AtomicU64,
    earliest: AtomicU64,
    latest: AtomicU64,
    bytes_read: AtomicU64,
    bytes_total: Option<u64>,
    format: Option<StreamFormat>,
    /// The link types, numbered in the order in which they first appeared. A map, because a file
    /// can have a different link type for each packet.
    links: Mutex<BTreeMap<LinkType, usize>>,
    notes: Mutex<Vec<String>>,
}

impl CaptureInfo {
    pub(super) fn new(bytes_total: Option<u64>, format: Option<StreamFormat>) -> Self {
        Self {
            packets: AtomicU64::new(0),
            filtered: AtomicU64::new(0),
            bad_times: AtomicU64::new(0),
            earliest: AtomicU64::new(Met::NOTHING.earliest),
            latest: AtomicU64::new(Met::NOTHING.latest),
            bytes_read: AtomicU64::new(0),
            bytes_total,
            format,
            links: Mutex::default(),
            notes: Mutex::default(),
        }
    }

    /// Returns the number of packets that were handed over to the instance.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that the [filter](super::Capture::filtered) removed.
    pub fn filtered(&self) -> u64 {
        self.filtered.load(Ordering::Relaxed)
    }

    /// Returns the number of packets whose timestamp is outside the years 1970 to 2554. Packets
    /// with a timestamp outside of these years are delivered without a time.
    pub fn bad_times(&self) -> u64 {
        self.bad_times.load(Ordering::Relaxed)
    }

    /// Returns the times of the earliest and the latest packet, or `None` if no packet has a time.
    pub fn times(&self) -> Option<(WallTime, WallTime)> {
        // If this thread sees the store of `latest` before that of `earliest`, `earliest` is
        // `u64::MAX`.
        let latest = self.latest.load(Ordering::Relaxed);
        let earliest = self.earliest.load(Ordering::Relaxed);
        (earliest <= latest).then(|| (WallTime::from_nanos(earliest), WallTime::from_nanos(latest)))
    }

    /// Returns the time from the earliest to the latest packet.
    pub fn recorded(&self) -> Option<Duration> {
        self.times().map(|(earliest, latest)| latest.since(earliest))
    }

    /// Returns the link types of the packets, in the order in which the types first appeared.
    pub fn links(&self) -> Vec<LinkType> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut links: Vec<_> = links.into_iter().collect();
        links.sort_unstable_by_key(|(_, number)| *number);
        links.into_iter().map(|(link, _)| link).collect()
    }

    /// Returns the number of bytes that were read from all files, before unpacking.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Returns the total size of all files when they were opened, or `None` if a file is a pipe,
    /// which has no size.
    pub fn bytes_total(&self) -> Option<u64> {
        self.bytes_total
    }

    /// Returns the simplest format that can represent the packets of all files, or `None` if a file
    /// is a pipe.
    pub fn format(&self) -> Option<StreamFormat> {
        self.format
    }

    /// Returns notes for the user. A note reports, for example, bytes after the compressed data.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add_note(&self, note: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    pub(super) fn add_bytes_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_bytes_read(&self, bytes: u64) {
        self.bytes_read.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_filtered(&self, packets: u64) {
        self.filtered.store(self.filtered() + packets, Ordering::Relaxed);
    }

    pub(super) fn add(&self, met: &Met) {
        self.packets.store(self.packets() + met.packets, Ordering::Relaxed);
        self.bad_times.store(self.bad_times() + met.bad_times, Ordering::Relaxed);
        let earliest = self.earliest.load(Ordering::Relaxed).min(met.earliest);
        self.earliest.store(earliest, Ordering::Relaxed);
        let latest = self.latest.load(Ordering::Relaxed).max(met.latest);
        self.latest.store(latest, Ordering::Relaxed);
    }

    pub(super) fn add_link(&self, link: LinkType) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let number = links.len();
        links.entry(link).or_insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_types_stay_in_the_order_in_which_they_first_appeared() {
        let info = CaptureInfo::new(None, None);
        let links: Vec<_> = (0..=u16::MAX).rev().map(LinkType).collect();
        links.iter().chain(&links).for_each(|link| info.add_link(*link));
        assert_eq!(info.links(), links);
    }
}
