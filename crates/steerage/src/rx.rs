//! What a device is to the path: something that, when polled, hands over filled buffers.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use steerage_mem::hash::FlowHash;
use steerage_mem::{Blocks, Completion, FrameHeader, Page, Region, Tail};

use crate::handler::Affinity;
use crate::limits::HEADROOM;
use crate::platform::Timestamp;
use crate::pool::PagePool;

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
///             Filled::whole(self.0.len())
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
    /// What memory the frames lie in: asked once, before the first poll.
    ///
    /// # Errors
    /// Where the device cannot make its memory.
    fn memory(&mut self) -> Result<QueueMemory, DeviceError>;

    /// How many pages it keeps posted at most, in a ring of its own: so many more are there.
    fn posted_max(&self) -> usize {
        0
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

    /// What the hashes that the device sets keep together, if it sets one on every frame.
    fn device_hash(&self) -> Option<Affinity> {
        None
    }
}

/// Where the frames of a queue lie.
#[derive(Debug)]
#[non_exhaustive]
pub enum QueueMemory {
    /// In pages of the pool, one frame to a page, [`HEADROOM`] bytes before each.
    Pages {
        /// The longest frame, in bytes.
        frame_bytes_max: usize,
    },
    /// In blocks that the device brings and lends.
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

/// What was written to a page: see [`Completions::fill`].
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// The frame's length in the page, in bytes.
    pub len: usize,
    /// Its length on the wire.
    pub wire_len: usize,
    /// The flow's hash, if the device computes one.
    pub hash: Option<FlowHash>,
}

impl Filled {
    /// A whole frame without a hash.
    pub fn whole(len: usize) -> Self {
        Self { len, wire_len: len, hash: None }
    }
}

/// Where a poll puts what it received, and where it gets pages from.
#[derive(Debug)]
pub struct Completions<'a> {
    pub(crate) frames: &'a mut Vec<Completion>,
    pub(crate) pool: &'a mut PagePool,
    pub(crate) blocks: Option<&'a mut Blocks>,
    pub(crate) now: Timestamp,
    pub(crate) wire_bytes: u64,
    pub(crate) lost: u64,
    pub(crate) copied: u64,
    pub(crate) passed: u64,
    pub(crate) prefetch: usize,
}

impl Completions<'_> {
    /// The time at which this poll began.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// A page to fill. `None` while all are in use: poll again later.
    #[inline(always)]
    pub fn take_page(&mut self) -> Option<Page> {
        self.pool.take()
    }

    /// Fills up to `count` pages by this CPU's own stores, for devices that have no pages posted anywhere: `write` gets the
    /// bytes behind the headroom and says what it wrote. Returns how many pages there were. The same as taking a page,
    /// filling and pushing it `count` times, at half the instructions.
    #[inline(always)]
    pub fn fill(&mut self, count: usize, mut write: impl FnMut(&mut [u8]) -> Filled) -> usize {
        let mut wire_bytes = 0;
        let (region, pages) = self.pool.take_many(count);
        let filled = pages.len();
        self.frames.extend(pages.map(|mut page| {
            let Filled { len, wire_len, hash } = write(&mut region.page_mut(&mut page)[HEADROOM..]);
            wire_bytes += wire_len as u64;
            let mut frame = Completion::new(page, HEADROOM as u32, len);
            if let Some(hash) = hash {
                frame.set_hash(hash);
            }
            frame
        }));
        self.wire_bytes += wire_bytes;
        filled
    }

    /// Copies a whole frame into a page and hands it over. False if there is no page, or the frame is too long for one.
    pub fn copy_in(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.frame_bytes_max() {
            return false;
        }
        self.fill(1, |page| {
            page[..frame.len()].copy_from_slice(frame);
            Filled::whole(frame.len())
        }) == 1
    }

    /// Gives a page back that was not filled after all.
    pub fn give_page(&mut self, page: Page) {
        self.pool.recycle(page);
    }

    /// The bytes of a page, to be filled. The frame goes [`HEADROOM`] bytes in.
    #[inline(always)]
    pub fn page_mut<'p>(&'p self, page: &'p mut Page) -> &'p mut [u8] {
        self.pool.region().page_mut(page)
    }

    /// The longest frame that fits a page behind its headroom, in bytes.
    pub fn frame_bytes_max(&self) -> usize {
        self.pool.region().page_bytes() - HEADROOM
    }

    /// Says that the next poll will fill some `count` pages by this CPU's own stores. They are then fetched into its cache
    /// meanwhile: far from the worker's cache that halves the cost of a frame.
    #[inline(always)]
    pub fn prefetch_pages(&mut self, count: usize) {
        self.prefetch = count;
    }

    /// The blocks that this queue's [`RxQueue::memory`] brought. `None` if it brought none.
    pub fn blocks(&mut self) -> Option<&mut Blocks> {
        self.blocks.as_deref_mut()
    }

    /// Hands a frame over. `wire_bytes` is its length on the wire, which a capture may have cut.
    #[inline(always)]
    pub fn push(&mut self, frame: Completion, wire_bytes: usize) {
        self.wire_bytes += wire_bytes as u64;
        self.frames.push(frame);
    }

    /// What `block` holds up to byte `end`, behind the last frame lent: to be handed over from front to back. `None` for a
    /// block there isn't.
    #[inline]
    pub fn lending(&mut self, block: usize, end: usize) -> Option<Lending<'_>> {
        let tail = self.blocks.as_deref_mut()?.tail(block)?.up_to(end);
        Some(Lending { tail, frames: self.frames, wire_bytes: &mut self.wire_bytes })
    }

    /// Says that `frames` were lost before the poll: in the kernel, in a ring that overflowed. They count as received
    /// and dropped (`device`).
    pub fn lost(&mut self, frames: u64) {
        self.lost += frames;
    }

    /// Says that `frames` of lent memory were copied so that the device can go on: they are counted, and that is all.
    pub fn copied(&mut self, frames: u64) {
        self.copied += frames;
    }

    /// Says that `frames` came by that the device left to the kernel: they are counted, and no part of the ledger.
    pub fn passed(&mut self, frames: u64) {
        self.passed += frames;
    }

    /// How many frames this poll has handed over.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it has handed over none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// The part of a block that may be written and handed over: see [`Completions::lending`].
#[derive(Debug)]
pub struct Lending<'a> {
    tail: Tail<'a>,
    frames: &'a mut Vec<Completion>,
    wire_bytes: &'a mut u64,
}

impl Lending<'_> {
    /// What has yet to be handed over.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.tail.bytes()
    }

    /// Where in its block the first of [`bytes`](Self::bytes) lies.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.tail.offset()
    }

    /// Writes `header` in front of the `len` bytes that lie `at` bytes into [`bytes`](Self::bytes), and hands these over
    /// as a frame; they and what is before them are no longer part of it. False if there is no room for the header or
    /// they do not lie within it.
    #[inline(always)]
    pub fn push(&mut self, at: usize, len: usize, header: FrameHeader) -> bool {
        self.push_hashed(at, len, header, None)
    }

    /// The same, with the flow's hash if the device computes one.
    #[inline(always)]
    pub fn push_hashed(&mut self, at: usize, len: usize, header: FrameHeader, hash: Option<FlowHash>) -> bool {
        let Some(to) = self.tail.bytes().get_mut(..at).and_then(<[u8]>::last_chunk_mut) else { return false };
        *to = header.to_bytes();
        let Some(mut frame) = self.tail.lend(at, len) else { return false };
        if let Some(hash) = hash {
            frame.set_hash(hash);
        }
        self.frames.push(frame.with_header());
        *self.wire_bytes += u64::from(header.wire_len);
        true
    }
}

/// A device with its receive queues, as given to the builder.
pub struct Input {
    /// Its name: what the user called it.
    pub name: String,
    /// What it is: `synthetic`, `capture`, `af_packet`, `af_xdp`.
    pub kind: &'static str,
    /// How it runs, where there is a choice: `zero-copy`, `copy`; else empty.
    pub mode: &'static str,
    /// Its queues, rx-0 first.
    pub queues: Vec<Box<dyn RxQueue>>,
}

impl Input {
    /// A device of that name and kind, without a choice of modes.
    pub fn new(name: impl Into<String>, kind: &'static str, queues: Vec<Box<dyn RxQueue>>) -> Self {
        Self { name: name.into(), kind, mode: "", queues }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} queues)", self.name, self.kind, self.queues.len())
    }
}
