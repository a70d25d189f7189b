use crate::page::BLANK;
use crate::sync::AtomicU32;

/// Describes the part of the frame that follows this page. All accesses are relaxed, because links
/// are handed over together with their frame: in a ring (memory orders P1 and C1, or C2 and P2) or
/// as a kept frame.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) next: AtomicU32,
    pub(crate) offset: AtomicU32,
    pub(crate) len: AtomicU32,
    /// In the entry of the head (first page), the number of bytes in all parts after the head.
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
