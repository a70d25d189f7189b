//! The tokens of the path: the right to a page, and a page that a device has filled.

use crate::hash::FlowHash;

/// The longest frame a slot can describe, in bytes: its length field has 20 bits.
pub const FRAME_BYTES_MAX: usize = (1 << LEN_BITS) - 1;

const LEN_BITS: u32 = 20;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;

/// The frame lies in a [block](crate::Blocks): many frames to one page number, read-only.
const LENT: u32 = 1 << LEN_BITS;
/// The hash field holds a flow hash.
const HASHED: u32 = 1 << (LEN_BITS + 1);
/// A [header](crate::FrameHeader) stands before the frame.
const HEADED: u32 = 1 << (LEN_BITS + 2);

/// The frame goes on in other [pages](crate::chain).
const CHAINED: u32 = 1 << (LEN_BITS + 3);

/// What kind of header the frame begins with: four bits whose meaning is the path's.
const LINK_SHIFT: u32 = 28;
const LINK_MASK: u32 = 0xf << LINK_SHIFT;

/// A slot whose page did not stay with it: a worker kept or sent it. Never a page's number.
pub(crate) const BLANK: u32 = u32::MAX;

/// The right to write one page of a [`Region`](crate::Region).
///
/// There is one such token for each page. It has no `Drop`: a token that is lost takes its page out of use until the
/// region ends, and nothing worse.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a page that is dropped is lost to its pool"]
pub struct Page(u32);

impl Page {
    pub(crate) fn new(number: u32) -> Self {
        Self(number)
    }

    /// The page's number, unique in the process.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.0
    }
}

/// A filled buffer: where a frame lies and what is known of it, without any metadata yet.
///
/// (AF_XDP calls "completion ring" what gives back *sent* buffers. Here a completion is always one of receiving.)
///
/// 16 bytes, four to a cache line, and in this form it travels through the rings. It stands for its page as [`Page`]
/// does: whoever holds it has the frame.
#[derive(Debug)]
#[must_use = "a completion that is dropped takes its page with it"]
pub struct Completion(Slot);

/// What stands in a ring. Plain bits: the ring's indices say whose they are.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) page: u32,
    pub(crate) offset: u32,
    pub(crate) hash: u32,
    len_flags: u32,
}

const _: () = assert!(size_of::<Slot>() == 16 && size_of::<Completion>() == 16);

impl Slot {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        (self.len_flags & LEN_MASK) as usize
    }

    #[inline(always)]
    pub(crate) fn is_lent(&self) -> bool {
        self.len_flags & LENT != 0
    }

    #[inline(always)]
    pub(crate) fn has_header(&self) -> bool {
        self.len_flags & HEADED != 0
    }

    /// It has a header, lies in one page, and begins with that kind of header: one comparison.
    #[inline(always)]
    pub(crate) fn is_common(&self, link: u8) -> bool {
        self.len_flags & (HEADED | CHAINED | LINK_MASK) == HEADED | u32::from(link) << LINK_SHIFT
    }

    #[inline(always)]
    pub(crate) fn is_chained(&self) -> bool {
        self.len_flags & CHAINED != 0
    }

    /// `len` bytes of a page that is one of several.
    pub(crate) fn part(page: u32, offset: u32, len: u32) -> Self {
        Self { page, offset, hash: 0, len_flags: len & LEN_MASK | CHAINED }
    }

    /// The first `len` bytes at the same place: as many as a slot can describe.
    pub(crate) fn with_len(self, len: usize) -> Self {
        Self { len_flags: self.len_flags & !LEN_MASK | len.min(FRAME_BYTES_MAX) as u32, ..self }
    }

    /// The `len` bytes before the frame, of the same page: `None` if it starts sooner.
    #[inline(always)]
    pub(crate) fn before(&self, len: usize) -> Option<Self> {
        let offset = self.offset.checked_sub(len as u32)?;
        Some(Self { offset, len_flags: (self.len_flags & LENT) | len as u32, ..*self })
    }

    /// The span of the same page that begins `front` bytes sooner and ends `back` bytes later: negative for less. `None` for
    /// one that no slot can describe.
    #[inline]
    pub(crate) fn resized(&self, front: i32, back: i32) -> Option<Self> {
        let offset = self.offset.checked_add_signed(front.checked_neg()?)?;
        let len = (self.len_flags & LEN_MASK).checked_add_signed(front.checked_add(back)?)?;
        (len <= LEN_MASK).then_some(Self { offset, len_flags: self.len_flags & !LEN_MASK | len, ..*self })
    }

    #[inline(always)]
    pub(crate) fn with_link(self, link: u8) -> Self {
        Self { len_flags: self.len_flags & !LINK_MASK | u32::from(link) << LINK_SHIFT, ..self }
    }

    pub(crate) fn without_header(self) -> Self {
        Self { len_flags: self.len_flags & !HEADED, ..self }
    }

    #[inline(always)]
    pub(crate) fn flow_hash(&self) -> Option<FlowHash> {
        (self.len_flags & HASHED != 0).then_some(FlowHash(self.hash))
    }

    #[inline(always)]
    pub(crate) fn link(&self) -> u8 {
        (self.len_flags >> LINK_SHIFT) as u8
    }
}

impl Completion {
    /// The frame of `len` bytes at `offset` in `page`.
    ///
    /// Nothing is checked here against the page's size: the path does that when the frame is handed over, and reading one that does
    /// not lie in its page gives nothing. Lengths over [`FRAME_BYTES_MAX`] are cut to it.
    #[inline(always)]
    pub fn new(page: Page, offset: u32, len: usize) -> Self {
        Self(Slot { page: page.0, offset, hash: 0, len_flags: len.min(FRAME_BYTES_MAX) as u32 })
    }

    #[inline(always)]
    pub(crate) fn lent(block: u32, offset: u32, len: usize) -> Self {
        Self(Slot { page: block, offset, hash: 0, len_flags: len.min(FRAME_BYTES_MAX) as u32 | LENT })
    }

    #[inline(always)]
    pub(crate) fn from_slot(slot: Slot) -> Self {
        Self(slot)
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> Slot {
        self.0
    }

    /// The frame's length in its page, in bytes: of one of several pages, its head's.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "a frame's length, not a collection's")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where in its page or block the frame starts.
    #[inline(always)]
    pub fn offset(&self) -> u32 {
        self.0.offset
    }

    /// The flow hash, once one was set.
    #[inline(always)]
    pub fn hash(&self) -> Option<FlowHash> {
        self.0.flow_hash()
    }

    /// The hash field as it is: 0 until a hash was set. For the steering loop, which hashes before it looks.
    #[inline(always)]
    pub fn hash_or_zero(&self) -> u32 {
        self.0.hash
    }

    /// Notes the flow's hash, the device's or ours.
    #[inline(always)]
    pub fn set_hash(&mut self, hash: FlowHash) {
        self.0.hash = hash.0;
        self.0.len_flags |= HASHED;
    }

    /// Notes what kind of header the frame begins with: four bits, 0 where nothing was noted.
    #[inline(always)]
    pub fn set_link(&mut self, link: u8) {
        self.0 = self.0.with_link(link);
    }

    /// What kind of header the frame begins with.
    #[inline(always)]
    pub fn link(&self) -> u8 {
        self.0.link()
    }

    /// The same frame, with a [`FrameHeader`](crate::FrameHeader) in the bytes before it. Nothing is checked here: reading
    /// does that.
    #[inline(always)]
    pub fn with_header(mut self) -> Self {
        self.0.len_flags |= HEADED;
        self
    }

    /// Whether the frame lies in a block that was lent, not in a page of its own.
    #[inline(always)]
    pub fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Whether the frame goes on in other pages.
    #[inline(always)]
    pub fn is_chained(&self) -> bool {
        self.0.is_chained()
    }

    pub(crate) fn set_chained(&mut self) {
        self.0.len_flags |= CHAINED;
    }

    /// Gives the frame up and its page back. `Err` returns a lent frame, which has none, for [`Blocks::recycle`], and one of
    /// several pages, for [`Region::take_apart`].
    ///
    /// [`Blocks::recycle`]: crate::Blocks::recycle
    /// [`Region::take_apart`]: crate::Region::take_apart
    #[inline(always)]
    pub fn into_page(self) -> Result<Page, Completion> {
        if self.0.len_flags & (LENT | CHAINED) != 0 { Err(self) } else { Ok(Page(self.0.page)) }
    }
}
