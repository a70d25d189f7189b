use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::packet::Received;
use steerage::{Batch, CpuId, LinkType};

use super::ring::{PacketHead, Ring, append_counts};
use super::{END_MAX, Stage, Tap, TapError};
use crate::filter::{Filter, FilterError, FrameFilter};

/// The bytes of all rings of a client, in equal shares for all CPUs: the traffic of 25 ms at 10
/// Gbit/s.
const BUFFER_BYTES: usize = 32 << 20;

/// The smallest ring of a CPU holds several super-frames of 64 KiB.
const RING_BYTES_MIN: usize = 1 << 20;

/// The bytes that the client's thread takes from the rings before it writes to the socket.
const WRITE_BYTES: usize = 256 << 10;

/// The interval at which the client's thread checks empty rings. Packet CPUs do not wake the
/// thread, because waking it would take a system call.
const LOOK_MILLIS: u8 = 5;

/// The timeout of a write to a client. After the timeout, the client's thread checks whether the
/// run has ended.
const WRITE_LOOK: Duration = Duration::from_millis(100);

/// The link types for which a filter is compiled. Live interfaces have only these link types.
const FILTERED: [LinkType; 2] = [LinkType::ETHERNET, LinkType::RAW];

/// The packets that a client requests. The cargo feature `serde` makes a [`Wanted`] serialisable.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Wanted {
    /// The CPUs whose packets are copied. An empty list means all CPUs.
    pub cpus: Vec<u16>,
    /// The receive queues whose packets are copied. An empty list means all queues.
    pub queues: Vec<usize>,
    /// The sampling rate: one of every `sample` packets is copied.
    pub sample: u64,
    /// The maximum number of bytes of a packet that are copied.
    pub snap: u32,
    /// Copy packets after the handler has run, with the handler's changes.
    pub after: bool,
    /// For each link type, a filter in the numbers that `tcpdump -ddd` prints. An empty list means
    /// no filter.
    pub filters: Vec<(u16, String)>,
}

impl Default for Wanted {
    /// By default, all packets are copied completely, before the handler gets the packets.
    fn default() -> Self {
        Self { cpus: Vec::new(), queues: Vec::new(), sample: 1, snap: u32::MAX, after: false, filters: Vec::new() }
    }
}

impl Wanted {
    /// Requests only packets that pass the filter `filter`. If an expression has no meaning for a
    /// link type, such as `ether host` for raw IP, no packet of that link type passes.
    ///
    /// # Errors
    /// Returns the errors of [`Filter::compile`] if the filter has no meaning for any link type.
    pub fn filtered(self, filter: &str) -> Result<Self, FilterError> {
        let (mut filters, mut first_error) = (Vec::new(), None);
        for link in FILTERED {
            match Filter::compile(filter, None, link) {
                Ok(filter) => filters.push((link.0, filter.to_string())),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        match first_error {
            Some(error) if filters.is_empty() => Err(error),
            _ => Ok(Self { filters, ..self }),
        }
    }
}

#[derive(Debug)]
pub(super) struct Session {
    wanted: Wanted,
    filters: Vec<(LinkType, FrameFilter)>,
    rings: Vec<(CpuId, Ring)>,
    /// The number of packets of CPUs that did not exist when the client was attached.
    without_ring: AtomicU64,
}

impl Session {
    pub(super) fn new(wanted: Wanted, cpus: &[CpuId]) -> Result<Self, TapError> {
        let filter = |(link, text): &(u16, String)| {
            let filter = text.parse::<Filter>().and_then(|filter| filter.for_frames());
            filter.map(|filter| (LinkType(*link), filter))
        };
        let filters = wanted.filters.iter().map(filter).collect::<Result<_, _>>()?;
        let share = (BUFFER_BYTES / cpus.len().max(1)).max(RING_BYTES_MIN);
        // The size of a ring in 64-bit words: the largest power of two that is not more than the
        // CPU's share.
        let words = 1 << (share / 8).ilog2();
        let is_wanted = |cpu: &&CpuId| wanted.cpus.is_empty() || wanted.cpus.contains(&cpu.0);
        let rings = cpus.iter().filter(is_wanted).map(|cpu| (*cpu, Ring::new(words))).collect();
        Ok(Self { wanted, filters, rings, without_ring: AtomicU64::new(0) })
    }

    pub(super) fn copy(&self, batch: &mut Batch<'_>, cpu: CpuId, stage: Stage, now: SystemTime) {
        let Wanted { cpus, queues, sample, snap, after, .. } = &self.wanted;
        let queue = batch.queue();
        let is_other = (stage == Stage::AfterHandler) != *after
            || (!queues.is_empty() && !queues.contains(&queue))
            || (!cpus.is_empty() && !cpus.contains(&cpu.0));
        if is_other {
            return;
        }
        let Some((_, ring)) = self.rings.iter().find(|(of, _)| *of == cpu) else {
            self.without_ring.fetch_add(batch.len() as u64, Ordering::Relaxed);
            return;
        };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        for packet in batch.iter_mut() {
            let Received { data, total_len, link, time, wire_len, .. } = packet.received();
            // The batch no longer contains the packets that the handler keeps.
            let is_kept = total_len == 0;
            if is_kept || !self.passes(data, link, wire_len) || !ring.is_sampled(*sample) {
                continue;
            }
            let head = PacketHead {
                nanos: time.map_or(now, |time| time.as_nanos()),
                captured: total_len.min(*snap as usize) as u32,
                wire: wire_len.max(total_len) as u32,
                link: link.0,
                cpu: cpu.0,
                queue: queue as u32,
            };
            ring.push(head, packet.segments());
        }
    }

    /// Packets with a link type for which there is no filter do not pass.
    fn passes(&self, data: &[u8], link: LinkType, wire_len: usize) -> bool {
        let filter = || self.filters.iter().find(|(of, _)| *of == link);
        self.filters.is_empty() || filter().is_some_and(|(_, filter)| filter.run(data, wire_len as u32) > 0)
    }

    /// Moves packets from all rings to `to`, the oldest first.
    fn drain(&self, to: &mut Vec<u8>) {
        while to.len() < WRITE_BYTES {
            let oldest = self.rings.iter().filter_map(|(_, ring)| Some((ring.oldest()?, ring)));
            let Some((_, ring)) = oldest.min_by_key(|(time, _)| *time) else { return };
            ring.pop(to);
        }
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        let without = self.without_ring.load(Ordering::Relaxed);
        let counts = self.rings.iter().map(|(_, ring)| ring.counts());
        counts.fold((without, without), |(wanted, missed), (more, lost)| (wanted + more, missed + lost))
    }
}

/// A client that is attached to a tap. Dropping this value detaches the client.
#[derive(Debug)]
pub struct Attached {
    pub(super) tap: Arc<Tap>,
    pub(super) session: Arc<Session>,
}

impl Attached {
    /// Sends [`Record`](super::Record)s to the client until the client has closed its connection or
    /// the instance has ended.
    ///
    /// # Errors
    /// Returns an error if the client has closed its connection during a write.
    pub fn pass_on(self, to: &UnixStream) -> io::Result<()> {
        to.set_write_timeout(Some(WRITE_LOOK))?;
        let (mut bytes, mut reported) = (Vec::new(), (0, 0));
        loop {
            // `has_ended` must be read before the rings are read. If the run has ended, no more
            // packets are copied, so the rings contain all remaining packets.
            let has_ended = self.tap.has_ended();
            self.session.drain(&mut bytes);
            let is_last = has_ended && bytes.is_empty();
            let counts = self.session.counts();
            if counts != reported || is_last {
                reported = counts;
                append_counts(&mut bytes, counts, is_last);
            }
            self.write(&bytes, to)?;
            if is_last {
                return Ok(());
            }
            if bytes.is_empty() && !has_ended && is_gone(to)? {
                return Ok(());
            }
            bytes.clear();
        }
    }

    /// After the run has ended, a slow client has a limited time to read the last packets.
    fn write(&self, mut bytes: &[u8], mut to: &UnixStream) -> io::Result<()> {
        let mut deadline = None;
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.tap.has_ended()
                        && *deadline.get_or_insert_with(|| Instant::now() + END_MAX) <= Instant::now()
                    {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.tap.detach(&self.session);
    }
}

/// Waits for up to `LOOK_MILLIS`. Returns true if the client has closed its connection, or has sent
/// bytes, which no client should do.
fn is_gone(stream: &UnixStream) -> io::Result<bool> {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    match poll(&mut polled, PollTimeout::from(LOOK_MILLIS)) {
        Err(nix::errno::Errno::EINTR) => Ok(false),
        polled => Ok(polled? > 0),
    }
}
