//! What the queues of an interface share: the program, and the sockets, which are bound together.

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use steerage::{
    DeviceError,
    device::{Backing, Region},
    limits::{HEADROOM, PAGE_BYTES_MIN, POLL_BUDGET, SEGMENTS_MAX, TAILROOM},
};

use super::attach::Attached;
use super::interface::Interface;
use super::lines::{Beside, Lines};
use super::sys::{self, FEWEST, How, InterfaceQueue, OpenSocket, Rings, Shape, Socket};
use super::{AfXdpOptions, CHUNK_BYTES_MAX, HEADROOM_BYTES, LINK_BYTES, Mode, RING_MAX, RING_MIN};
use crate::namespace::Namespace;

/// How long it is waited, first and at most at a time, for the kernel to give a queue up whose owner has just ended.
const WAIT_FIRST: Duration = Duration::from_millis(1);
const WAIT_LAST: Duration = Duration::from_millis(512);

/// An interface, its program and its sockets.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) program: Attached,
    /// The longest frame that the interface was set to when it was opened.
    pub(super) frame_bytes: usize,
    pub(super) ring: u32,
    pub(super) busy_poll: Option<Duration>,
    copies: bool,
    first_queue: u32,
    namespace: Namespace,
    /// Who sends by the same interface: on the same memory and, of a queue, by the same completion ring.
    pub(super) lines: Mutex<Weak<Lines>>,
    sockets: Mutex<Sockets>,
}

/// The interfaces that this process takes packets from. Locked when one is opened.
static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// The queues' sockets, until each queue has taken its own.
#[derive(Debug)]
struct Sockets {
    unbound: Vec<Socket>,
    ready: Vec<Option<OpenSocket>>,
    /// They were bound so that frames may come in several chunks.
    several: bool,
}

impl Device {
    pub(super) fn new(
        options: &AfXdpOptions,
        interface: &Interface,
        program: Attached,
        queues: RangeInclusive<u32>,
        first: Socket,
    ) -> Result<Self, DeviceError> {
        if !options.ring.is_power_of_two() || !(RING_MIN..=RING_MAX).contains(&options.ring) {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no length for it", options.ring));
            return Err(options.error("make its rings", cause).advise("use a power of two, 128 to 32768"));
        }
        let mut unbound = vec![first];
        for _ in queues.clone().skip(1) {
            unbound.push(Socket::new().map_err(|e| options.error("open an AF_XDP socket", e))?);
        }
        Ok(Self {
            name: options.interface.clone(),
            index: interface.index,
            program,
            frame_bytes: interface.mtu + LINK_BYTES,
            ring: options.ring,
            busy_poll: options.busy_poll,
            copies: options.mode == Mode::Copy,
            first_queue: *queues.start(),
            namespace: Namespace::here(),
            lines: Mutex::new(Weak::new()),
            sockets: Mutex::new(Sockets { unbound, ready: Vec::new(), several: false }),
        })
    }

    /// The same, to be [found](Self::find).
    pub(super) fn listed(self) -> Arc<Self> {
        let (mut open, device) = (OPEN.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(self));
        open.retain(|device| device.strong_count() > 0);
        open.push(Arc::downgrade(&device));
        device
    }

    /// The device by which this process takes packets from that interface of this namespace.
    pub(super) fn find(index: u32) -> Option<Arc<Self>> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let here = Namespace::here();
        open.iter().filter_map(Weak::upgrade).find(|device| (device.index, device.namespace) == (index, here))
    }

    pub(super) fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), operation, cause)
    }

    /// What the pages have to hold behind their own headroom: the kernel's is longer. Of a frame that does not fit a chunk, a part.
    pub(super) fn frame_bytes_max(&self) -> usize {
        let chunk_bytes = (HEADROOM_BYTES + self.frame_bytes + TAILROOM).clamp(PAGE_BYTES_MIN, CHUNK_BYTES_MAX);
        chunk_bytes - HEADROOM - TAILROOM
    }

    /// Of how many chunks its longest frame is.
    pub(super) fn segments_max(&self) -> usize {
        self.frame_bytes.div_ceil(CHUNK_BYTES_MAX - HEADROOM_BYTES).min(SEGMENTS_MAX)
    }

    /// Whether frames that do not fit a chunk come in several: known when the sockets are bound.
    pub(super) fn takes_several(&self) -> bool {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).several
    }

    /// The socket of that queue, on these pages.
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

    /// How it runs.
    pub(super) fn mode(&self, socket: &OpenSocket) -> &'static str {
        match (self.program.mode, socket.is_zero_copy()) {
            (sys::Mode::Native, true) => "native, zero-copy",
            (sys::Mode::Native, false) => "native, copy",
            (sys::Mode::Skb, _) => "skb, copy",
        }
    }

    fn bind_all(&self, unbound: Vec<Socket>, region: &Arc<Region>) -> Result<(Vec<OpenSocket>, How), DeviceError> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let shape = Shape { ring: self.ring, chunk_bytes: chunk_bytes(region) };
        let (mut ready, mut how) = (Vec::<OpenSocket>::with_capacity(unbound.len()), How::default());
        for (nth, socket) in unbound.into_iter().enumerate() {
            let place = InterfaceQueue { interface: self.index, queue: self.first_queue + nth as u32 };
            let completions = lines.as_ref().map_or(FEWEST, |lines| lines.completions(place.queue, shape.chunk_bytes));
            let rings = Rings { register: ready.is_empty(), completions };
            let next = socket.with_memory(region, shape, rings);
            let next = next.map_err(|e| self.error("make the socket's rings", e).advise(PINNED))?;
            match ready.first() {
                None => how = self.bind_first(&next, place, shape.chunk_bytes as usize, region.backing())?,
                Some(first) => drop(self.bind_one(place, &[how], |how| next.bind(place, how, Some(first)))?),
            }
            if let Some(time) = self.busy_poll {
                next.busy_poll(time, POLL_BUDGET as u32).map_err(|e| self.error("poll busily", e))?;
            }
            ready.push(next);
        }
        if let Some(lines) = lines {
            lines.bind_all(region, Some(Beside { first_queue: self.first_queue, ready: &ready, how }))?;
        }
        Ok((ready, how))
    }

    /// Without a copy where that can be, with frames of several parts where they can be; and else, as it can be.
    fn bind_first(
        &self,
        socket: &OpenSocket,
        place: InterfaceQueue,
        chunk: usize,
        backing: Backing,
    ) -> Result<How, DeviceError> {
        // A device writes by the machine's addresses, in which only a huge page is in one piece. A chunk that lies across two
        // the kernel overlooks: one in some 900, which then stays posted to the end.
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
        self::bind(ways, bind).map_err(|error| not_bound(&self.name, "receive from its queues", place, error))
    }
}

/// What of a page the kernel takes for a frame at most, in bytes.
pub(super) fn chunk_bytes(region: &Region) -> u32 {
    region.page_bytes().min(CHUNK_BYTES_MAX) as u32
}

/// What to do where the kernel does not pin memory.
pub(super) const PINNED: &str = "pages are pinned: it takes CAP_IPC_LOCK, or a higher ulimit -l";

/// Why a socket has no queue.
pub(super) fn not_bound(name: &str, operation: &'static str, place: InterfaceQueue, error: io::Error) -> DeviceError {
    if error.raw_os_error() != Some(libc::EBUSY) {
        return DeviceError::new(name, "bind an AF_XDP socket", error);
    }
    let cause = io::Error::other(format!("queue {} has an AF_XDP socket already", place.queue));
    DeviceError::new(name, operation, cause).advise("stop the program that has it")
}

/// Binds in the first of these ways that can be. A queue may still be its last owner's for a moment.
pub(super) fn bind(ways: &[How], mut try_to: impl FnMut(How) -> io::Result<()>) -> io::Result<How> {
    let (mut ways, mut wait) = (ways.iter().copied(), WAIT_FIRST);
    let mut how = ways.next().unwrap_or_default();
    loop {
        let error = match try_to(how) {
            Ok(()) => return Ok(how),
            Err(error) => error,
        };
        if error.raw_os_error() != Some(libc::EBUSY) {
            how = ways.next().ok_or(error)?;
            continue;
        }
        if wait > WAIT_LAST {
            return Err(error);
        }
        thread::sleep(wait);
        wait *= 2;
    }
}
