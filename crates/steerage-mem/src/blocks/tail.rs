//! Lends the frames of a block, from front to back.

use super::Lent;
use crate::header::FrameHeader;
use crate::page::{Completion, FRAME_BYTES_MAX};

/// The part of a block that may still be written, and from which frames may still be lent.
#[derive(Debug)]
pub struct Tail<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) number: u32,
    pub(super) lent: &'a mut Lent,
}

impl Tail<'_> {
    /// The bytes that have not been lent yet.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// The part of this tail up to the byte with the number `end` of the block.
    #[inline]
    #[must_use]
    pub fn up_to(mut self, end: usize) -> Self {
        let len = end.saturating_sub(self.offset()).min(self.bytes.len());
        self.bytes = &mut std::mem::take(&mut self.bytes)[..len];
        self
    }

    /// The offset of [`bytes`](Self::bytes) in the block.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.lent.end as usize
    }

    /// Lends `len` bytes, starting `at` bytes into [`bytes`](Self::bytes), as a frame. After the
    /// call, the tail begins after the lent bytes. `None` if they do not lie within the tail, or
    /// are more than [`FRAME_BYTES_MAX`].
    #[inline(always)]
    pub fn lend(&mut self, at: usize, len: usize) -> Option<Completion> {
        let end = at.checked_add(len).filter(|end| *end <= self.bytes.len() && len <= FRAME_BYTES_MAX)?;
        let frames = self.lent.frames.checked_add(1)?;
        self.bytes = &mut std::mem::take(&mut self.bytes)[end..];
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
    /// The header as two words. If the header was assembled from smaller fields later, the CPU
    /// would have to wait for it (3 ns per frame).
    header: [u64; 2],
    wire_len: u32,
    hash: Option<u32>,
}

impl Spot {
    /// A frame of `len` bytes, `at` bytes after the start of the tail. `at` is at least
    /// [`FrameHeader::BYTES`], because `header` is written before the frame.
    #[inline(always)]
    pub fn new(at: usize, len: usize, header: FrameHeader) -> Self {
        Self { at, len, header: header.to_words(), wire_len: header.wire_len, hash: None }
    }

    /// The position that is `bytes` bytes nearer to the end of the block.
    #[inline(always)]
    #[must_use]
    pub fn further(self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self }
    }

    /// Adds the flow's hash, if the device computed one.
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
    /// Lends up to `count` frames in sequence, and appends them to `frames`. `next` gets the bytes
    /// of the tail, and returns the position of the next frame in these bytes. An error of `next`
    /// ends the loop and is returned. If a position does not lie within the bytes, or the frame is
    /// longer than [`FRAME_BYTES_MAX`], `outside` creates the error.
    ///
    /// The result equals that of many calls of [`lend`](Self::lend), but the state that changes for
    /// each frame stays in registers.
    #[inline(always)]
    pub fn lend_each<E>(
        &mut self,
        frames: &mut Vec<Completion>,
        count: usize,
        outside: impl Fn() -> E,
        mut next: impl FnMut(&mut [u8]) -> Result<Spot, E>,
    ) -> Option<E> {
        frames.reserve(count);
        let first = frames.len();
        let bytes = std::mem::take(&mut self.bytes);
        let lent = *self.lent;
        let mut under_way = UnderWay { bytes, lent, first, lent_now: 0, frames, tail: self };
        let number = under_way.tail.number;
        while under_way.lent_now < count {
            let Spot { at, len, header, hash, .. } = match next(under_way.bytes) {
                Ok(spot) => spot,
                Err(end) => return Some(end),
            };
            let end = at.checked_add(len).filter(|end| *end <= under_way.bytes.len() && len <= FRAME_BYTES_MAX);
            let to = end.and_then(|_| under_way.bytes.get_mut(..at)?.last_chunk_mut());
            let (Some(end), Some(to)) = (end, to) else { return Some(outside()) };
            *to = FrameHeader::bytes_of(header);
            under_way.bytes = &mut std::mem::take(&mut under_way.bytes)[end..];
            let mut frame = Completion::lent(number, under_way.lent.end + at as u32, len).with_header();
            if let Some(hash) = hash {
                frame.set_hash(hash);
            }
            // The count cannot exceed the number of bytes in a block, which fits 32 bits.
            under_way.lent = Lent { frames: under_way.lent.frames + 1, end: under_way.lent.end + end as u32 };
            under_way.push(frame);
        }
        None
    }
}

/// The state that [`Tail::lend_each`] writes back even if it panics, to count every lent frame.
struct UnderWay<'t, 'a> {
    bytes: &'a mut [u8],
    lent: Lent,
    first: usize,
    lent_now: usize,
    frames: &'t mut Vec<Completion>,
    tail: &'t mut Tail<'a>,
}

impl UnderWay<'_, '_> {
    #[inline(always)]
    fn push(&mut self, frame: Completion) {
        // SAFETY: `count` entries were reserved behind the `first`, and fewer than that have been
        // written.
        unsafe { self.frames.as_mut_ptr().add(self.first + self.lent_now).write(frame) };
        self.lent_now += 1;
    }
}

impl Drop for UnderWay<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this number of entries has been written.
        unsafe { self.frames.set_len(self.first + self.lent_now) };
        self.tail.bytes = std::mem::take(&mut self.bytes);
        *self.tail.lent = self.lent;
    }
}
