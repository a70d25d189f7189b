//! The errors of building an instance or changing its settings.

use std::fmt;
use std::io;

use steerage_mem::{RegionError, supply::Excess};
use steerage_topology::{CpuId, NoSuchCpu};

use crate::device::DeviceError;

/// Why a setting of a running instance could not be changed. The setting keeps its value.
///
/// ```
/// # mod steerage { pub use steerage_core::error::SetError; }
/// use steerage::SetError;
///
/// let error = SetError::NoSuchQueue { queue: 4, queues: 2 };
/// assert_eq!(error.to_string(), "there is no receive queue 4: they are numbered from 0, and there are 2");
/// ```
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum SetError {
    /// A mask names a CPU that the instance does not have.
    #[error("CPU {cpu} is not one of this instance's ({ours}): add it to its CPUs or leave it out of the mask")]
    NotOurCpu {
        /// The CPU that the mask names.
        cpu: CpuId,
        /// The list of the instance's CPUs, as text.
        ours: String,
    },
    /// The instance has no receive queue with this number.
    #[error("there is no receive queue {queue}: they are numbered from 0, and there are {queues}")]
    NoSuchQueue {
        /// The requested number.
        queue: usize,
        /// How many queues there are.
        queues: usize,
    },
    /// [`copybreak`](crate::limits::QueueLimits::copybreak) has no effect on this queue.
    #[error(
        "{device}: cannot set copybreak of receive queue {queue}: Operation not supported: \
             its device has no ring of pages out of which it copies frames; leave copybreak at 0"
    )]
    NoCopybreak {
        /// The device.
        device: String,
        /// The queue's number over all inputs.
        queue: usize,
    },
}

/// Why an instance could not be built: the operation that failed, and advice to the user.
///
/// ```
/// # mod steerage { pub use steerage_core::error::BuildError; }
/// use steerage::BuildError;
///
/// let error = BuildError::TooMany { what: "outputs", asked: 300, most: 256 };
/// assert_eq!(error.to_string(), "300 outputs are more than an instance can have: 256");
/// ```
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum BuildError {
    /// There is no input, or none of the inputs has a queue.
    #[error("nothing to receive from: give at least one input with a queue")]
    NoInput,
    /// No CPU was given.
    #[error("no CPU to work on: give at least one")]
    NoCpus,
    /// There are more CPUs, receive queues or outputs than an instance can have.
    #[error("{asked} {what} are more than an instance can have: {most}")]
    TooMany {
        /// The kind of object that exceeds its maximum: `CPUs`, `receive queues` or `outputs`.
        what: &'static str,
        /// How many CPUs, receive queues or outputs were requested.
        asked: usize,
        /// The maximum number of CPUs, receive queues or outputs.
        most: usize,
    },
    /// A mask, or another setting of a queue, does not fit the instance.
    #[error(transparent)]
    Mask(#[from] SetError),
    /// A device has longer frames than a slot (an entry of a ring) can describe.
    #[error("{device}: frames of {asked} bytes are longer than the longest there can be, {most}")]
    FrameTooLong {
        /// The device.
        device: String,
        /// The length of the queue's longest frame, in bytes.
        asked: usize,
        /// The maximum length of a frame, in bytes.
        most: usize,
    },
    /// The packet memory exceeds `Builder::memory_max`. The error message names a value of
    /// `memory_max` that fits.
    #[error(transparent)]
    Memory(#[from] Excess),
    /// `Builder::cpus` or `Builder::input_on` names a CPU that does not exist.
    #[error(transparent)]
    NoSuchCpu(#[from] NoSuchCpu),
    /// A handler is too large for the stack of its CPU's thread, where the handler is created.
    #[error(
        "a handler of {bytes} bytes needs a stack of 8 times that: box large state, or raise stack_size ({stack_size})"
    )]
    HandlerTooLarge {
        /// The size of a handler, in bytes.
        bytes: usize,
        /// The size of each thread's stack, in bytes.
        stack_size: usize,
    },
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The packet memory could not be allocated. The text says what to do.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The kernel refused an operation that the other variants do not describe.
    #[error("cannot {operation}: {error}")]
    System {
        /// The failed operation, worded to follow "cannot".
        operation: &'static str,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
}

/// Like `Display`, because Rust prints the `Debug` form of an error that `main` returns.
impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Like `Display`: see [`BuildError`].
impl fmt::Debug for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
