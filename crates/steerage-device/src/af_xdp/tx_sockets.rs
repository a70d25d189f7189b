//! The AF_XDP sockets for sending through an interface: one for each sending CPU, so that no CPU
//! waits for another CPU.
//!
//! The kernel has one completion ring and one memory region for each queue. All sockets of a queue,
//! including the socket that receives, share the completion ring and the memory region. The CPU
//! that reads the completion ring returns the pages of the other CPUs to those CPUs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::flow::wire::ethernet;
use steerage::{
    DeviceError, Timestamp,
    device::{InFlight, Reaper, Region},
};
use steerage_netlink::{Changes, Entry, Link};

use super::bind::{self, PINNED, chunk_bytes};
use super::sys::{Completions, FEWEST, How, InterfaceQueue, OpenSocket, Rings, Sender, Shape, Socket};

/// The minimum interval between two reads of the interface's state, which each take a system call.
const LOOK: Duration = Duration::from_millis(5);

/// The way in which a socket is bound if frames are longer than one descriptor allows.
const PARTS: How = How { zero_copy: false, several: true };

#[derive(Debug)]
pub(super) struct TxSockets {
    pub(super) name: String,
    index: u32,
    queues: u32,
    pub(super) ring: u32,
    frame_bytes: usize,
    state: Mutex<State>,
    watch: Mutex<Watch>,
    mtu: AtomicUsize,
    pub(super) gone: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// The sockets are created in advance, because later the process may lack the permission, or be
    /// in another network namespace.
    sockets: Vec<Socket>,
    senders: usize,
    bound: Option<(Arc<Region>, Vec<Option<TxSocket>>)>,
}

#[derive(Debug)]
struct Watch {
    changes: Changes,
    looked: Timestamp,
}

#[derive(Debug)]
pub(super) struct TxSocket {
    pub(super) sender: Sender,
    pub(super) shared: Arc<SharedQueue>,
    pub(super) nth: usize,
    pub(super) chunk_bytes: u32,
    pub(super) how: How,
}

#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) in_flight: Arc<InFlight>,
    /// CPUs wait for this lock only when they close their sockets.
    pub(super) completion_ring: Mutex<CompletionRing>,
}

/// The `Reaper` returns the pages of sent packets to their senders.
#[derive(Debug)]
pub(super) struct CompletionRing {
    pub(super) completions: Completions,
    pub(super) reaper: Reaper,
}

#[derive(Clone, Copy)]
pub(super) struct SharedUmem<'a> {
    pub(super) first_queue: u32,
    pub(super) ready: &'a [OpenSocket],
    pub(super) how: How,
}

impl<'a> SharedUmem<'a> {
    fn first(&self) -> Option<BorrowedFd<'a>> {
        self.ready.first().map(OpenSocket::as_fd)
    }

    fn of(&self, queue: u32) -> Option<BorrowedFd<'a>> {
        let nth = queue.checked_sub(self.first_queue)?;
        self.ready.get(nth as usize).map(OpenSocket::as_fd)
    }
}

impl TxSockets {
    pub(super) fn new(
        name: &str,
        interface: &Link,
        queues: u32,
        ring: u32,
        sockets: Vec<Socket>,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            name: name.to_owned(),
            index: interface.index,
            queues,
            ring,
            frame_bytes: interface.mtu.unwrap_or_default() + ethernet::TAGGED_BYTES,
            state: Mutex::new(State { sockets, senders: 0, bound: None }),
            watch: Mutex::new(Watch { changes: Changes::of_link(interface.index)?, looked: Timestamp::ZERO }),
            mtu: AtomicUsize::new(interface.mtu.unwrap_or_default()),
            gone: AtomicBool::new(false),
        }))
    }

    pub(super) fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), operation, cause)
    }

    pub(super) fn add(&self) -> Result<usize, DeviceError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.senders == state.sockets.len() {
            let cause = io::Error::other(format!("it was opened for {} CPUs", state.sockets.len()));
            return Err(self.error("send by more CPUs", cause).advise("say how many there are when it is opened"));
        }
        state.senders += 1;
        Ok(state.senders - 1)
    }

    pub(super) fn ready(&self, nth: usize, region: &Arc<Region>) -> Result<TxSocket, DeviceError> {
        if self.state.lock().unwrap_or_else(PoisonError::into_inner).bound.is_none() {
            self.bind_all(region, None)?;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (bound_to, bound) = state.bound.as_mut().expect("they were bound");
        let its = bound.get_mut(nth).filter(|_| Arc::ptr_eq(bound_to, region)).and_then(Option::take);
        its.ok_or_else(|| {
            self.error("send by it", io::Error::other("another instance of this process receives from it"))
        })
    }

    /// The completion ring has room for all packets that the queue's senders may have in flight.
    pub(super) fn completions(&self, queue: u32, chunk_bytes: u32) -> u32 {
        let senders = self.state.lock().unwrap_or_else(PoisonError::into_inner).senders;
        let parts = self.frame_bytes.div_ceil(chunk_bytes as usize);
        let all = self.senders_of(queue, senders) * self.ring as usize * parts;
        (all as u32).next_power_of_two().max(FEWEST)
    }

    fn senders_of(&self, queue: u32, senders: usize) -> usize {
        (0..senders).filter(|nth| self.queue_of(*nth) == queue).count()
    }

    fn queue_of(&self, nth: usize) -> u32 {
        nth as u32 % self.queues
    }

    /// The sockets share the memory of the receiving socket `umem`.
    pub(super) fn bind_all(&self, region: &Arc<Region>, umem: Option<SharedUmem<'_>>) -> Result<(), DeviceError> {
        let (sockets, senders) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut state.sockets), state.senders)
        };
        let mut bound: Vec<TxSocket> = Vec::with_capacity(senders);
        for socket in sockets.into_iter().take(senders) {
            let next = self.bind_one(socket, region, umem, &bound, senders)?;
            bound.push(next);
        }
        let bound = bound.into_iter().map(Some).collect();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).bound = Some((Arc::clone(region), bound));
        Ok(())
    }

    fn bind_one(
        &self,
        socket: Socket,
        region: &Arc<Region>,
        umem: Option<SharedUmem<'_>>,
        bound: &[TxSocket],
        senders: usize,
    ) -> Result<TxSocket, DeviceError> {
        let queue = self.queue_of(bound.len());
        let place = InterfaceQueue { interface: self.index, queue };
        let shape = Shape { ring: self.ring, chunk_bytes: chunk_bytes(region) };
        let completions = self.completions(queue, shape.chunk_bytes);
        let receiver = umem.and_then(|umem| umem.of(queue));
        // Queues are assigned in turn, so sender number `queue` is the first sender of the queue.
        let before = bound.get(queue as usize);
        let of_queue = receiver.or_else(|| before.map(|before| before.sender.as_fd()));
        let of_any = umem.and_then(|umem| umem.first()).or_else(|| bound.first().map(|first| first.sender.as_fd()));
        let rings = of_queue.is_none().then_some(Rings { register: of_any.is_none(), completions });
        let sender = socket.sending(region, shape, rings);
        let sender = sender.map_err(|e| self.error("make the socket's rings", e).advise(PINNED))?;
        let ways = match (umem, bound.first()) {
            (Some(umem), _) => vec![umem.how],
            (None, Some(first)) => vec![first.how],
            // The socket uses copy mode, because zero-copy drivers may require an XDP program. Use
            // several descriptors per frame only if necessary, because they require Linux 6.6.
            (None, None) if self.frame_bytes > shape.chunk_bytes as usize => vec![PARTS, How::default()],
            (None, None) => vec![How::default()],
        };
        let how = bind::bind(&ways, |how| sender.bind(place, how, of_queue.or(of_any)));
        let how = how.map_err(|e| bind::not_bound(&self.name, "send by its queues", place, e))?;
        let shared = match before {
            Some(before) => Arc::clone(&before.shared),
            None => {
                let ring = sender.completions(completions).map_err(|e| self.error("map a ring", e))?;
                let (in_flight, reaper) = InFlight::new(Arc::clone(region), self.senders_of(queue, senders));
                Arc::new(SharedQueue {
                    in_flight,
                    completion_ring: Mutex::new(CompletionRing { completions: ring, reaper }),
                })
            }
        };
        Ok(TxSocket { sender, shared, nth: bound.len() / self.queues as usize, chunk_bytes: shape.chunk_bytes, how })
    }

    pub(super) fn look(&self, now: Timestamp) {
        let Ok(mut watch) = self.watch.try_lock() else { return };
        if now.since(watch.looked) < LOOK {
            return;
        }
        watch.looked = now;
        let is_complete = watch.changes.read(&mut |change| {
            if let Entry::Link(Link { mtu: Some(mtu), .. }) = change.entry {
                // Relaxed: if a CPU reads a new MTU too late, the kernel refuses packets that are
                // longer than the MTU.
                self.mtu.store(mtu, Ordering::Relaxed);
            }
        });
        if !is_complete {
            // Missed messages do no harm: the next message of the kernel contains the interface's
            // whole state.
            tracing::debug!(device = %self.name, "changes were missed");
        }
    }

    /// The length of the longest packet in bytes, without the link header.
    pub(super) fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }
}
