//! Frames of a batch that a handler sees as one merged packet.
//!
//! The headers of a merged packet are a copy ([`Kept`]), and its payload stays in the original
//! frames. The first frame of a merged packet represents the whole packet. The further frames of a
//! merged packet are *hidden*: their slots come after the slots of all packets that the handler
//! sees. A hidden frame counts as one frame, and its page returns with its slot.

#[cfg(all(test, not(loom)))]
mod tests;

use std::array::from_fn;
use std::sync::Arc;

use crate::bits::bits;
use crate::header::FrameHeader;
use crate::kept::{Kept, KeptPages};
use crate::ring::{Frame, Hand};
use crate::shared_pool::Spare;

/// The maximum number of frames in a batch in which frames are merged: the bits of a `u64`.
pub const BATCH_MAX: usize = u64::BITS as usize;

/// The old positions of frames in a batch, in their new order.
struct Order([u8; BATCH_MAX], usize);

impl Order {
    fn push(&mut self, positions: impl Iterator<Item = usize>) {
        for nth in positions.take(BATCH_MAX - self.1) {
            self.0[self.1] = nth as u8;
            self.1 += 1;
        }
    }

    fn positions(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

/// The frames of a batch, by position.
pub type Batch<'f> = [Option<Frame<'f>>; BATCH_MAX];

/// The pages into which the headers of merged packets are copied.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'p> {
    /// The CPU's pages.
    pub spare: &'p Spare,
    /// The queue's record of kept frames, which also counts the copies of headers.
    pub kept: &'p Arc<KeptPages>,
    /// The number of bytes that stay free in a page before the copied headers.
    pub headroom: usize,
}

impl Pages<'_> {
    fn copy(&self, first: &Frame<'_>, headers: &[u8], wire_len: usize) -> Option<Kept> {
        let header = first.header().map(|header| FrameHeader { wire_len: wire_len as u32, ..header });
        self.spare.copy(self.kept, self.headroom, header, &[headers])
    }
}

/// Merges frames of a batch into packets. `find` gets the frames of the batch and a function, which
/// `find` calls for each merged packet with the set of the packet's frames, its headers, and its
/// [record](Kept::record). All frames of a packet have headers of the same length. After the merge,
/// `copies` contains the headers of each merged packet at the packet's new position. A packet is
/// not merged if no page is free for its headers. Returns the number of packets that the handler
/// sees, or `None` if nothing was merged.
pub fn merge(
    hand: &mut Hand<'_>,
    copies: &mut [Option<Kept>],
    pages: Pages<'_>,
    find: impl FnOnce(&Batch<'_>, &mut dyn FnMut(u64, &[u8], [u8; FrameHeader::EXTRA_BYTES])),
) -> Option<usize> {
    let (mut all, mut members) = (hand.frames(), [0; BATCH_MAX]);
    let frames: Batch<'_> = from_fn(|_| all.next());
    find(&frames, &mut |set, headers, record| {
        let all = bits(set).filter_map(|nth| frames[nth].as_ref());
        let payload: usize = all.map(|frame| frame.len().saturating_sub(headers.len())).sum();
        let Some((nth, Some(first))) = bits(set).next().map(|nth| (nth, &frames[nth])) else { return };
        let copy = pages.copy(first, headers, headers.len() + payload);
        if let Some(copy) = copy.and_then(|copy| copy.of_merged(headers.len(), record)) {
            (copies[nth], members[nth]) = (Some(copy), set);
        }
    });
    (members != [0; BATCH_MAX]).then(|| hide(hand, copies, &members))
}

/// `members` contains the set of frames of each merged packet, at the position of its first frame.
fn hide(hand: &mut Hand<'_>, copies: &mut [Option<Kept>], members: &[u64; BATCH_MAX]) -> usize {
    let hidden = members.iter().fold(0, |all, members| all | members & members.wrapping_sub(1));
    let mut order = Order([0; BATCH_MAX], 0);
    order.push((0..hand.len()).filter(|nth| hidden >> nth & 1 == 0));
    let shown = order.1;
    for (at, nth) in order.0.map(usize::from).into_iter().enumerate().take(shown) {
        // If `at` is not `nth`, `copies[at]` is `None`: a visible frame's copy has moved to an
        // earlier position, and a hidden frame has no copy.
        copies.swap(at, nth);
        if let Some(copy) = &mut copies[at] {
            copy.hide(order.1, members[nth].count_ones() as usize - 1);
            order.push(bits(members[nth]).skip(1));
        }
    }
    hand.reorder(order.positions());
    let packets = hand.frames().zip(copies).take(shown);
    packets.filter(|(_, copy)| copy.is_some()).for_each(|(mut frame, _)| frame.mark_extra(true));
    shown
}

/// Makes the hidden frames of the packets in the set `split` visible again, each after the first
/// frame of its packet, and reorders `verdicts` in the same way. `shown` is the result of
/// [`merge`]. Returns how many frames are visible. Call [`write_headers`] afterwards.
pub fn show<T: Copy>(
    hand: &mut Hand<'_>,
    copies: &mut [Option<Kept>],
    verdicts: &mut [T; BATCH_MAX],
    (shown, split): (usize, u64),
) -> usize {
    let mut order = Order([0; BATCH_MAX], 0);
    let mut seen = 0;
    for splits in [true, false] {
        for (at, copy) in copies.iter_mut().enumerate().take(shown) {
            if splits {
                order.push(std::iter::once(at));
            }
            let Some(copy) = copy else { continue };
            if let Some((from, count)) = copy.hidden().filter(|_| (split >> at & 1 == 1) == splits) {
                copy.hide(order.1, count);
                order.push(from..from + count);
            }
        }
        if splits {
            seen = order.1;
        }
    }
    if hand.reorder(order.positions()) {
        let (mut moved, before): ([_; BATCH_MAX], _) = (from_fn(|_| None), *verdicts);
        for (to, nth) in order.positions().iter().map(|nth| usize::from(*nth)).enumerate() {
            (moved[to], verdicts[to]) = (copies[nth].take(), before[nth]);
        }
        copies.iter_mut().zip(moved).for_each(|(copy, moved)| *copy = moved);
    }
    seen
}

/// Writes the headers of the frames that [`show`] made visible, in place, or to a copy if the frame
/// is lent. `headers` writes headers of the same length for all frames of a packet. Calls `lost`
/// for a frame if no page is free for its copy.
pub fn write_headers<const BYTES: usize>(
    hand: &mut Hand<'_>,
    copies: &mut [Option<Kept>],
    pages: Pages<'_>,
    seen: usize,
    headers: impl Fn(&[Option<Frame<'_>>], &Kept, &mut [[u8; BYTES]; BATCH_MAX]),
    mut lost: impl FnMut(usize),
) {
    let is_split = |(nth, copy): (usize, &Option<Kept>)| {
        copy.as_ref().and_then(Kept::hidden).is_some_and(|(from, _)| from == nth + 1 && from < seen)
    };
    if !copies.iter().take(seen).enumerate().any(is_split) {
        return;
    }
    let (mut all, mut nth) = (hand.frames(), 0);
    let mut frames: Batch<'_> = from_fn(|_| all.next());
    while nth < seen {
        let first = nth;
        nth += 1;
        let hidden = copies[first].as_ref().and_then(Kept::hidden);
        let Some((_, count)) = hidden.filter(|(from, _)| *from == nth && *from < seen) else { continue };
        nth += count;
        let Some(copy) = copies[first].take() else { continue };
        let mut written = [[0; BYTES]; BATCH_MAX];
        headers(&frames[first..nth], &copy, &mut written);
        let (front, link) = (copy.front().unwrap_or(0), frames[first].as_ref().map_or(0, Frame::link));
        for (at, frame) in (first..nth).zip(frames[first..nth].iter_mut().flatten()) {
            let header = &written[at - first][..copy.len().min(BYTES)];
            frame.be_packet(link);
            if frame.resize(header.len() as i32 - front as i32, 0) {
                frame.bytes_mut().into_iter().for_each(|bytes| bytes[..header.len()].copy_from_slice(header));
                continue;
            }
            let own = pages.copy(frame, header, header.len() + frame.len().saturating_sub(front));
            copies[at] = own.map(|own| own.of_front(front));
            if copies[at].is_none() {
                lost(at);
            }
        }
    }
}
