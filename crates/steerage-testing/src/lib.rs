//! Test helpers for authors of packet functions and devices.
//!
//! [`run`] passes frames to a packet function and returns its verdicts. [`HandlerTester`] runs a
//! handler step by step, with a clock that only the test advances. For an instance that runs on
//! threads, [`input`] supplies frames, and [`output`] records sent packets. [`QueueTester`] polls a
//! receive queue as the receive path does. [`SplitMix64`] generates reproducible random numbers.
//!
//! ```
//! # use steerage_core::{completions::Completions, device::{Capabilities, DeviceError}, limits::HEADROOM, rx::{Polled, RxQueue}};
//! # use steerage_flow::Timestamp;
//! # use steerage_mem::Completion;
//! # use steerage_testing as testing;
//! use testing::QueueTester; // steerage::testing::QueueTester
//! # struct Once(bool);
//! # impl RxQueue for Once {
//! #     fn capabilities(&self) -> Capabilities {
//! #         Capabilities::pages(3)
//! #     }
//! #     fn poll(&mut self, out: &mut Completions<'_>, _budget: usize) -> Result<Polled, DeviceError> {
//! #         if self.0 { return Ok(Polled::Ended); }
//! #         let Some(mut page) = out.take_page() else { return Ok(Polled::More) };
//! #         out.page_mut(&mut page)[HEADROOM..][..3].copy_from_slice(b"abc");
//! #         out.push(Completion::new(page, HEADROOM, 3), 3);
//! #         self.0 = true;
//! #         Ok(Polled::More)
//! #     }
//! # }
//! # fn my_device() -> Box<dyn RxQueue> { Box::new(Once(false)) }
//!
//! let mut queue = QueueTester::new(my_device())?;
//! let (polled, frames) = queue.poll(Timestamp::ZERO, 64)?;
//! assert_eq!((polled, frames), (Polled::More, vec![b"abc".to_vec()]));
//! # Ok::<(), DeviceError>(())
//! ```

#![forbid(unsafe_code)]

mod frames;
mod handler;
mod random;

use std::fmt;
use std::io;
use std::sync::Arc;

use steerage_core::completions::Completions;
use steerage_core::device::{Capabilities, DeviceError, Opened};
use steerage_core::limits::POLL_BUDGET;
use steerage_core::page_cache::{PagePool, QueuePages};
use steerage_core::rx::{Polled, RxQueue};
use steerage_flow::{LinkType, Timestamp};
use steerage_mem::{Completion, FrameHeader, KeptPages, Memory, Region, SharedPool};

pub use frames::{Frame, Recorded, input, output};
pub use handler::{HandlerTester, TESTER_OUTPUTS, Tested, TesterOptions, run};
pub use random::SplitMix64;

/// The number of pages of a tested queue, in addition to the pages that its device keeps posted.
/// The number is small, so that a device that loses pages soon has no pages left.
pub const TESTER_PAGES: usize = 4 * POLL_BUDGET;

/// A frame's header (`None` if the device wrote no header), and a copy of the frame.
pub type Headed = (Option<FrameHeader>, Vec<u8>);

/// A receive queue with its own memory, for tests that poll the queue themselves.
///
/// After a poll, the tester returns the pages and blocks of the frames, unless it
/// [holds](Self::hold_frames) the frames.
///
/// ```
/// # use steerage_flow::Timestamp;
/// use steerage_testing::{QueueTester, input}; // steerage::testing
///
/// let mut queue = QueueTester::new(input([[1; 60], [2; 60]]).queues.remove(0))?;
/// let (_polled, frames) = queue.poll(Timestamp::ZERO, 64)?;
/// assert_eq!(frames, [[1; 60], [2; 60]]);
/// // The device gave back all pages, and lost no frame.
/// assert_eq!((queue.pages_out(), queue.lost()), (0, 0));
/// # Ok::<(), steerage_core::device::DeviceError>(())
/// ```
pub struct QueueTester {
    queue: Box<dyn RxQueue>,
    pages: QueuePages,
    frames: Vec<Completion>,
    held: Vec<Completion>,
    hold: bool,
    wire_bytes: u64,
    lost: u64,
    no_page: u64,
    copied: u64,
    passed: u64,
    chained: u64,
    all_pages: usize,
    mode: Option<&'static str>,
    link: LinkType,
    failed: Option<DeviceError>,
}

impl QueueTester {
    /// Opens the queue with [`TESTER_PAGES`] pages, plus the pages that its device keeps posted.
    ///
    /// # Errors
    /// The queue's own error, or an error if there is too little memory.
    pub fn new(mut queue: Box<dyn RxQueue>) -> Result<Self, DeviceError> {
        let Capabilities { fit, lends, posted_max, .. } = queue.capabilities();
        // Frames that stay in the device's memory need no pages.
        let all_pages = if lends { 1 } else { TESTER_PAGES + posted_max };
        let (region, pages) = Region::map(all_pages, fit.page_bytes())
            .map_err(|e| DeviceError::new("queue under test", "map its pages", io::Error::other(e)))?;
        let Opened { blocks, mode, .. } = queue.open(&region)?;
        let memory = Memory::new(Arc::clone(&region), blocks.as_ref().map(|blocks| Arc::clone(blocks.region())));
        let kept_pages = KeptPages::new(memory.clone(), 0);
        let shared = Arc::clone(&SharedPool::by_node(&region, pages)[0]);
        let pool = PagePool::new(region, shared, kept_pages, all_pages);
        Ok(Self {
            queue,
            pages: QueuePages { pool, blocks, memory },
            frames: Vec::with_capacity(POLL_BUDGET),
            held: Vec::new(),
            hold: false,
            wire_bytes: 0,
            lost: 0,
            no_page: 0,
            copied: 0,
            passed: 0,
            chained: 0,
            all_pages,
            mode,
            link: LinkType::ETHERNET,
            failed: None,
        })
    }

    /// Polls once, at the time `now`. Returns the result of the poll and a copy of each frame.
    ///
    /// # Errors
    /// The queue's own error. If a poll has frames and an error, the next call returns the error.
    ///
    /// # Panics
    /// Panics if the queue hands over more than `budget` frames.
    pub fn poll(&mut self, now: Timestamp, budget: usize) -> Result<(Polled, Vec<Vec<u8>>), DeviceError> {
        let polled = self.poll_frames(now, budget)?;
        let copies = self.frames.iter().map(|frame| self.whole(frame)).collect();
        self.take_home();
        Ok((polled, copies))
    }

    /// Polls once as [`poll`](Self::poll) does, and returns each frame with its header.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    ///
    /// # Panics
    /// Panics like [`poll`](Self::poll).
    pub fn poll_with_headers(&mut self, now: Timestamp, budget: usize) -> Result<(Polled, Vec<Headed>), DeviceError> {
        let polled = self.poll_frames(now, budget)?;
        let headed = |frame| (self.pages.memory.header_of(frame), self.whole(frame));
        let copies = self.frames.iter().map(headed).collect();
        self.take_home();
        Ok((polled, copies))
    }

    /// Like [`poll`](Self::poll), but returns the number of frames, without copies, for benchmarks.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    ///
    /// # Panics
    /// Panics like [`poll`](Self::poll).
    pub fn poll_and_count(&mut self, now: Timestamp, budget: usize) -> Result<(Polled, usize), DeviceError> {
        let polled = self.poll_frames(now, budget)?;
        let count = self.frames.len();
        self.take_home();
        Ok((polled, count))
    }

    /// Holds all frames, as a slow handler would, until [`release_frames`](Self::release_frames).
    pub fn hold_frames(&mut self) {
        self.hold = true;
    }

    /// Returns the pages of all held frames. After this call, each poll returns the pages of its
    /// frames.
    pub fn release_frames(&mut self) {
        self.hold = false;
        self.frames.append(&mut self.held);
        self.take_home();
    }

    /// The number of frames that were lost, as the queue reports it.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The number of frames that were dropped because no page was free.
    pub fn no_page(&self) -> u64 {
        self.no_page
    }

    /// The number of frames that the queue has copied, as the queue reports it.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// The number of frames that the queue has left to the kernel, as the queue reports it.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// The number of frames with several pages that the queue has handed over.
    pub fn chained(&self) -> u64 {
        self.chained
    }

    /// The number of pages that the queue has not returned.
    pub fn pages_out(&self) -> usize {
        self.all_pages - self.pages.pool.free()
    }

    /// Requests that the queue end: see [`RxQueue::stop`].
    pub fn stop(&mut self) -> bool {
        self.queue.stop()
    }

    /// The total length in bytes that all received frames had on the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// The mode in which the device runs, if the queue reported a mode when it was opened.
    pub fn mode(&self) -> Option<&'static str> {
        self.mode
    }

    /// The type of the first header in the frames of the last poll.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// The queue itself, to call methods such as [`RxQueue::capabilities`].
    pub fn queue(&self) -> &dyn RxQueue {
        &*self.queue
    }

    fn whole(&self, frame: &Completion) -> Vec<u8> {
        self.pages.memory.segments(frame).flatten().copied().collect()
    }

    fn poll_frames(&mut self, now: Timestamp, budget: usize) -> Result<Polled, DeviceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut out = Completions::new(&mut self.frames, &mut self.pages, now, 0);
        let polled = self.queue.poll(&mut out, budget);
        self.link = out.link();
        self.wire_bytes += out.counts.wire_bytes;
        self.lost += out.counts.lost;
        self.no_page += out.counts.no_page;
        self.copied += out.counts.copied;
        self.passed += out.counts.passed;
        self.chained += self.frames.iter().filter(|frame| frame.is_chained()).count() as u64;
        assert!(self.frames.len() <= budget, "{} frames for a budget of {budget}", self.frames.len());
        polled.or_else(|error| match self.frames.is_empty() {
            true => Err(error),
            false => {
                self.failed = Some(error);
                Ok(Polled::More)
            }
        })
    }

    fn take_home(&mut self) {
        if self.hold {
            self.held.append(&mut self.frames);
            return;
        }
        self.frames.drain(..).for_each(|frame| self.pages.take_home(frame));
    }
}

impl fmt::Debug for QueueTester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wire_bytes, lost, .. } = self;
        f.debug_struct("QueueTester").field("wire_bytes", wire_bytes).field("lost", lost).finish_non_exhaustive()
    }
}
