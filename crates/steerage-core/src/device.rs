//! The description of a device: its name, its needs and abilities, and its errors.

use std::sync::Arc;

use steerage_flow::Affinity;
use steerage_ledger::TxAccount;
use steerage_mem::{Blocks, Fit, Page, Region};
pub use steerage_mem::{FileWindows, LeaseRequest, LeasedFile, RecordForm, Shown, move_over};

pub use steerage_ledger::{DeviceCounts, DeviceError, DeviceName};

/// The needs and abilities of a queue: see
/// [`RxQueue::capabilities`](crate::rx::RxQueue::capabilities).
///
/// ```
/// # mod steerage { pub mod device { pub use steerage_core::device::*; } }
/// use steerage::device::Capabilities;
///
/// // A ring of 256 posted pages, each of which takes a frame of up to 1514 bytes.
/// let ring = Capabilities::pages(1514).posted(256);
/// assert_eq!((ring.fit.bytes(), ring.posted_max, ring.can_wait), (1514, 256, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The length of the longest frame, and its position in the page. If frames have several pages,
    /// this is the length of the longest part. If the queue provides blocks, this is the longest
    /// frame that handlers can keep or write to, because such a frame is copied to a page first.
    pub fit: Fit,
    /// True if frames lie in blocks that the device supplies. If false, frames lie in pages of the
    /// pool, with [`HEADROOM`](crate::limits::HEADROOM) bytes before each frame.
    pub lends: bool,
    /// The maximum number of pages that a frame may occupy, from 1 to
    /// [`SEGMENTS_MAX`](steerage_mem::SEGMENTS_MAX). The pool has `segments_max` times as many
    /// pages. More than 1 if a device receives a long frame into several buffers: see
    /// [`Completions::gather`](crate::completions::Completions::gather).
    pub segments_max: usize,
    /// The maximum number of pages that the device keeps posted in its own ring. The pool has this
    /// many pages in addition.
    pub posted_max: usize,
    /// True if no packet is lost while the queue is not polled, as with a file. A queue that can
    /// wait is polled only while every CPU has room for the frames that a poll may bring. A live
    /// queue is always polled, and frames that find no room are dropped.
    pub can_wait: bool,
    /// The affinity of the hashes that the device sets on frames. `None` if the device sets no
    /// hash. A frame without a hash is hashed by steerage. So a device sets no hash on a fragment
    /// of a datagram unless all fragments of the datagram have the same hash.
    pub hash: Option<Affinity>,
    /// True if the device chooses the buckets itself: see [`names_buckets`](Self::names_buckets).
    pub names_buckets: bool,
}

impl Capabilities {
    /// A live queue without a hash. The frames of the queue lie in pages of the pool, and the
    /// longest frame has `frame_bytes_max` bytes.
    pub const fn pages(frame_bytes_max: usize) -> Self {
        let (lends, can_wait, hash, names_buckets) = (false, false, None, false);
        let fit = Fit::new(frame_bytes_max);
        Self { fit, lends, segments_max: 1, posted_max: 0, can_wait, hash, names_buckets }
    }

    /// Sets the length and position of frames in their pages.
    #[must_use]
    pub const fn fit(self, fit: Fit) -> Self {
        Self { fit, ..self }
    }

    /// A live queue without a hash. The frames of the queue lie in blocks that the device supplies.
    /// Handlers can keep or write to frames of up to `copy_bytes_max` bytes.
    pub const fn blocks(copy_bytes_max: usize) -> Self {
        Self { lends: true, ..Self::pages(copy_bytes_max) }
    }

    /// Returns true if [`QueueLimits::copybreak`](crate::limits::QueueLimits::copybreak) has an
    /// effect on the queue: short frames can be copied out of the pages of a ring, or out of
    /// several pages into one.
    pub const fn has_copybreak(&self) -> bool {
        !self.lends && (self.posted_max > 0 || self.segments_max > 1)
    }

    /// Says that a frame may occupy up to `pages` pages.
    #[must_use]
    pub const fn segments(self, pages: usize) -> Self {
        Self { segments_max: pages, ..self }
    }

    /// Says that the device keeps up to `pages` pages posted in its ring.
    #[must_use]
    pub const fn posted(self, pages: usize) -> Self {
        Self { posted_max: pages, ..self }
    }

    /// No packet is lost while the queue is not polled.
    #[must_use]
    pub const fn can_wait(self) -> Self {
        Self { can_wait: true, ..self }
    }

    /// The device chooses the bucket of each frame, or of all frames of a poll, and sets the hash
    /// of that bucket ([`hash_of_bucket`](crate::rps_map::hash_of_bucket)) on the frames. Masks and
    /// policies still decide which CPU has the bucket, so frames of a bucket stay in order. The
    /// choice counts if it keeps together the packets that the handler needs together, even if no
    /// device's hash was requested. In Zhang's patch of 2009, a driver chose the CPU.
    #[must_use]
    pub const fn names_buckets(self, affinity: Affinity) -> Self {
        Self { hash: Some(affinity), names_buckets: true, ..self }
    }

    /// The device sets a hash on frames, but not necessarily on all frames: see
    /// [`hash`](Self::hash). The upper 12 bits of the hash choose the bucket: if only low bits tell
    /// flows apart, use [`FlowHash::from_low_bits`](steerage_flow::FlowHash::from_low_bits).
    #[must_use]
    pub const fn hashes(self, affinity: Affinity) -> Self {
        Self { hash: Some(affinity), ..self }
    }
}

/// The result of opening a queue: see [`RxQueue::open`](crate::rx::RxQueue::open). By default, the
/// frames of a queue lie in the pages of the pool.
///
/// ```
/// # mod steerage { pub mod device { pub use steerage_core::device::*; } }
/// use steerage::device::Opened;
///
/// // The kernel says only when the queue is opened that it has to copy frames.
/// let mut opened = Opened::default();
/// opened.mode = Some("copy");
/// assert!(opened.blocks.is_none());
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Opened {
    /// The blocks that a queue supplies. The device keeps the [`Claim`](steerage_mem::Claim) to the
    /// blocks. Without the claim, no code can write to the blocks or lend frames from them.
    pub blocks: Option<Blocks>,
    /// The mode in which the device runs, if the device learns the mode only when it is opened.
    /// `None` if the mode is [`Input::mode`](crate::rx::Input::mode).
    pub mode: Option<&'static str>,
    /// Further counts of the device. Received and lost packets are counted elsewhere. The device
    /// keeps a reference to add to these counts.
    pub counts: Option<Arc<DeviceCounts>>,
}

impl Opened {
    /// Describes an opened queue whose frames lie in `blocks`.
    pub fn lending(blocks: Blocks) -> Self {
        Self { blocks: Some(blocks), ..Self::default() }
    }

    /// A queue whose frames lie in the pages of the pool, and whose device runs in `mode`.
    pub fn in_mode(mode: &'static str) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }
}

/// The needs and abilities of a queue to an output: see
/// [`TxQueue::capabilities`](crate::tx::TxQueue::capabilities).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxCapabilities {
    /// How many pages of the pool the queue needs for sending. The pool has this many pages in
    /// addition.
    pub pages_max: usize,
    /// True if the queue accepts packets that it finishes later
    /// ([`Sent::deferred`](crate::tx::Sent::deferred)).
    pub defers: bool,
    /// True if the queue accepts packets that were merged from several frames, and counts each of
    /// them as its [`frames`](crate::tx::OutgoingPacket::frames). Other queues get the frames.
    pub merged: bool,
}

impl TxCapabilities {
    /// The queue sends from up to `pages` pages of its own.
    #[must_use]
    pub const fn pages(self, pages: usize) -> Self {
        Self { pages_max: pages, ..self }
    }

    /// The queue accepts packets that it finishes later.
    #[must_use]
    pub const fn defers(self) -> Self {
        Self { defers: true, ..self }
    }
}

/// The resources that a queue to an output gets: see [`TxQueue::open`](crate::tx::TxQueue::open).
///
/// ```
/// # mod steerage { pub use steerage_core::device::DeviceError; pub mod device { pub use {steerage_core::{device::*, tx::*}, steerage_ledger::*, steerage_mem::*}; } }
/// use std::sync::Arc;
///
/// use steerage::DeviceError;
/// use steerage::device::{Outgoing, Page, Region, Sent, TxAccount, TxCapabilities, TxQueue, TxResources};
///
/// /// Sends from 64 pages, and learns later which of them were sent.
/// #[derive(Default)]
/// struct Ring {
///     region: Option<Arc<Region>>,
///     pages: Vec<Page>,
///     account: Option<TxAccount>,
/// }
///
/// impl TxQueue for Ring {
///     fn capabilities(&self) -> TxCapabilities {
///         let mut needs = TxCapabilities::default();
///         (needs.pages_max, needs.defers) = (64, true);
///         needs
///     }
///
///     fn open(&mut self, resources: TxResources) -> Result<(), DeviceError> {
///         (self.region, self.pages, self.account) = (Some(resources.region), resources.pages, resources.account);
///         Ok(())
///     }
///
///     fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
///         // Copies each packet to a page, and counts it in `Sent::deferred`.
///         # let _ = packets;
///         # Ok(Sent::default())
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct TxResources {
    /// The region that contains all pages of the pool.
    pub region: Arc<Region>,
    /// As many pages as the queue [needs](TxCapabilities::pages_max).
    pub pages: Vec<Page>,
    /// The account in which a queue that [defers](TxCapabilities::defers) reports each outcome.
    pub account: Option<TxAccount>,
}
