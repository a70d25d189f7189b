//! Packets that threads outside of the path send: a handler keeps a packet, another thread decides
//! what to do with it, and the CPU that kept the packet sends it.
//!
//! A sender is a queue of packets under a lock. The CPUs try the lock between two rounds, and only
//! after a thread has added a packet. Packets of a bucket leave in the order in which they were
//! added, also if the bucket moves in the meantime: a packet that another CPU kept goes to the CPU
//! that still has an earlier packet of the bucket to send.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::ids::{CpuIndex, TxId};
use crate::kept::{Home, Kept};
use crate::limits::BUCKETS;
use crate::queue::hash::QueueHasher;
use crate::rps_map::bucket_of;
use crate::shared::Shared;
use steerage_flow::LinkType;
use steerage_mem::signal::Signal;

/// Sends packets from any thread. `Builder::add_sender` creates a sender, and clones send through
/// the same queue.
///
/// The ledger counts the packets as `originated` and `originated_dropped` of the CPU that sends
/// them. While an instance with a sender runs, it ends only when handlers have no kept packet any
/// more, or at the latest [`DRAIN_MAX`](crate::limits::DRAIN_MAX) after it was stopped.
///
/// ```
/// # mod steerage { pub mod packet { pub use steerage_core::{packet::*, sender::Sender}; } }
/// use std::sync::mpsc::Receiver;
/// use steerage::packet::{Kept, Sender};
///
/// /// Answers echo requests: swaps the two Ethernet addresses. Returns how many had no room.
/// fn answer(requests: &Receiver<Kept>, sender: &Sender) -> usize {
///     let answers = requests.iter().map(|mut packet| {
///         packet[..12].rotate_left(6);
///         sender.try_send(packet)
///     });
///     answers.filter(Result::is_err).count()
/// }
/// ```
#[derive(Clone)]
pub struct Sender(Arc<Outlet>);

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender to output {}", self.0.to.0)
    }
}

impl Sender {
    /// Creates a sender to the output `to`, with room for `places` packets. The sender works once
    /// it is in the [`Spec`](crate::build::Spec) of an instance that was built.
    ///
    /// # Errors
    /// The kernel's error if the process has no file descriptor left.
    pub fn new(to: TxId, places: usize) -> io::Result<Self> {
        let has_room = Signal::new()?;
        has_room.set(places > 0);
        let waiting = Waiting { of_cpus: Vec::new(), buckets: Vec::new(), buffers: Vec::with_capacity(places), count: 0, has_room };
        Ok(Self(Arc::new(Outlet { to, places, waiting: Mutex::new(waiting), path: OnceLock::new() })))
    }

    /// Lets the CPU that kept the packet send it. Packets of a flow leave in the order of these
    /// calls. The call wakes the CPU if it sleeps.
    ///
    /// # Errors
    /// Returns the packet if there is no room, if the instance has ended, or if the packet was kept
    /// by another instance. [`ready_fd`](Self::ready_fd) becomes readable when there is room again.
    pub fn try_send(&self, packet: Kept) -> Result<(), Kept> {
        match packet.home {
            Some(Home { cpu, bucket }) => self.0.push(bucket, Some(cpu), packet, Item::Kept),
            None => Err(packet),
        }
    }

    /// Like [`try_send`](Self::try_send), for a copy of `frame`, which begins with a header of type
    /// `link`. Returns whether there was room. The copy leaves in order with the other packets of
    /// its flow that this sender sends.
    pub fn try_send_copy(&self, link: LinkType, frame: &[u8]) -> bool {
        let Some(path) = self.0.path.get() else { return false };
        let bucket = bucket_of(path.hasher.hash_one(frame, link));
        let mut buffer = self.0.lock().buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        self.0.push(bucket, None, buffer, |buffer| Item::Copy(link, buffer)).is_ok()
    }

    /// How many more packets have room now.
    pub fn room(&self) -> usize {
        self.0.places.saturating_sub(self.0.lock().count)
    }

    /// A file descriptor that is readable while there is room, for an event loop. Reading from the
    /// file descriptor is an error.
    ///
    /// # Errors
    /// The kernel's error if the process has no file descriptor left.
    pub fn ready_fd(&self) -> io::Result<OwnedFd> {
        self.0.lock().has_room.fd()
    }

    pub(crate) fn outlet(&self) -> Arc<Outlet> {
        Arc::clone(&self.0)
    }
}

/// A packet that waits for its CPU.
pub(crate) enum Item {
    Kept(Kept),
    Copy(LinkType, Vec<u8>),
}

struct Path {
    shared: Arc<Shared>,
    hasher: QueueHasher,
    /// For each CPU, how many of the packets for it have left.
    sent: Vec<AtomicU64>,
}

pub(crate) struct Outlet {
    pub(crate) to: TxId,
    places: usize,
    waiting: Mutex<Waiting>,
    path: OnceLock<Path>,
}

struct Waiting {
    of_cpus: Vec<OfCpu>,
    /// For each bucket, the CPU that has its latest packet to send, and the number of that packet.
    buckets: Vec<(CpuIndex, u64)>,
    /// Empty buffers for copies, so that no CPU of the path frees memory.
    buffers: Vec<Vec<u8>>,
    count: usize,
    has_room: Signal,
}

#[derive(Default)]
struct OfCpu {
    items: VecDeque<Item>,
    /// How many packets were ever added.
    added: u64,
    is_closed: bool,
}

impl Outlet {
    pub(crate) fn open(&self, shared: &Arc<Shared>, hasher: &QueueHasher) {
        let mut waiting = self.lock();
        waiting.of_cpus.resize_with(shared.cpus.len(), OfCpu::default);
        waiting.buckets.resize(BUCKETS, (0, 0));
        let sent = shared.cpus.iter().map(|_| AtomicU64::new(0)).collect();
        // A sender belongs to the first instance that was built with it.
        let _ = self.path.set(Path { shared: Arc::clone(shared), hasher: hasher.clone(), sent });
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push<T>(&self, bucket: u16, cpu: Option<CpuIndex>, item: T, wrap: impl FnOnce(T) -> Item) -> Result<(), T> {
        let Some(path) = self.path.get() else { return Err(item) };
        let mut waiting = self.lock();
        let Waiting { of_cpus, buckets, count, has_room, .. } = &mut *waiting;
        let (last, number) = buckets[usize::from(bucket)];
        // A1, acquire: pairs with A2, so that the packets of this bucket that the other CPU sent have
        // left before this one.
        let is_over = path.sent[usize::from(last)].load(Ordering::Acquire) >= number;
        // A copy has no CPU of its own, and stays with the CPU that sent the last packet.
        let cpu = cpu.filter(|cpu| is_over && usize::from(*cpu) < of_cpus.len()).unwrap_or(last);
        let of_cpu = &mut of_cpus[usize::from(cpu)];
        if *count >= self.places || of_cpu.is_closed {
            return Err(item);
        }
        of_cpu.items.push_back(wrap(item));
        of_cpu.added += 1;
        buckets[usize::from(bucket)] = (cpu, of_cpu.added);
        *count += 1;
        has_room.set(*count < self.places);
        drop(waiting);
        path.shared.request(cpu);
        Ok(())
    }

    /// Passes the packets for `cpu` to `stage`, which returns an item that it has no room for, and
    /// otherwise the buffer of a copy. Adds to `taken` how many it accepted. Returns whether packets
    /// are left, or another thread has the lock. With `closes`, no packet can be added afterwards.
    pub(crate) fn take(
        &self,
        cpu: CpuIndex,
        closes: bool,
        taken: &mut u64,
        mut stage: impl FnMut(Item) -> Result<Option<Vec<u8>>, Item>,
    ) -> bool {
        let waiting = if closes { Some(self.lock()) } else { self.waiting.try_lock().ok() };
        let Some(mut waiting) = waiting else { return true };
        let Waiting { of_cpus, buffers, count, has_room, .. } = &mut *waiting;
        let Some(of_cpu) = of_cpus.get_mut(usize::from(cpu)) else { return false };
        of_cpu.is_closed |= closes;
        while let Some(item) = of_cpu.items.pop_front() {
            match stage(item) {
                Ok(buffer) => buffers.extend(buffer),
                Err(item) => {
                    of_cpu.items.push_front(item);
                    break;
                }
            }
            *taken += 1;
            *count -= 1;
        }
        has_room.set(*count < self.places);
        !of_cpu.items.is_empty()
    }

    /// Records that `cpu` has sent the first `taken` packets.
    pub(crate) fn sent(&self, cpu: CpuIndex, taken: u64) {
        if let Some(path) = self.path.get() {
            // A2, release: pairs with A1.
            path.sent[usize::from(cpu)].store(taken, Ordering::Release);
        }
    }
}
