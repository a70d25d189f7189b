//! The receiving side of a device: [`RxQueue`] objects hand over filled buffers.
//!
//! When a run is stopped, [`RxQueue::stop`] is called for each queue. After a stop, a capture file
//! is not polled again. A live queue is polled until it has handed over the frames in its ring, and
//! then reports that it has ended. Frames that a queue does not hand over in time after a stop
//! count as lost.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::completions::Completions;
use crate::device::{Capabilities, DeviceError, DeviceName, Opened};
use steerage_flow::Timestamp;
use steerage_mem::{Page, Region};

/// A receive queue: a hardware ring, a socket, a queue of a TAP device, a capture file or a traffic
/// generator. One CPU, the queue's owner, polls the queue. A minimal implementation:
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
    /// Returns the requirements and capabilities of the queue, which must never change.
    fn capabilities(&self) -> Capabilities;

    /// Opens the queue, once, before the first poll. A queue that writes frames to pages uses pages
    /// of `region`. A queue that [lends memory blocks](Capabilities::lends) returns its blocks.
    ///
    /// # Errors
    /// Returns an error if pages of `region` do not fit the device, if there is too little memory,
    /// or if the queue was opened before.
    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let _ = region;
        Ok(Opened::default())
    }

    /// Hands over up to `budget` frames that have arrived. All frames of a poll begin with an
    /// Ethernet header, or with the header set by [`Completions::set_link`]. `poll` must not block,
    /// and must not allocate memory after the first few calls.
    ///
    /// # Errors
    /// An error ends the queue. Frames that the queue handed over before the error are still
    /// handled.
    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError>;

    /// Returns true if a live queue has memory for the frames of the next
    /// [`PATIENCE`](crate::limits::PATIENCE). While a CPU has no room, a queue with memory for
    /// these frames is not polled for up to `PATIENCE`. After `PATIENCE`, the queue is polled
    /// again, and frames for which there is no room are dropped.
    fn has_room(&self) -> bool {
        false
    }

    /// Returns the file descriptor that becomes readable when frames arrive after
    /// [`Polled::Drained`], or `None` if polls never return `Drained`.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Informs the queue that the run ends. Returns true if the queue should be polled until it has
    /// handed over all frames that have already arrived and returns [`Polled::Ended`].
    fn stop(&mut self) -> bool {
        false
    }

    /// Appends the queue's remaining pages to `pages`, including the pages of a frame that the
    /// queue was [assembling](steerage_mem::Gather::close), but not pages to which the device may
    /// still write. A page that is not returned is lost as long as the region exists.
    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        let _ = (region, pages);
    }
}

/// The result of a poll, which states when the queue has to be polled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polled {
    /// More frames may be available now.
    More,
    /// No more frames have arrived: wait on [`RxQueue::wait_on`].
    Drained,
    /// No more frames will arrive before the returned time.
    NotBefore(Timestamp),
    /// Frames that arrive before the returned time may wait until then, and share one wake-up, as
    /// with a network card that *coalesces* interrupts. If all queues return `Coalesce`, an idle
    /// CPU sleeps immediately. After [`NotBefore`](Self::NotBefore), in contrast, an idle CPU polls
    /// for a while before it sleeps.
    Coalesce(Timestamp),
    /// No more frames will ever arrive.
    Ended,
}

impl Polled {
    pub(crate) fn due(self) -> Option<Timestamp> {
        match self {
            Self::NotBefore(due) | Self::Coalesce(due) => Some(due),
            Self::More | Self::Drained | Self::Ended => None,
        }
    }
}

/// A device with its receive queues, which a program passes to the builder.
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
    /// The name that the user gave the device, or the current name if the device was renamed.
    pub name: DeviceName,
    /// The kind of the device, such as `synthetic`, `capture`, `af_packet` or `af_xdp`.
    pub kind: &'static str,
    /// The mode of the device, such as `zero-copy` or `copy`. Empty if there is only one mode.
    pub mode: &'static str,
    /// The receive queues, in the order of their numbers.
    pub queues: Vec<Box<dyn RxQueue>>,
}

impl Input {
    /// Describes a device that has the given name and kind, and only one mode.
    pub fn new(name: impl Into<DeviceName>, kind: &'static str, queues: Vec<Box<dyn RxQueue>>) -> Self {
        Self { name: name.into(), kind, mode: "", queues }
    }

    /// Replaces each queue by `wrap(queue, number)`, for devices that wrap other devices.
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
