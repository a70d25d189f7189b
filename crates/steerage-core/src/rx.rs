//! The receiving side of a device. For the path, a device is an [`RxQueue`]: an object that hands
//! over filled buffers when it is polled.
//!
//! A stop calls [`RxQueue::stop`] of each queue. A file needs no further polls. A live queue may
//! still have received frames in a ring: the queue stops receiving, is polled until these frames
//! are handed over, and then reports that it has ended. Frames that are not handed over in time
//! count as lost.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::completions::Completions;
use crate::device::{Capabilities, DeviceError, DeviceName, Opened};
use steerage_flow::Timestamp;
use steerage_mem::{Page, Region};

/// A receive queue: a hardware ring, a socket, a TAP's queue, a capture file or a generator.
///
/// One CPU, the queue's owner, polls the queue. A minimal implementation:
///
/// ```
/// # mod steerage { pub use steerage_core::device::DeviceError; pub mod device { pub use steerage_core::{completions::*, device::*, rx::*}; } }
/// use steerage::DeviceError;
/// use steerage::device::{Capabilities, Completions, Filled, Polled, Opened, RxQueue};
///
/// /// Hands over the same frame for ever.
/// struct Same(Vec<u8>);
///
/// impl RxQueue for Same {
///     fn capabilities(&self) -> Capabilities {
///         Capabilities::pages(self.0.len()).can_wait()
///     }
///
///     fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
///         out.fill(budget, |page| {
///             page[..self.0.len()].copy_from_slice(&self.0);
///             Some(Filled::whole(self.0.len()))
///         });
///         Ok(Polled::More)
///     }
/// }
/// ```
pub trait RxQueue: Send {
    /// The needs and abilities of the queue, which must not change. Called during the build.
    fn capabilities(&self) -> Capabilities;

    /// Opens the queue. Called once, before the first poll. Frames in pages will lie in the pages
    /// of `region`. A queue that [provides blocks](Capabilities::lends) hands its blocks over here.
    ///
    /// # Errors
    /// If the device cannot work with these pages, cannot allocate its own memory, or was opened
    /// before.
    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let _ = region;
        Ok(Opened::default())
    }

    /// Hands over up to `budget` frames that have arrived. All frames of a poll begin with a header
    /// of the same type, Ethernet unless the queue calls [`Completions::set_link`]. Must not block,
    /// and must not allocate memory after the first few calls.
    ///
    /// # Errors
    /// An error ends the queue. Frames that were pushed before the error are handled.
    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError>;

    /// Returns true if a live queue has room of its own for the frames that arrive in the next
    /// [`PATIENCE`](crate::limits::PATIENCE). If so, the queue is not polled while a CPU has no
    /// room for the frames of a poll, but only for that time. After that, the queue is polled
    /// again, and frames that find no room are dropped.
    fn has_room(&self) -> bool {
        false
    }

    /// The file descriptor that becomes readable when frames arrive, to wait for after
    /// [`Polled::Drained`]. Returns `None` if the queue never returns `Drained` but returns the
    /// time of its next frames.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Informs the queue that the run ends: frames that arrive from now on are not needed. Return
    /// true if the queue should be polled until it has handed over the frames that have already
    /// arrived and returns [`Polled::Ended`]. Return false if the queue needs no further polls.
    fn stop(&mut self) -> bool {
        false
    }

    /// Informs the queue that it will not be polled again, because it has ended or because the run
    /// stops. The queue appends to `pages` the pages of `region` that it still has and that the
    /// device no longer writes to, also those of a frame that it was
    /// [assembling](steerage_mem::Gather::close). A page that is not returned cannot be used until
    /// the region ends.
    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        let _ = (region, pages);
    }
}

/// The result of a poll: when the queue has to be polled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polled {
    /// More frames may have arrived now.
    More,
    /// No more frames have arrived: wait on [`RxQueue::wait_on`].
    Drained,
    /// There will be no more frames before this time.
    NotBefore(Timestamp),
    /// No more frames have arrived, and frames that arrive before this time may wait until then. A
    /// CPU without other work sleeps until then if this holds for all its queues. After
    /// [`NotBefore`](Self::NotBefore), it would keep polling for a while. Interrupts of a card are
    /// *coalesced* in the same way.
    Coalesce(Timestamp),
    /// There will be no more frames.
    Ended,
}

impl Polled {
    /// The time before which the queue need not be polled again, if the queue named a time.
    pub(crate) fn due(self) -> Option<Timestamp> {
        match self {
            Self::NotBefore(due) | Self::Coalesce(due) => Some(due),
            Self::More | Self::Drained | Self::Ended => None,
        }
    }
}

/// A device with its receive queues, as given to the builder.
///
/// ```
/// # mod steerage { pub use steerage_core::rx::Input; pub mod device { pub use steerage_core::rx::RxQueue; } }
/// use steerage::{Input, device::RxQueue};
///
/// /// A device with these queues, which reports show as `generator0`.
/// fn generator(queues: Vec<Box<dyn RxQueue>>) -> Input {
///     Input::new("generator0", "generator", queues)
/// }
/// ```
#[non_exhaustive]
pub struct Input {
    /// The name that the user gave the device, or its current name if it was renamed.
    pub name: DeviceName,
    /// The kind of the device: `synthetic`, `capture`, `af_packet`, `af_xdp`.
    pub kind: &'static str,
    /// The mode of the device, such as `zero-copy` or `copy`. Empty if there is only one mode.
    pub mode: &'static str,
    /// The queues, in the order of their numbers.
    pub queues: Vec<Box<dyn RxQueue>>,
}

impl Input {
    /// A device with this name and kind that has no choice of modes.
    pub fn new(name: impl Into<DeviceName>, kind: &'static str, queues: Vec<Box<dyn RxQueue>>) -> Self {
        Self { name: name.into(), kind, mode: "", queues }
    }

    /// Replaces each queue by the queue that `wrap` creates from the queue and its number. Name,
    /// kind and mode remain. For devices that wrap other devices.
    #[must_use]
    pub fn wrap_queues(self, mut wrap: impl FnMut(Box<dyn RxQueue>, usize) -> Box<dyn RxQueue>) -> Self {
        let wrapped = self.queues.into_iter().enumerate().map(|(number, queue)| wrap(queue, number)).collect();
        Self { queues: wrapped, ..self }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} queues)", self.name, self.kind, self.queues.len())
    }
}
