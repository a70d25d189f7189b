//! Live interfaces by AF_XDP. The device takes packets away from the kernel, and is the fastest way to receive them.
//! docs/af_xdp.md is the user's guide.
//!
//! An XDP program of ours runs for each frame that the driver receives. If the frame is wanted, it goes to the AF_XDP
//! socket of its receive queue, and otherwise to the kernel as usual. Each receive queue has a socket. All sockets
//! share one memory: the pages of the pool. Pages are posted in a queue's fill ring, the kernel fills them, and they
//! return by its rx ring as completions. A frame that does not fit one chunk arrives in several, and stays like that: a
//! chain of pages.
//!
//! The program is attached by a link, which the kernel removes when the process ends, however it ends. A program that
//! is attached already stays. Frames are taken from the first poll on.

mod assembler;
mod attach;
mod device;
mod interface;
mod lines;
mod program;
mod queue;
mod send;
mod spec;
#[allow(unsafe_code)]
mod sys;
mod take;

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use steerage::{Affinity, DeviceError, Input, device::RxQueue};

use crate::device_hash::{self, DeviceHash, HashedBy};
use crate::options::setters;
use attach::attach;
use device::Device;
use interface::{ETHERNET, Netlink};
use queue::Queue;
use sys::Socket;

pub use send::AfXdpOutput;
pub use spec::Named;
pub use take::{TESTS_MAX, Take, TakeError};

/// How many frames a queue's rings have room for by default: what libbpf and libxdp take. 2 ms of a million frames a second.
pub const RING_DEFAULT: u32 = 2048;

/// The shortest ring: a budget's worth on its way, and one at the kernel's.
pub const RING_MIN: u32 = 128;

/// The longest ring. Its pages are the memory that is pinned.
pub const RING_MAX: u32 = 32_768;

/// The longest time that is polled for at a time, for frames: beyond, the CPU does nothing else.
pub const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// How many pages each CPU has to send from by default, and how many descriptors its tx ring: a millisecond of a million a
/// second, as much as a card's own ring holds.
pub const SEND_RING_DEFAULT: u32 = 1024;

/// What the kernel keeps free before a frame (`XDP_PACKET_HEADROOM`), in bytes.
const HEADROOM_BYTES: usize = 256;
/// The longest chunk that the kernel knows: a page of its own.
const CHUNK_BYTES_MAX: usize = 4096;
/// An Ethernet header and two VLAN tags: what stands before what the MTU counts.
const LINK_BYTES: usize = 14 + 2 * 4;

const PERMISSION: &str = "it takes CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK: run it with sudo";

/// In which way frames are to be taken.
/// [`AfXdpOptions`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Native, and if the driver knows nothing of XDP, skb.
    #[default]
    Auto,
    /// In the driver, before the kernel has made anything of the frame; without a copy where the driver can.
    Native,
    /// The same, with a copy.
    Copy,
    /// Behind the driver: slower, and works everywhere.
    Skb,
}

/// What to take, from where, and how.
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
    /// What is taken away from the kernel. There is no default: [`open`](Self::open) wants to be told.
    pub take: Option<Take>,
    /// Which receive queues, from which to which; `None` for all.
    pub queues: Option<RangeInclusive<u32>>,
    /// How.
    pub mode: Mode,
    /// How many frames each queue's rings have room for: a power of two, [`RING_MIN`] to [`RING_MAX`].
    pub ring: u32,
    /// Whether each poll has the driver poll too, for so long; else it goes by interrupts.
    pub busy_poll: Option<Duration>,
    /// Whether the hash that the hardware computed is used, if the driver tells it. See docs/af_xdp.md for what that does not
    /// keep together.
    pub device_hash: DeviceHash,
    /// Whether a program that is there already is taken away.
    pub replace: bool,
}

/// An interface that packets are taken from.
/// [`AfXdpOptions`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct AfXdp {
    /// The device.
    pub input: Input,
    /// What its user should know: a line each.
    pub notes: Vec<String>,
}

impl AfXdpOptions {
    /// The interface, with every default, and nothing to be taken.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            take: None,
            queues: None,
            mode: Mode::default(),
            ring: RING_DEFAULT,
            busy_poll: None,
            device_hash: DeviceHash::Never,
            replace: false,
        }
    }

    setters! {
        /// What is taken away from the kernel. There is no default: [`open`](Self::open) fails without it.
        take: Take => Some;
        /// The first and the last of the receive queues. Default: all.
        queues: RangeInclusive<u32> => Some;
        /// In which way frames are taken. Default: [`Mode::Auto`].
        mode: Mode;
        /// How many frames each queue's rings have room for: a power of two, [`RING_MIN`] to [`RING_MAX`]. Default:
        /// [`RING_DEFAULT`].
        ring: u32;
        /// Has the driver poll with each poll, for this long, at most [`BUSY_POLL_MAX`]. Default: the driver goes by interrupts.
        busy_poll: Duration => Some;
        /// Whether the hash that the hardware computed is used. Default: no. Fragments have none, and are hashed by steerage.
        device_hash: DeviceHash;
        /// Whether an XDP program that is attached already is replaced. Default: no.
        replace: bool;
    }

    /// Attaches the program. Nothing is taken before the first poll. When the instance is built, the kernel pins its pages. A
    /// program that drops its privileges before that keeps `CAP_IPC_LOCK`
    /// ([`Needed::pinned_memory`](crate::privileges::Needed::pinned_memory)), or raises the limit on locked memory.
    ///
    /// # Errors
    /// [`DeviceError`] if nothing was said of what to take, there is no such interface or queue, another program is there, or
    /// it is not allowed.
    pub fn open(&self) -> Result<AfXdp, DeviceError> {
        let Some(take) = &self.take else {
            let cause =
                io::Error::new(io::ErrorKind::InvalidInput, "what is taken the kernel no longer sees, ssh included");
            return Err(self
                .error("take packets without --take", cause)
                .advise("write --take 'udp port 53' or --take all (steerage help af_xdp)"));
        };
        let interface = Netlink::look(&self.interface)
            .map_err(|e| self.error("look at the interface", e).advise("`ip link` lists the interfaces there are"))?;
        if interface.hardware != ETHERNET {
            let cause = io::Error::other(format!("its type, {} in if_arp.h, is not Ethernet", interface.hardware));
            return Err(self.error("take packets from it", cause).advise("listen to it instead: af_packet:NAME"));
        }
        let socket = Socket::new().map_err(|e| self.error("open an AF_XDP socket", e).advise(PERMISSION))?;
        let there_are = interface::queues(&self.interface).receive;
        let queues = self.queues.clone().unwrap_or(0..=there_are - 1);
        if *queues.end() >= there_are {
            let cause = io::Error::other(format!("they are numbered from 0, and there are {there_are}"));
            return Err(self.error("receive from a queue that is not there", cause).advise("`ethtool -l` shows them"));
        }
        let hashed_by = device_hash::hashed_by(&self.interface, self.device_hash);
        let is_random = matches!(hashed_by, HashedBy::Kernel | HashedBy::Card { random_key: true });
        let affinity = match self.device_hash {
            DeviceHash::IfSafe if is_random => Some(Affinity::OneDirection),
            DeviceHash::Always => Some(Affinity::BothDirections),
            DeviceHash::Never | DeviceHash::IfSafe => None,
        };
        let attached = attach(self, take, &interface, there_are, affinity.is_some())?;
        let mut notes = attached.notes;
        if self.device_hash == DeviceHash::Always {
            notes.extend(device_hash::note(&self.interface, hashed_by));
        }
        if !interface.up {
            let name = &self.interface;
            notes.push(format!("{name} is down: nothing comes until it is up (ip link set {name} up)"));
        }
        let hash = affinity.filter(|_| attached.program.hashes);
        let device = Device::new(self, &interface, attached.program, queues.clone(), socket)?.listed();
        let mut inputs: Vec<Box<dyn RxQueue>> = Vec::new();
        for number in queues {
            let queue = Queue::new(Arc::clone(&device), number, hash, inputs.is_empty());
            inputs.push(Box::new(queue.map_err(|e| self.error("make an epoll", e))?));
        }
        Ok(AfXdp { input: Input::new(crate::interface_name::following(&self.interface), "af_xdp", inputs), notes })
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.clone(), operation, cause)
    }
}
