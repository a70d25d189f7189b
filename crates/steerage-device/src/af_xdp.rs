//! Receives from live interfaces with AF_XDP. The device takes packets away from the kernel, and is
//! the fastest device for receiving. The user's guide is docs/af_xdp.md.
//!
//! An XDP program of steerage runs for each frame that the driver receives. The program sends
//! wanted frames to the AF_XDP socket of their receive queue, and leaves all other frames to the
//! kernel. All sockets share one memory region: the pages of the pool. The device posts free pages
//! in a queue's fill ring, the kernel fills these pages, and the filled pages return through the rx
//! ring as completions. A chunk is the part of a page that the kernel fills. A frame that fills
//! several chunks is delivered as a chain of pages.
//!
//! A BPF link attaches the XDP program. The kernel removes the link when the process ends, even
//! after a crash. By default, an XDP program that is already attached is not replaced. The device
//! begins to take frames at its first poll.

mod assembler;
mod attach;
mod attachment;
mod bind;
mod bond;
mod compile;
mod device;
pub mod dispatcher;
pub mod flow_dissector;
mod interface;
mod listen;
mod metadata;
mod program;
mod queue;
mod send;
mod spec;
#[allow(unsafe_code)]
mod sys;
mod take;
mod tx_sockets;
mod waits;

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use steerage::{DeviceError, Input, device::RxQueue};
use steerage_netlink::Link;

use crate::af_packet::{AfPacketOptions, Direction};
use crate::device_hash::{self, DeviceHash};
use crate::options::setters;
use attach::attach;
use bond::{Bond, Places, View};
use device::Device;
use queue::Queue;
use sys::Socket;

pub use device::{busily_polled, components, follows_bonds, report_vain_busy_polling, stay_in_dispatchers};
pub use dispatcher::Component;
pub use send::AfXdpOutput;
pub use spec::Named;
pub use take::{TESTS_MAX, Take, TakeError};

/// The default length of each ring of a queue, in frames, as in libbpf and libxdp. At a million
/// frames per second, a ring of this length fills up in 2 ms.
pub const RING_DEFAULT: u32 = 2048;

/// The length of the shortest ring, in frames: twice the frames of one poll, because the kernel
/// receives frames while those of the last poll are in flight.
pub const RING_MIN: u32 = 128;

/// The length of the longest ring, in frames. The kernel pins the memory of the pages in the rings.
pub const RING_MAX: u32 = 32_768;

/// The longest time for which one busy poll may wait for frames.
pub const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// The default time for which programs that only listen coalesce (collect) frames. A CPU polls for
/// 50 us before it sleeps, so without coalescing, a packet every 50 us would keep the CPU awake.
pub const COALESCE_DEFAULT: Duration = Duration::from_micros(50);

/// The longest time for which frames are coalesced: the default block timeout of AF_PACKET.
pub const COALESCE_MAX: Duration = crate::af_packet::BLOCK_TIMEOUT_DEFAULT;

/// The shortest time for which frames are coalesced. A CPU needs more than 1 us to go to sleep.
pub const COALESCE_MIN: Duration = Duration::from_micros(1);

/// The default number of pages, and of descriptors in the tx ring, that each CPU has for sending:
/// the packets of 1 ms at a million packets per second, as in a network card's ring.
pub const SEND_RING_DEFAULT: u32 = 1024;

/// The maximum number of a bond's ports that [`AfXdpOptions::ports`] can reserve room for.
pub const PORTS_MAX: u32 = 64;

/// The number of bytes that the kernel keeps free before a frame (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: usize = 256;
/// The longest chunk that the kernel supports, in bytes: one page of the kernel.
const CHUNK_BYTES_MAX: usize = 4096;

const PERMISSION: &str = "it takes CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON and CAP_IPC_LOCK: run it with sudo";

/// The point in the kernel at which the XDP program gets frames, and whether frames are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Native mode if the driver supports XDP, otherwise skb mode.
    #[default]
    Auto,
    /// The XDP program runs in the driver, and frames are not copied if the driver supports that.
    Native,
    /// Like [`Mode::Native`], but frames are always copied.
    Copy,
    /// The XDP program runs after the driver (skb mode): slower, but works with every driver.
    Skb,
}

/// States which packets to take away from the kernel, and from which interface. This type also
/// contains the options of the device.
///
/// ```no_run
/// use steerage_device::af_xdp::AfXdpOptions;
///
/// let taking = AfXdpOptions::new("eth0").take("udp port 53".parse()?).queues(0..=3).open()?;
/// taking.notes.iter().for_each(|note| println!("{note}"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AfXdpOptions {
    /// The interface's name.
    pub interface: String,
    /// The packets to take away from the kernel. [`open`](Self::open) fails without an expression.
    pub take: Option<Take>,
    /// The receive queues to use. `None` means all.
    pub queues: Option<RangeInclusive<u32>>,
    /// The point in the kernel at which the XDP program gets frames, and whether frames are copied.
    pub mode: Mode,
    /// The length of each queue's rings in frames: a power of two from [`RING_MIN`] to
    /// [`RING_MAX`].
    pub ring: u32,
    /// The interval at which a busily polling CPU runs the driver. `None`: the driver uses
    /// interrupts.
    pub busy_poll: Option<Duration>,
    /// The longest time for which frames may wait after a poll that emptied the ring.
    pub coalesce: Option<Duration>,
    /// States when to use the hash that the hardware computed. The hardware's hash may send packets
    /// of the same flow to different CPUs (docs/af_xdp.md lists these packets).
    pub device_hash: DeviceHash,
    /// The number of ports of a bond for which there is room, or `None` for the default.
    pub ports: Option<u32>,
    /// If true, an XDP program that is already attached is replaced.
    pub replace: bool,
    /// The priority of the XDP program in libxdp's dispatcher. If a priority is set and no XDP
    /// program is attached, steerage attaches a dispatcher.
    pub priority: Option<u32>,
}

/// An interface from which the device takes packets.
#[derive(Debug)]
#[non_exhaustive]
pub struct AfXdp {
    /// The opened device.
    pub input: Input,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
    /// True if the device only [listens](AfXdpOptions::open_or_listen): the kernel gets packets
    /// too.
    pub is_listening: bool,
}

impl AfXdpOptions {
    /// Creates options for taking packets from `interface`, with default values.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            take: None,
            queues: None,
            mode: Mode::default(),
            ring: RING_DEFAULT,
            busy_poll: None,
            coalesce: None,
            device_hash: DeviceHash::Never,
            ports: None,
            replace: false,
            priority: None,
        }
    }

    setters! {
        /// The packets to take away from the kernel. [`open`](Self::open) fails without an
        /// expression.
        take: Take => Some;
        /// The receive queues to use. Default: all.
        queues: RangeInclusive<u32> => Some;
        /// The XDP mode, and whether frames are copied. Default: [`Mode::Auto`].
        mode: Mode;
        /// The length of each queue's rings in frames: a power of two from [`RING_MIN`] to
        /// [`RING_MAX`]. Default: [`RING_DEFAULT`].
        ring: u32;
        /// Makes the polling CPU run the driver itself, and never sleep. While no frames arrive,
        /// the driver runs once in the interval `busy_poll`, which is at most [`BUSY_POLL_MAX`].
        /// Default: the driver uses interrupts.
        busy_poll: Duration => Some;
        /// Sets a pause from [`COALESCE_MIN`] to [`COALESCE_MAX`] after each poll that emptied the
        /// ring. The pause after a poll ends early if a quarter of the ring fills up. Like
        /// `rx-usecs` of a network card, this option delays packets, and saves most of the CPU time
        /// if packets arrive so fast that a CPU cannot sleep between two packets. If the last poll
        /// found no frame, the next frame wakes the CPU immediately. `coalesce` and `busy_poll`
        /// exclude each other. Default: off.
        coalesce: Duration => Some;
        /// Sets whether steerage uses the hash that the hardware computed. Default: no. The
        /// hardware computes no hash for fragments, so steerage computes the hash of fragments.
        device_hash: DeviceHash;
        /// Sets the number of ports of a bond for which there is room: 1 to [`PORTS_MAX`]. The
        /// packets of ports beyond this number are left to the kernel. A reserved port takes as
        /// much memory as a port in use. Default: one port more than the bond has when the device
        /// is opened.
        ports: u32 => Some;
        /// Sets whether to replace an XDP program that is attached already. Default: no.
        replace: bool;
        /// Shares the interface with other XDP programs by libxdp's dispatcher, which runs XDP
        /// programs by priority, the lowest number first. Default: [`dispatcher::PRIORITY_DEFAULT`]
        /// in a dispatcher that is attached already, and otherwise no dispatcher.
        priority: u32 => Some;
    }

    /// Attaches the XDP program. No packet is taken before the first poll. `Builder::build` makes
    /// the kernel pin the instance's pages, so a process that drops its privileges before that must
    /// keep `CAP_IPC_LOCK` ([`Needed::pinned_memory`](https://docs.rs/steerage-guard)), or raise
    /// the limit on locked memory.
    ///
    /// # Errors
    /// [`DeviceError`] if the options do not say which packets to take, the interface or queue does
    /// not exist, another XDP program is attached, or the process lacks permission.
    pub fn open(&self) -> Result<AfXdp, DeviceError> {
        let Some(take) = &self.take else {
            let cause =
                io::Error::new(io::ErrorKind::InvalidInput, "what is taken the kernel no longer sees, ssh included");
            return Err(self
                .error("take packets without --take", cause)
                .advise("write --take 'udp port 53' or --take all (steerage help af_xdp)"));
        };
        let interface = interface::look(&self.interface)
            .map_err(|e| self.error("look at the interface", e).advise("`ip link` lists the interfaces there are"))?;
        if interface.hardware != libc::ARPHRD_ETHER {
            let cause = io::Error::other(format!("its type, {} in if_arp.h, is not Ethernet", interface.hardware));
            return Err(self.error("take packets from it", cause).advise("listen to it instead: af_packet:NAME"));
        }
        self.check_coalescing()?;
        let mut first = Some(Socket::new().map_err(|e| self.error("open an AF_XDP socket", e).advise(PERMISSION))?);
        let bond = Bond::of(&interface).map_err(|e| self.error("look at the ports of the bond", e))?;
        let all = bond.ports.iter().map(|port| port.queues).max();
        let all = all.unwrap_or_else(|| interface::queues(&self.interface).receiving());
        let fewest = bond.ports.iter().map(|port| port.queues).min().unwrap_or(all);
        if let Some(last) = self.queues.as_ref().map(RangeInclusive::end).filter(|last| **last >= fewest) {
            let wrong = format!("they are numbered from 0, and there are {fewest}; {last} was named");
            let cause = io::Error::new(io::ErrorKind::InvalidInput, wrong);
            return Err(self.error("receive from a queue that is not there", cause).advise("`ethtool -l` shows them"));
        }
        let hashed_by = device_hash::hashed_by(&self.interface, self.device_hash);
        let affinity = self.device_hash.of_af_xdp(hashed_by);
        let ports = bond.for_program(self)?;
        let is_held = Device::takes_from(interface.index);
        let (program, mut notes) = attach(self, take, &interface, all, &ports, (affinity.is_some(), is_held))?;
        if self.device_hash == DeviceHash::Always && program.functions.hash.is_some() {
            notes.extend(device_hash::note(&self.interface, hashed_by));
        }
        if !interface.up {
            let name = &self.interface;
            notes.push(format!("{name} is down: nothing comes until it is up (ip link set {name} up)"));
        }
        notes.extend(bond.note);
        let program = Arc::new(program);
        let hash = affinity.filter(|_| program.functions.hash.is_some());
        let of_ports = program.mode == sys::Mode::Native && !bond.ports.is_empty();
        let links: Vec<(&Link, u32, u32)> = if of_ports {
            let keys = (0..).map(|nth| nth * ports.queues);
            let ports = bond.ports.iter().zip(keys);
            ports.map(|(port, first_key)| (&port.link, port.queues, first_key)).collect()
        } else {
            vec![(&interface, all, 0)]
        };
        let (mut ports_now, mut rows) = (Vec::new(), Vec::new());
        for (link, count, first_key) in links {
            let keys = (first_key, of_ports.then_some(interface.index));
            let queues = self.queues.clone().unwrap_or(0..=count - 1);
            let sockets = queues.clone().map(|_| first.take().map_or_else(Socket::new, Ok)).collect::<io::Result<_>>();
            let sockets = sockets.map_err(|e| self.error("open an AF_XDP socket", e))?;
            let device = Device::new(self, link, keys, Arc::clone(&program), *queues.start(), sockets)?.listed();
            ports_now.push((link, Arc::clone(&device)));
            rows.push((device, queues));
        }
        let most = self.queues.clone().unwrap_or(0..=all - 1);
        let places = of_ports.then(|| Places::new(self, &interface, &ports_now, ports.places, (ports.queues, &most)));
        let places = places.transpose()?;
        if let Some(places) = &places {
            // `rows` also gets elements for ports that the bond does not have yet. The queues of
            // later ports are created like the queues of the first port.
            rows.resize_with(places.count(), || (Arc::clone(places.model()), most.clone()));
        }
        let mut inputs: Vec<Box<dyn RxQueue>> = Vec::new();
        for (place, (device, queues)) in rows.into_iter().enumerate() {
            for (nth, number) in queues.enumerate() {
                let view = places.as_ref().map(|places| View::new(places, place, nth));
                let queue = Queue::new(Arc::clone(&device), number, hash, nth == 0, view);
                inputs.push(Box::new(queue.map_err(|e| self.error("make an epoll", e))?));
            }
        }
        let input = Input::new(crate::interface_name::following(&self.interface), "af_xdp", inputs);
        Ok(AfXdp { input, notes, is_listening: false })
    }

    /// Like [`open`](Self::open), but if packets cannot be taken away from the kernel, listens to
    /// the same packets instead ([`Take::filter`]). Reasons are, for example, a missing permission
    /// for XDP, an interface that is not Ethernet, or an XDP program of other software. While the
    /// device listens ([`AfXdp::is_listening`]), the kernel gets the packets too, and each packet
    /// is copied. The first of [`AfXdp::notes`] states why packets cannot be taken away.
    ///
    /// If `Builder::build` cannot pin the instance's memory, the device does not listen instead.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open) if an option is wrong, or if this process or another
    /// steerage process already takes packets from the interface. If the device can neither take
    /// packets nor listen, returns the error of the attempt to listen.
    ///
    /// ```no_run
    /// use steerage::Builder;
    /// use steerage_device::af_xdp::AfXdpOptions;
    ///
    /// let opened = AfXdpOptions::new("eth0").take("udp port 53".parse()?).open_or_listen()?;
    /// opened.notes.iter().for_each(|note| eprintln!("{note}"));
    /// let builder = Builder::new().input(opened.input);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_or_listen(&self) -> Result<AfXdp, DeviceError> {
        let error = match self.open() {
            Err(error) if !is_final(&error) => error,
            result => return result,
        };
        let mut options = AfPacketOptions::new(self.interface.clone()).direction(Direction::In).promiscuous(false);
        let filter = self.take.as_ref().map(|take| take.filter(options.link())).transpose();
        let no_filter = |cause| self.error("listen to the packets of its expression", io::Error::other(cause));
        options.filter = filter.map_err(no_filter)?;
        let listening = options.open()?;
        let mut notes = vec![format!("{error}. It listens instead: the kernel gets these packets too")];
        notes.extend(listening.notes);
        Ok(AfXdp { input: listening.input, notes, is_listening: true })
    }

    fn check_coalescing(&self) -> Result<(), DeviceError> {
        let Some(time) = self.coalesce else { return Ok(()) };
        let wrong = |what: String| self.error("coalesce frames", io::Error::new(io::ErrorKind::InvalidInput, what));
        if self.busy_poll.is_some() {
            return Err(wrong("a busy poll never waits for frames".to_owned()).advise("leave one of the two out"));
        }
        if !(COALESCE_MIN..=COALESCE_MAX).contains(&time) {
            return Err(wrong(format!("{time:?} is no time for it")).advise("use 1 us to 10 ms"));
        }
        Ok(())
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}

/// Returns true for the two errors after which the device does not listen instead: an option is
/// wrong, or steerage already takes the packets. Errors of steerage itself have no OS error code.
fn is_final(error: &DeviceError) -> bool {
    let is_ours = error.cause.raw_os_error().is_none();
    is_ours && matches!(error.cause.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::ResourceBusy)
}
