use std::sync::OnceLock;

use steerage::LinkType;

/// The length of an Ethernet header.
const FRONT_BYTES_MAX: usize = 14;

/// The part of a tunnelled packet that is passed on.
///
/// ```
/// use steerage::LinkType;
/// use steerage_capture::Inner;
///
/// // The packet without its first 50 bytes.
/// let inner = Inner::new(LinkType::ETHERNET, 50);
/// assert!(inner.with_front(&[0; 14]).is_some() && inner.with_front(&[0; 15]).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    pub(super) link: LinkType,
    pub(super) from: usize,
    front: [u8; FRONT_BYTES_MAX],
    front_len: usize,
}

impl Inner {
    /// Cuts the bytes before offset `from` off a packet, which then begins with a header of link
    /// type `link`.
    pub fn new(link: LinkType, from: usize) -> Self {
        Self { link, from, front: [0; FRONT_BYTES_MAX], front_len: 0 }
    }

    /// Adds the bytes `front` in front of the packet. Returns `None` for more than 14 bytes.
    #[must_use]
    pub fn with_front(mut self, front: &[u8]) -> Option<Self> {
        self.front.get_mut(..front.len())?.copy_from_slice(front);
        self.front_len = front.len();
        Some(self)
    }

    pub(super) fn front(&self) -> &[u8] {
        &self.front[..self.front_len]
    }
}

/// A function that finds the part of a packet to pass on, from the packet's bytes and the type of
/// its first header. If the function returns `None`, the whole packet is passed on.
pub type Unwrap = fn(&[u8], LinkType) -> Option<Inner>;

/// The link types of the packets in several streams that are made from one input.
///
/// ```
/// use steerage_capture::LinksSeen;
///
/// let seen = LinksSeen::default();
/// assert_eq!((seen.first(), seen.other()), (None, None));
/// ```
#[derive(Debug, Default)]
pub struct LinksSeen {
    first: OnceLock<LinkType>,
    other: OnceLock<LinkType>,
}

impl LinksSeen {
    /// Returns the link type of the first packet.
    pub fn first(&self) -> Option<LinkType> {
        self.first.get().copied()
    }

    /// Returns a link type of later packets that is not the link type of the first packet, if any.
    pub fn other(&self) -> Option<LinkType> {
        self.other.get().copied()
    }

    /// Returns true if `link` is the link type of the first packet.
    pub(super) fn see(&self, link: LinkType) -> bool {
        let is_first = *self.first.get_or_init(|| link) == link;
        if !is_first {
            self.other.get_or_init(|| link);
        }
        is_first
    }
}
