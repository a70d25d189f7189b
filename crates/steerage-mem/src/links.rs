//! The table that links the pages of a frame (see [`chain`](crate::chain)), with one entry for each
//! page of a region.

use crate::page::BLANK;
use crate::sync::AtomicU32;

/// The table entry of one page: it describes the part of the frame that follows this page.
///
/// Only the holder of the frame reads and writes its links, so all accesses are relaxed. A link
/// (table entry) is handed over to another CPU together with its frame. The frame is in a ring
/// (memory orders P1 and C1), returns through a ring (C2 and P2), or is a kept frame.
#[derive(Debug)]
pub(crate) struct Link {
    /// The page that contains the frame's next part. `BLANK` if no part follows.
    pub(crate) next: AtomicU32,
    pub(crate) offset: AtomicU32,
    pub(crate) len: AtomicU32,
    /// The number of bytes in all parts after the head (the frame's first page). Only the entry of
    /// the head has this number.
    pub(crate) rest: AtomicU32,
}

pub(crate) fn links(pages: usize) -> Box<[Link]> {
    let link = || Link {
        next: AtomicU32::new(BLANK),
        offset: AtomicU32::new(0),
        len: AtomicU32::new(0),
        rest: AtomicU32::new(0),
    };
    (0..pages).map(|_| link()).collect()
}
