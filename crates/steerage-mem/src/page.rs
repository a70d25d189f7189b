//! The tokens of pages: [`Page`] is the right to write a page, and [`Completion`] is a page that a
//! device has filled.

use crate::header::FrameHeader;

/// The maximum length of a frame that a slot can describe, in bytes.
pub const FRAME_BYTES_MAX: usize = (1 << LEN_BITS) - 1;

const LEN_BITS: u32 = 20;
const LEN_MASK: u32 = (1 << LEN_BITS) - 1;

/// This bit is set if the frame lies in a [block](crate::Blocks). All frames of a block have the
/// same page number.
const LENT: u32 = 1 << LEN_BITS;
const HASHED: u32 = 1 << (LEN_BITS + 1);
const HEADED: u32 = 1 << (LEN_BITS + 2);

const CHAINED: u32 = 1 << (LEN_BITS + 3);

const EXTRA: u32 = 1 << (LEN_BITS + 4);

/// This bit is set if the 16 bytes before the frame are a record header of a capture file: see
/// [`RecordForm`].
const RECORD: u32 = 1 << (LEN_BITS + 5);
const BIG_ENDIAN: u32 = 1 << (LEN_BITS + 6);
const NANOS: u32 = 1 << (LEN_BITS + 7);

/// The kind of header with which the frame begins: four bits that the receive path defines.
const LINK_SHIFT: u32 = 28;
const LINK_MASK: u32 = 0xf << LINK_SHIFT;

/// The page number of a slot after a handler kept or sent its page. No page has this number.
pub(crate) const BLANK: u32 = u32::MAX;

/// The right to write one page of a [`Region`](crate::Region). Each page has exactly one `Page`
/// value, without `Drop`: if this value is lost, the page stays unused until the region ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a page that is dropped is lost to its pool"]
#[repr(transparent)]
pub struct Page(u32);

impl Page {
    pub(crate) fn new(number: u32) -> Self {
        Self(number)
    }

    /// The page's number, which is unique in the process.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.0
    }
}

/// The position of a received frame, before any metadata is built. (The "completion ring" of AF_XDP
/// returns *sent* buffers.) A token like [`Page`]: only its holder may use the frame. A completion
/// has 16 bytes, and the rings between CPUs contain completions in this form.
#[derive(Debug)]
#[repr(transparent)]
#[must_use = "a completion that is dropped takes its page with it"]
pub struct Completion(Slot);

/// Unlike a token, a slot gives no right to access the frame. The ring's positions determine which
/// thread may access the frame.
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

    /// Checks in one comparison that the frame has no extra record, lies in one page, has headers
    /// of the kind `link`, and has a device header if and only if `headed` is true.
    #[inline(always)]
    pub(crate) fn is_common(&self, link: u8, headed: bool) -> bool {
        let expected = u32::from(link) << LINK_SHIFT | if headed { HEADED } else { 0 };
        self.len_flags & (HEADED | CHAINED | EXTRA | LINK_MASK) == expected
    }

    #[inline(always)]
    pub(crate) fn header_of(&self, bytes: [u8; FrameHeader::BYTES]) -> FrameHeader {
        if self.len_flags & RECORD == 0 { FrameHeader::from_bytes(bytes) } else { self.form().header_of(bytes) }
    }

    #[inline(always)]
    fn form(&self) -> RecordForm {
        RecordForm(self.len_flags & (BIG_ENDIAN | NANOS))
    }

    #[inline(always)]
    pub(crate) fn is_chained(&self) -> bool {
        self.len_flags & CHAINED != 0
    }

    #[inline(always)]
    pub(crate) fn has_extra(&self) -> bool {
        self.len_flags & EXTRA != 0
    }

    pub(crate) fn with_extra(self, yes: bool) -> Self {
        Self { len_flags: self.len_flags & !EXTRA | if yes { EXTRA } else { 0 }, ..self }
    }

    /// A frame in a page is not writable if it has an extra record, which stands for further,
    /// hidden frames.
    #[inline(always)]
    pub(crate) fn is_writable(&self) -> bool {
        self.len_flags & (LENT | EXTRA) == 0
    }

    pub(crate) const NO_WHOLE_PAGE: u32 = LENT | CHAINED;

    #[inline(always)]
    pub(crate) fn is_whole_page(&self) -> bool {
        self.len_flags & Self::NO_WHOLE_PAGE == 0
    }

    pub(crate) fn part(page: u32, offset: u32, len: u32) -> Self {
        Self { page, offset, hash: 0, len_flags: len & LEN_MASK | CHAINED }
    }

    pub(crate) fn with_len(self, len: usize) -> Self {
        Self { len_flags: self.len_flags & !LEN_MASK | len.min(FRAME_BYTES_MAX) as u32, ..self }
    }

    #[inline(always)]
    pub(crate) fn before(&self, len: usize) -> Option<Self> {
        let offset = self.offset.checked_sub(len as u32)?;
        Some(Self { offset, len_flags: (self.len_flags & LENT) | len as u32, ..*self })
    }

    /// Makes the frame longer, or shorter if the numbers are negative. `None` if the result does
    /// not fit into a slot.
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

/// The form of the records in a capture file: four numbers of 4 bytes (seconds, fraction, captured
/// length, original length) before each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordForm(u32);

impl RecordForm {
    /// Creates a form with big-endian numbers if `big_endian` is true, and with fractions in
    /// nanoseconds if `nanos` is true.
    pub fn new(big_endian: bool, nanos: bool) -> Self {
        Self(if big_endian { BIG_ENDIAN } else { 0 } | if nanos { NANOS } else { 0 })
    }

    /// Returns the header of a frame from its record, without the link type, which the records of a
    /// capture file do not contain.
    #[inline(always)]
    pub fn header_of(self, bytes: [u8; FrameHeader::BYTES]) -> FrameHeader {
        let word = |at: usize| {
            let word = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            if self.0 & BIG_ENDIAN == 0 { word } else { word.swap_bytes() }
        };
        let fraction_nanos = if self.0 & NANOS == 0 { 1000 } else { 1 };
        FrameHeader::of_record((word(0), word(4), fraction_nanos), (word(8), word(12)))
    }
}

/// An offset of 2^32 or more is replaced by an offset that lies in no page.
#[inline(always)]
pub(crate) const fn offset_of(offset: usize) -> u32 {
    if offset < u32::MAX as usize { offset as u32 } else { u32::MAX }
}

impl Completion {
    /// Creates the completion (a filled buffer) for a frame of `len` bytes at `offset` in `page`.
    /// The receive path checks `offset` and `len`. Lengths above [`FRAME_BYTES_MAX`] are reduced.
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

    /// The length of the frame's part in its first page, in bytes.
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

    /// Returns true if each frame in `frames` has a flow hash.
    #[doc(hidden)]
    #[inline]
    pub fn all_hashed(frames: &[Self]) -> bool {
        // The loop has no branch, so that the compiler checks several frames at a time.
        frames.iter().fold(HASHED, |all, frame| all & frame.0.len_flags) != 0
    }

    /// The flow hash of the frame, if any.
    #[inline(always)]
    pub fn hash(&self) -> Option<u32> {
        self.0.hash()
    }

    /// The flow hash, or 0 if there is none. Only for the steering loop, which always sets the hash
    /// first.
    #[doc(hidden)]
    #[inline(always)]
    pub fn hash_or_zero(&self) -> u32 {
        self.0.hash
    }

    /// Sets the flow hash of the frame.
    #[inline(always)]
    pub fn set_hash(&mut self, hash: u32) {
        self.0.hash = hash;
        self.0.len_flags |= HASHED;
    }

    /// Adds the flow hash that the device computed, if there is one.
    #[inline(always)]
    pub fn with_hash(mut self, hash: Option<u32>) -> Self {
        if let Some(hash) = hash {
            self.set_hash(hash);
        }
        self
    }

    /// Sets the kind of header (four bits) with which the frame begins.
    #[doc(hidden)]
    #[inline(always)]
    pub fn set_link(&mut self, link: u8) {
        self.0 = self.0.with_link(link);
    }

    /// The kind of header with which the frame begins.
    #[inline(always)]
    pub fn link(&self) -> u8 {
        self.0.link()
    }

    /// Records that a [`FrameHeader`] lies immediately before the frame.
    #[inline(always)]
    pub fn with_header(mut self) -> Self {
        self.0.len_flags |= HEADED;
        self
    }

    #[inline(always)]
    pub(crate) fn with_record(mut self, form: RecordForm) -> Self {
        self.0.len_flags |= HEADED | RECORD | form.0;
        self
    }

    /// Returns true if the frame is a record of a mapped capture file.
    #[inline(always)]
    pub(crate) fn is_record(&self) -> bool {
        self.0.len_flags & RECORD != 0
    }

    /// Marks the frame as having an extra record before its header.
    #[doc(hidden)]
    #[inline(always)]
    pub fn with_extra(mut self) -> Self {
        self.0.len_flags |= EXTRA;
        self
    }

    /// Returns true if the frame lies in a block.
    #[inline(always)]
    pub fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Returns true if the frame has more than one page.
    #[inline(always)]
    pub fn is_chained(&self) -> bool {
        self.0.is_chained()
    }

    pub(crate) fn set_chained(&mut self) {
        self.0.len_flags |= CHAINED;
    }

    /// Returns the frame's page if the frame lies in a single page. `Err` returns any other frame:
    /// pass a lent frame to [`Blocks::recycle`], and a frame in several pages to
    /// [`Region::take_apart`].
    ///
    /// [`Blocks::recycle`]: crate::Blocks::recycle
    /// [`Region::take_apart`]: crate::Region::take_apart
    #[inline(always)]
    pub fn into_page(self) -> Result<Page, Completion> {
        if self.0.is_whole_page() { Ok(Page(self.0.page)) } else { Err(self) }
    }
}
