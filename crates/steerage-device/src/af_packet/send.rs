//! Sends through an interface with packet sockets, 64 packets per system call. docs/outputs.md is
//! the user's guide.

use std::io;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use steerage::{
    DeviceError, LinkType, Output,
    device::{Outgoing, OutgoingPacket, Sent, TxQueue},
    flow::offload::VIRTIO_BYTES,
    limits::{HANDLE_BUDGET, SEGMENTS_MAX},
    packet::Received,
};

use super::interface::Interface;
use super::spec::Named;
use super::sys::{IpAddresses, Socket};
use super::{PERMISSION, SEND_BUFFER};
use crate::offloads::merged::{Header, Outcome, Output as Merging, Packets, Wire, count, headers, sendable};
use crate::offloads::whole::Whole;
use crate::options;
use crate::options::{SpecError, setters};

#[cfg(test)]
mod tests;

/// The most parts of packets per system call. This is room for a batch of short packets, followed
/// by one long packet.
const PARTS_MAX: usize = 2 * HANDLE_BUDGET + 1 + SEGMENTS_MAX;

/// The interface to send by, and the options for it.
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
    /// Whether packets bypass the queueing discipline. That is cheaper, but packets that find the
    /// driver's ring full are dropped at once, nothing is shaped, and packet sockets (tcpdump) do
    /// not see the packets.
    pub qdisc_bypass: bool,
    /// Whether super-frames are sent in one piece, and consecutive packets of a batch are merged
    /// into super-frames. Otherwise super-frames are cut.
    pub offloads: bool,
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
            match option {
                "qdisc" => {
                    output.qdisc_bypass =
                        options::one_of("af_packet", option, value, &[("use", false), ("bypass", true)])?;
                }
                "offload" => {
                    output.offloads = options::one_of("af_packet", option, value, &[("on", true), ("off", false)])?;
                }
                _ => {
                    return Err(SpecError::of(
                        "af_packet",
                        option,
                        value,
                        "does not exist for an output: there are qdisc, offload",
                    ));
                }
            }
        }
        Ok(output)
    }
}

impl AfPacketOutput {
    /// Sends through the interface `name`, with the default of each option.
    pub fn new(name: impl Into<String>) -> Self {
        Self { interface: name.into(), qdisc_bypass: false, offloads: false }
    }

    setters! {
        /// Whether packets bypass the queueing discipline: see the field. Default: no.
        qdisc_bypass: bool;
        /// Whether [super-frames](steerage::Packet::offload) are sent in one piece, and consecutive
        /// packets of a flow within a batch leave as one. If the interface cannot cut them, the
        /// kernel does. Without this option, steerage cuts them. Default: no.
        offloads: bool;
    }

    /// Prepares sending.
    ///
    /// # Errors
    /// [`DeviceError`] if the interface does not exist, its type is not supported, or the process
    /// may not send by it.
    pub fn open(&self) -> Result<Output, DeviceError> {
        let first = Socket::new(false).map_err(|e| self.error("open a packet socket", e).advise(PERMISSION))?;
        let interface = Interface::look(&self.interface, &first)?;
        if interface.cooked {
            let cause = io::Error::new(io::ErrorKind::Unsupported, "its type is not supported");
            let advice = "use the Ethernet or IP interface above or below it";
            return Err(self.error("send by the interface", cause).advise(advice));
        }
        // Make a socket for each CPU now. Later, the process may lack the permission or be in
        // another namespace.
        let mut sockets = vec![Arc::new(first)];
        for _ in 1..thread::available_parallelism().map_or(1, NonZero::get) {
            let socket = Socket::new(false).map_err(|e| self.error("open a packet socket", e).advise(PERMISSION))?;
            sockets.push(Arc::new(socket));
        }
        sockets.iter().try_for_each(|socket| self.make_ready(socket, interface.index))?;
        let (name, gone, mut next) = (self.interface.clone(), Arc::new(AtomicBool::new(false)), 0);
        let (offloads, whole) = (self.offloads, Arc::new(Whole::new(true)));
        let open = Box::new(move |_cpu| {
            let send = Send {
                name: name.clone(),
                link: interface.link,
                addresses: (interface.link != LinkType::ETHERNET).then(|| IpAddresses::of(interface.index)),
                socket: Arc::clone(&sockets[next]),
                whole: offloads.then(|| Arc::clone(&whole)),
                gone: Arc::clone(&gone),
            };
            // CPUs in excess of the machine's CPUs share sockets.
            next = (next + 1) % sockets.len();
            Ok(Box::new(send) as Box<dyn TxQueue>)
        });
        Ok(Output::new(crate::interface_name::following(&self.interface), "af_packet", open))
    }

    fn make_ready(&self, socket: &Socket, interface: u32) -> Result<(), DeviceError> {
        if self.qdisc_bypass {
            socket.bypass_qdisc().map_err(|e| self.error("bypass the queueing discipline", e))?;
        }
        if self.offloads {
            socket.tell_offloads().map_err(|e| self.error("send super-frames", e))?;
        }
        socket.set_send_buffer(SEND_BUFFER).map_err(|e| self.error("set the socket's buffer", e))?;
        socket.bind_to_send(interface).map_err(|e| self.error("bind to the interface", e))
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}

/// The sending side of one CPU.
#[derive(Debug)]
struct Send {
    name: String,
    link: LinkType,
    /// The addresses for packets without a link header.
    addresses: Option<IpAddresses>,
    socket: Arc<Socket>,
    /// Set if each packet needs a header with its offload: the super-frames that the kernel takes.
    whole: Option<Arc<Whole>>,
    /// Whether the interface was deleted and one of the CPUs has reported that.
    gone: Arc<AtomicBool>,
}

impl Send {
    /// Sends packets with one system call.
    fn attempt(&self, packets: &[PacketParts<'_>], again: bool) -> Result<Attempt, DeviceError> {
        let error = match self.socket.send_many::<HANDLE_BUDGET, PARTS_MAX>(
            packets,
            self.addresses.as_ref().map(|to| (to, usize::from(self.whole.is_some()))),
        ) {
            Ok(left) => return Ok(Attempt::Sent(left)),
            Err(error) => error,
        };
        Ok(match error.raw_os_error() {
            // The socket's send buffer is full.
            Some(libc::EAGAIN) => Attempt::Full,
            // The queueing discipline or the driver dropped the first packet. The next one may find
            // room.
            Some(libc::ENOBUFS | libc::ENOMEM) => Attempt::FirstDropped,
            Some(libc::EINTR) if again => return self.attempt(packets, false),
            Some(libc::ENETDOWN) => Attempt::AllRefused,
            Some(libc::ENXIO | libc::ENODEV) => {
                // Relaxed: exactly one CPU reports the deletion, and it does not matter which.
                if !self.gone.swap(true, Ordering::Relaxed) {
                    let cause = io::Error::new(error.kind(), "the interface was deleted");
                    return Err(DeviceError::new(self.name.clone(), "send by the interface", cause));
                }
                Attempt::AllRefused
            }
            // The first packet is longer than the MTU.
            Some(libc::EMSGSIZE) => Attempt::FirstRefused(Outcome::TooLong),
            // The first packet does not suit this interface. It may be shorter than a header.
            _ => Attempt::FirstRefused(Outcome::Unfit),
        })
    }

    /// Like [`attempt`](Self::attempt), but an error goes to `failed`, and nothing is sent after one.
    fn unless_failed(&self, packets: &[PacketParts<'_>], failed: &mut Option<DeviceError>) -> Attempt {
        if failed.is_some() {
            return Attempt::AllRefused;
        }
        self.attempt(packets, true).unwrap_or_else(|error| {
            *failed = Some(error);
            Attempt::AllRefused
        })
    }

    fn send_all(&self, mut rest: &[PacketParts<'_>], sent: &mut Sent, failed: &mut Option<DeviceError>) {
        let before = if self.whole.is_some() { VIRTIO_BYTES } else { 0 };
        while !rest.is_empty() {
            let left = match self.unless_failed(rest, failed) {
                Attempt::Sent(left) => left,
                Attempt::Full => return,
                Attempt::FirstDropped => 0,
                Attempt::FirstRefused(outcome) => {
                    count(sent, outcome, 1, 0);
                    0
                }
                Attempt::AllRefused => return count(sent, Outcome::Refused, rest.len() as u64, 0),
            };
            let bytes = |packet: &PacketParts<'_>| packet.iter().map(|part| part.len()).sum::<usize>() - before;
            count(sent, Outcome::Sent, left as u64, rest[..left].iter().map(bytes).sum());
            rest = &rest[left.max(1)..];
        }
    }
}

/// The outcome of a system call that sends packets.
enum Attempt {
    /// This many packets left.
    Sent(usize),
    /// No packet left, because there was no room.
    Full,
    FirstDropped,
    FirstRefused(Outcome),
    AllRefused,
}

impl TxQueue for Send {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let packets: Packets<'_> = std::array::from_fn(|_| packets.next_packet());
        let headers = headers(&packets);
        let mut sending = Sending { send: self, list: List::default(), sent: Sent::default(), failed: None };
        let output = Merging { name: &self.name, link: self.link, whole: self.whole.as_deref() };
        output.send(&mut sending, &packets, &headers);
        sending.failed.map_or(Ok(sending.sent), Err)
    }
}

/// A batch that is being sent.
struct Sending<'s, 'p> {
    send: &'s Send,
    /// The packets for the next system call.
    list: List<'p>,
    sent: Sent,
    failed: Option<DeviceError>,
}

impl Sending<'_, '_> {
    /// Sends with one system call.
    fn attempt(&mut self, packets: &[PacketParts<'_>]) -> Attempt {
        let Self { send, failed, .. } = self;
        send.unless_failed(packets, failed)
    }
}

impl<'p> Wire<'p> for Sending<'_, 'p> {
    fn takes(&self, received: &Received<'_>) -> Result<(), Outcome> {
        let has_link_type = match received.link {
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => {
                self.send.link == LinkType::RAW
            }
            link => link == self.send.link,
        };
        sendable(received, has_link_type)
    }

    fn write<'a>(&mut self, header: &'a Header, parts: impl Iterator<Item = &'a [u8]>) -> Outcome {
        // Earlier packets of the flow may be on the list.
        self.flush();
        let header = self.send.whole.as_ref().map(|_| &header[..]);
        let (mut all, mut count): ([&[u8]; PARTS_MAX], _) = ([&[]; PARTS_MAX], 0);
        all.iter_mut()
            .zip(header.into_iter().chain(parts))
            .for_each(|(place, part)| (*place, count) = (part, count + 1));
        match self.attempt(&[&all[..count]]) {
            Attempt::Sent(_) => Outcome::Sent,
            Attempt::Full | Attempt::FirstDropped => Outcome::Full,
            Attempt::FirstRefused(outcome) => outcome,
            Attempt::AllRefused => Outcome::Refused,
        }
    }

    fn queue(&mut self, packet: &'p OutgoingPacket<'p>, header: &'p Header) {
        if !self.list.has_room() {
            self.flush();
        }
        self.list.push(packet, self.send.whole.as_ref().map(|_| &header[..]));
    }

    fn flush(&mut self) {
        let Self { send, list, sent, failed } = self;
        if list.count > 0 {
            send.send_all(&list.packets()[..list.count], sent, failed);
            (list.count, list.ends[0]) = (0, 0);
        }
    }

    fn sent(&mut self) -> &mut Sent {
        &mut self.sent
    }
}

/// The bytes of a packet, as its pages hold them.
type PacketParts<'p> = &'p [&'p [u8]];

/// Packets for one system call.
#[derive(Debug)]
struct List<'p> {
    parts: [&'p [u8]; PARTS_MAX],
    /// The index after each packet's last part.
    ends: [usize; HANDLE_BUDGET],
    count: usize,
}

impl Default for List<'_> {
    fn default() -> Self {
        Self { parts: [&[]; PARTS_MAX], ends: [0; HANDLE_BUDGET], count: 0 }
    }
}

impl<'p> List<'p> {
    /// The index of the `nth` packet's first part.
    fn start(&self, nth: usize) -> usize {
        nth.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Whether the list has room for one more packet of any kind. A batch never has more packets
    /// than `ends` has places.
    fn has_room(&self) -> bool {
        self.start(self.count) + 1 + SEGMENTS_MAX <= PARTS_MAX
    }

    /// Adds a packet. If the socket expects a header before each packet, the header goes first.
    fn push(&mut self, packet: &'p OutgoingPacket<'_>, header: Option<&'p [u8]>) {
        let first = self.start(self.count);
        let mut end = first;
        for (place, part) in self.parts[first..].iter_mut().zip(header.into_iter().chain(packet.segments())) {
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
