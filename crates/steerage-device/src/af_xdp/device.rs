//! What the queues of an interface share: the XDP program, and sockets that are bound together.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use steerage::flow::wire::ethernet;
use steerage::{
    DeviceError,
    device::{Backing, Region},
    limits::{HEADROOM, PAGE_BYTES_MIN, POLL_BUDGET, SEGMENTS_MAX, TAILROOM},
};
use steerage_netlink::Link;

use super::attach::Attached;
use super::attachment::Removed;
use super::bind::{self, PINNED, chunk_bytes};
use super::dispatcher::Component;
use super::interface;
use super::sys::{self, ByCpu, FEWEST, How, InterfaceQueue, OpenSocket, Rings, Shape, Socket};
use super::tx_sockets::{SharedUmem, TxSockets};
use super::{AfXdpOptions, CHUNK_BYTES_MAX, HEADROOM_BYTES, Mode, RING_MAX, RING_MIN};
use crate::namespace::Namespace;

#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) program: Arc<Attached>,
    /// The key of queue 0 in the maps of the XDP program.
    pub(super) first_key: u32,
    pub(super) bond: Option<u32>,
    /// The length of the longest frame in bytes, when the interface was opened.
    pub(super) frame_bytes: usize,
    pub(super) ring: u32,
    pub(super) busy_poll: Option<Duration>,
    pub(super) coalesce: Option<Duration>,
    /// The number of receive queues that the driver reports, or 0. The XDP program counts the
    /// frames of each receive queue.
    queues: u32,
    copies: bool,
    pub(super) first_queue: u32,
    namespace: Namespace,
    /// The longest frame that the bound sockets can receive, in bytes.
    longest: AtomicUsize,
    vain_polling: OnceLock<Weak<OwnedFd>>,
    /// The sending sockets of the same interface use the same memory. The sender and the receiver
    /// of a queue share the queue's completion ring.
    pub(super) senders: Mutex<Weak<TxSockets>>,
    sockets: Mutex<Sockets>,
}

/// The state of an interface whose changes are logged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) up: bool,
    pub(super) mtu: Option<usize>,
}

impl Known {
    pub(super) fn of(link: &Link) -> Self {
        Self { up: link.up, mtu: link.mtu }
    }
}

/// The interfaces from which this process takes packets.
static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
struct Sockets {
    unbound: Vec<Socket>,
    ready: Vec<Option<OpenSocket>>,
}

impl Device {
    pub(super) fn new(
        options: &AfXdpOptions,
        interface: &Link,
        (first_key, bond): (u32, Option<u32>),
        program: Arc<Attached>,
        first_queue: u32,
        unbound: Vec<Socket>,
    ) -> Result<Self, DeviceError> {
        if !options.ring.is_power_of_two() || !(RING_MIN..=RING_MAX).contains(&options.ring) {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no length for it", options.ring));
            return Err(options.error("make its rings", cause).advise("use a power of two, 128 to 32768"));
        }
        Self::set_up(options, &unbound)?;
        let queues = interface::reported_queues(interface.name.as_deref().unwrap_or_default());
        Ok(Self {
            name: interface.name.clone().unwrap_or_else(|| options.interface.clone()),
            index: interface.index,
            program,
            first_key,
            bond,
            frame_bytes: interface.mtu.unwrap_or_default() + ethernet::TAGGED_BYTES,
            ring: options.ring,
            busy_poll: options.busy_poll,
            coalesce: options.coalesce,
            queues: queues.map_or(0, |queues| queues.receiving()),
            copies: options.mode == Mode::Copy,
            first_queue,
            namespace: Namespace::here(),
            longest: AtomicUsize::new(0),
            vain_polling: OnceLock::new(),
            senders: Mutex::new(Weak::new()),
            sockets: Mutex::new(Sockets { unbound, ..Sockets::default() }),
        })
    }

    /// Sets the options of new sockets now, because later the process may lack the permission.
    pub(super) fn set_up(options: &AfXdpOptions, sockets: &[Socket]) -> Result<(), DeviceError> {
        let Some(time) = options.busy_poll else { return Ok(()) };
        let set = sockets.iter().try_for_each(|socket| socket.busy_poll(time, POLL_BUDGET as u32));
        set.map_err(|e| options.error("poll busily", e))
    }

    /// Creates a device like this device, for another port of the same bond. `prepared` has an
    /// unbound socket for each used queue of the port, beginning with `first_queue` of this device.
    pub(super) fn of_port(
        &self,
        port: &Link,
        first_key: u32,
        prepared: Vec<OpenSocket>,
        region: &Arc<Region>,
    ) -> Result<Arc<Self>, DeviceError> {
        let device = Self {
            name: port.name.clone().unwrap_or_default(),
            index: port.index,
            program: Arc::clone(&self.program),
            first_key,
            bond: self.bond,
            frame_bytes: port.mtu.unwrap_or_default() + ethernet::TAGGED_BYTES,
            ring: self.ring,
            busy_poll: self.busy_poll,
            coalesce: self.coalesce,
            queues: self.first_queue + prepared.len() as u32,
            copies: self.copies,
            first_queue: self.first_queue,
            namespace: self.namespace,
            longest: AtomicUsize::new(0),
            vain_polling: self.vain_polling.clone(),
            senders: Mutex::new(Weak::new()),
            sockets: Mutex::new(Sockets::default()),
        };
        device.bind_prepared(&prepared, region)?;
        let ready = prepared.into_iter().map(Some).collect();
        Ok(Self { sockets: Mutex::new(Sockets { unbound: Vec::new(), ready }), ..device }.listed())
    }

    pub(super) fn listed(self) -> Arc<Self> {
        let (mut open, device) = (OPEN.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(self));
        open.retain(|device| device.strong_count() > 0);
        open.push(Arc::downgrade(&device));
        device
    }

    pub(super) fn find(index: u32) -> Option<Arc<Self>> {
        Self::here().into_iter().find(|device| device.index == index)
    }

    /// Returns true if this process takes packets from the interface, or from the bond.
    pub(super) fn takes_from(index: u32) -> bool {
        Self::here().iter().any(|device| device.index == index || device.bond == Some(index))
    }

    pub(super) fn polls_in_vain(&self) {
        if let Some(to) = self.vain_polling.get().and_then(Weak::upgrade) {
            // Ignore an error: the reader of the pipe, which defers the interrupts, may have ended.
            let _ = nix::unistd::write(&*to, format!("{}\n", self.index).as_bytes());
        }
    }

    fn here() -> Vec<Arc<Self>> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let here = Namespace::here();
        open.iter().filter_map(Weak::upgrade).filter(|device| device.namespace == here).collect()
    }

    /// Returns true if the program's counters would reveal that the driver has lost the program.
    pub(super) fn can_be_forgotten(&self) -> bool {
        self.queues > 0 && self.program.attachment.can_be_renewed()
    }

    pub(super) fn runs(&self, by_cpu: &mut ByCpu) -> io::Result<u64> {
        let counters = 2 * self.first_key..2 * (self.first_key + self.queues);
        counters.map(|counter| self.program.counters.sum(counter, by_cpu)).sum()
    }

    pub(super) fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), operation, cause)
    }

    /// The number of bytes that a page must have after steerage's headroom. The result includes the
    /// bytes by which the kernel's headroom is longer than steerage's headroom. A frame longer than
    /// a chunk needs several pages.
    pub(super) fn frame_bytes_max(&self) -> usize {
        let chunk_bytes = (HEADROOM_BYTES + self.frame_bytes + TAILROOM).clamp(PAGE_BYTES_MIN, CHUNK_BYTES_MAX);
        chunk_bytes - HEADROOM - TAILROOM
    }

    pub(super) fn segments_max(&self) -> usize {
        self.frame_bytes.div_ceil(CHUNK_BYTES_MAX - HEADROOM_BYTES).min(SEGMENTS_MAX)
    }

    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    /// Logs changes of the interface. `what` describes the interface to the user.
    pub(super) fn report(&self, what: &str, before: Known, now: Known) {
        let (device, longest) = (&self.name, self.longest());
        match (before.up, now.up) {
            (false, true) => tracing::info!(%device, "{what} is up again"),
            (true, false) => tracing::warn!(%device, "{what} is down; going on when it is up"),
            _ => {}
        }
        let Some(mtu) = now.mtu.filter(|mtu| before.mtu.is_some_and(|before| before != *mtu)) else { return };
        if mtu + ethernet::TAGGED_BYTES > longest {
            tracing::warn!(%device, mtu, longest, "the MTU was raised: frames longer than there is room for are lost until a new start");
        } else {
            tracing::info!(%device, mtu, "the MTU was changed");
        }
    }

    pub(super) fn ready(&self, number: u32, region: &Arc<Region>) -> Result<OpenSocket, DeviceError> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if !sockets.unbound.is_empty() {
            let unbound = std::mem::take(&mut sockets.unbound);
            let ready = self.bind_all(unbound, region)?;
            sockets.ready = ready.into_iter().map(Some).collect();
        }
        drop(sockets);
        self.socket_of(number).ok_or_else(|| self.error("bind its socket", io::Error::other("it was bound before")))
    }

    /// Returns the socket of the queue `number`. Returns `None` if the device has no such queue, or
    /// if the queue has already taken its socket.
    pub(super) fn socket_of(&self, number: u32) -> Option<OpenSocket> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.ready.get_mut(number.checked_sub(self.first_queue)? as usize)?.take()
    }

    pub(super) fn mode(&self, socket: &OpenSocket) -> &'static str {
        macro_rules! with_metadata {
            ($mode:literal) => {
                match (self.program.functions.time.is_some(), self.program.functions.tag.is_some()) {
                    (true, true) => concat!($mode, ", card time, VLAN tags"),
                    (true, false) => concat!($mode, ", card time"),
                    (false, true) => concat!($mode, ", VLAN tags"),
                    (false, false) => $mode,
                }
            };
        }
        match (self.program.mode, socket.is_zero_copy()) {
            (sys::Mode::Native, true) => with_metadata!("native, zero-copy"),
            (sys::Mode::Native, false) => with_metadata!("native, copy"),
            (sys::Mode::Skb, _) => "skb, copy",
        }
    }

    fn bind_all(&self, unbound: Vec<Socket>, region: &Arc<Region>) -> Result<Vec<OpenSocket>, DeviceError> {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let completions =
            |queue, chunk_bytes| senders.as_ref().map_or(FEWEST, |senders| senders.completions(queue, chunk_bytes));
        let ready = self.prepare(unbound, region, completions)?;
        let how = self.bind_prepared(&ready, region)?;
        if let Some(senders) = senders {
            senders.bind_all(region, Some(SharedUmem { first_queue: self.first_queue, ready: &ready, how }))?;
        }
        Ok(ready)
    }

    /// Prepares the sockets. `completions` returns the length of a queue's completion ring.
    pub(super) fn prepare(
        &self,
        unbound: Vec<Socket>,
        region: &Arc<Region>,
        completions: impl Fn(u32, u32) -> u32,
    ) -> Result<Vec<OpenSocket>, DeviceError> {
        let shape = Shape { ring: self.ring, chunk_bytes: chunk_bytes(region) };
        let prepare = |(queue, socket): (u32, Socket)| {
            let rings =
                Rings { register: queue == self.first_queue, completions: completions(queue, shape.chunk_bytes) };
            let prepared = socket.with_memory(region, shape, rings);
            prepared.map_err(|e| self.error("make the socket's rings", e).advise(PINNED))
        };
        (self.first_queue..).zip(unbound).map(prepare).collect()
    }

    /// Binds all sockets in the same way as the first socket.
    fn bind_prepared(&self, prepared: &[OpenSocket], region: &Arc<Region>) -> Result<How, DeviceError> {
        let mut how = How::default();
        for (queue, next) in (self.first_queue..).zip(prepared) {
            let place = InterfaceQueue { interface: self.index, queue };
            match prepared.first().filter(|_| queue > self.first_queue) {
                None => how = self.bind_first(next, place, chunk_bytes(region) as usize, region.backing())?,
                Some(first) => drop(self.bind_one(place, &[how], |how| next.bind(place, how, Some(first)))?),
            }
        }
        let parts = if how.several { SEGMENTS_MAX } else { 1 };
        // Relaxed, because no other memory is published by this number.
        self.longest.store(parts * (chunk_bytes(region) as usize - HEADROOM_BYTES), Ordering::Relaxed);
        Ok(how)
    }

    /// Binds the first socket in the best possible way: preferably in zero-copy mode, and
    /// preferably with support for frames of several chunks.
    fn bind_first(
        &self,
        socket: &OpenSocket,
        place: InterfaceQueue,
        chunk: usize,
        backing: Backing,
    ) -> Result<How, DeviceError> {
        // A network card writes to physical addresses, which are contiguous only within a huge
        // page. The kernel skips a chunk that crosses the border of two huge pages: about 1 chunk
        // in 900, which stays posted until the socket is closed.
        let tries = !self.copies && self.program.mode == sys::Mode::Native && backing == Backing::HugePages;
        let fits_one = self.frame_bytes <= chunk - HEADROOM_BYTES;
        let all = [(true, true), (true, false), (false, true), (false, false)];
        let ways = all.map(|(zero_copy, several)| How { zero_copy, several }).into_iter();
        let ways: Vec<How> = ways.filter(|how| (tries || !how.zero_copy) && (fits_one || how.several)).collect();
        self.bind_one(place, &ways, |how| socket.bind(place, how, None))
    }

    fn bind_one(
        &self,
        place: InterfaceQueue,
        ways: &[How],
        bind: impl FnMut(How) -> io::Result<()>,
    ) -> Result<How, DeviceError> {
        bind::bind(ways, bind).map_err(|error| bind::not_bound(&self.name, "receive from its queues", place, error))
    }
}

/// Returns the XDP programs of this process that run in dispatchers of libxdp, on interfaces in the
/// network namespace of this thread.
pub fn components() -> Vec<Component> {
    Device::here().iter().filter_map(|device| device.program.attachment.component()).collect()
}

/// Returns true if this process takes packets from the ports of a bond, in the network namespace of
/// this thread. For a bond, `Builder::build` starts a thread that binds sockets to the queues of
/// new ports.
pub fn follows_bonds() -> bool {
    Device::here().iter().any(|device| device.bond.is_some())
}

/// Returns the indexes of the interfaces that this process polls busily (`busy_poll`), in the
/// network namespace of this thread. The interrupts of busily polled interfaces should be deferred
/// (`napi_defer_hard_irqs` and `gro_flush_timeout`), for example by the crate `steerage-tune`.
pub fn busily_polled() -> Vec<u32> {
    Device::here().iter().filter(|device| device.busy_poll.is_some()).map(|device| device.index).collect()
}

/// Lets this process write a line with the interface index to the pipe `to` for each interface of
/// [`busily_polled`] whose driver cannot be polled busily. The interrupts of a reported interface
/// should not be deferred any more: only the kernel's timer would run its driver. The first packet
/// shows whether the driver reports which of its NAPI instances delivered the packet, as busy
/// polling requires.
///
/// After the last clone of `to` is dropped, this process reports no more interfaces. The pipe
/// should have room for one line per interface, because a write that waits for the reader would
/// block a packet thread.
pub fn report_vain_busy_polling(to: &Arc<OwnedFd>) {
    for device in Device::here().iter().filter(|device| device.busy_poll.is_some()) {
        let _ = device.vain_polling.set(Arc::downgrade(to));
    }
}

/// Lets the XDP programs of this process ([`components`]) stay in their dispatchers when this
/// process ends. A process that drops its privileges leaves the removal of its programs to another
/// process ([`dispatcher::remove`](super::dispatcher::remove)). A program whose process has ended
/// leaves all packets to the next program.
///
/// After this call, this process does not notice if other software removes one of its components. A
/// privileged process waits for a removal
/// ([`wait_for_removal`](super::dispatcher::wait_for_removal)), and writes a line with the
/// [`Component`] to the pipe `reports`. The queues of the component's interface then end with an
/// error.
///
/// # Errors
/// Returns an error if the pipe cannot be made non-blocking.
pub fn stay_in_dispatchers(reports: OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(&reports, FcntlArg::F_GETFL)?);
    fcntl(&reports, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let removed = Arc::new(Removed::from(reports));
    Device::here().iter().for_each(|device| device.program.attachment.stay(&removed));
    Ok(())
}
