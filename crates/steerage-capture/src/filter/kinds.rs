use steerage::LinkType;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameKind {
    pub(crate) link: LinkType,
    /// The byte order matters only if the link header has the byte order of the machine that wrote
    /// the file.
    pub(crate) big_endian: bool,
}

/// The link types BSD loopback and OpenBSD's `enc`, with headers in the byte order of the machine
/// that wrote the file.
const IN_WRITERS_ORDER: [LinkType; 2] = [LinkType::NULL, LinkType(109)];

/// The link types of 802.11, with and without radiotap headers. Frames of 802.11 are filtered, but
/// not dissected.
const WIRELESS: [LinkType; 2] = [LinkType(105), LinkType(127)];

impl FrameKind {
    pub(crate) fn new(link: LinkType, big_endian: bool) -> Self {
        Self { link, big_endian: big_endian && IN_WRITERS_ORDER.contains(&link) }
    }

    /// All kinds of frames that a pipe or a pcapng file may contain.
    pub(super) fn usual() -> impl Iterator<Item = Self> {
        let links = LinkType::READ.iter().copied().chain(WIRELESS);
        let reversed = Self::new(LinkType::NULL, true);
        links.map(|link| Self::new(link, false)).chain([reversed])
    }
}
