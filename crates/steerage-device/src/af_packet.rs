//! Receives from live interfaces with AF_PACKET. The device only listens: the kernel still gets all
//! packets. The user's guide is docs/interfaces.md.
//!
//! Each queue is a socket with a TPACKET_V3 ring. The kernel copies each frame into a block of the
//! ring, and passes the block to the process when the block is full or its timeout expires.
//! Handlers read the frames directly in the ring ("lent" frames). A
//! [`FrameHeader`](steerage::device::FrameHeader) precedes each frame. With PACKET_FANOUT, several
//! sockets share an interface. Frames that the kernel drops because the ring is full are counted as
//! [lost](steerage::device::Completions::lost).
//!
//! The kernel fills the blocks of a ring in turn, and stops at the first block that was not
//! returned. If a block is not returned for too long, a copy replaces the block, and the kernel
//! gets the block back, so that a slow handler cannot stop the ring: see `af_packet/ring.rs`.
//!
//! Each socket is set up in the same order as in libpcap, so that it never receives an unwanted
//! frame: create a socket without a protocol, create its ring, attach a filter that accepts no
//! frame, bind to the interface, join the fanout group, and attach the real filter.

mod interface;
mod program;
mod queue;
mod ring;
mod send;
mod spec;
#[allow(unsafe_code)]
mod sys;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

#[cfg(feature = "capture")]
use steerage::LinkType;
use steerage::{DeviceError, Input, device::RxQueue};

use crate::device_hash::{self, DeviceHash};
use crate::interface_name;
use crate::options::setters;
use interface::Interface;
use queue::Queue;
use ring::Ring;
#[cfg(feature = "capture")]
use steerage_capture::filter::{Filter, FilterError};
use steerage_netlink::Rtnetlink;
use steerage_netlink::ethtool::Ethtool;
use sys::{Memory, Shape, Socket};

pub use send::AfPacketOutput;
pub use spec::Named;

/// The default size of a ring in bytes: room for the frames of 0.2 s at a million small frames per
/// second.
pub const BUFFER_DEFAULT: usize = 32 << 20;

/// The minimum size of a ring in bytes: while one block is rescued (copied), the kernel can fill
/// other blocks.
pub const BUFFER_MIN: usize = BLOCKS_MIN * BLOCK_BYTES_MIN;

/// The maximum size of a ring in bytes. The kernel counts the bytes of a ring in 32 bits, and never
/// swaps a ring out.
pub const BUFFER_MAX: usize = 2 << 30;

/// The default block timeout, after which the kernel passes on a block that is not full. 10 ms is
/// short enough for counting and metering, and a hundred wake-ups per second cost little.
pub const BLOCK_TIMEOUT_DEFAULT: Duration = Duration::from_millis(10);

/// The longest block timeout. With a longer timeout, users might think that no frames arrive.
pub const BLOCK_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// The maximum number of sockets per interface: the kernel's default limit (`PACKET_FANOUT_MAX`).
pub const QUEUES_MAX: usize = 256;

/// The longest frame in bytes: tcpdump's maximum, more than any frame that receive offload creates.
pub const SNAPLEN_MAX: usize = 262_144;

/// The largest block, in bytes. A frame of [`SNAPLEN_MAX`] bytes fits into a block of this size.
const BLOCK_BYTES_MAX: usize = 512 << 10;
/// The smallest block, in bytes. Frames merged by receive offload are up to 64 KiB long.
const BLOCK_BYTES_MIN: usize = 128 << 10;
/// The number of blocks in a large ring. A ring is full when all its blocks are lent or wait for
/// their timeout.
const BLOCKS: usize = 64;
const BLOCKS_MIN: usize = 4;
/// The number of units that a full block counts as. The limit on the memory that is lent to a CPU
/// is a number of units (see [`Blocks::shared`](steerage::device::Blocks::shared)). A block that is
/// only partly filled counts as fewer units. With the default ring, a unit has 64 KiB, the size of
/// a super-frame.
const BLOCK_UNITS: usize = 8;

/// The bytes that a sending socket may have in flight, as the kernel counts them: about 1800 frames
/// of 1500 bytes. The kernel's default send buffer suffices for 90 frames of 1500 bytes.
const SEND_BUFFER: i32 = 4 << 20;

/// The bytes before each frame that the kernel leaves free, for steerage's header and a VLAN tag.
const RESERVE_BYTES: u32 = 8;

/// The length of every page in bytes. Handlers cannot keep or change frames that are longer than a
/// page.
const COPY_BYTES_MAX: usize = 9_728;

const _: () = assert!(BLOCK_BYTES_MAX >= SNAPLEN_MAX + 4096 && BLOCK_BYTES_MIN >= (64 << 10) + 4096);
const _: () = assert!(BLOCK_BYTES_MIN.is_power_of_two() && BLOCK_BYTES_MAX.is_power_of_two());

const PERMISSION: &str = "it takes CAP_NET_RAW: run it with sudo, or once: sudo setcap cap_net_raw+ep PROGRAM";

/// The direction of the frames to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Frames that the interface receives.
    In,
    /// Frames that this machine sends through the interface.
    Out,
    /// Both directions. On the loopback interface, where each frame is both sent and received, the
    /// device delivers only the received frames.
    #[default]
    InOut,
}

/// The interface to listen to, and the options for listening.
///
/// ```no_run
/// use steerage_device::af_packet::{AfPacketOptions, Direction};
///
/// let listening = AfPacketOptions::new("eth0").queues(4).buffer(8 << 20).direction(Direction::In).open()?;
/// listening.notes.iter().for_each(|note| println!("{note}"));
/// # Ok::<(), steerage::DeviceError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AfPacketOptions {
    /// The interface's name.
    pub interface: String,
    /// The number of queues (sockets) that share the interface's frames by flow.
    pub queues: usize,
    /// The size of each socket's ring, in bytes.
    pub buffer: usize,
    /// The block timeout, in whole milliseconds.
    pub block_timeout: Duration,
    /// If true, frames for other machines are received too.
    pub promiscuous: bool,
    /// The direction of the frames to receive.
    pub direction: Direction,
    /// The length to which each frame is cut. `None` if frames are not cut.
    pub snaplen: Option<usize>,
    /// The filter that the kernel applies, if any. Requires the cargo feature `capture`.
    #[cfg(feature = "capture")]
    pub filter: Option<Filter>,
    /// States when to use the hash that the kernel reports. The kernel's hash may send packets of
    /// the same flow to different CPUs (docs/interfaces.md lists these packets).
    pub device_hash: DeviceHash,
    /// If true, the device computes checksums that the sender left to a network card, as forwarding
    /// needs. With this option, merged datagrams, which the device cannot split, are lost.
    pub finish_checksums: bool,
    /// If true, super-frames are delivered whole, with unfinished checksums.
    pub offloads: bool,
    /// If true, a frame that the network card stamps has the time of the card's clock.
    pub card_time: bool,
}

/// An interface that is open for listening.
#[derive(Debug)]
#[non_exhaustive]
pub struct AfPacket {
    /// The device that was opened.
    pub input: Input,
    /// Hints for the user, one line each.
    pub notes: Vec<String>,
}

impl AfPacketOptions {
    /// Creates options to listen to `interface`, with default values.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queues: 1,
            buffer: BUFFER_DEFAULT,
            block_timeout: BLOCK_TIMEOUT_DEFAULT,
            promiscuous: true,
            direction: Direction::default(),
            snaplen: None,
            #[cfg(feature = "capture")]
            filter: None,
            device_hash: DeviceHash::Never,
            finish_checksums: false,
            offloads: false,
            card_time: false,
        }
    }

    setters! {
        /// The number of sockets that share the frames by flow, 1 to [`QUEUES_MAX`]. Default: 1.
        queues: usize;
        /// The size of each socket's ring in bytes, [`BUFFER_MIN`] to [`BUFFER_MAX`]. Default:
        /// [`BUFFER_DEFAULT`].
        buffer: usize;
        /// The block timeout, in whole milliseconds: at most [`BLOCK_TIMEOUT_MAX`]. Default:
        /// [`BLOCK_TIMEOUT_DEFAULT`].
        block_timeout: Duration;
        /// Sets whether frames for other machines are received too. Default: yes.
        promiscuous: bool;
        /// The direction of the frames to receive. Default: both directions.
        direction: Direction;
        /// Cuts each frame to this many bytes, 1 to [`SNAPLEN_MAX`]. Default: frames are not cut.
        snaplen: usize => Some;
        /// Makes the kernel drop frames that do not match the filter. Default: no filter.
        /// [`filtered`](Self::filtered) takes a filter in text form.
        #[cfg(feature = "capture")]
        filter: Filter => Some;
        /// Sets when steerage uses the hash that the kernel reports. Default: never. With
        /// [`DeviceHash::IfSafe`], steerage ignores the hash of a network card, because a card may
        /// hash the fragments of a datagram differently.
        device_hash: DeviceHash;
        /// Sets whether steerage computes checksums that a sender left to a card. Default: no.
        finish_checksums: bool;
        /// Sets whether merged packets (GRO) and packets that are not segmented yet (TSO, USO) are
        /// received as [super-frames](steerage::Packet::offload) with unfinished checksums, for
        /// programs that forward packets through interfaces. Default: no.
        offloads: bool;
        /// Sets whether frames that the card stamps have the card's time of reception. Time
        /// stamping must be switched on in the card (`hwstamp_ctl`). Default: no.
        card_time: bool;
    }

    /// Makes the kernel drop frames that do not match `text`, which is a tcpdump expression or the
    /// numbers that `tcpdump -ddd` prints. [`Filter::compile`] has the details.
    ///
    /// For an expression, this function runs `tcpdump` as a child process. Call the function before
    /// you [drop privileges](https://docs.rs/steerage-guard) and before you start threads.
    ///
    /// # Errors
    /// [`FilterError`] if the text is not a filter, or if `tcpdump` is missing.
    ///
    /// ```no_run
    /// use steerage_device::af_packet::AfPacketOptions;
    ///
    /// let input = AfPacketOptions::new("eth0").filtered("not port 22")?.open()?.input;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "capture")]
    pub fn filtered(self, text: &str) -> Result<Self, FilterError> {
        let filter = Filter::compile(text, Some(&self.interface), self.link())?;
        Ok(self.filter(filter))
    }

    #[cfg(feature = "capture")]
    pub(crate) fn link(&self) -> LinkType {
        Interface::read(&self.interface).map_or(LinkType::ETHERNET, |interface| interface.link)
    }

    /// Starts to listen. The first poll also delivers frames that arrived between this call and the
    /// poll.
    ///
    /// # Errors
    /// [`DeviceError`] if the interface does not exist, its type is not supported, the process may
    /// not listen to it, or there is no memory for its ring.
    pub fn open(&self) -> Result<AfPacket, DeviceError> {
        let new_socket =
            |cooked| Socket::new(cooked).map_err(|e| self.error("open a packet socket", e).advise(PERMISSION));
        let first = new_socket(false)?;
        let interface = Interface::read(&self.interface)?;
        #[cfg(feature = "capture")]
        let filter = self.filter.as_ref().map(program::of_filter);
        #[cfg(not(feature = "capture"))]
        let filter = None;
        if interface.cooked && filter.is_some() {
            let cause = io::Error::from(io::ErrorKind::Unsupported);
            return Err(self
                .error("filter frames with a link header of their own", cause)
                .advise("leave the filter out"));
        }
        let hashed_by = device_hash::hashed_by(&self.interface, self.device_hash);
        let direction = self.direction_on(&interface);
        let hash = self.device_hash.of_af_packet(hashed_by, direction == Direction::In);
        let offloads = (self.finish_checksums || self.offloads) && !interface.cooked;
        let shape = Shape { offloads, hash: hash.is_some(), ..self.shape()? };
        let mut sockets = Vec::new();
        if !interface.cooked {
            sockets.push(first);
        }
        let queues = self.queues.clamp(1, QUEUES_MAX);
        while sockets.len() < queues {
            sockets.push(new_socket(interface.cooked)?);
        }
        let mut rings = Vec::with_capacity(queues);
        let mut group = None;
        for socket in &sockets {
            rings.push(self.listen(socket, &interface, shape, &mut group)?);
        }
        let snaplen = self.snaplen.map(|bytes| bytes.clamp(1, SNAPLEN_MAX) as u32);
        let program = program::program(direction, filter, snaplen);
        let mut inputs: Vec<Box<dyn RxQueue>> = Vec::with_capacity(queues);
        for (socket, ring) in sockets.into_iter().zip(rings) {
            match &program {
                Some(program) => socket.attach(program),
                None => socket.detach(),
            }
            .map_err(|e| self.error("attach the filter", e))?;
            let queue = Queue::new(self, interface.clone(), hash, socket, ring);
            inputs.push(Box::new(queue.map_err(|e| self.error("make an epoll", e))?));
        }
        let input = Input::new(interface_name::following(&self.interface), "af_packet", inputs);
        let mut notes = interface.notes(self.offloads);
        if self.device_hash == DeviceHash::Always {
            notes.extend(device_hash::note(&self.interface, hashed_by));
        }
        if self.card_time {
            notes.extend(self.note_on_time());
        }
        Ok(AfPacket { input, notes })
    }

    /// Returns a message for the user if the network card cannot stamp frames. Frames of a virtual
    /// interface may have the time of the physical card that received them, so virtual interfaces
    /// get no message.
    fn note_on_time(&self) -> Option<String> {
        let (_, has_card) = crate::sys::driver(&self.interface).ok()?;
        let stamped = Ethtool::open().and_then(|mut ethtool| ethtool.stamped_frames(&self.interface)).ok()?;
        let name = &self.interface;
        (has_card && stamped.is_empty())
            .then(|| format!("{name}: its card stamps no frames: they have the system's time"))
    }

    fn listen(
        &self,
        socket: &Socket,
        interface: &Interface,
        shape: Shape,
        group: &mut Option<u16>,
    ) -> Result<Ring, DeviceError> {
        let cannot = |operation| move |cause| self.error(operation, cause);
        if shape.offloads {
            socket.tell_offloads().map_err(cannot("make the kernel report offloads"))?;
        }
        if self.card_time {
            socket.card_time().map_err(cannot("ask for the card's time"))?;
        }
        socket
            .make_ring(&shape, RESERVE_BYTES)
            .map_err(|e| self.error("make the socket's ring", e).advise("ask for a smaller buffer (-B)"))?;
        let memory = Memory::map(socket.as_fd(), shape).map_err(cannot("map the socket's ring"))?;
        socket.attach(&program::NOTHING).map_err(cannot("attach a filter"))?;
        if self.direction_on(interface) == Direction::In && self.queues == 1 {
            // Linux has this option since 4.20, but not for fanout groups. Ignore an error: the
            // socket's filter excludes outgoing frames in any case.
            let _ = socket.ignore_outgoing();
        }
        socket.bind(interface.index).map_err(cannot("listen to the interface"))?;
        if self.promiscuous {
            socket.promiscuous(interface.index, true).map_err(cannot("make the interface promiscuous"))?;
        }
        if self.queues > 1 {
            *group = Some(socket.join_fanout(*group).map_err(cannot("share the interface by PACKET_FANOUT"))?);
        }
        Ok(Ring::new(memory))
    }

    /// On the loopback interface, a socket sees each frame twice: sent and received.
    fn direction_on(&self, interface: &Interface) -> Direction {
        match self.direction {
            Direction::InOut if interface.loopback => Direction::In,
            direction => direction,
        }
    }

    fn shape(&self) -> Result<Shape, DeviceError> {
        if !(BUFFER_MIN..=BUFFER_MAX).contains(&self.buffer) {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, format!("{} bytes", self.buffer));
            return Err(self.error("make a ring of that size", cause).advise("use 512K to 2G for the buffer (-B)"));
        }
        let each = (self.buffer / BLOCKS).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let block_bytes = 1 << each.ilog2();
        let blocks = self.buffer / block_bytes;
        // Super-frames cannot be copied to pages, so super-frames that wait for CPUs may occupy only
        // a part of the ring. The places (address ranges) suffice for all lent frames and for the
        // whole ring.
        let units = self.offloads.then_some(BLOCK_UNITS * blocks);
        let timeout = self.block_timeout.clamp(Duration::from_millis(1), BLOCK_TIMEOUT_MAX);
        Ok(Shape {
            blocks,
            places: units.unwrap_or(0) + blocks,
            units: units.map(|units| units as u32),
            block_bytes,
            timeout_millis: timeout.as_millis() as u32,
            hash: false,
            offloads: false,
        })
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}

const _: () = assert!(BUFFER_MIN == 512 << 10, "it is named in a message");

/// The interfaces that the name `any` selects: all that are up and that steerage can listen to.
#[cfg_attr(not(feature = "capture"), allow(dead_code, reason = "for several devices at once"))]
pub(crate) fn all_interfaces() -> Result<Vec<String>, DeviceError> {
    let failed = |operation| move |cause| DeviceError::new("any", operation, cause);
    // Report a missing permission once, and not for each interface.
    Socket::new(false).map_err(|cause| failed("open a packet socket")(cause).advise(PERMISSION))?;
    let names = Interface::listenable().map_err(failed("list the interfaces"))?;
    if names.is_empty() {
        let cause = io::Error::new(io::ErrorKind::NotFound, "none is up");
        return Err(failed("listen to the interfaces")(cause).advise("`ip link set IFACE up` starts one"));
    }
    Ok(names)
}

/// Divides the default ring size among `count` interfaces.
#[cfg_attr(not(feature = "capture"), allow(dead_code, reason = "for several devices at once"))]
pub(crate) fn divided_buffer(buffer: usize, count: usize) -> usize {
    if buffer == BUFFER_DEFAULT { (buffer / count.max(1)).max(BUFFER_MIN) } else { buffer }
}

/// Returns true if an interface has the name `name`.
///
/// ```
/// use steerage_device::af_packet::is_interface;
///
/// assert!(is_interface("lo") && !is_interface("no-such-name"));
/// ```
pub fn is_interface(name: &str) -> bool {
    Rtnetlink::open().and_then(|mut links| links.link(name)).is_ok()
}
