//! What a device is to the path: something that, when polled, hands over filled buffers.

mod completions;
mod gather;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use steerage_mem::{Blocks, Page, Region};

use crate::device_name::DeviceName;
use crate::handler::Affinity;
use crate::platform::Timestamp;

pub use completions::{Completions, Filled, Lending};
pub use gather::Gather;

/// A receive queue: a hardware ring, a socket, a TAP's queue, a capture file, a generator.
///
/// Polled by one CPU, its owner. A minimal one:
///
/// ```
/// use steerage::{Completions, DeviceError, Filled, Polled, QueueMemory, RxQueue};
///
/// /// Hands over the same frame for ever.
/// struct Same(Vec<u8>);
///
/// impl RxQueue for Same {
///     fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
///         Ok(QueueMemory::Pages { frame_bytes_max: self.0.len() })
///     }
///
///     fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
///         out.fill(budget, |page| {
///             page[..self.0.len()].copy_from_slice(&self.0);
///             Some(Filled::whole(self.0.len()))
///         });
///         Ok(Polled::More)
///     }
///
///     fn can_wait(&self) -> bool {
///         true
///     }
/// }
/// ```
pub trait RxQueue: Send {
    /// What memory the frames lie in: asked once, before the first poll. A device gives its blocks away once: it answers a second
    /// call with an error.
    ///
    /// # Errors
    /// If the device cannot make its memory, or has given it away before.
    fn memory(&mut self) -> Result<QueueMemory, DeviceError>;

    /// How many pages it keeps posted at most, in a ring of its own: so many more are there.
    fn posted_max(&self) -> usize {
        0
    }

    /// Of how many pages a frame may be at most, [`SEGMENTS_MAX`](crate::SEGMENTS_MAX) of them: so many times as many are there. For
    /// a device that receives a long frame into several buffers; see [`Completions::gather`].
    fn segments_max(&self) -> usize {
        1
    }

    /// The pages that frames are to lie in are those of `region`: told once, before the first poll, to each queue whose
    /// memory is [pages](QueueMemory::Pages).
    ///
    /// # Errors
    /// Where the device cannot work with them.
    fn mapped(&mut self, region: &Arc<Region>) -> Result<(), DeviceError> {
        let _ = region;
        Ok(())
    }

    /// How it runs, where that was not known before [`mapped`](Self::mapped). `None`: as its [`Input::mode`] says.
    fn mode(&self) -> Option<&'static str> {
        None
    }

    /// Hands over up to `budget` frames that have arrived. Must not block, nor allocate once warm.
    ///
    /// # Errors
    /// An error ends the queue: it is not polled again. What was pushed before counts.
    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError>;

    /// What the frames of the last poll begin with: all of one poll the same. Of types that [`LinkType`] does not name
    /// no flow is known, and their frames stay together.
    fn link(&self) -> LinkType {
        LinkType::ETHERNET
    }

    /// What to wait on, for reading, after [`Polled::Drained`]. `None`: the queue is never drained for long; it says
    /// when there will be more.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether nothing is lost while the queue is not polled (a file). Such a queue is polled only while every CPU has
    /// room for what it may hand over; a live one is polled always, and what finds no room drops.
    fn can_wait(&self) -> bool {
        false
    }

    /// Whether a queue that cannot wait for ever has room for what comes in the next [`PATIENCE`](crate::PATIENCE). For that
    /// long it is then not polled while a CPU has no room for what it may hand over; after that what finds no room drops.
    fn has_room(&self) -> bool {
        false
    }

    /// The run is to end: what comes from now on is not wanted. True if the queue is to be polled on, hands over what has come
    /// by now and then says [`Polled::Ended`]; false if it can be left as it is.
    fn stop(&mut self) -> bool {
        false
    }

    /// It is polled no more, whether it has ended or whoever is around it wants no more: the pages that it still has, and that
    /// the device writes no more, go to `pages`. One that is missing is out of use until the region ends.
    fn close(&mut self, pages: &mut Vec<Page>) {
        let _ = pages;
    }

    /// What the hashes that the device sets keep together, if it sets one on every frame.
    fn device_hash(&self) -> Option<Affinity> {
        None
    }
}

/// Where the frames of a queue lie.
#[derive(Debug)]
#[non_exhaustive]
pub enum QueueMemory {
    /// In pages of the pool, [`HEADROOM`](crate::HEADROOM) bytes before each frame: one to a page, or one to
    /// [several](RxQueue::segments_max).
    Pages {
        /// The longest frame, in bytes; of frames in several pages, the longest part.
        frame_bytes_max: usize,
    },
    /// In blocks that the device brings and lends. It keeps the [`Claim`](crate::Claim) to them, without which nobody writes or
    /// lends them.
    Blocks {
        /// The blocks.
        blocks: Blocks,
        /// The longest frame, in bytes, that handlers can keep or write to: it is copied to a page for that, and all pages
        /// are as long as the longest needs.
        copy_bytes_max: usize,
    },
}

/// What a frame begins with, by tcpdump's numbers (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// A BSD loopback header, in the byte order of the machine that wrote it.
    pub const NULL: Self = Self(0);
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);
    /// PPP (RFC 1661), with or without HDLC's address and control.
    pub const PPP: Self = Self(9);
    /// IPv4 or IPv6, as the BSDs number it.
    pub const RAW_BSD: Self = Self(12);
    /// IPv4 or IPv6, as OpenBSD numbers it.
    pub const RAW_OPENBSD: Self = Self(14);
    /// PPP in HDLC framing (RFC 1662), or Cisco's.
    pub const PPP_HDLC: Self = Self(50);
    /// IPv4 or IPv6.
    pub const RAW: Self = Self(101);
    /// A BSD loopback header in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture.
    pub const LINUX_SLL: Self = Self(113);
    /// IPv4.
    pub const IPV4: Self = Self(228);
    /// IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// The types that are read. A slot has four bits for a place in this list; 0 is what it holds if nothing is written.
    const READ: [Self; 12] = [
        Self::ETHERNET,
        Self::RAW,
        Self::IPV4,
        Self::IPV6,
        Self::RAW_BSD,
        Self::RAW_OPENBSD,
        Self::LINUX_SLL,
        Self::LINUX_SLL2,
        Self::PPP,
        Self::PPP_HDLC,
        Self::NULL,
        Self::LOOP,
    ];

    /// A type that is not read.
    pub const UNKNOWN: Self = Self(u16::MAX);

    /// Its place in the list of those that are read, or behind it.
    pub(crate) fn code(self) -> u8 {
        Self::READ.iter().position(|link| *link == self).unwrap_or(Self::READ.len()) as u8
    }

    #[inline]
    pub(crate) fn of_code(code: u8) -> Self {
        Self::READ.get(usize::from(code)).copied().unwrap_or(Self::UNKNOWN)
    }
}

/// What a poll came to, besides the frames it pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polled {
    /// There may be more at once.
    More,
    /// There was no more: wait on [`RxQueue::wait_on`].
    Drained,
    /// There will be no more before that time.
    NotBefore(Timestamp),
    /// There will be no more.
    Ended,
}

/// What went wrong with a device, in one line that says what to do.
#[non_exhaustive]
pub struct DeviceError {
    /// The device's name as the user gave it.
    pub device: String,
    /// What was tried: completes "cannot ...".
    pub operation: &'static str,
    /// What the kernel or the format said.
    pub cause: io::Error,
    /// Where in the input it happened, in bytes.
    pub offset: Option<u64>,
    /// What to do about it: a clause, or nothing.
    pub advice: &'static str,
}

impl DeviceError {
    /// An error on `device` while trying to `operation`.
    pub fn new(device: impl Into<String>, operation: &'static str, cause: io::Error) -> Self {
        Self { device: device.into(), operation, cause, offset: None, advice: "" }
    }

    /// The same, with where it happened.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// The same, with what to do.
    #[must_use]
    pub fn advise(mut self, advice: &'static str) -> Self {
        self.advice = advice;
        self
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot {}", self.device, self.operation)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.cause)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// As its text: it is what `main` shows of an error that it returns.
impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// A device with its receive queues, as given to the builder.
pub struct Input {
    /// Its name: what the user called it, or what it is called now.
    pub name: DeviceName,
    /// What it is: `synthetic`, `capture`, `af_packet`, `af_xdp`.
    pub kind: &'static str,
    /// How it runs, where there is a choice: `zero-copy`, `copy`; else empty.
    pub mode: &'static str,
    /// Its queues, rx-0 first.
    pub queues: Vec<Box<dyn RxQueue>>,
}

impl Input {
    /// A device of that name and kind, without a choice of modes.
    pub fn new(name: impl Into<DeviceName>, kind: &'static str, queues: Vec<Box<dyn RxQueue>>) -> Self {
        Self { name: name.into(), kind, mode: "", queues }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} queues)", self.name, self.kind, self.queues.len())
    }
}
