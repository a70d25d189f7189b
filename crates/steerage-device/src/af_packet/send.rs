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
    flow::offload::{MERGED_MAX, Merged, Offload, Segments, VIRTIO_BYTES, coalesce},
    limits::{HANDLE_BUDGET, SEGMENTS_MAX},
    packet::Received,
};

use super::interface::Interface;
use super::spec::Named;
use super::sys::{IpAddresses, Socket};
use super::{PERMISSION, SEND_BUFFER};
use crate::options;
use crate::options::{SpecError, setters};

#[cfg(test)]
mod tests;

/// The most parts of packets per system call. This is room for a batch of short packets, followed
/// by one long packet.
const PARTS_MAX: usize = 2 * HANDLE_BUDGET + 1 + SEGMENTS_MAX;

const _: () = assert!(HANDLE_BUDGET <= MERGED_MAX);

/// The header of a packet that needs no more work.
static NOTHING_LEFT: [u8; VIRTIO_BYTES] = [0; VIRTIO_BYTES];

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
        let (offloads, whole) = (self.offloads, Arc::new(AtomicBool::new(true)));
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
    /// Set if each packet needs a header with its offload. The value is true until the kernel
    /// refuses a super-frame, and from then on they are cut.
    whole: Option<Arc<AtomicBool>>,
    /// Whether the interface was deleted and one of the CPUs has reported that.
    gone: Arc<AtomicBool>,
}

impl Send {
    /// Whether the interface takes this kind of packet. A packet that a capture has cut is
    /// incomplete, so it is not sent.
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
        let before = if self.whole.is_some() { VIRTIO_BYTES } else { 0 };
        while !rest.is_empty() {
            let (left, refused) = match self.attempt(rest, true)? {
                Attempt::Sent(left) => (left, 0),
                Attempt::Full => return Ok(()),
                Attempt::FirstDropped => (0, 0),
                Attempt::FirstRefused => (0, 1),
                Attempt::AllRefused => {
                    sent.refused += rest.len() as u64;
                    return Ok(());
                }
            };
            sent.packets += left as u64;
            sent.refused += refused;
            let bytes = |packet: &PacketParts<'_>| packet.iter().map(|part| part.len()).sum::<usize>() - before;
            sent.bytes += rest[..left].iter().map(|packet| bytes(packet) as u64).sum::<u64>();
            rest = &rest[left.max(1)..];
        }
        Ok(())
    }

    /// Sends the packets on the list.
    fn flush(&self, list: &mut List<'_>, sent: &mut Sent) -> Result<(), DeviceError> {
        if list.count > 0 {
            self.send_all(&list.packets()[..list.count], sent)?;
            (list.count, list.ends[0]) = (0, 0);
        }
        Ok(())
    }

    /// Sends packets with one system call.
    fn attempt(&self, packets: &[PacketParts<'_>], again: bool) -> Result<Attempt, DeviceError> {
        let error = match self.socket.send_many::<HANDLE_BUDGET, PARTS_MAX>(packets, self.addresses.as_ref()) {
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
            // The packet does not suit this interface: it is longer than the MTU, or shorter than a
            // header.
            _ => Attempt::FirstRefused,
        })
    }

    /// Merges the packets of a batch, and sends the results and the batch's super-frames.
    fn send_whole(
        &self,
        outgoing: &[Option<OutgoingPacket<'_>>],
        whole: &AtomicBool,
        sent: &mut Sent,
    ) -> Result<(), DeviceError> {
        // Relaxed: if this CPU sees another CPU's store late, the kernel refuses one more
        // super-frame.
        let merges = whole.load(Ordering::Relaxed);
        let received: [Option<Received<'_>>; HANDLE_BUDGET] =
            std::array::from_fn(|nth| outgoing[nth].as_ref().map(OutgoingPacket::received));
        let batch: [Option<(&[u8], Option<Offload>)>; HANDLE_BUDGET] = std::array::from_fn(|nth| {
            let (packet, received) = (outgoing[nth].as_ref()?, received[nth].as_ref()?);
            let offload = packet.offload();
            let is_one =
                !offload.as_ref().is_some_and(Offload::is_super_frame) && received.data.len() == received.total_len;
            (merges && is_one && self.takes(packet)).then_some((received.data, offload))
        });
        // The header that precedes each packet on the list.
        let told: [[u8; VIRTIO_BYTES]; HANDLE_BUDGET] = std::array::from_fn(|nth| {
            let offload = outgoing[nth].as_ref().and_then(OutgoingPacket::offload);
            offload
                .filter(|offload| !offload.is_super_frame())
                .and_then(|one| one.to_virtio(false))
                .unwrap_or(NOTHING_LEFT)
        });
        let count = outgoing.iter().flatten().count();
        let (mut list, mut result) = (List::default(), Ok(()));
        coalesce(&batch[..count], self.link, |merged| {
            if result.is_ok() {
                result = self.send_run(&merged, (outgoing, &told[..]), &batch, (whole, &mut list), sent);
            }
        });
        result?;
        self.send_all(&list.packets()[..list.count], sent)
    }

    /// Sends packets that were merged. A packet that was not merged goes on the list.
    fn send_run<'p>(
        &self,
        merged: &Merged<'_>,
        (outgoing, told): (&'p [Option<OutgoingPacket<'p>>], &'p [[u8; VIRTIO_BYTES]]),
        batch: &[Option<(&[u8], Option<Offload>)>],
        (whole, list): (&AtomicBool, &mut List<'p>),
        sent: &mut Sent,
    ) -> Result<(), DeviceError> {
        if let Some((header, offload)) = &merged.frame {
            // Send the list first, because earlier packets of the flow may be on it.
            self.flush(list, sent)?;
            let members = || merged.positions().filter_map(|nth| batch[nth]).map(|(packet, _)| packet);
            let told = offload.to_virtio(merged.is_v4).unwrap_or_default();
            let parts = [&told[..], *header].into_iter().chain(members().map(|packet| &packet[header.len()..]));
            let (packets, bytes) = members().fold((0, 0), |(packets, bytes), one| (packets + 1, bytes + one.len()));
            if self.send_super_frame(parts, (packets, bytes), whole, sent)? {
                return Ok(());
            }
        }
        for nth in merged.positions() {
            let Some(packet) = &outgoing[nth] else { continue };
            self.send_or_list(packet, Some((whole, &told[nth])), list, sent)?;
        }
        Ok(())
    }

    /// Puts a packet on the list, or sends it if it has an offload.
    fn send_or_list<'p>(
        &self,
        packet: &'p OutgoingPacket<'p>,
        whole: Option<(&AtomicBool, &'p [u8; VIRTIO_BYTES])>,
        list: &mut List<'p>,
        sent: &mut Sent,
    ) -> Result<(), DeviceError> {
        if !self.takes(packet) {
            sent.refused += 1;
            return Ok(());
        }
        let offload = packet.offload().filter(|offload| offload.is_super_frame() || whole.is_none());
        let Some(offload) = offload else {
            if !list.has_room() {
                self.flush(list, sent)?;
            }
            list.push(packet, whole.map(|(_, told)| &told[..]));
            return Ok(());
        };
        self.flush(list, sent)?;
        let received = packet.received();
        let is_v4 = received.data.get(offload.network_at()).is_some_and(|first| first >> 4 == 4);
        // Relaxed: as in `send_whole`.
        let taken = whole.map(|(whole, _)| whole).filter(|whole| whole.load(Ordering::Relaxed));
        if let Some((whole, told)) = taken.and_then(|whole| Some((whole, offload.to_virtio(is_v4)?))) {
            let parts = std::iter::once(&told[..]).chain(packet.segments());
            if self.send_super_frame(parts, (1, received.total_len), whole, sent)? {
                return Ok(());
            }
        }
        self.cut(packet, &offload, sent)
    }

    /// Sends packets in one piece. Returns false if the kernel refuses that, and they must be sent
    /// one by one.
    fn send_super_frame<'p>(
        &self,
        parts: impl Iterator<Item = &'p [u8]>,
        (packets, bytes): (u64, usize),
        whole: &AtomicBool,
        sent: &mut Sent,
    ) -> Result<bool, DeviceError> {
        let (mut all, mut count): ([&[u8]; PARTS_MAX], _) = ([&[]; PARTS_MAX], 0);
        all.iter_mut().zip(parts).for_each(|(place, part)| (*place, count) = (part, count + 1));
        match self.attempt(&[&all[..count]], true)? {
            Attempt::Sent(_) => {
                sent.packets += packets;
                sent.bytes += bytes as u64;
            }
            Attempt::Full | Attempt::FirstDropped => {}
            Attempt::AllRefused => sent.refused += packets,
            Attempt::FirstRefused => {
                // Relaxed: it does not matter which CPU writes the warning.
                if whole.swap(false, Ordering::Relaxed) {
                    tracing::warn!(device = %self.name, "the kernel refuses super-frames: they are cut from now on");
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends the packets of a super-frame one by one. The super-frame counts as sent if all of them
    /// were.
    #[cold]
    fn cut(&self, packet: &OutgoingPacket<'_>, offload: &Offload, sent: &mut Sent) -> Result<(), DeviceError> {
        let mut segments = packet.segments();
        let first = segments.next().unwrap_or_default();
        let (front, behind) = match segments.next() {
            Some(behind) => (first, behind),
            None => first.split_at(offload.header_bytes().min(first.len())),
        };
        for part in Segments::new(offload, front, behind) {
            let parts = [&NOTHING_LEFT[..], part.header(), part.payload()];
            let parts = if self.whole.is_some() { &parts[..] } else { &parts[1..] };
            match self.attempt(&[parts], true)? {
                Attempt::Sent(_) => {}
                Attempt::Full | Attempt::FirstDropped => return Ok(()),
                Attempt::FirstRefused | Attempt::AllRefused => {
                    sent.refused += 1;
                    return Ok(());
                }
            }
        }
        sent.packets += 1;
        sent.bytes += packet.received().total_len as u64;
        Ok(())
    }
}

/// The outcome of a system call that sends packets.
enum Attempt {
    /// This many packets left.
    Sent(usize),
    /// No packet left, because there was no room.
    Full,
    FirstDropped,
    FirstRefused,
    AllRefused,
}

impl TxQueue for Send {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        // A batch is never longer than this.
        let outgoing: [_; HANDLE_BUDGET] = std::array::from_fn(|_| packets.next_packet());
        if let Some(whole) = &self.whole {
            self.send_whole(&outgoing, whole, &mut sent)?;
            return Ok(sent);
        }
        let mut list = List::default();
        for packet in outgoing.iter().flatten() {
            self.send_or_list(packet, None, &mut list, &mut sent)?;
        }
        self.send_all(&list.packets()[..list.count], &mut sent)?;
        Ok(sent)
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
