//! Sends by an interface with packet sockets: 64 packets per system call. docs/outputs.md is the user's guide.

use std::io;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use steerage::{
    DeviceError, LinkType, Output,
    device::{Outgoing, OutgoingPacket, Sent, TxQueue},
    limits::{HANDLE_BUDGET, SEGMENTS_MAX},
};

use super::interface::Interface;
use super::spec::Named;
use super::sys::{IpAddresses, Socket};
use super::{PERMISSION, SEND_BUFFER};
use crate::options;
use crate::options::{SpecError, setters};

#[cfg(test)]
mod tests;

/// The most parts of packets that a system call sends: room for a batch of short ones and, behind those, for a long one.
const PARTS_MAX: usize = HANDLE_BUDGET + SEGMENTS_MAX;

/// By which interface to send, and how.
///
/// ```no_run
/// use steerage_device::af_packet::AfPacketOutput;
///
/// let output = AfPacketOutput::new("eth1").qdisc_bypass(true).open()?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AfPacketOutput {
    /// The interface's name.
    pub interface: String,
    /// Whether packets go to the driver past the queueing discipline: cheaper, but what finds the driver's ring full is
    /// dropped at once, nothing is shaped, and no packet socket (tcpdump) sees it.
    pub qdisc_bypass: bool,
}

/// Reads `af_packet:IFACE,qdisc=bypass`, or an interface's bare name.
impl FromStr for AfPacketOutput {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let Some(named) = Named::read(spec).filter(|named| !named.interface.is_empty()) else {
            return Err(SpecError::of("af_packet", "IFACE", spec, "is no interface: `ip link` lists those there are"));
        };
        let mut output = Self::new(named.interface);
        for (option, value) in options::read("af_packet", named.options())? {
            output.qdisc_bypass = match option {
                "qdisc" => options::one_of("af_packet", option, value, &[("use", false), ("bypass", true)])?,
                _ => {
                    return Err(SpecError::of(
                        "af_packet",
                        option,
                        value,
                        "does not exist for an output: there is qdisc",
                    ));
                }
            };
        }
        Ok(output)
    }
}

impl AfPacketOutput {
    /// By the interface `name`, with every default.
    pub fn new(name: impl Into<String>) -> Self {
        Self { interface: name.into(), qdisc_bypass: false }
    }

    setters! {
        /// Whether packets go to the driver past the queueing discipline: see the field. Default: no.
        qdisc_bypass: bool;
    }

    /// Makes ready to send.
    ///
    /// # Errors
    /// [`DeviceError`] if there is no such interface, it may not be sent by, or its type is not supported.
    pub fn open(&self) -> Result<Output, DeviceError> {
        let first = Socket::new(false).map_err(|e| self.error("open a packet socket", e).advise(PERMISSION))?;
        let interface = Interface::look(&self.interface, &first)?;
        if interface.cooked {
            let cause = io::Error::new(io::ErrorKind::Unsupported, "its type is not supported");
            let advice = "use the Ethernet or IP interface above or below it";
            return Err(self.error("send by the interface", cause).advise(advice));
        }
        // For each CPU one, which is made now: later, it may not be allowed, or happen in another namespace.
        let mut sockets = vec![Arc::new(first)];
        for _ in 1..thread::available_parallelism().map_or(1, NonZero::get) {
            let socket = Socket::new(false).map_err(|e| self.error("open a packet socket", e).advise(PERMISSION))?;
            sockets.push(Arc::new(socket));
        }
        sockets.iter().try_for_each(|socket| self.make_ready(socket, interface.index))?;
        let (name, gone, mut next) = (self.interface.clone(), Arc::new(AtomicBool::new(false)), 0);
        let open = Box::new(move |_cpu| {
            let send = Send {
                name: name.clone(),
                link: interface.link,
                addresses: (interface.link != LinkType::ETHERNET).then(|| IpAddresses::of(interface.index)),
                socket: Arc::clone(&sockets[next]),
                gone: Arc::clone(&gone),
            };
            // CPUs beyond those of the machine share.
            next = (next + 1) % sockets.len();
            Ok(Box::new(send) as Box<dyn TxQueue>)
        });
        Ok(Output::new(crate::interface_name::following(&self.interface), "af_packet", open))
    }

    fn make_ready(&self, socket: &Socket, interface: u32) -> Result<(), DeviceError> {
        if self.qdisc_bypass {
            socket.bypass_qdisc().map_err(|e| self.error("bypass the queueing discipline", e))?;
        }
        socket.set_send_buffer(SEND_BUFFER).map_err(|e| self.error("set the socket's buffer", e))?;
        socket.bind_to_send(interface).map_err(|e| self.error("bind to the interface", e))
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}

/// One CPU's way out.
#[derive(Debug)]
struct Send {
    name: String,
    link: LinkType,
    /// Of packets that do not say themselves what they are.
    addresses: Option<IpAddresses>,
    socket: Arc<Socket>,
    /// The interface was deleted, and one of the CPUs said so.
    gone: Arc<AtomicBool>,
}

impl Send {
    /// Whether the interface takes such packets. Of one that a capture has cut there is only a part to send.
    fn takes(&self, packet: &OutgoingPacket<'_>) -> bool {
        let received = packet.received();
        let fits = match received.link {
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => {
                self.link == LinkType::RAW
            }
            link => link == self.link,
        };
        fits && received.total_len >= received.wire_len
    }

    fn send_all(&self, mut rest: &[PacketParts<'_>], sent: &mut Sent) -> Result<(), DeviceError> {
        while !rest.is_empty() {
            let left = match self.socket.send_many::<HANDLE_BUDGET, PARTS_MAX>(rest, self.addresses.as_ref()) {
                Ok(left) => left,
                Err(error) => match error.raw_os_error() {
                    // So much is on its way already.
                    Some(libc::EAGAIN) => return Ok(()),
                    // The queueing discipline or the driver dropped the first; the next may find room.
                    Some(libc::ENOBUFS | libc::ENOMEM) => 0,
                    Some(libc::EINTR) => continue,
                    Some(libc::ENETDOWN) => {
                        sent.refused += rest.len() as u64;
                        return Ok(());
                    }
                    Some(libc::ENXIO | libc::ENODEV) => {
                        // Relaxed: one CPU says so, and it does not matter which.
                        if !self.gone.swap(true, Ordering::Relaxed) {
                            let cause = io::Error::new(error.kind(), "the interface was deleted");
                            return Err(DeviceError::new(self.name.clone(), "send by the interface", cause));
                        }
                        sent.refused += rest.len() as u64;
                        return Ok(());
                    }
                    // It is none for this interface: longer than its MTU, shorter than a header.
                    _ => {
                        sent.refused += 1;
                        0
                    }
                },
            };
            sent.packets += left as u64;
            sent.bytes += rest[..left].iter().copied().flatten().map(|part| part.len() as u64).sum::<u64>();
            rest = &rest[left.max(1)..];
        }
        Ok(())
    }
}

impl TxQueue for Send {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        // A batch is never longer.
        let outgoing: [_; HANDLE_BUDGET] = std::array::from_fn(|_| packets.next_packet());
        let mut list = List::default();
        for packet in outgoing.iter().flatten() {
            if !self.takes(packet) {
                sent.refused += 1;
                continue;
            }
            if !list.has_room() {
                self.send_all(&list.packets()[..list.count], &mut sent)?;
                list = List::default();
            }
            list.push(packet);
        }
        self.send_all(&list.packets()[..list.count], &mut sent)?;
        Ok(sent)
    }
}

/// A packet's bytes, as they lie in its pages.
type PacketParts<'p> = &'p [&'p [u8]];

/// Packets for one system call.
#[derive(Debug)]
struct List<'p> {
    parts: [&'p [u8]; PARTS_MAX],
    /// Where each packet's parts end.
    ends: [usize; HANDLE_BUDGET],
    count: usize,
}

impl Default for List<'_> {
    fn default() -> Self {
        Self { parts: [&[]; PARTS_MAX], ends: [0; HANDLE_BUDGET], count: 0 }
    }
}

impl<'p> List<'p> {
    /// Where the parts of the `nth` packet begin.
    fn start(&self, nth: usize) -> usize {
        nth.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// For one more packet, whatever it is like. A batch is never longer than there are places.
    fn has_room(&self) -> bool {
        self.start(self.count) + SEGMENTS_MAX <= PARTS_MAX
    }

    fn push(&mut self, packet: &'p OutgoingPacket<'_>) {
        let first = self.start(self.count);
        let mut end = first;
        for (place, part) in self.parts[first..].iter_mut().zip(packet.segments()) {
            *place = part;
            end += 1;
        }
        self.ends[self.count] = end;
        self.count += 1;
    }

    fn packets(&self) -> [PacketParts<'_>; HANDLE_BUDGET] {
        std::array::from_fn(|nth| if nth < self.count { &self.parts[self.start(nth)..self.ends[nth]] } else { &[] })
    }
}
