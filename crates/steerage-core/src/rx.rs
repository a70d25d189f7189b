//! The receiving side of a device ([`RxQueue`]). The receive path sees a device as [`RxQueue`]
//! objects. Each [`RxQueue`] hands over filled buffers when it is polled.
//!
//! When a run is stopped, [`RxQueue::stop`] is called for each queue. After a stop, a capture file
//! is not polled again. A live queue receives no more frames after a stop, but its ring may still
//! contain received frames. The live queue is polled until it has handed over the frames in its
//! ring, and then reports that it has ended. Frames that the queue does not hand over in time count
//! as lost.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::completions::Completions;
use crate::device::{Capabilities, DeviceError, DeviceName, Opened};
use steerage_flow::Timestamp;
use steerage_mem::{Page, Region};

/// A receive queue: a hardware ring, a socket, a queue of a TAP, a capture file or a traffic
/// generator.
///
/// One CPU, the queue's owner, polls the queue. A minimal implementation looks like this:
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
    /// The requirements and capabilities of the queue. `capabilities` must return the same values
    /// each time. `capabilities` is called when the instance is built.
    fn capabilities(&self) -> Capabilities;

    /// Opens the queue. `open` is called once, before the first poll. If the queue writes frames to
    /// pages, it uses pages of `region`. If the queue [lends memory blocks of its
    /// own](Capabilities::lends), `open` returns these blocks.
    ///
    /// # Errors
    /// Returns an error if the device cannot work with pages of `region`, cannot allocate its own
    /// memory, or was opened before.
    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let _ = region;
        Ok(Opened::default())
    }

    /// Hands over up to `budget` frames that have arrived. All frames of a poll begin with a header
    /// of the same type. The type of this header is Ethernet unless the queue calls
    /// [`Completions::set_link`]. `poll` must not block. `poll` must not allocate memory after the
    /// first few calls.
    ///
    /// # Errors
    /// An error ends the queue. Frames that the queue handed over before an error are still
    /// handled.
    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError>;

    /// Returns true if a live queue has memory of its own for the frames that arrive during the
    /// next [`PATIENCE`](crate::limits::PATIENCE). While a CPU has no room for the frames of a
    /// poll, a queue with memory of its own is not polled, but for no longer than
    /// [`PATIENCE`](crate::limits::PATIENCE). After
    /// [`PATIENCE`](crate::limits::PATIENCE), the queue is polled again, and frames for which a CPU
    /// has no room are dropped.
    fn has_room(&self) -> bool {
        false
    }

    /// The file descriptor that becomes readable when frames arrive. The CPU waits for the file
    /// descriptor after [`Polled::Drained`]. Returns `None` if polls of this queue never return
    /// `Drained`. Polls that never return `Drained` return the time of the next frames instead.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Informs the queue that the run ends: frames that arrive after this call are not needed.
    /// Return true if the queue should be polled until it has handed over all frames that have
    /// already arrived and returns [`Polled::Ended`]. Return false if the queue need not be polled
    /// again.
    fn stop(&mut self) -> bool {
        false
    }

    /// Informs the queue that it will not be polled again, because it has ended or because the run
    /// stops. The queue appends its remaining pages of `region` to `pages`, except pages to which
    /// the device may still write. The appended pages include the pages of a frame that the queue
    /// was [assembling](steerage_mem::Gather::close). If the queue does not return a page, nobody
    /// can use this page as long as the region exists.
    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        let _ = (region, pages);
    }
}

/// The result of a poll. The result of a poll states when the queue has to be polled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Polled {
    /// More frames may have arrived already.
    More,
    /// No more frames have arrived: wait on [`RxQueue::wait_on`].
    Drained,
    /// No more frames will arrive before the returned time.
    NotBefore(Timestamp),
    /// No more frames have arrived. Frames that arrive before the returned time may wait until that
    /// time. If all queues of a CPU return `Coalesce`, and the CPU has no other work, the CPU
    /// sleeps immediately, until the earliest of the returned times. If a queue returns
    /// [`NotBefore`](Self::NotBefore) instead, the CPU continues to poll for a while before it
    /// sleeps. The frames share one wake-up of the CPU, as packets share an interrupt of a network
    /// card that *coalesces* interrupts.
    Coalesce(Timestamp),
    /// No more frames will ever arrive.
    Ended,
}

impl Polled {
    /// Returns the time before which the queue need not be polled again, if the poll returned such
    /// a time.
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
    /// The name that the user gave the device. If the device was renamed, this is its current name.
    pub name: DeviceName,
    /// The kind of the device, such as `synthetic`, `capture`, `af_packet` or `af_xdp`.
    pub kind: &'static str,
    /// The mode of the device, such as `zero-copy` or `copy`. The mode is an empty text if the
    /// device has only one mode.
    pub mode: &'static str,
    /// The receive queues, in the order of their numbers.
    pub queues: Vec<Box<dyn RxQueue>>,
}

impl Input {
    /// Describes a device that has the given name and kind, and only one mode.
    pub fn new(name: impl Into<DeviceName>, kind: &'static str, queues: Vec<Box<dyn RxQueue>>) -> Self {
        Self { name: name.into(), kind, mode: "", queues }
    }

    /// Replaces each queue by the queue that `wrap` creates. `wrap` gets the original queue and its
    /// number. The device's name, kind and mode stay the same. This function is for devices that
    /// wrap other devices.
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
