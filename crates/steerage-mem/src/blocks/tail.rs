use super::Lent;
use crate::header::FrameHeader;
use crate::page::{Completion, FRAME_BYTES_MAX, RecordForm};
use crate::region::prefetch_read;

/// The number of records, each of the current record's length, by which prefetching in a window is
/// ahead. A packet of 800 bytes takes 117 ns if prefetching is 0 or 4 records ahead, and 64 ns if
/// it is 12 or more records ahead.
const RECORDS_AHEAD: usize = 12;
const BYTES_AHEAD: usize = 2048;

/// The number of cache lines that contain the header of a record and the headers of its packet.
const LINES_AHEAD: usize = 2;
const LINE_BYTES: usize = 64;

/// The part of a block that was not lent yet. In a [window](super::FileWindows), the tail is
/// read-only.
#[derive(Debug)]
pub struct Tail<'a> {
    start: *mut u8,
    len: usize,
    writable: bool,
    number: u32,
    lent: &'a mut Lent,
}

impl<'a> Tail<'a> {
    /// # Safety
    /// The `len` bytes at `start` are readable for `'a`, and no other code writes these bytes or
    /// lends frames from them. If `writable` is true, only this tail reads these bytes.
    #[inline(always)]
    pub(super) unsafe fn new(start: *mut u8, len: usize, writable: bool, number: u32, lent: &'a mut Lent) -> Self {
        Self { start, len, writable, number, lent }
    }
}

impl Tail<'_> {
    /// The bytes that have not been lent yet, for writing. Empty for a window.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        if !self.writable {
            return &mut [];
        }
        // SAFETY: by `new`, no other code reaches these bytes while the tail lives.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// The bytes that have not been lent yet and can be read.
    #[inline(always)]
    pub fn read(&self) -> &[u8] {
        // SAFETY: by `new`, these bytes are readable, and only `bytes` of this tail writes them.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Shortens this tail so that it ends at offset `end` of the block or earlier.
    #[inline]
    #[must_use]
    pub fn up_to(mut self, end: usize) -> Self {
        self.len = end.saturating_sub(self.offset()).min(self.len);
        self
    }

    /// The offset of [`bytes`](Self::bytes) within the block.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.lent.end as usize
    }

    /// Lends `len` bytes, `at` bytes after the start of the tail, and shortens the tail. `None` if
    /// the bytes lie outside of the tail or exceed [`FRAME_BYTES_MAX`].
    #[inline(always)]
    pub fn lend(&mut self, at: usize, len: usize) -> Option<Completion> {
        let end = at.checked_add(len).filter(|end| *end <= self.len && len <= FRAME_BYTES_MAX)?;
        let frames = self.lent.frames.checked_add(1)?;
        // SAFETY: `end` is at most `len`, as checked.
        self.start = unsafe { self.start.add(end) };
        self.len -= end;
        let offset = self.lent.end + at as u32;
        *self.lent = Lent { frames, end: self.lent.end + end as u32 };
        Some(Completion::lent(self.number, offset, len))
    }
}

/// The position of a frame in a tail, and the frame's header: see [`Tail::lend_each`].
///
/// ```
/// use steerage_mem::{FrameHeader, Spot};
///
/// // A record of a capture file: 16 bytes that the header replaces, then the frame.
/// let header = FrameHeader { nanos: FrameHeader::NO_TIME, wire_len: 1500, link: 1, interface: 0 };
/// let spot = Spot::new(FrameHeader::BYTES, 60, header);
/// assert_eq!(spot.wire_len(), 1500);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    at: usize,
    len: usize,
    /// The header as two words, because a load of whole words would wait for the stores of smaller
    /// fields (3 ns per frame).
    header: [u64; 2],
    wire_len: u32,
    hash: Option<u32>,
}

impl Spot {
    /// A frame of `len` bytes that begins `at` bytes (at least [`FrameHeader::BYTES`]) after the
    /// start of the tail.
    #[inline(always)]
    pub fn new(at: usize, len: usize, header: FrameHeader) -> Self {
        Self { at, len, header: header.to_words(), wire_len: header.wire_len, hash: None }
    }

    /// Moves this position by `bytes` bytes towards the end of the block.
    #[inline(always)]
    #[must_use]
    pub fn further(self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self }
    }

    /// Adds the flow hash that the device computed, if there is one.
    #[inline(always)]
    #[must_use]
    pub fn with_hash(self, hash: Option<u32>) -> Self {
        Self { hash, ..self }
    }

    /// The frame's length on the wire, in bytes.
    #[inline(always)]
    pub fn wire_len(&self) -> u32 {
        self.wire_len
    }
}

impl Tail<'_> {
    /// Lends up to `count` consecutive frames, appends them to `frames`, writes the header before
    /// each frame, and adds their lengths on the wire to `wire_bytes`. `next` gets the bytes of the
    /// tail, and returns the next position or the error that ends the loop. `outside` creates the
    /// error for a position outside of the tail, for a frame longer than [`FRAME_BYTES_MAX`], and
    /// for a window, which cannot be written. Unlike calls of [`lend`](Self::lend), `lend_each`
    /// keeps its state in registers.
    #[inline(always)]
    pub fn lend_each<E>(
        &mut self,
        (frames, wire_bytes): (&mut Vec<Completion>, &mut u64),
        count: usize,
        outside: impl Fn() -> E,
        mut next: impl FnMut(&mut [u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        if !self.writable {
            return Some(outside());
        }
        // SAFETY: the bytes are those of a writable tail, and nothing else accesses them during the
        // call.
        let next = |start, len| next(unsafe { std::slice::from_raw_parts_mut(start, len) });
        self.lend_all((frames, wire_bytes), count, None, outside, next)
    }

    /// Like [`lend_each`](Self::lend_each), but also for windows, if `form` is the format of the
    /// record header in the 16 bytes before each frame. These bytes stay unchanged.
    #[inline(always)]
    pub fn lend_records<E>(
        &mut self,
        (frames, wire_bytes): (&mut Vec<Completion>, &mut u64),
        count: usize,
        form: Option<RecordForm>,
        outside: impl Fn() -> E,
        mut next: impl FnMut(&[u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        if !self.writable && form.is_none() {
            return Some(outside());
        }
        // SAFETY: the bytes are those of the tail, and nothing writes them during the call.
        let next = |start: *mut u8, len| next(unsafe { std::slice::from_raw_parts(start, len) });
        self.lend_all((frames, wire_bytes), count, form.filter(|_| !self.writable), outside, next)
    }

    /// Without a `form`, the header is written before each frame, so the tail must be writable.
    #[inline(always)]
    fn lend_all<E>(
        &mut self,
        (frames, wire_bytes): (&mut Vec<Completion>, &mut u64),
        count: usize,
        form: Option<RecordForm>,
        outside: impl Fn() -> E,
        mut next: impl FnMut(*mut u8, usize) -> Result<Spot, E>,
    ) -> Option<E> {
        frames.reserve(count);
        let first = frames.len();
        let (start, len, number, lent) = (self.start, self.len, self.number, *self.lent);
        let mut under_way =
            UnderWay { start, len, lent, first, lent_now: 0, on_wire: *wire_bytes, wire_bytes, frames, tail: self };
        while under_way.lent_now < count {
            let Spot { at, len, header, wire_len, hash } = match next(under_way.start, under_way.len) {
                Ok(spot) => spot,
                Err(end) => return Some(end),
            };
            let end = at.checked_add(len).filter(|end| *end <= under_way.len && len <= FRAME_BYTES_MAX);
            let (Some(end), true) = (end, at >= FrameHeader::BYTES) else { return Some(outside()) };
            let frame = Completion::lent(number, under_way.lent.end + at as u32, len);
            let frame = match form {
                Some(form) => {
                    let ahead = (end * RECORDS_AHEAD).max(BYTES_AHEAD);
                    for line in 0..LINES_AHEAD {
                        prefetch_read(under_way.start.wrapping_add(ahead + line * LINE_BYTES));
                    }
                    frame.with_record(form)
                }
                None => {
                    // SAFETY: the tail is writable, and the header lies between its start and the
                    // frame, as checked. `next` has returned its bytes.
                    unsafe {
                        let to = under_way.start.add(at - FrameHeader::BYTES).cast();
                        *to = FrameHeader::bytes_of(header);
                    }
                    frame.with_header()
                }
            };
            // SAFETY: `end` is at most `len`, as checked.
            under_way.start = unsafe { under_way.start.add(end) };
            under_way.len -= end;
            under_way.on_wire += u64::from(wire_len);
            // No overflow: a block has at most 2^32 bytes.
            under_way.lent = Lent { frames: under_way.lent.frames + 1, end: under_way.lent.end + end as u32 };
            under_way.push(frame.with_hash(hash));
        }
        None
    }
}

/// Writes the state of the loop back when dropped, also after a panic, so that every lent frame is
/// counted.
struct UnderWay<'t, 'a> {
    start: *mut u8,
    len: usize,
    lent: Lent,
    first: usize,
    lent_now: usize,
    on_wire: u64,
    wire_bytes: &'t mut u64,
    frames: &'t mut Vec<Completion>,
    tail: &'t mut Tail<'a>,
}

impl UnderWay<'_, '_> {
    #[inline(always)]
    fn push(&mut self, frame: Completion) {
        // SAFETY: `count` entries were reserved after the first `first` entries, and fewer than
        // `count` of them have been written.
        unsafe { self.frames.as_mut_ptr().add(self.first + self.lent_now).write(frame) };
        self.lent_now += 1;
    }
}

impl Drop for UnderWay<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this number of entries has been written.
        unsafe { self.frames.set_len(self.first + self.lent_now) };
        (self.tail.start, self.tail.len) = (self.start, self.len);
        *self.tail.lent = self.lent;
        *self.wire_bytes = self.on_wire;
    }
}
