//! The tokens of the path: the right to a page, and a page that a device has filled.

/// The longest frame that a slot can describe, in bytes. The length field has 20 bits.
pub const FRAME_BYTES_MAX: usize = (1 << LEN_BITS) - 1;

const LEN_BITS: u32 = 20;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;

/// The frame lies in a [block](crate::Blocks): it is read-only, and many frames have the same page number.
const LENT: u32 = 1 << LEN_BITS;
/// The hash field holds a flow hash.
const HASHED: u32 = 1 << (LEN_BITS + 1);
/// A [header](crate::FrameHeader) is before the frame.
const HEADED: u32 = 1 << (LEN_BITS + 2);

/// The frame continues in other [pages](crate::chain).
const CHAINED: u32 = 1 << (LEN_BITS + 3);

/// [More](crate::FrameHeader::EXTRA_BYTES) is before the header.
const EXTRA: u32 = 1 << (LEN_BITS + 4);

/// The kind of header that the frame begins with: four bits, whose meaning the path defines.
const LINK_SHIFT: u32 = 28;
const LINK_MASK: u32 = 0xf << LINK_SHIFT;

/// The page number of a slot whose page was taken out, because a handler kept or sent it. No page has this number.
pub(crate) const BLANK: u32 = u32::MAX;

/// The right to write one page of a [`Region`](crate::Region).
///
/// Each page has one such token. It has no `Drop`: if a token is lost, its page is out of use until the region ends, and nothing
/// worse happens.
/// The example of [`Region`](crate::Region) fills one.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a page that is dropped is lost to its pool"]
#[repr(transparent)]
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

/// A filled buffer: the place of a received frame, without any metadata yet.
///
/// (The "completion ring" of AF_XDP returns *sent* buffers. Here a completion is always a received frame.)
///
/// A completion has 16 bytes, four per cache line, and travels through the rings in this form. Like [`Page`], it is a token: its
/// holder has the frame.
///
/// The example of [`Region`](crate::Region) makes one of a page.
#[derive(Debug)]
#[must_use = "a completion that is dropped takes its page with it"]
pub struct Completion(Slot);

/// An entry of a ring. It is plain bits, and the positions of the ring determine its holder.
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

    /// Whether the frame has a device header and nothing before it, lies in one page, and begins with that kind of header. This is one comparison.
    #[inline(always)]
    pub(crate) fn is_common(&self, link: u8) -> bool {
        self.len_flags & (HEADED | CHAINED | EXTRA | LINK_MASK) == HEADED | u32::from(link) << LINK_SHIFT
    }

    #[inline(always)]
    pub(crate) fn is_chained(&self) -> bool {
        self.len_flags & CHAINED != 0
    }

    #[inline(always)]
    pub(crate) fn has_extra(&self) -> bool {
        self.len_flags & EXTRA != 0
    }

    /// The flags of frames that do not lie in one page, or not in their own. The flags are the last word of a slot.
    pub(crate) const NO_WHOLE_PAGE: u32 = LENT | CHAINED;

    /// Whether the frame lies in one page, which is its own.
    #[inline(always)]
    pub(crate) fn is_whole_page(&self) -> bool {
        self.len_flags & Self::NO_WHOLE_PAGE == 0
    }

    /// A part of a frame of several pages: `len` bytes of one page.
    pub(crate) fn part(page: u32, offset: u32, len: u32) -> Self {
        Self { page, offset, hash: 0, len_flags: len & LEN_MASK | CHAINED }
    }

    /// The first `len` bytes of the same span, at most as many as a slot can describe.
    pub(crate) fn with_len(self, len: usize) -> Self {
        Self { len_flags: self.len_flags & !LEN_MASK | len.min(FRAME_BYTES_MAX) as u32, ..self }
    }

    /// The `len` bytes before the frame in the same page. `None` if the frame begins too early for that.
    #[inline(always)]
    pub(crate) fn before(&self, len: usize) -> Option<Self> {
        let offset = self.offset.checked_sub(len as u32)?;
        Some(Self { offset, len_flags: (self.len_flags & LENT) | len as u32, ..*self })
    }

    /// The span of the same page that begins `front` bytes earlier and ends `back` bytes later. Negative numbers make it
    /// shorter. `None` if no slot can describe it.
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
        Self { len_flags: self.len_flags & !(HEADED | EXTRA), ..self }
    }

    #[inline(always)]
    pub(crate) fn hash(&self) -> Option<u32> {
        (self.len_flags & HASHED != 0).then_some(self.hash)
    }

    #[inline(always)]
    pub(crate) fn link(&self) -> u8 {
        (self.len_flags >> LINK_SHIFT) as u8
    }
}

/// An offset that no page has stands for all that do not fit 32 bits.
#[inline(always)]
pub(crate) const fn offset_of(offset: usize) -> u32 {
    if offset < u32::MAX as usize { offset as u32 } else { u32::MAX }
}

impl Completion {
    /// The frame of `len` bytes at `offset` in `page`.
    ///
    /// The size of the page is not checked here. The path checks it when the frame is handed over, and a frame that does not
    /// lie in its page reads as empty. Lengths over [`FRAME_BYTES_MAX`] are cut to it.
    #[inline(always)]
    pub fn new(page: Page, offset: usize, len: usize) -> Self {
        Self(Slot { page: page.0, offset: offset_of(offset), hash: 0, len_flags: len.min(FRAME_BYTES_MAX) as u32 })
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

    /// The frame's length in its page, in bytes. For a frame of several pages this is the length in the first one.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "a frame's length, not a collection's")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The offset of the frame in its page or block.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.0.offset as usize
    }

    /// Whether each of these frames has a flow hash.
    #[inline]
    pub fn all_hashed(frames: &[Self]) -> bool {
        // Without a branch, so that the compiler looks at several frames at a time.
        frames.iter().fold(HASHED, |all, frame| all & frame.0.len_flags) != 0
    }

    /// The flow hash, if it was set.
    #[inline(always)]
    pub fn hash(&self) -> Option<u32> {
        self.0.hash()
    }

    /// The hash field, which is 0 until a hash is set. For the steering loop, which always hashes first.
    #[inline(always)]
    pub fn hash_or_zero(&self) -> u32 {
        self.0.hash
    }

    /// Sets the flow hash, either the device's or ours.
    #[inline(always)]
    pub fn set_hash(&mut self, hash: u32) {
        self.0.hash = hash;
        self.0.len_flags |= HASHED;
    }

    /// Sets the kind of header that the frame begins with: four bits, 0 if it is not set.
    #[inline(always)]
    pub fn set_link(&mut self, link: u8) {
        self.0 = self.0.with_link(link);
    }

    /// The kind of header that the frame begins with.
    #[inline(always)]
    pub fn link(&self) -> u8 {
        self.0.link()
    }

    /// Notes that a [`FrameHeader`](crate::FrameHeader) lies in the bytes before the frame. Its place is checked when it is read.
    #[inline(always)]
    pub fn with_header(mut self) -> Self {
        self.0.len_flags |= HEADED;
        self
    }

    /// Notes that [`EXTRA_BYTES`](crate::FrameHeader::EXTRA_BYTES) more bytes lie before the frame's header. Their place is checked
    /// when they are read.
    #[inline(always)]
    pub fn with_extra(mut self) -> Self {
        self.0.len_flags |= EXTRA;
        self
    }

    /// Whether the frame lies in a block that was lent, not in a page of its own.
    #[inline(always)]
    pub fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Whether the frame continues in other pages.
    #[inline(always)]
    pub fn is_chained(&self) -> bool {
        self.0.is_chained()
    }

    pub(crate) fn set_chained(&mut self) {
        self.0.len_flags |= CHAINED;
    }

    /// Gives the frame up and returns its page. `Err` returns a lent frame, which has no page, for [`Blocks::recycle`], and a
    /// frame of several pages, for [`Region::take_apart`].
    ///
    /// [`Blocks::recycle`]: crate::Blocks::recycle
    /// [`Region::take_apart`]: crate::Region::take_apart
    #[inline(always)]
    pub fn into_page(self) -> Result<Page, Completion> {
        if self.0.is_whole_page() { Ok(Page(self.0.page)) } else { Err(self) }
    }
}
