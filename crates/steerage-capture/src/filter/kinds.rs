//! The kinds of frames in capture files. Each kind of frames needs a filter of its own.

use steerage::LinkType;

/// The properties of frames for which a filter is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameKind {
    pub(crate) link: LinkType,
    /// The byte order of the file, which matters if the link header has the byte order of the
    /// machine that wrote the file.
    pub(crate) big_endian: bool,
}

/// The link types BSD loopback and OpenBSD's `enc`, whose header has the byte order of the machine
/// that wrote the file.
const IN_WRITERS_ORDER: [LinkType; 2] = [LinkType::NULL, LinkType(109)];

/// Link types that steerage filters but does not dissect: 802.11, with or without radiotap headers.
const WIRELESS: [LinkType; 2] = [LinkType(105), LinkType(127)];

impl FrameKind {
    pub(crate) fn new(link: LinkType, big_endian: bool) -> Self {
        Self { link, big_endian: big_endian && IN_WRITERS_ORDER.contains(&link) }
    }

    /// Returns all kinds of frames that a pipe or a pcapng file may contain.
    pub(super) fn usual() -> impl Iterator<Item = Self> {
        let links = LinkType::READ.iter().copied().chain(WIRELESS);
        let reversed = Self::new(LinkType::NULL, true);
        links.map(|link| Self::new(link, false)).chain([reversed])
    }
}
