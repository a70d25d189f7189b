//! Decides where records end, as far as the packets of one part of a recording show it.

use super::waiting::{EARLY, Hosts};
use super::{LATE, Opening};
use crate::flow::{Flow, FlowEnd};
use crate::timeouts::Timeouts;

pub(super) enum Boundary {
    Same,
    Another(FlowEnd),
    Unknown,
}

pub(super) struct Rules<'a> {
    pub(super) timeouts: &'a Timeouts,
    pub(super) begin: u64,
    pub(super) waiting: &'a Hosts,
}

impl Rules<'_> {
    /// Returns true if a fragment that must wait for an earlier part may arrive at this time or
    /// later.
    pub(super) fn is_early(&self, time: u64) -> bool {
        time.abs_diff(self.begin) < EARLY
    }

    /// Returns for how long after the beginning of the part a new flow may continue a flow of an
    /// earlier part.
    pub(super) fn soon(&self, flow: &Flow) -> u64 {
        let more = if self.waiting.may_have(flow) { EARLY } else { 0 };
        self.timeouts.inactive.saturating_add(2 * LATE).max(EARLY).saturating_add(more)
    }

    /// Returns the time after a flow's last packet in which fragments that wait for an earlier part
    /// may have continued the flow. `number` is the number of fragments that have waited so far.
    pub(super) fn more(&self, flow: &Flow, opening: &Opening, number: u64) -> u64 {
        let may_have_more = opening.number < number && self.is_early(flow.last) && self.waiting.may_have(flow);
        if may_have_more { EARLY } else { 0 }
    }

    pub(super) fn boundary(&self, piece: &Flow, opening: &Opening, next: &Opening) -> Boundary {
        match self.boundary_of_packets(piece, opening, next) {
            Boundary::Another(_) if self.is_early(next.time) => Boundary::Unknown,
            boundary => boundary,
        }
    }

    fn boundary_of_packets(&self, piece: &Flow, opening: &Opening, next: &Opening) -> Boundary {
        let (timeouts, more) = (self.timeouts, self.more(piece, opening, next.number));
        let (seen, late) = (next.seen(piece), LATE.saturating_add(more));
        let pause = seen.time.abs_diff(piece.last);
        if pause >= timeouts.inactive.saturating_add(late) {
            return Boundary::Another(piece.reason_when_over());
        }
        if seen.opens() {
            // A SYN at the beginning of a flow's piece shows the sender's initial sequence number.
            let is_known = opening.is_segment && opening.seen(piece).opens() && opening.turned == seen.flow.turned;
            if !is_known || !seen.segment.is_there {
                return Boundary::Unknown;
            }
            if opening.sequence != seen.segment.sequence {
                return if more > 0 { Boundary::Unknown } else { Boundary::Another(FlowEnd::Finished) };
            }
        }
        // A fragment that waits for an earlier part may have begun the record of the next packet,
        // so the boundary is unknown.
        if more > 0 && timeouts.may_end_near(piece, seen.time) {
            return Boundary::Unknown;
        }
        // If the clock cuts records, packets before the part may decide which endpoint is the
        // source.
        if pause >= timeouts.inactive || timeouts.clock > 0 && timeouts.cuts(piece.first, piece.last, seen.time) {
            return Boundary::Unknown;
        }
        if pause < timeouts.closed || !piece.can_close() {
            return Boundary::Same;
        }
        if piece.is_closed() {
            let is_over = pause >= timeouts.closed.saturating_add(late);
            return if is_over { Boundary::Another(FlowEnd::Finished) } else { Boundary::Unknown };
        }
        // If a long pause precedes this piece, only closing flags within the piece can have closed
        // the flow: an earlier closed record ended in the pause.
        if opening.follows_pause && !piece.has_closing_flags() { Boundary::Same } else { Boundary::Unknown }
    }

    pub(super) fn opening_after(&self, piece: &Flow, opening: &Opening, next: Opening) -> Opening {
        let more = self.more(piece, opening, next.number);
        let closed = self.timeouts.closed.saturating_add(LATE).saturating_add(more);
        Opening { follows_pause: next.time.abs_diff(piece.last) >= closed, ..next }
    }
}

impl Timeouts {
    pub(super) fn without_closing(&self) -> Self {
        Self { closed: self.inactive, ..*self }
    }

    /// Returns true if a timeout may end the flow before a packet at `time`, even if this packet is
    /// late.
    fn may_end_near(&self, flow: &Flow, time: u64) -> bool {
        let timeout = if flow.can_close() { self.closed } else { self.inactive };
        let is_cut = self.clock > 0 && self.cuts(flow.first, flow.last, time.saturating_add(LATE));
        time.abs_diff(flow.last).saturating_add(LATE) >= timeout || is_cut
    }
}
