//! Merges consecutive segments of a flow within a batch (`Builder::coalesce`).
//!
//! The rules are those of [`steerage_flow::offload::coalesce`], which outputs use too. A merged
//! packet has a copy of its headers, and its payload stays in the original frames. After the
//! handler, each frame gets the verdict of its merged packet. If an output cannot send merged
//! packets, each frame gets its own headers again, without a copy if the frame lies in a page of
//! the pool.
//!
//! A merged packet has the position of its first frame, so the packets of a flow stay in order.
//! Packets of different flows may change their order within a batch, as with the kernel's GRO.

use std::array::from_fn;

use crate::backlog::Source;
use crate::ids::{DropReason, Verdict};
use crate::limits::{HANDLE_BUDGET, HEADROOM};
use crate::packet::{Actions, offload, received};
use crate::tx::OwnedTx;
use steerage_flow::LinkType;
use steerage_flow::offload::{HEADER_BYTES_MAX, MERGED_MAX, Offload, Segments, coalesce};
use steerage_mem::{Kept, Spare, merged, merged::Pages, ring::Frame, ring::Hand};

const _: () = assert!(HANDLE_BUDGET == merged::BATCH_MAX && HANDLE_BUDGET == MERGED_MAX);

fn pages<'p>(source: &'p Source, spare: &'p Spare) -> Pages<'p> {
    Pages { spare, kept: &source.kept_pages, headroom: HEADROOM }
}

#[inline(never)]
pub(crate) fn merge(hand: &mut Hand<'_>, actions: &mut Actions, source: &Source, spare: &Spare) -> Option<usize> {
    let packets = merged::merge(hand, &mut actions.copies, pages(source, spare), |frames, emit| {
        let Some(common) = frames[0].as_ref().map(kind_of) else { return };
        let batch: [_; HANDLE_BUDGET] = from_fn(|nth| candidate(frames[nth].as_ref()?, common));
        coalesce(&batch, common.0, |merged| {
            merged.frame.iter().for_each(|(headers, offload)| emit(merged.members, headers, offload.to_bytes()));
        });
    });
    packets.inspect(|_| actions.acted.set(true))
}

/// Only frames with the same link type and interface are merged.
fn kind_of(frame: &Frame<'_>) -> (LinkType, Option<u16>) {
    (received(frame, None).link, frame.header().map(|header| header.interface))
}

/// Returns the bytes of a frame if it may be merged: if it is complete, in one piece, and no
/// super-frame.
fn candidate<'f>(frame: &'f Frame<'_>, common: (LinkType, Option<u16>)) -> Option<(&'f [u8], Option<Offload>)> {
    let (received, offload) = (received(frame, None), offload(frame, None));
    let is_one = received.data.len() == received.wire_len && !frame.is_chained();
    let merges = is_one && kind_of(frame) == common && !offload.is_some_and(|offload| offload.is_super_frame());
    merges.then_some((received.data, offload))
}

/// Gives each frame the verdict of its merged packet, and splits packets for outputs that do not
/// merge. Returns the number of packets that the outputs see, and the number of frames that were
/// dropped for lack of pages.
#[inline(never)]
pub(crate) fn settle(
    hand: &mut Hand<'_>,
    actions: &mut Actions,
    (source, spare): (&Source, &Spare),
    (packets, outputs): (usize, &[OwnedTx]),
) -> (usize, u64) {
    let (verdicts, mut cut) = (&mut actions.verdicts, 0);
    for (nth, copy) in actions.copies[..packets].iter().enumerate() {
        let Some((copy, (from, count))) = copy.as_ref().and_then(|copy| Some((copy, copy.hidden()?))) else { continue };
        // If a handler shortens a merged packet, the packet becomes a separate frame. All other
        // frames that were merged into the shortened packet are discarded.
        let verdict = if copy.frames() > 1 { verdicts[nth] } else { Verdict::Discarded };
        verdicts[from..from + count].fill(verdict);
        let Verdict::Transmitted(to) = verdict else { continue };
        cut |= u64::from(outputs.get(usize::from(to.0)).is_some_and(|to| !to.can.merged)) << nth;
    }
    let seen = merged::show(hand, &mut actions.copies, verdicts, (packets, cut));
    let mut lost = 0;
    merged::write_headers(hand, &mut actions.copies, pages(source, spare), seen, headers, |nth| {
        (verdicts[nth], lost) = (Verdict::Consumed, lost + 1);
    });
    source.ledger.by_consumer.dropped.add(DropReason::TxFull, lost);
    (seen, lost)
}

fn headers(frames: &[Option<Frame<'_>>], copy: &Kept, to: &mut [[u8; HEADER_BYTES_MAX]; HANDLE_BUDGET]) {
    let Some(offload) = frames[0].as_ref().and_then(|head| offload(head, Some(copy))) else { return };
    let front = copy.front().unwrap_or(0);
    let payload = frames.iter().flatten().map(|frame| frame.bytes().get(front..).unwrap_or_default());
    for (to, segment) in to.iter_mut().zip(Segments::of_pieces(&offload, copy, payload)) {
        to[..segment.header().len()].copy_from_slice(segment.header());
    }
}
