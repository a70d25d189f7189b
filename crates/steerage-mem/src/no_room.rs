//! [`NoRoom`]: the reasons why a packet could not be copied, made longer or sent.

use std::fmt;

use crate::kept::KeptPages;

/// The reason why a packet could not be copied, made longer or sent.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The bytes do not fit into the packet's page.
    TooLong,
    /// No page is free for a copy.
    NoPage,
    /// Handlers already keep the maximum number of packets of the queue.
    KeptMax,
    /// The handler has already sent as many packets of its own as it may send in one call.
    OriginatedMax,
    /// The packet was already kept.
    Taken,
}

impl NoRoom {
    /// Returns why a copy of `len` bytes after `headroom` free bytes was not possible.
    pub fn for_copy(len: usize, headroom: usize, kept_pages: &KeptPages) -> Self {
        match kept_pages.kept() >= kept_pages.limit() {
            _ if headroom + len > kept_pages.page_bytes() => Self::TooLong,
            true => Self::KeptMax,
            false => Self::NoPage,
        }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the packet's page has no room for these bytes: use fewer bytes, or raise linear_bytes",
            Self::NoPage => "no page is free for a copy: raise memory_max, or release packets that are kept",
            Self::KeptMax => "kept_max packets of this queue are kept already: raise kept_max, or release some of them",
            Self::OriginatedMax => {
                "originated_max packets of this handler wait already: raise Builder::originated_max (default 0), or send fewer"
            }
            Self::Taken => "the packet is no longer in its batch: write to a packet before it is kept",
        })
    }
}

impl std::error::Error for NoRoom {}
