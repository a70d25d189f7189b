//! For authors of devices: polls a queue as the path does, without the path.
//!
//! ```
//! use steerage::testing::QueueTester;
//! use steerage::{Polled, Timestamp};
//! # use steerage::{Completion, Completions, DeviceError, HEADROOM, QueueMemory, RxQueue};
//! # struct Once(bool);
//! # impl RxQueue for Once {
//! #     fn memory(&mut self) -> Result<QueueMemory, DeviceError> {
//! #         Ok(QueueMemory::Pages { frame_bytes_max: 3 })
//! #     }
//! #     fn poll(&mut self, out: &mut Completions<'_>, _budget: usize) -> Result<Polled, DeviceError> {
//! #         if self.0 { return Ok(Polled::Ended); }
//! #         let Some(mut page) = out.take_page() else { return Ok(Polled::More) };
//! #         out.page_mut(&mut page)[HEADROOM..][..3].copy_from_slice(b"abc");
//! #         out.push(Completion::new(page, HEADROOM as u32, 3), 3);
//! #         self.0 = true;
//! #         Ok(Polled::More)
//! #     }
//! # }
//! # fn my_device() -> Box<dyn RxQueue> { Box::new(Once(false)) }
//!
//! let mut queue = QueueTester::new(my_device())?;
//! let (polled, frames) = queue.poll(Timestamp::ZERO, 64)?;
//! assert_eq!((polled, frames), (Polled::More, vec![b"abc".to_vec()]));
//! # Ok::<(), steerage::DeviceError>(())
//! ```

mod pages;

use std::fmt;
use std::io;
use std::sync::Arc;

use steerage_mem::{Blocks, Completion, FrameHeader, Home, Memory, Region};

use crate::limits::{HEADROOM, POLL_BUDGET};
use crate::platform::Timestamp;
use crate::pool::{PagePool, SharedPool};
use crate::rx::{Completions, DeviceError, Polled, QueueMemory, RxQueue};

pub use pages::PageLoop;

/// How many pages a tested queue has: a few polls' worth, so that a device that loses pages soon runs out.
pub const TESTER_PAGES: usize = 4 * POLL_BUDGET;

/// A copy of a frame, and what the device noted of it.
pub type Headed = (Option<FrameHeader>, Vec<u8>);

/// A receive queue with memory of its own, polled by hand.
///
/// Pages and blocks go back after every poll, unless they are [held](Self::hold_frames).
pub struct QueueTester {
    queue: Box<dyn RxQueue>,
    pool: PagePool,
    blocks: Option<Blocks>,
    memory: Memory,
    frames: Vec<Completion>,
    held: Vec<Completion>,
    hold: bool,
    wire_bytes: u64,
    lost: u64,
    copied: u64,
    passed: u64,
    chained: u64,
    failed: Option<DeviceError>,
}

impl QueueTester {
    /// Asks the queue for its memory, and makes [`TESTER_PAGES`] pages for it.
    ///
    /// # Errors
    /// The queue's own, and where there is no memory.
    pub fn new(mut queue: Box<dyn RxQueue>) -> Result<Self, DeviceError> {
        let (frame_bytes_max, blocks) = match queue.memory()? {
            QueueMemory::Pages { frame_bytes_max } => (frame_bytes_max, None),
            QueueMemory::Blocks { blocks, copy_bytes_max } => (copy_bytes_max, Some(blocks)),
        };
        // Whole cache lines, as a page of the path is: else frames would share them.
        let page_bytes = (HEADROOM + frame_bytes_max).next_multiple_of(64);
        // Of lent frames the tester makes no copies.
        let pages = if blocks.is_some() { 1 } else { TESTER_PAGES };
        let (region, pages) = Region::map(pages, page_bytes)
            .map_err(|e| DeviceError::new("queue under test", "map its pages", io::Error::other(e)))?;
        if blocks.is_none() {
            queue.mapped(&region)?;
        }
        let memory = Memory::new(Arc::clone(&region), blocks.as_ref().map(|blocks| Arc::clone(blocks.region())));
        let home = Home::new(memory.clone(), 0);
        let shared = Arc::clone(&SharedPool::by_node(&region, pages)[0]);
        let pool = PagePool::new(region, shared, home, TESTER_PAGES);
        Ok(Self {
            queue,
            pool,
            blocks,
            memory,
            frames: Vec::with_capacity(POLL_BUDGET),
            held: Vec::new(),
            hold: false,
            wire_bytes: 0,
            lost: 0,
            copied: 0,
            passed: 0,
            chained: 0,
            failed: None,
        })
    }

    /// Polls once, at the time `now`; returns what the poll said and a copy of each frame.
    ///
    /// # Errors
    /// The queue's own. Where frames came with it, this call returns those and the next one the error.
    ///
    /// # Panics
    /// If the queue hands over more than `budget` frames.
    pub fn poll(&mut self, now: Timestamp, budget: usize) -> Result<(Polled, Vec<Vec<u8>>), DeviceError> {
        let polled = self.poll_frames(now, budget)?;
        let copies = self.frames.iter().map(|frame| self.whole(frame)).collect();
        self.take_home();
        Ok((polled, copies))
    }

    /// Polls once as [`poll`](Self::poll) does, and returns with each frame what the device noted of it.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    ///
    /// # Panics
    /// As [`poll`](Self::poll).
    pub fn poll_with_headers(&mut self, now: Timestamp, budget: usize) -> Result<(Polled, Vec<Headed>), DeviceError> {
        let polled = self.poll_frames(now, budget)?;
        let headed = |frame| (self.memory.header_of(frame), self.whole(frame));
        let copies = self.frames.iter().map(headed).collect();
        self.take_home();
        Ok((polled, copies))
    }

    /// Polls once as [`poll`](Self::poll) does, but returns the number of frames and copies none: for measuring.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    ///
    /// # Panics
    /// As [`poll`](Self::poll).
    pub fn poll_and_count(&mut self, now: Timestamp, budget: usize) -> Result<(Polled, usize), DeviceError> {
        let polled = self.poll_frames(now, budget)?;
        let count = self.frames.len();
        self.take_home();
        Ok((polled, count))
    }

    /// From now on frames stay out, as if handlers were slow, until [`release_frames`](Self::release_frames).
    pub fn hold_frames(&mut self) {
        self.hold = true;
    }

    /// Takes all frames home, and those to come after every poll.
    pub fn release_frames(&mut self) {
        self.hold = false;
        self.frames.append(&mut self.held);
        self.take_home();
    }

    /// How many frames the queue said were lost, over all polls.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// How many frames it said it copied, over all polls.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// How many frames it said it left to the kernel, over all polls.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// How many frames of several pages it has handed over.
    pub fn chained(&self) -> u64 {
        self.chained
    }

    /// How many pages it has not given back.
    pub fn pages_out(&self) -> usize {
        TESTER_PAGES - self.pool.free()
    }

    /// Tells the queue that the run is to end: see [`RxQueue::stop`].
    pub fn stop(&mut self) -> bool {
        self.queue.stop()
    }

    /// The lengths on the wire of all frames so far, in bytes.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// The queue itself, for [`RxQueue::can_wait`], [`RxQueue::wait_on`] and the like.
    pub fn queue(&self) -> &dyn RxQueue {
        &*self.queue
    }

    fn whole(&self, frame: &Completion) -> Vec<u8> {
        self.memory.segments(frame).flatten().copied().collect()
    }

    fn poll_frames(&mut self, now: Timestamp, budget: usize) -> Result<Polled, DeviceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let blocks = self.blocks.as_mut();
        let mut out = Completions::new(&mut self.frames, &mut self.pool, blocks, now, 0);
        let polled = self.queue.poll(&mut out, budget);
        self.wire_bytes += out.wire_bytes;
        self.lost += out.lost;
        self.copied += out.copied;
        self.passed += out.passed;
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
        for frame in self.frames.drain(..) {
            match (frame.into_page(), self.blocks.as_mut()) {
                (Ok(page), _) => self.pool.recycle(page),
                (Err(chained), _) if !chained.is_lent() => self.pool.recycle_chain(chained),
                (Err(lent), Some(blocks)) => {
                    // A frame of other blocks cannot be: `lend` is the only way to one. If it is, it stays out.
                    let _ = blocks.recycle(lent);
                }
                (Err(_), None) => {}
            }
        }
        self.pool.recycled();
    }
}

impl fmt::Debug for QueueTester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wire_bytes, lost, .. } = self;
        f.debug_struct("QueueTester").field("wire_bytes", wire_bytes).field("lost", lost).finish_non_exhaustive()
    }
}
