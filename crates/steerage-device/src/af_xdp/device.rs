//! What the queues of an interface share: the XDP program, and the sockets, which are all bound at
//! the same time.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

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

/// An interface, its program and its sockets.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) program: Arc<Attached>,
    /// The number of the interface's queue 0 in the maps of the program.
    pub(super) first_key: u32,
    /// The bond that the interface is a port of, if packets are taken from the bond.
    pub(super) bond: Option<u32>,
    /// The longest frame of the interface, in bytes, when it was opened.
    pub(super) frame_bytes: usize,
    pub(super) ring: u32,
    pub(super) busy_poll: Option<Duration>,
    pub(super) coalesce: Option<Duration>,
    /// The number of receive queues that the driver reports, whose frames the program counts. 0 if it
    /// reports none.
    queues: u32,
    copies: bool,
    first_queue: u32,
    namespace: Namespace,
    /// The senders of the same interface, which use the same memory as the receivers, and share the
    /// completion ring of their queue.
    pub(super) senders: Mutex<Weak<TxSockets>>,
    sockets: Mutex<Sockets>,
}

/// The interfaces that this process takes packets from. The list is locked while an interface is
/// opened.
static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// The sockets of the queues, until each queue has taken its own.
#[derive(Debug)]
struct Sockets {
    unbound: Vec<Socket>,
    ready: Vec<Option<OpenSocket>>,
    /// True if the sockets were bound so that a frame may arrive in several chunks.
    several: bool,
}

impl Device {
    /// The device for some queues of `interface`, with a socket for each.
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
        if let Some(time) = options.busy_poll {
            let set = unbound.iter().try_for_each(|socket| socket.busy_poll(time, POLL_BUDGET as u32));
            set.map_err(|e| options.error("poll busily", e))?;
        }
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
            senders: Mutex::new(Weak::new()),
            sockets: Mutex::new(Sockets { unbound, ready: Vec::new(), several: false }),
        })
    }

    /// Lists the device, so that [`find`](Self::find) finds it.
    pub(super) fn listed(self) -> Arc<Self> {
        let (mut open, device) = (OPEN.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(self));
        open.retain(|device| device.strong_count() > 0);
        open.push(Arc::downgrade(&device));
        device
    }

    /// The device with which this process takes packets from that interface of the current
    /// namespace.
    pub(super) fn find(index: u32) -> Option<Arc<Self>> {
        Self::here().into_iter().find(|device| device.index == index)
    }

    /// Returns true if this process takes packets from that interface of the current namespace, or
    /// from the ports of that bond.
    pub(super) fn takes_from(index: u32) -> bool {
        Self::here().iter().any(|device| device.index == index || device.bond == Some(index))
    }

    /// The programs of this process in dispatchers, on interfaces of the current namespace.
    pub(super) fn components() -> Vec<Component> {
        Self::here().iter().filter_map(|device| device.program.attachment.component()).collect()
    }

    /// The interfaces of the current namespace that this process polls busily.
    pub(super) fn busily_polled() -> Vec<u32> {
        Self::here().iter().filter(|device| device.busy_poll.is_some()).map(|device| device.index).collect()
    }

    /// Makes the programs of [`components`](Self::components) stay in their dispatchers when the
    /// process ends.
    pub(super) fn stay_in_dispatchers(reports: OwnedFd) {
        let removed = Arc::new(Removed::from(reports));
        Self::here().iter().for_each(|device| device.program.attachment.stay(&removed));
    }

    /// The devices with which this process takes packets from interfaces of the current namespace.
    fn here() -> Vec<Arc<Self>> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let here = Namespace::here();
        open.iter().filter_map(Weak::upgrade).filter(|device| device.namespace == here).collect()
    }

    /// Returns true if the driver may forget the program without reporting it, and if the program's
    /// counters reveal this.
    pub(super) fn can_be_forgotten(&self) -> bool {
        self.queues > 0 && self.program.attachment.can_be_renewed()
    }

    /// Returns the number of times that the program has run for frames of this interface.
    pub(super) fn runs(&self, by_cpu: &mut ByCpu) -> io::Result<u64> {
        let counters = 2 * self.first_key..2 * (self.first_key + self.queues);
        counters.map(|counter| self.program.counters.sum(counter, by_cpu)).sum()
    }

    pub(super) fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), operation, cause)
    }

    /// The necessary size of a page after steerage's headroom, in bytes. The size allows for the
    /// kernel's headroom, which is longer than steerage's headroom. A frame longer than a chunk
    /// needs several pages.
    pub(super) fn frame_bytes_max(&self) -> usize {
        let chunk_bytes = (HEADROOM_BYTES + self.frame_bytes + TAILROOM).clamp(PAGE_BYTES_MIN, CHUNK_BYTES_MAX);
        chunk_bytes - HEADROOM - TAILROOM
    }

    /// The number of chunks of the longest frame.
    pub(super) fn segments_max(&self) -> usize {
        self.frame_bytes.div_ceil(CHUNK_BYTES_MAX - HEADROOM_BYTES).min(SEGMENTS_MAX)
    }

    /// Returns true if a frame that does not fit into one chunk arrives in several chunks. This is
    /// known only after the sockets are bound.
    pub(super) fn takes_several(&self) -> bool {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).several
    }

    /// The socket of queue `number`, which receives into the pages of `region`.
    pub(super) fn ready(&self, number: u32, region: &Arc<Region>) -> Result<OpenSocket, DeviceError> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if !sockets.unbound.is_empty() {
            let unbound = std::mem::take(&mut sockets.unbound);
            let (ready, how) = self.bind_all(unbound, region)?;
            sockets.several = how.several;
            sockets.ready = ready.into_iter().map(Some).collect();
        }
        let its = sockets.ready.get_mut((number - self.first_queue) as usize).and_then(Option::take);
        its.ok_or_else(|| self.error("bind its socket", io::Error::other("it was bound before")))
    }

    /// The mode in which the socket runs, for the user.
    pub(super) fn mode(&self, socket: &OpenSocket) -> &'static str {
        /// Adds the metadata that the driver reports for this mode's frames.
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

    fn bind_all(&self, unbound: Vec<Socket>, region: &Arc<Region>) -> Result<(Vec<OpenSocket>, How), DeviceError> {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let shape = Shape { ring: self.ring, chunk_bytes: chunk_bytes(region) };
        let (mut ready, mut how) = (Vec::<OpenSocket>::with_capacity(unbound.len()), How::default());
        for (nth, socket) in unbound.into_iter().enumerate() {
            let place = InterfaceQueue { interface: self.index, queue: self.first_queue + nth as u32 };
            let completions =
                senders.as_ref().map_or(FEWEST, |senders| senders.completions(place.queue, shape.chunk_bytes));
            let rings = Rings { register: ready.is_empty(), completions };
            let next = socket.with_memory(region, shape, rings);
            let next = next.map_err(|e| self.error("make the socket's rings", e).advise(PINNED))?;
            match ready.first() {
                None => how = self.bind_first(&next, place, shape.chunk_bytes as usize, region.backing())?,
                Some(first) => drop(self.bind_one(place, &[how], |how| next.bind(place, how, Some(first)))?),
            }
            ready.push(next);
        }
        if let Some(senders) = senders {
            senders.bind_all(region, Some(SharedUmem { first_queue: self.first_queue, ready: &ready, how }))?;
        }
        Ok((ready, how))
    }

    /// Binds the first socket: in zero-copy mode if possible, and with frames of several chunks if
    /// possible. If binding fails, tries to bind in copy mode or without frames of several chunks.
    fn bind_first(
        &self,
        socket: &OpenSocket,
        place: InterfaceQueue,
        chunk: usize,
        backing: Backing,
    ) -> Result<How, DeviceError> {
        // A network card writes to physical addresses, and only the memory within a huge page has
        // contiguous physical addresses. The kernel skips a chunk that crosses the border of two
        // huge pages. About 1 chunk in 900 crosses such a border, and stays posted until the socket
        // is closed.
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
