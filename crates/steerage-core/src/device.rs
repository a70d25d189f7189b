//! The description of a device: its name, requirements and capabilities, and its errors.

use std::sync::Arc;

use steerage_flow::Affinity;
use steerage_ledger::TxAccount;
use steerage_mem::{Blocks, Fit, Page, Region};
pub use steerage_mem::{FileWindows, LeaseRequest, LeasedFile, RecordForm, Shown, move_over};

pub use steerage_ledger::{DeviceCounts, DeviceError, DeviceName};

/// The requirements and capabilities of a receive queue: see
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
    /// The length of the longest frame (or of a frame's longest part in one page), and the position
    /// of frames in a page. If the queue provides blocks, `fit` describes the longest frame that
    /// handlers can keep or write, because such a frame is copied to a page.
    pub fit: Fit,
    /// True if frames lie in memory blocks that the device supplies. False if frames lie in pages
    /// of the pool, with [`HEADROOM`](crate::limits::HEADROOM) bytes before each frame.
    pub lends: bool,
    /// The maximum number of pages per frame, from 1 to
    /// [`SEGMENTS_MAX`](steerage_mem::SEGMENTS_MAX). A larger number makes the pool larger. More
    /// than 1 if the device receives a long frame in several buffers: see
    /// [`Completions::gather`](crate::completions::Completions::gather).
    pub segments_max: usize,
    /// The number of pages that the device keeps posted in its ring, for which the pool has extra
    /// pages.
    pub posted_max: usize,
    /// True if no packet is lost while the queue is not polled, as with a file. A queue that can
    /// wait is polled only when every CPU has room for a poll. A live queue does not wait: its
    /// frames are dropped if there is no room.
    pub can_wait: bool,
    /// States which packets get equal hashes from the device, and so stay on one CPU. `None` if the
    /// device sets no hashes. steerage hashes frames without a hash. A device must not set hashes
    /// on the fragments of a datagram if the hashes of two fragments can differ.
    pub hash: Option<Affinity>,
    /// True if the device chooses the bucket: see [`names_buckets`](Self::names_buckets).
    pub names_buckets: bool,
}

impl Capabilities {
    /// Describes a live queue without hashes, with frames of `frame_bytes_max` bytes in pages.
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

    /// Describes a live queue without hashes of the device, with frames in blocks that the device
    /// supplies. Handlers can keep or write frames of up to `copy_bytes_max` bytes, which are
    /// copied to a page.
    pub const fn blocks(copy_bytes_max: usize) -> Self {
        Self { lends: true, ..Self::pages(copy_bytes_max) }
    }

    /// Returns true if [`QueueLimits::copybreak`](crate::limits::QueueLimits::copybreak) has an
    /// effect: frames lie in pages of a device's ring, or in several pages that can be joined.
    pub const fn has_copybreak(&self) -> bool {
        !self.lends && (self.posted_max > 0 || self.segments_max > 1)
    }

    /// Declares that a frame may occupy up to `pages` pages.
    #[must_use]
    pub const fn segments(self, pages: usize) -> Self {
        Self { segments_max: pages, ..self }
    }

    /// Declares that the device keeps up to `pages` pages posted in its ring.
    #[must_use]
    pub const fn posted(self, pages: usize) -> Self {
        Self { posted_max: pages, ..self }
    }

    /// Declares that the queue can wait: no packet is lost while the queue is not polled.
    #[must_use]
    pub const fn can_wait(self) -> Self {
        Self { can_wait: true, ..self }
    }

    /// Declares that the device chooses the bucket of each frame, by setting a hash
    /// ([`hash_of_bucket`](crate::rps_map::hash_of_bucket)). Masks and policies decide which CPU
    /// has the bucket that the device chose, so the bucket's frames stay in order. If `affinity`
    /// keeps those packets together that the handler needs together, steerage uses the device's
    /// choice even if the user did not request device hashes.
    #[must_use]
    pub const fn names_buckets(self, affinity: Affinity) -> Self {
        Self { hash: Some(affinity), names_buckets: true, ..self }
    }

    /// Declares that the device sets a [`hash`](Self::hash) on frames, though not always on all of
    /// them. The upper 12 bits of a hash choose the bucket. If only the low bits distinguish flows,
    /// use [`FlowHash::from_low_bits`](steerage_flow::FlowHash::from_low_bits).
    #[must_use]
    pub const fn hashes(self, affinity: Affinity) -> Self {
        Self { hash: Some(affinity), ..self }
    }
}

/// The result of [`RxQueue::open`](crate::rx::RxQueue::open).
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
    /// The memory blocks that the queue supplies. Only the [`Claim`](steerage_mem::Claim), which
    /// the device keeps, allows writing to these blocks and lending frames from them.
    pub blocks: Option<Blocks>,
    /// The mode of the device, if it differs from [`Input::mode`](crate::rx::Input::mode).
    pub mode: Option<&'static str>,
    /// Additional counters of the device, other than received and lost packets.
    pub counts: Option<Arc<DeviceCounts>>,
}

impl Opened {
    /// Describes an opened queue with frames in `blocks`.
    pub fn lending(blocks: Blocks) -> Self {
        Self { blocks: Some(blocks), ..Self::default() }
    }

    /// Describes an opened queue of a device that runs in `mode`, with frames in pages of the pool.
    pub fn in_mode(mode: &'static str) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }
}

/// The requirements and capabilities of an output's queue: see
/// [`TxQueue::capabilities`](crate::tx::TxQueue::capabilities).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxCapabilities {
    /// The number of additional pages of the pool that the queue needs to send packets.
    pub pages_max: usize,
    /// True if the queue may report a packet later ([`Sent::deferred`](crate::tx::Sent::deferred)).
    pub defers: bool,
    /// True if the queue accepts merged packets, and counts all their
    /// [`frames`](crate::tx::OutgoingPacket::frames). If false, the queue gets the original frames
    /// instead of merged packets.
    pub merged: bool,
}

impl TxCapabilities {
    /// Declares that the queue sends from up to `pages` own pages of the pool.
    #[must_use]
    pub const fn pages(self, pages: usize) -> Self {
        Self { pages_max: pages, ..self }
    }

    /// Declares that the queue may accept a packet and report its outcome later.
    #[must_use]
    pub const fn defers(self) -> Self {
        Self { defers: true, ..self }
    }
}

/// The resources that an output's queue gets: see [`TxQueue::open`](crate::tx::TxQueue::open).
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
    /// The memory region that contains all pages of the pool.
    pub region: Arc<Region>,
    /// The pages of the pool that the queue [needs](TxCapabilities::pages_max) to send packets.
    pub pages: Vec<Page>,
    /// The account for late outcomes, if the queue [defers](TxCapabilities::defers).
    pub account: Option<TxAccount>,
}
