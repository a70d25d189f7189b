//! The receiving side of a device. To the path a device is an [`RxQueue`]: an object that hands over filled buffers
//! when it is polled.
//!
//! At a stop, each queue is told that the run ends ([`RxQueue::stop`]). A file can be left as it is. A live queue may
//! still have frames in a ring that have already been received: it stops receiving, is polled until these frames are
//! handed over, and then reports that it has ended. Frames that it cannot hand over in time are counted as lost.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::completions::Completions;
use crate::device::{DeviceError, DeviceName};
use steerage_flow::{Affinity, LinkType, Timestamp};
use steerage_mem::{Blocks, Page, Region};

/// A receive queue: a hardware ring, a socket, a TAP's queue, a capture file, a generator.
///
/// It is polled by one CPU, its owner. A minimal implementation:
///
/// ```
/// # mod steerage { pub use steerage_core::{completions::*, device::*, rx::*}; }
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
    /// The memory in which the frames lie. Called once, before the first poll. A device gives its blocks away only
    /// once: a second call returns an error.
    ///
    /// # Errors
    /// If the device cannot allocate its memory, or has given it away before.
    fn memory(&mut self) -> Result<QueueMemory, DeviceError>;

    /// The most pages that the device keeps posted in a ring of its own. The pool has this many pages in addition.
    fn posted_max(&self) -> usize {
        0
    }

    /// The most pages that a frame may occupy, up to [`SEGMENTS_MAX`](steerage_mem::SEGMENTS_MAX). The pool has this many
    /// times as many pages. For a device that receives a long frame into several buffers; see
    /// [`Completions::gather`].
    fn segments_max(&self) -> usize {
        1
    }

    /// Tells the queue that its frames lie in the pages of `region`. Called once, before the first poll, for each
    /// queue whose memory is [pages](QueueMemory::Pages).
    ///
    /// # Errors
    /// If the device cannot work with these pages.
    fn mapped(&mut self, region: &Arc<Region>) -> Result<(), DeviceError> {
        let _ = region;
        Ok(())
    }

    /// The mode in which the device runs, if that is known only after [`mapped`](Self::mapped). `None` if it is
    /// [`Input::mode`].
    fn mode(&self) -> Option<&'static str> {
        None
    }

    /// Hands over up to `budget` frames that have arrived. Must not block, and must not allocate memory after the
    /// first few calls.
    ///
    /// # Errors
    /// An error ends the queue: it is not polled again. Frames that were pushed before the error are handled.
    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError>;

    /// The type of the first header in the frames of the last poll. All frames of one poll have the same type. If
    /// [`LinkType`] has no name for the type, flows cannot be told apart, and all of these frames go to the same CPU.
    fn link(&self) -> LinkType {
        LinkType::ETHERNET
    }

    /// The file descriptor that becomes readable when frames arrive, for waiting after [`Polled::Drained`]. `None` if
    /// the queue does not return `Drained` but says when there will be more.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether nothing is lost while the queue is not polled, as with a file. A queue that can wait is polled only
    /// while every CPU has room for the frames that a poll may bring. A live queue is always polled, and frames that
    /// find no room are dropped.
    fn can_wait(&self) -> bool {
        false
    }

    /// Whether a live queue has room of its own for the frames that arrive in the next [`PATIENCE`](crate::limits::PATIENCE).
    /// If so, it is not polled while a CPU has no room for the frames that a poll may bring, but only for that long.
    /// After that it is polled again, and frames that find no room are dropped.
    fn has_room(&self) -> bool {
        false
    }

    /// Tells the queue that the run ends, so frames that arrive from now on are not wanted. Return true if the queue
    /// should be polled until it has handed over the frames that have already arrived and returns [`Polled::Ended`].
    /// Return false if the queue can be left as it is.
    fn stop(&mut self) -> bool {
        false
    }

    /// Tells the queue that it will not be polled again, because it has ended or because the run stops. Append to
    /// `pages` the pages that the queue still has and that the device no longer writes to. A page that is not
    /// returned cannot be used until the region ends.
    fn close(&mut self, pages: &mut Vec<Page>) {
        let _ = pages;
    }

    /// If the device sets a hash on every frame: the affinity of these hashes. `None` if it does not.
    fn device_hash(&self) -> Option<Affinity> {
        None
    }
}

/// Where the frames of a queue lie.
#[derive(Debug)]
#[non_exhaustive]
pub enum QueueMemory {
    /// In pages of the pool, with [`HEADROOM`](crate::limits::HEADROOM) bytes before each frame. A frame has one page or
    /// [several](RxQueue::segments_max).
    Pages {
        /// The length of the longest frame, in bytes. If frames have several pages, the length of the longest part.
        frame_bytes_max: usize,
    },
    /// In blocks that the device supplies and lends. The device keeps the [`Claim`](steerage_mem::Claim) to the blocks;
    /// without it no code can write to them or lend them.
    Blocks {
        /// The blocks.
        blocks: Blocks,
        /// The longest frame that handlers can keep or write to, in bytes. Such a frame is copied to a page first,
        /// and all pages are long enough for the longest copy.
        copy_bytes_max: usize,
    },
}

/// The result of a poll, besides the frames that it pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polled {
    /// There may be more frames now.
    More,
    /// No more frames have arrived: wait on [`RxQueue::wait_on`].
    Drained,
    /// There will be no more frames before this time.
    NotBefore(Timestamp),
    /// There will be no more frames.
    Ended,
}

/// A device with its receive queues, as given to the builder.
pub struct Input {
    /// The name that the user gave it, or its current name if it was renamed.
    pub name: DeviceName,
    /// Its kind: `synthetic`, `capture`, `af_packet`, `af_xdp`.
    pub kind: &'static str,
    /// Its mode, if there is a choice: `zero-copy` or `copy`; otherwise empty.
    pub mode: &'static str,
    /// Its queues, rx-0 first.
    pub queues: Vec<Box<dyn RxQueue>>,
}

impl Input {
    /// A device with this name and kind that has no choice of modes.
    pub fn new(name: impl Into<DeviceName>, kind: &'static str, queues: Vec<Box<dyn RxQueue>>) -> Self {
        Self { name: name.into(), kind, mode: "", queues }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} queues)", self.name, self.kind, self.queues.len())
    }
}
