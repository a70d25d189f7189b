//! What the queues of an interface share: its program, and the binding of their sockets, which is done at once.

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use steerage::{Backing, DeviceError, HEADROOM, PAGE_BYTES_MIN, POLL_BUDGET, Region};

use super::attach::Attached;
use super::interface::Interface;
use super::sys::{self, How, Place, Ready, Shape, Socket};
use super::{AfXdpOptions, CHUNK_BYTES_MAX, HEADROOM_BYTES, LINK_BYTES, Mode, RING_MAX, RING_MIN};

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
    sockets: Mutex<Sockets>,
}

/// The queues' sockets, until each queue has taken its own.
#[derive(Debug)]
struct Sockets {
    unbound: Vec<Socket>,
    ready: Vec<Option<Ready>>,
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
            sockets: Mutex::new(Sockets { unbound, ready: Vec::new() }),
        })
    }

    pub(super) fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), operation, cause)
    }

    /// What the pages have to hold behind their own headroom: the kernel's is longer.
    pub(super) fn frame_bytes_max(&self) -> usize {
        (self.frame_bytes + HEADROOM_BYTES - HEADROOM).max(PAGE_BYTES_MIN - HEADROOM)
    }

    /// The socket of that queue, on these pages.
    pub(super) fn ready(&self, number: u32, region: &Arc<Region>) -> Result<Ready, DeviceError> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if !sockets.unbound.is_empty() {
            let unbound = std::mem::take(&mut sockets.unbound);
            sockets.ready = self.bind_all(unbound, region)?.into_iter().map(Some).collect();
        }
        let its = sockets.ready.get_mut((number - self.first_queue) as usize).and_then(Option::take);
        its.ok_or_else(|| self.error("bind its socket", io::Error::other("it was bound before")))
    }

    /// How it runs.
    pub(super) fn mode(&self, socket: &Ready) -> &'static str {
        match (self.program.mode, socket.is_zero_copy()) {
            (sys::Mode::Native, true) => "native, zero-copy",
            (sys::Mode::Native, false) => "native, copy",
            (sys::Mode::Skb, _) => "skb, copy",
        }
    }

    fn bind_all(&self, unbound: Vec<Socket>, region: &Arc<Region>) -> Result<Vec<Ready>, DeviceError> {
        let chunk_bytes = region.page_bytes().min(CHUNK_BYTES_MAX);
        let shape = Shape { ring: self.ring, chunk_bytes: chunk_bytes as u32 };
        let mut ready: Vec<Ready> = Vec::with_capacity(unbound.len());
        for (nth, socket) in unbound.into_iter().enumerate() {
            let next = socket.with_memory(region, shape, ready.is_empty());
            let next = next.map_err(|e| {
                self.error("make the socket's rings", e)
                    .advise("pages are pinned: it takes CAP_IPC_LOCK, or a higher ulimit -l")
            })?;
            let place = Place { interface: self.index, queue: self.first_queue + nth as u32 };
            match ready.first() {
                None => self.bind_first(&next, place, chunk_bytes, region.backing()),
                Some(first) => self.bind_one(&next, place, &[How::default()], Some(first)),
            }?;
            if let Some(time) = self.busy_poll {
                next.busy_poll(time, POLL_BUDGET as u32).map_err(|e| self.error("poll busily", e))?;
            }
            ready.push(next);
        }
        Ok(ready)
    }

    /// Without a copy where that can be, with frames of several parts where they can be; and else, as it can be.
    fn bind_first(&self, socket: &Ready, place: Place, chunk: usize, backing: Backing) -> Result<(), DeviceError> {
        // A device writes by the machine's addresses, in which only a huge page is in one piece. A chunk that lies across two
        // the kernel overlooks: one in some 900, which then stays posted to the end.
        let tries = !self.copies && self.program.mode == sys::Mode::Native && backing == Backing::HugePages;
        let fits_one = self.frame_bytes <= chunk - HEADROOM_BYTES;
        let all = [(true, true), (true, false), (false, true), (false, false)];
        let ways = all.map(|(zero_copy, several)| How { zero_copy, several }).into_iter();
        let ways: Vec<How> = ways.filter(|how| (tries || !how.zero_copy) && (fits_one || how.several)).collect();
        self.bind_one(socket, place, &ways, None)
    }

    /// In the first of these ways that can be.
    fn bind_one(&self, socket: &Ready, place: Place, ways: &[How], first: Option<&Ready>) -> Result<(), DeviceError> {
        let (mut ways, mut wait) = (ways.iter().copied(), WAIT_FIRST);
        let mut how = ways.next().unwrap_or_default();
        loop {
            let error = match socket.bind(place, how, first) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if error.raw_os_error() != Some(libc::EBUSY) {
                how = ways.next().ok_or_else(|| self.error("bind an AF_XDP socket", error))?;
                continue;
            }
            if wait > WAIT_LAST {
                let cause = io::Error::other(format!("queue {} has an AF_XDP socket already", place.queue));
                return Err(self.error("receive from its queues", cause).advise("stop the program that has it"));
            }
            thread::sleep(wait);
            wait *= 2;
        }
    }
}
