//! The table that links the pages of a frame, with an entry for each page of a region: see
//! [`chain`](crate::chain).

use crate::page::BLANK;
use crate::sync::AtomicU32;

/// The part of a frame that follows a page.
///
/// Only the holder of the frame reads and writes a link, so all accesses are relaxed. The link is
/// handed over together with the slot (by the ring's P1 and C1, and by its C2 and P2) and together
/// with a kept frame.
#[derive(Debug)]
pub(crate) struct Link {
    /// The page of the next part. `BLANK` after the last part.
    pub(crate) next: AtomicU32,
    pub(crate) offset: AtomicU32,
    pub(crate) len: AtomicU32,
    /// In the entry of a head: the number of bytes of all parts after the head.
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
