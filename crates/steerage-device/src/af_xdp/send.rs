//! Sends through an interface with AF_XDP, and so bypasses the kernel's network stack and queueing
//! discipline. Each CPU has its own tx ring. docs/outputs.md is the user's guide.

use std::cell::RefCell;
use std::io;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;

use steerage::flow::wire::{be16, ethernet, ethertype, vlan};
use steerage::{
    DeviceError, LinkType, Output,
    device::{Completion, Outgoing, OutgoingPacket, Page, Region, Sent, TxCapabilities, TxQueue, TxResources},
    limits::{HANDLE_BUDGET, HEADROOM, SEGMENTS_MAX},
    packet::Received,
};

use super::device::Device;
use super::interface;
use super::spec::{self, Named};
use super::sys::Socket;
use super::tx_sockets::{TxSocket, TxSockets};
use super::{PERMISSION, RING_MAX, RING_MIN, SEND_RING_DEFAULT};
use crate::offloads::merged::{Outcome, count, sendable};
use crate::options::{self, SpecError, setters};

#[cfg(test)]
mod tests;

/// The bytes that a socket may have in flight. The kernel counts each short frame in a full ring as
/// about 1 KiB.
const SEND_BUFFER: i32 = 4 << 20;

/// The maximum number of descriptors for one frame. The kernel's limit, `MAX_SKB_FRAGS`, is 17.
const PARTS_MAX: usize = 16;

/// The number of times that `kick` repeats a system call that takes no descriptor. A batch needs at
/// most three calls, because the kernel takes 32 descriptors per call.
const STUCK_MAX: u32 = 2;

/// The size of a huge page in bytes. Memory is physically contiguous only within a huge page.
const PIECE_BYTES: u64 = 2 << 20;

/// The interface through which to send, and the options for sending.
///
/// ```no_run
/// use steerage_device::af_xdp::AfXdpOutput;
///
/// let output = AfXdpOutput::new("eth1").cpus(4).open()?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AfXdpOutput {
    /// The interface's name.
    pub interface: String,
    /// The number of packets that each CPU may have in flight: a power of two, [`RING_MIN`] to
    /// [`RING_MAX`].
    pub ring: u32,
    /// The number of CPUs that may send through the interface.
    pub cpus: usize,
}

/// Parses texts such as `af_xdp:IFACE,ring=1024`.
impl FromStr for AfXdpOutput {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let Some(named) = Named::read(spec).filter(|named| !named.interface.is_empty()) else {
            let what = "is no interface: `ip link` lists those there are";
            return Err(SpecError::of(spec::DEVICE, "IFACE", spec, what));
        };
        let mut output = Self::new(named.interface);
        for item in options::read(spec::DEVICE, named.options)? {
            output.ring = match item.option {
                "ring" => spec::ring(item)?,
                _ => return Err(item.unknown(&["ring"])),
            };
        }
        Ok(output)
    }
}

impl AfXdpOutput {
    /// Creates options for sending through the interface `name` from all CPUs of this machine.
    pub fn new(name: impl Into<String>) -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        Self { interface: name.into(), ring: SEND_RING_DEFAULT, cpus }
    }

    setters! {
        /// The number of packets that each CPU may have in flight: a power of two, [`RING_MIN`] to
        /// [`RING_MAX`].
        ring: u32;
        /// The number of CPUs that may send through the interface. Default: all CPUs of this
        /// machine.
        cpus: usize;
    }

    /// Prepares the sockets for sending. If the process also receives from the interface with
    /// AF_XDP, open the input before the output. `Builder::build` pins the instance's pages: see
    /// [`AfXdpOptions::open`](super::AfXdpOptions::open).
    ///
    /// # Errors
    /// [`DeviceError`] if the interface does not exist, its type is not supported, or the process
    /// may not send through it.
    pub fn open(&self) -> Result<Output, DeviceError> {
        let interface = interface::look(&self.interface)
            .map_err(|e| self.error("look at the interface", e).advise("`ip link` lists the interfaces there are"))?;
        if interface.hardware != libc::ARPHRD_ETHER {
            let cause = io::Error::other(format!("its type, {} in if_arp.h, is not Ethernet", interface.hardware));
            return Err(self.error("send by it", cause).advise("send by a packet socket instead: af_packet:NAME"));
        }
        if !self.ring.is_power_of_two() || !(RING_MIN..=RING_MAX).contains(&self.ring) {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no length for it", self.ring));
            return Err(self.error("make its rings", cause).advise("use a power of two, 128 to 32768"));
        }
        let mut sockets = Vec::with_capacity(self.cpus);
        for _ in 0..self.cpus {
            let socket = Socket::new().map_err(|e| self.error("open an AF_XDP socket", e).advise(PERMISSION))?;
            // Without permission for a larger send buffer, the socket keeps its buffer and has fewer
            // bytes in flight. That is no error of the run.
            let _ = socket.set_send_buffer(SEND_BUFFER);
            sockets.push(socket);
        }
        let queues = interface::queues(&self.interface).sending();
        let sockets = TxSockets::new(&self.interface, &interface, queues, self.ring, sockets);
        let sockets = sockets.map_err(|e| self.error("watch the interface", e))?;
        if let Some(device) = Device::find(interface.index) {
            *device.senders.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&sockets);
        }
        let open = Box::new(move |_cpu| {
            let nth = sockets.add()?;
            let ready = RefCell::new(None);
            Ok(Box::new(Send { sockets: Arc::clone(&sockets), nth, ready }) as Box<dyn TxQueue>)
        });
        Ok(Output::new(crate::interface_name::following(&self.interface), spec::DEVICE, open))
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}

#[derive(Debug)]
struct Send {
    sockets: Arc<TxSockets>,
    nth: usize,
    /// A `RefCell`, because `has_room` also takes back the pages of sent packets.
    ready: RefCell<Option<SendQueue>>,
}

#[derive(Debug)]
struct SendQueue {
    bound: TxSocket,
    region: Arc<Region>,
    free: Vec<Page>,
    enough: usize,
    /// Pages that a device cannot read, because each of these pages lies in two separate pieces of
    /// physical memory.
    unfit: Vec<Page>,
    /// The number of descriptors at the front of the ring that the kernel has taken, although the
    /// ring's index does not show it.
    unsaid: u32,
    /// True if the interface was down at the last send. While the interface is down, the ring fills
    /// with void descriptors.
    down: bool,
    voided: Vec<u64>,
}

impl SendQueue {
    fn room(&self) -> usize {
        self.region.page_bytes() - HEADROOM
    }

    fn parts_max(&self) -> usize {
        if self.bound.how.several { PARTS_MAX } else { 1 }
    }

    /// The length of the longest frame that `copy_of` can copy, in bytes.
    fn longest(&self) -> usize {
        let (room, chunk) = (self.room(), self.bound.chunk_bytes as usize);
        if self.bound.how.several { PARTS_MAX / room.div_ceil(chunk) * room } else { chunk.min(room) }
    }

    fn reclaim(&mut self) {
        let Self { bound: TxSocket { shared, nth, .. }, free, voided, .. } = self;
        // If another CPU holds the lock, that CPU returns this sender's pages to this sender.
        if let Ok(mut ring) = shared.completion_ring.try_lock() {
            let ring = &mut *ring;
            // An address in the completion ring that belongs to no sender is ignored.
            let mut tell = |address| {
                let _ = ring.reaper.tell(address, *nth, |page| free.push(page));
            };
            ring.completions.drain(&mut tell);
            voided.drain(..).for_each(tell);
        }
        shared.in_flight.collect(*nth, |page| free.push(page));
    }

    /// Returns true if there is room for a batch of packets with one page each. If there is no
    /// room, makes the system call for sending: a driver may wait for the call, and in copy mode
    /// the kernel skips void descriptors only during the call. The ring of an interface that is
    /// down or deleted never gets room, so packets for such an interface are refused and do not
    /// wait.
    fn has_room(&mut self) -> bool {
        if self.down || self.fits_a_batch() {
            return true;
        }
        self.reclaim();
        if self.fits_a_batch() {
            return true;
        }
        if !self.bound.how.zero_copy && self.bound.sender.has_room_for(self.enough as u32) {
            return false;
        }
        const BUSY: [i32; 5] = [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOBUFS, libc::ENOMEM];
        let kicked = self.bound.sender.kick().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));
        self.reclaim();
        kicked.is_err_and(|error| !BUSY.contains(&error)) || self.fits_a_batch()
    }

    fn fits_a_batch(&mut self) -> bool {
        self.free.len() >= self.enough && self.bound.sender.has_room_for(self.enough as u32)
    }

    /// Puts the packet into the ring: exchanges or copies its pages. Returns false if the ring has
    /// no room or no page is free.
    fn put(&mut self, mut packet: OutgoingPacket<'_>, len: usize) -> bool {
        let parts: usize = packet.segments().map(|segment| self.parts(segment.len())).sum();
        // In zero-copy mode, only the pages in `free` are known to be physically contiguous.
        let swaps = !self.bound.how.zero_copy && parts <= self.parts_max();
        let parts =
            if swaps { parts } else { len / self.room() * self.parts(self.room()) + self.parts(len % self.room()) };
        if !self.bound.sender.has_room_for(parts as u32) {
            return false;
        }
        let swapped = if swaps { packet.swap(&mut self.free) } else { None };
        let Some(frame) = swapped.or_else(|| self.copy_of(&packet, len)) else { return false };
        let (offset, len) = (frame.offset(), frame.len());
        match frame.into_page() {
            Ok(page) => self.post(page, len).is_some_and(|address| {
                self.push(address + offset as u64, len, false);
                true
            }),
            Err(chained) => self.put_chain(chained),
        }
    }

    fn parts(&self, len: usize) -> usize {
        len.div_ceil(self.bound.chunk_bytes as usize)
    }

    fn copy_of(&mut self, packet: &OutgoingPacket<'_>, len: usize) -> Option<Completion> {
        if self.free.len() < len.div_ceil(self.room()) {
            return None;
        }
        let (mut segments, mut rest, mut copied) = (packet.segments(), &[][..], 0);
        let mut copy: Option<Completion> = None;
        while copied < len {
            let mut page = self.free.pop()?;
            let to = &mut self.region.page_mut(&mut page)[HEADROOM..];
            let mut at = 0;
            while at < to.len() {
                if rest.is_empty() {
                    let Some(next) = segments.next() else { break };
                    rest = next;
                }
                let (now, later) = rest.split_at(rest.len().min(to.len() - at));
                to[at..at + now.len()].copy_from_slice(now);
                (at, rest) = (at + now.len(), later);
            }
            copied += at;
            match &mut copy {
                None => copy = Some(Completion::new(page, HEADROOM, at)),
                Some(copy) => {
                    if let Err(page) = self.region.append(copy, page, HEADROOM, at) {
                        self.free.push(page);
                    }
                }
            }
            if at == 0 {
                break;
            }
        }
        copy
    }

    #[cold]
    fn put_chain(&mut self, frame: Completion) -> bool {
        let (mut segments, mut count) = ([const { None }; SEGMENTS_MAX], 0);
        let Self { region, free, .. } = self;
        region.take_apart(frame, |page, offset, len| {
            if len == 0 {
                free.push(page);
            } else {
                segments[count] = Some((page, offset, len));
                count += 1;
            }
        });
        for (nth, (page, offset, len)) in segments.into_iter().flatten().enumerate() {
            if let Some(address) = self.post(page, len) {
                self.push(address + u64::from(offset), len, nth + 1 < count);
            }
        }
        count > 0
    }

    fn post(&mut self, page: Page, len: usize) -> Option<u64> {
        match self.bound.shared.in_flight.post(self.bound.nth, page, self.parts(len)) {
            Ok(address) => Some(address),
            Err(page) => {
                self.free.push(page);
                None
            }
        }
    }

    fn push(&mut self, mut address: u64, mut len: usize, goes_on: bool) {
        let chunk = self.bound.chunk_bytes as usize;
        while len > chunk {
            self.bound.sender.push(address, chunk as u32, true);
            (address, len) = (address + chunk as u64, len - chunk);
        }
        self.bound.sender.push(address, len as u32, goes_on);
    }

    /// Makes the kernel take the descriptors. In copy mode, descriptors that the kernel does not
    /// take at once become void. If these descriptors stayed in the ring, later packets of the same
    /// flow from another CPU could overtake their packets.
    fn kick(&mut self, sent: &mut Sent) -> io::Result<()> {
        if self.bound.how.zero_copy {
            return if self.bound.sender.needs_wakeup() { self.bound.sender.kick().or_else(later) } else { Ok(()) };
        }
        let mut stuck = 0;
        loop {
            let waiting = self.bound.sender.waiting();
            if waiting == 0 {
                (self.unsaid, self.down) = (0, false);
                return Ok(());
            }
            let told = self.bound.sender.kick();
            let moved = waiting - self.bound.sender.waiting();
            if moved > 0 {
                (stuck, self.unsaid) = (0, 0);
            }
            match told.map_err(|error| error.raw_os_error()) {
                // `EBUSY` means that the last packet that the kernel took was dropped, by the
                // driver or because the interface has no carrier.
                Err(Some(libc::EBUSY)) if self.unsaid < waiting => self.was_dropped(moved, sent),
                Ok(()) | Err(Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM)) if moved > 0 => {}
                Ok(()) | Err(Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM | libc::EBUSY)) => {
                    stuck += 1
                }
                Err(error) => {
                    let voided = self.void(sent);
                    sent.refused += voided;
                    self.down = error == Some(libc::ENETDOWN);
                    return match error {
                        // `ENETDOWN` is no error: sending continues when the interface is up again.
                        Some(libc::ENETDOWN) => Ok(()),
                        error => Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EIO))),
                    };
                }
            }
            if stuck > STUCK_MAX {
                self.void(sent);
                return Ok(());
            }
        }
    }

    fn was_dropped(&mut self, moved: u32, sent: &mut Sent) {
        let dropped =
            if moved > 0 { self.bound.sender.taken_last() } else { self.bound.sender.nth_waiting(self.unsaid) };
        self.unsaid += u32::from(moved == 0);
        if let Some(dropped) = dropped {
            sent.packets = sent.packets.saturating_sub(1);
            sent.bytes = sent.bytes.saturating_sub(u64::from(dropped.len));
        }
    }

    /// Voids all descriptors that the kernel has not taken. Returns the number of packets whose
    /// last descriptor became void.
    fn void(&mut self, sent: &mut Sent) -> u64 {
        let mut packets = 0;
        for nth in self.unsaid..self.bound.sender.waiting() {
            let Some(waiting) = self.bound.sender.nth_waiting(nth) else { break };
            if waiting.len > 0 {
                self.bound.sender.void_waiting(nth);
                self.voided.push(waiting.address);
                packets += u64::from(!waiting.goes_on());
                sent.bytes = sent.bytes.saturating_sub(u64::from(waiting.len));
            }
        }
        sent.packets = sent.packets.saturating_sub(packets);
        packets
    }
}

/// Ignores errors that mean that the driver is busy, because a busy driver checks the ring again on
/// its own.
fn later(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOBUFS | libc::ENETDOWN) => Ok(()),
        _ => Err(error),
    }
}

impl Send {
    fn sendable(&self, received: &Received<'_>, longest: usize) -> Result<usize, Outcome> {
        sendable(received, LinkType::ETHERNET)?;
        let len = received.total_len;
        let kind = received.data.get(..ethernet::BYTES).map(|header| be16(header, ethernet::TYPE_AT));
        let is_tagged = matches!(kind, Some(ethertype::VLAN | ethertype::VLAN_SERVICE));
        let most = self.sockets.mtu() + ethernet::BYTES + if is_tagged { vlan::BYTES } else { 0 };
        match len {
            ..ethernet::BYTES => Err(Outcome::Unfit),
            len if len > most.min(longest) => Err(Outcome::TooLong),
            len => Ok(len),
        }
    }
}

impl TxQueue for Send {
    fn capabilities(&self) -> TxCapabilities {
        TxCapabilities::default().pages(self.sockets.ring as usize)
    }

    fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
        let TxResources { region, pages, .. } = resources;
        let bound = self.sockets.ready(self.nth, &region)?;
        let is_fit = |page: &Page| {
            let from = region.address(page).unwrap_or(0) % PIECE_BYTES;
            !bound.how.zero_copy || from + region.page_bytes() as u64 <= PIECE_BYTES
        };
        let (free, unfit): (Vec<Page>, Vec<Page>) = pages.into_iter().partition(is_fit);
        let voided = Vec::with_capacity(self.sockets.ring as usize);
        let enough = HANDLE_BUDGET.min(free.len() / 2);
        *self.ready.get_mut() = Some(SendQueue { bound, region, free, enough, unfit, unsaid: 0, down: false, voided });
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.ready.borrow_mut().as_mut().is_none_or(SendQueue::has_room)
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        self.sockets.look(packets.now());
        let Some(mut ready) = self.ready.get_mut().take() else { return Ok(sent) };
        ready.reclaim();
        let longest = ready.longest();
        while let Some(packet) = packets.next_packet() {
            // Neither the kernel nor the card would finish the checksums of super-frames.
            let is_one = if packet.offload().is_none() { Ok(()) } else { Err(Outcome::Unfit) };
            let len = match is_one.and_then(|()| self.sendable(&packet.received(), longest)) {
                Ok(len) => len,
                Err(outcome) => {
                    count(&mut sent, outcome, 1, 0);
                    continue;
                }
            };
            if ready.put(packet, len) {
                sent.packets += 1;
                sent.bytes += len as u64;
            } else if ready.down {
                sent.refused += 1;
            }
        }
        ready.bound.sender.show();
        let kicked = ready.kick(&mut sent);
        *self.ready.get_mut() = Some(ready);
        match kicked {
            // `Relaxed` suffices: exactly one CPU, no matter which, must report the error.
            Err(error) if !self.sockets.gone.swap(true, Ordering::Relaxed) => {
                let is_gone = matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV));
                let error = if is_gone { io::Error::new(error.kind(), "the interface was deleted") } else { error };
                Err(self.sockets.error("send by the interface", error))
            }
            _ => Ok(sent),
        }
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        // In copy mode, `send` empties the ring. In zero-copy mode, the driver may send later.
        let Some(ready) = self.ready.get_mut().as_mut().filter(|ready| ready.bound.how.zero_copy) else {
            return Ok(());
        };
        let kicked = ready.kick(&mut Sent::default());
        kicked.map_err(|error| self.sockets.error("send by the interface", error))
    }

    fn close(&mut self, pages: &mut Vec<Page>) {
        let Some(SendQueue { bound: TxSocket { sender, shared, nth, how, .. }, mut free, mut unfit, .. }) =
            self.ready.get_mut().take()
        else {
            return;
        };
        drop(sender);
        let mut ring = shared.completion_ring.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = &mut *ring;
        ring.completions.drain(|address| {
            let _ = ring.reaper.tell(address, nth, |page| free.push(page));
        });
        // In zero-copy mode, the driver may still read the pages, so they stay out of use.
        if !how.zero_copy {
            ring.reaper.take_all(nth, |page| free.push(page));
        }
        shared.in_flight.collect(nth, |page| free.push(page));
        pages.append(&mut free);
        pages.append(&mut unfit);
    }
}
