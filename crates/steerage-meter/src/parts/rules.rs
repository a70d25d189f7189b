//! Decides where the records of a part end, as far as the packets of the part alone show it.

use super::waiting::{EARLY, Hosts};
use super::{LATE, Opening};
use crate::flow::{Flow, FlowEnd};
use crate::timeouts::Timeouts;

/// States whether a packet belongs to the same record as the last piece of its flow, or to another
/// record.
pub(super) enum Boundary {
    Same,
    /// The packet begins another record, whatever packets came before the part.
    Another(FlowEnd),
    /// Only the packets before the part show whether the packet begins another record.
    Unknown,
}

/// The data that decide where records end, in addition to the packets of a flow.
pub(super) struct Rules<'a> {
    pub(super) timeouts: &'a Timeouts,
    /// The time of the part's first packet.
    pub(super) begin: u64,
    /// The hosts between which waiting fragments (of flows from an earlier part) were sent.
    pub(super) waiting: &'a Hosts,
}

impl Rules<'_> {
    /// Returns true if a waiting fragment (of a flow from an earlier part) may arrive at this time
    /// or later.
    pub(super) fn is_early(&self, time: u64) -> bool {
        time.abs_diff(self.begin) < EARLY
    }

    /// Returns the time after the beginning of the part during which a new flow may be the
    /// continuation of an earlier part's flow.
    pub(super) fn soon(&self, flow: &Flow) -> u64 {
        let more = if self.waiting.may_have(flow) { EARLY } else { 0 };
        self.timeouts.inactive.saturating_add(2 * LATE).max(EARLY).saturating_add(more)
    }

    /// Returns how long a flow may have continued after its last known packet, because waiting
    /// fragments may belong to the flow. `number` is the number of fragments that have waited so
    /// far.
    pub(super) fn more(&self, flow: &Flow, opening: &Opening, number: u64) -> u64 {
        let may_have_more = opening.number < number && self.is_early(flow.last) && self.waiting.may_have(flow);
        if may_have_more { EARLY } else { 0 }
    }

    /// Decides whether a packet belongs to the same record as the last piece of its flow, or to
    /// another record. `next` is the opening (the data of a piece's first packet) for a piece that
    /// begins with this packet.
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
            // If a piece begins with a SYN, the initial sequence number of the SYN's sender is that
            // of the SYN, whether the SYN began another record or not.
            let is_known = opening.is_segment && opening.seen(piece).opens() && opening.turned == seen.flow.turned;
            if !is_known || !seen.segment.is_there {
                return Boundary::Unknown;
            }
            if opening.sequence != seen.segment.sequence {
                return if more > 0 { Boundary::Unknown } else { Boundary::Another(FlowEnd::Finished) };
            }
        }
        // A waiting fragment may have arrived between the last packet of the piece and the next
        // packet, and may have begun the record to which the next packet belongs. Therefore, even
        // if the piece ends here, its chain of pieces goes on.
        if more > 0 && timeouts.may_end_near(piece, seen.time) {
            return Boundary::Unknown;
        }
        // After a cut by the clock, a record has the source of the previous record, which may have
        // begun before the part.
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
        // If the flow was closed before a piece that follows a long pause, the flow's record ended
        // before that piece.
        if opening.follows_pause && !piece.has_closing_flags() { Boundary::Same } else { Boundary::Unknown }
    }

    /// Returns the opening (the data of the first packet) of the next piece, which begins with a
    /// packet after `piece`.
    pub(super) fn opening_after(&self, piece: &Flow, opening: &Opening, next: Opening) -> Opening {
        let more = self.more(piece, opening, next.number);
        let closed = self.timeouts.closed.saturating_add(LATE).saturating_add(more);
        Opening { follows_pause: next.time.abs_diff(piece.last) >= closed, ..next }
    }
}

impl Timeouts {
    /// Returns the timeouts for a flow if it is unknown whether the flow was closed.
    pub(super) fn without_closing(&self) -> Self {
        Self { closed: self.inactive, ..*self }
    }

    /// Returns true if a timeout may end the flow before a packet that has the time `time`, or
    /// before an unknown packet that arrived earlier than this packet. Packets may be late.
    fn may_end_near(&self, flow: &Flow, time: u64) -> bool {
        let timeout = if flow.can_close() { self.closed } else { self.inactive };
        let is_cut = self.clock > 0 && self.cuts(flow.first, flow.last, time.saturating_add(LATE));
        time.abs_diff(flow.last).saturating_add(LATE) >= timeout || is_cut
    }
}
