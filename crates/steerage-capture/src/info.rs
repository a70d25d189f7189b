//! Information about a capture, during the reading and afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use steerage::{LinkType, WallTime};

use super::encode::StreamFormat;
use super::walk::Met;

/// Information about a capture device so far. The queue updates it at most once per poll, and any
/// thread can read it.
#[derive(Debug)]
pub struct CaptureInfo {
    // Relaxed throughout: each field is a separate number, and no other memory depends on it. The
    // queue changes them all, and the thread that unpacks adds to `bytes_read`.
    packets: AtomicU64,
    filtered: AtomicU64,
    bad_times: AtomicU64,
    earliest: AtomicU64,
    latest: AtomicU64,
    bytes_read: AtomicU64,
    bytes_total: Option<u64>,
    format: Option<StreamFormat>,
    links: Mutex<Vec<LinkType>>,
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
        }
    }

    /// The number of delivered packets.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// The number of packets that the [filter](super::Capture::filtered) removed.
    pub fn filtered(&self) -> u64 {
        self.filtered.load(Ordering::Relaxed)
    }

    /// The number of packets with a timestamp outside the years 1970 to 2554. Such packets have no
    /// time.
    pub fn bad_times(&self) -> u64 {
        self.bad_times.load(Ordering::Relaxed)
    }

    /// The times of the earliest and the latest packet. `None` if no packet has a time.
    pub fn times(&self) -> Option<(WallTime, WallTime)> {
        // The queue writes `earliest` first, so after the first packet, no reader sees `latest`
        // without `earliest`.
        let latest = self.latest.load(Ordering::Relaxed);
        let earliest = self.earliest.load(Ordering::Relaxed);
        (earliest <= latest).then(|| (WallTime::from_nanos(earliest), WallTime::from_nanos(latest)))
    }

    /// The time from the earliest to the latest packet.
    pub fn recorded(&self) -> Option<Duration> {
        self.times().map(|(earliest, latest)| latest.since(earliest))
    }

    /// The link types of the packets, in the order in which they appeared.
    pub fn links(&self) -> Vec<LinkType> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of bytes read from all files, as they are stored.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// The number of bytes in all files when they were opened. `None` if a file has no size, such
    /// as a pipe.
    pub fn bytes_total(&self) -> Option<u64> {
        self.bytes_total
    }

    /// The format that can hold the packets of all files: their common format, if they have one.
    /// `None` if the format is unknown before reading, as for a pipe.
    pub fn format(&self) -> Option<StreamFormat> {
        self.format
    }

    pub(super) fn add_bytes_read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
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
        if !links.contains(&link) {
            links.push(link);
        }
    }
}
