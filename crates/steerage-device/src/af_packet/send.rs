//! Sends through an interface with packet sockets, one packet per system call. The user's guide is
//! docs/outputs.md.
//!
//! `sendmmsg` would send 64 packets per call and cost 6 to 9 % less. However, a message of
//! `sendmmsg` can name another interface than the socket's, and the sandbox cannot see that
//! interface.

use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use steerage::flow::wire::ethertype;
use steerage::{
    DeviceError, LinkType, Output,
    device::{Outgoing, Sent, TxCapabilities, TxQueue},
    limits::{HANDLE_BUDGET, SEGMENTS_MAX},
};

use super::interface::Interface;
use super::spec::Named;
use super::sys::Socket;
use super::{PERMISSION, SEND_BUFFER};
use crate::offloads::merged::{Header, Outcome, Output as Merging, Packets, Wire};
use crate::offloads::whole::Whole;
use crate::options::{self, SpecError, setters};
use crate::send_room::SendRoom;

#[cfg(test)]
mod tests;

/// The maximum number of parts of a packet: the frames of a merged batch, or the segments of a
/// packet, and in addition the headers and an offload header.
const PARTS_MAX: usize = if HANDLE_BUDGET > SEGMENTS_MAX { HANDLE_BUDGET + 2 } else { SEGMENTS_MAX + 2 };

/// The interface through which to send, and the options for sending.
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
    /// True if packets bypass the queueing discipline. A bypass saves CPU time. However, packets
    /// are dropped if the driver's ring is full, are not shaped, and are invisible to tcpdump.
    pub qdisc_bypass: bool,
    /// If true, super-frames are sent whole, and consecutive packets of a batch are merged into
    /// super-frames. If false, super-frames are split.
    pub offloads: bool,
}

impl FromStr for AfPacketOutput {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let Some(named) = Named::read(spec).filter(|named| !named.interface.is_empty()) else {
            return Err(SpecError::of("af_packet", "IFACE", spec, "is no interface: `ip link` lists those there are"));
        };
        let mut output = Self::new(named.interface);
        for item in options::read("af_packet", named.options)? {
            match item.option {
                "qdisc" => output.qdisc_bypass = item.one_of(&[("use", false), ("bypass", true)])?,
                "offload" => output.offloads = item.is_on()?,
                _ => return Err(item.wrong("does not exist for an output: there are qdisc, offload")),
            }
        }
        Ok(output)
    }
}

impl AfPacketOutput {
    /// Creates options for sending through the interface `name`, with default values.
    pub fn new(name: impl Into<String>) -> Self {
        Self { interface: name.into(), qdisc_bypass: false, offloads: false }
    }

    setters! {
        /// Sets whether packets bypass the queueing discipline. Default: no.
        qdisc_bypass: bool;
        /// Sets whether [super-frames](steerage::Packet::offload) are sent whole, and whether
        /// consecutive packets of a flow within a batch leave as one super-frame. Without this
        /// option, steerage splits super-frames. Default: no.
        offloads: bool;
    }

    /// Opens the sockets for sending.
    ///
    /// # Errors
    /// [`DeviceError`] if the interface does not exist, its type is not supported, or the process
    /// may not send through it.
    pub fn open(&self) -> Result<Output, DeviceError> {
        let new_socket = || Socket::new(false).map_err(|e| self.error("open a packet socket", e).advise(PERMISSION));
        let first = new_socket()?;
        let interface = Interface::read(&self.interface)?;
        if interface.cooked {
            let cause = io::Error::new(io::ErrorKind::Unsupported, "its type is not supported");
            let advice = "use the Ethernet or IP interface above or below it";
            return Err(self.error("send by the interface", cause).advise(advice));
        }
        // Open all sockets now: later the process may lack the permission, or be in another network
        // namespace.
        let mut sockets = Vec::new();
        if interface.link == LinkType::ETHERNET {
            sockets.push(Sockets::Link(Arc::new(self.ready(first, interface.index, 0)?)));
            for _ in 1..thread::available_parallelism().map_or(1, NonZero::get) {
                sockets.push(Sockets::Link(Arc::new(self.ready(new_socket()?, interface.index, 0)?)));
            }
        } else {
            // Two sockets (IPv4 and IPv6) serve all CPUs, because the kernel runs each socket's
            // filter for every packet that the interface receives.
            let second = new_socket()?;
            let v4 = self.ready(first, interface.index, ethertype::IPV4)?;
            let v6 = self.ready(second, interface.index, ethertype::IPV6)?;
            sockets.push(Sockets::Ip(Arc::new([v4, v6])));
        }
        let (name, gone, mut next) = (self.interface.clone(), Arc::new(AtomicBool::new(false)), 0);
        let (offloads, whole) = (self.offloads, Arc::new(Whole::new(true)));
        let open = Box::new(move |_cpu| {
            let send = Send {
                name: name.clone(),
                link: interface.link,
                sockets: Sockets::clone(&sockets[next]),
                whole: offloads.then(|| Arc::clone(&whole)),
                gone: Arc::clone(&gone),
            };
            // If the instance has more CPUs than the machine, several CPUs share a socket.
            next = (next + 1) % sockets.len();
            Ok(Box::new(send) as Box<dyn TxQueue>)
        });
        Ok(Output::new(crate::interface_name::following(&self.interface), "af_packet", open))
    }

    fn ready(&self, socket: Socket, interface: u32, protocol: u16) -> Result<Ready, DeviceError> {
        if self.qdisc_bypass {
            socket.bypass_qdisc().map_err(|e| self.error("bypass the queueing discipline", e))?;
        }
        if self.offloads {
            socket.tell_offloads().map_err(|e| self.error("send super-frames", e))?;
        }
        socket.set_send_buffer(SEND_BUFFER).map_err(|e| self.error("set the socket's buffer", e))?;
        socket.bind_to_send(interface, protocol).map_err(|e| self.error("bind to the interface", e))?;
        let room = SendRoom::of(&socket).map_err(|e| self.error("ask for the socket's buffer", e))?;
        Ok(Ready { socket, room })
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}

#[derive(Debug)]
struct Ready {
    socket: Socket,
    room: SendRoom,
}

#[derive(Clone, Debug)]
enum Sockets {
    Link(Arc<Ready>),
    /// One socket for IPv4 and one for IPv6, for packets that begin with an IP header.
    Ip(Arc<[Ready; 2]>),
}

#[derive(Debug)]
struct Send {
    name: String,
    link: LinkType,
    sockets: Sockets,
    /// The super-frames (frames that stand for many packets) that the kernel accepts. If `Some`,
    /// each packet is sent with a header in front that describes the packet's offload.
    whole: Option<Arc<Whole>>,
    gone: Arc<AtomicBool>,
}

impl Send {
    #[inline(never)]
    fn attempt_parts<'a>(&self, parts: impl Iterator<Item = &'a [u8]>, before: usize) -> Result<Attempt, DeviceError> {
        let (mut all, mut count): ([&[u8]; PARTS_MAX], _) = ([&[]; PARTS_MAX], 0);
        for (to, part) in all.iter_mut().zip(parts) {
            (*to, count) = (part, count + 1);
        }
        self.attempt(&all[..count], before)
    }

    /// `before` is the number of slices in front of the packet's own bytes.
    #[inline]
    fn attempt(&self, packet: &[&[u8]], before: usize) -> Result<Attempt, DeviceError> {
        let Ready { socket, room } = match &self.sockets {
            Sockets::Link(ready) => &**ready,
            Sockets::Ip(sockets) => {
                let version = packet.get(before).and_then(|part| part.first()).map(|first| first >> 4);
                &sockets[usize::from(version == Some(6))]
            }
        };
        let send = || socket.send::<PARTS_MAX>(packet);
        // A signal can interrupt the system call before the packet is sent.
        let sent = send().or_else(|error| if error.kind() == io::ErrorKind::Interrupted { send() } else { Err(error) });
        let Err(error) = sent else {
            room.spend(1, packet.iter().map(|part| part.len()).sum());
            return Ok(Attempt::Is(Outcome::Sent));
        };
        Ok(match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                room.is_spent();
                Attempt::NoRoom
            }
            // The queueing discipline or the driver dropped only this packet.
            Some(libc::ENOBUFS | libc::ENOMEM) => Attempt::Is(Outcome::Full),
            Some(libc::ENETDOWN) => Attempt::Is(Outcome::Refused),
            Some(libc::ENXIO | libc::ENODEV) => {
                // Relaxed suffices: exactly one CPU, no matter which, must report the deletion.
                if !self.gone.swap(true, Ordering::Relaxed) {
                    let cause = io::Error::new(error.kind(), "the interface was deleted");
                    return Err(DeviceError::new(self.name.clone(), "send by the interface", cause));
                }
                Attempt::Is(Outcome::Refused)
            }
            Some(libc::EMSGSIZE) => Attempt::Is(Outcome::TooLong),
            // The interface refuses the packet, for example because the packet is shorter than a
            // link header.
            _ => Attempt::Is(Outcome::Unfit),
        })
    }
}

enum Attempt {
    Is(Outcome),
    NoRoom,
}

impl TxQueue for Send {
    fn capabilities(&self) -> TxCapabilities {
        let mut can = TxCapabilities::default();
        can.merged = self.whole.is_some();
        can
    }

    /// Checks only the socket's buffer: the kernel does not report the room in the queueing
    /// discipline and the driver. Packets that the discipline or the driver drops are counted.
    fn has_room(&self) -> bool {
        let has_room = |ready: &Ready| ready.room.has_room(ready.socket.as_fd());
        match &self.sockets {
            Sockets::Link(ready) => has_room(ready),
            Sockets::Ip(pair) => pair.iter().all(has_room),
        }
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let packets: Packets<'_> = std::array::from_fn(|_| packets.next_packet());
        let mut sending = Sending { send: self, full: false, failed: None };
        let (name, link, whole) = (&*self.name, self.link, self.whole.as_deref());
        let sent = Merging { name, link, whole, wire: &mut sending, sent: Sent::default() }.send(&packets);
        sending.failed.map_or(Ok(sent), Err)
    }
}

struct Sending<'s> {
    send: &'s Send,
    full: bool,
    failed: Option<DeviceError>,
}

impl Wire for Sending<'_> {
    fn write<'a>(&mut self, header: &'a Header, parts: impl Iterator<Item = &'a [u8]>) -> Outcome {
        if self.full {
            return Outcome::Full;
        }
        if self.failed.is_some() {
            return Outcome::Refused;
        }
        let header = self.send.whole.as_ref().map(|_| &header[..]);
        let before = usize::from(header.is_some());
        let mut parts = header.into_iter().chain(parts);
        let one = parts.next().unwrap_or_default();
        let attempt = match parts.next() {
            None => self.send.attempt(&[one], before),
            Some(two) => self.send.attempt_parts([one, two].into_iter().chain(parts), before),
        };
        match attempt {
            Ok(Attempt::Is(outcome)) => outcome,
            Ok(Attempt::NoRoom) => {
                self.full = true;
                Outcome::Full
            }
            Err(error) => {
                self.failed = Some(error);
                Outcome::Refused
            }
        }
    }
}
