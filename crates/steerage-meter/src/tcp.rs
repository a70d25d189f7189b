//! TCP health: the quality of a connection, as the headers of its segments show it.
//!
//! The rules are Wireshark's, so that tests can compare the counts with tshark. Selective
//! acknowledgements are ignored, because the state has only 64 bytes per flow. `docs/meter.md`
//! defines the counts.

use serde::Serialize;
use steerage::flow::wire::tcp::{ACK, FIN, RST, SYN};

use super::code::{Coder, MalformedEdges};

/// If the round-trip time is unknown, a segment that is late by at most this time (ns) counts as
/// out of order, and a later one as a retransmission, as in Wireshark.
const OVERTAKEN_MAX: u64 = 3_000_000;

/// Stored times, in nanoseconds, wrap around after 18 minutes, so differences between stored times
/// must be below 9 minutes.
const TIME_BITS: u32 = 40;
const TIME_HALF: u64 = 1 << (TIME_BITS - 1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    /// False if there is no TCP header, for IP fragments, and if the capture ends before the end of
    /// the TCP window field.
    pub(super) is_there: bool,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) window: u16,
    pub(super) bytes: u32,
}

/// In a flow's TCP state, arrays have one value for each sender. RST segments are counted in
/// [`Flow`](super::flow::Flow).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct TcpState {
    /// The sequence number after the highest sent one, or 0 until the sender's first segment.
    next: [u32; 2],
    /// The initial sequence number of each side, from its SYN or its first segment. Any number is
    /// valid: `INITIALS` and `next` show whether the initial number is known.
    initial: [u32; 2],
    acknowledged: [u32; 2],
    retransmitted: [u32; 2],
    out_of_order: [u32; 2],
    highest_at_low: [u32; 2],
    /// The microseconds from the SYN to the first acknowledgement (which completes the handshake if
    /// `COMPLETE` is set), plus 1. The value is 0 if the time is unknown.
    reply: u32,
    zero_windows: [u16; 2],
    window: [u16; 2],
    highest_at_high: [u8; 2],
    bits: [u8; 2],
}

const _: () = assert!(size_of::<TcpState>() == 64, "a cache line");

mod bit {
    /// The number of duplicate acknowledgements in a row: 0, 1, or 2 for two or more.
    pub(super) const DUPLICATES: u8 = 3;
    /// This side has sent only SYNs without ACK. If `ANSWERED` is set too, the other side has
    /// replied.
    pub(super) const OPENS: u8 = 4;
    pub(super) const ANSWERED: u8 = 8;
    /// This side was the first to send FIN or RST.
    pub(super) const CLOSES: u8 = 16;
    /// The last segment of this side was a keep-alive, or a zero-window probe.
    pub(super) const KEEPS_ALIVE: u8 = 32;
    pub(super) const PROBES: u8 = 64;
    /// In the bits of the first endpoint: the connection's handshake was complete.
    pub(super) const COMPLETE: u8 = 128;
    /// In the bits of the second endpoint: the initial sequence numbers of both sides are known.
    pub(super) const INITIALS: u8 = 128;
}

/// Compares two sequence numbers, which wrap around (RFC 9293, section 3.4).
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl TcpState {
    pub(super) fn note(&mut self, side: usize, segment: &Segment, flags: u16, time: u64, last: u64) {
        let other = 1 - side;
        let Segment { sequence, acknowledged, window, bytes, .. } = *segment;
        let controls = flags & (SYN | FIN | RST);
        let next = self.next[side];
        let known = next != 0;
        let takes_numbers = bytes > 0 || flags & (SYN | FIN) != 0;
        if self.bits[1] & bit::INITIALS == 0 {
            self.note_initial(side, segment, flags);
        }
        let is_probe = known && bytes == 1 && sequence == next && self.next[other] != 0 && self.window[other] == 0;
        if window == 0 && controls == 0 && !is_probe {
            self.zero_windows[side] = self.zero_windows[side].saturating_add(1);
        }
        let keeps_alive = known && bytes <= 1 && controls == 0 && sequence == next.wrapping_sub(1);
        let repeats_last = known
            && bytes == 0
            && controls == 0
            && sequence == next
            && window == self.window[side]
            && acknowledged == self.acknowledged[side];
        let answers = if window == 0 { bit::KEEPS_ALIVE | bit::PROBES } else { bit::KEEPS_ALIVE };
        let is_duplicate = repeats_last && window != 0 && self.bits[other] & answers == 0;
        self.note_duplicate(side, is_duplicate, acknowledged);
        if takes_numbers && !keeps_alive {
            self.note_again(side, segment, flags, time, last);
        }
        if flags & (SYN | ACK) == ACK {
            self.note_acknowledgement(side, flags, time, last);
        }
        let end = end_of(segment, flags);
        if !is_probe && (!known || is_before(next, end)) {
            self.next[side] = end;
            self.set_highest_at(side, time);
        }
        self.acknowledged[side] = acknowledged;
        self.window[side] = window;
        let probes = if is_probe { bit::PROBES } else { 0 } | if keeps_alive { bit::KEEPS_ALIVE } else { 0 };
        self.bits[side] = self.bits[side] & !(bit::PROBES | bit::KEEPS_ALIVE) | probes;
        self.note_opening(side, flags, time);
        if flags & (FIN | RST) != 0 && (self.bits[0] | self.bits[1]) & bit::CLOSES == 0 {
            self.bits[side] |= bit::CLOSES;
        }
    }

    /// A SYN that repeats the side's initial number belongs to this connection, even after the
    /// connection has closed.
    pub(super) fn is_left_by(&self, side: usize, sequence: u32) -> bool {
        self.knows_initial(side) && self.initial[side] != sequence
    }

    fn knows_initial(&self, side: usize) -> bool {
        self.bits[1] & bit::INITIALS != 0 || self.next[side] != 0
    }

    fn note_initial(&mut self, side: usize, segment: &Segment, flags: u16) {
        let (other, has_ack) = (1 - side, flags & ACK != 0);
        if !self.knows_initial(side) {
            self.initial[side] = segment.sequence.wrapping_sub(u32::from(flags & SYN == 0));
        }
        if has_ack && !self.knows_initial(other) {
            self.initial[other] = segment.acknowledged.wrapping_sub(1);
        }
        if has_ack || self.knows_initial(other) {
            self.bits[1] |= bit::INITIALS;
        }
    }

    fn set_highest_at(&mut self, side: usize, time: u64) {
        self.highest_at_low[side] = time as u32;
        self.highest_at_high[side] = (time >> u32::BITS) as u8;
    }

    /// Returns the time since the highest segment of `side`, or `None` if `time` is before that
    /// segment or too long after it.
    fn since_highest(&self, side: usize, time: u64, last: u64) -> Option<u64> {
        let highest = u64::from(self.highest_at_high[side]) << u32::BITS | u64::from(self.highest_at_low[side]);
        let since = time.wrapping_sub(highest) & ((1 << TIME_BITS) - 1);
        (since < TIME_HALF && time.abs_diff(last) < TIME_HALF).then_some(since)
    }

    /// The first acknowledgement after an answered SYN completes the handshake. As in Wireshark,
    /// the first acknowledgement after any SYN sets the time within which a late segment counts as
    /// out of order, and not as a retransmission.
    fn note_acknowledgement(&mut self, side: usize, flags: u16, time: u64, last: u64) {
        let completes = self.bits[side] & bit::ANSWERED != 0 && flags & RST == 0;
        let sets_limit = self.reply == 0;
        if (completes && self.bits[0] & bit::COMPLETE == 0) || sets_limit {
            let opener = if self.bits[side] & bit::OPENS != 0 { side } else { 1 - side };
            // The opener has sent only its SYN so far, so its highest segment is the SYN.
            let since = self.since_highest(opener, time, last).filter(|_| self.bits[opener] & bit::OPENS != 0);
            if let Some(nanos) = since {
                self.reply = u32::try_from(nanos / 1000).map_or(u32::MAX, |micros| micros.saturating_add(1));
                self.bits[0] |= if completes { bit::COMPLETE } else { 0 };
            }
        }
        if flags & RST == 0 {
            self.bits[side] &= !(bit::OPENS | bit::ANSWERED);
        }
    }

    fn note_opening(&mut self, side: usize, flags: u16, time: u64) {
        let other = 1 - side;
        match flags & (SYN | ACK | RST) {
            // After a repeated SYN, the handshake time starts at the last SYN.
            SYN => {
                self.bits[side] = self.bits[side] & !bit::ANSWERED | bit::OPENS;
                self.set_highest_at(side, time);
            }
            bits if bits == SYN | ACK && self.bits[other] & bit::OPENS != 0 => self.bits[other] |= bit::ANSWERED,
            _ => {}
        }
    }

    fn note_again(&mut self, side: usize, segment: &Segment, flags: u16, time: u64, last: u64) {
        let other = 1 - side;
        let (next, acknowledged) = (self.next[side], self.acknowledged[other]);
        let data_end = segment.sequence.wrapping_add(segment.bytes);
        let was_acknowledged = segment.bytes > 0 && acknowledged != 0 && !is_before(acknowledged, data_end);
        // The segment after a zero-window probe repeats the probe's byte.
        let follows_probe = segment.bytes > 1 && segment.sequence == next.wrapping_sub(1);
        let is_passed = next != 0 && is_before(segment.sequence, next) && !follows_probe;
        if !was_acknowledged && !is_passed {
            return;
        }
        let was_asked_for = self.bits[other] & bit::DUPLICATES >= 2 && segment.sequence == acknowledged;
        let overtaken_max = self.reply.checked_sub(1).map_or(OVERTAKEN_MAX, |micros| u64::from(micros) * 1000);
        let is_overtaken = self.since_highest(side, time, last).is_some_and(|since| since < overtaken_max);
        if !was_acknowledged && !was_asked_for && is_overtaken && end_of(segment, flags) != next {
            self.out_of_order[side] = self.out_of_order[side].saturating_add(1);
        } else {
            self.retransmitted[side] = self.retransmitted[side].saturating_add(1);
        }
    }

    fn note_duplicate(&mut self, side: usize, is_duplicate: bool, acknowledged: u32) {
        let bits = &mut self.bits[side];
        let known = if acknowledged == self.acknowledged[side] { *bits & bit::DUPLICATES } else { 0 };
        *bits = *bits & !bit::DUPLICATES | (known + u8::from(is_duplicate)).min(2);
    }

    fn handshake_micros(&self) -> Option<u32> {
        self.reply.checked_sub(1).filter(|_| self.bits[0] & bit::COMPLETE != 0)
    }

    /// Returns the state without its counts, for the next record of the connection.
    pub(super) fn restarted(&self) -> Self {
        let bits = [self.bits[0] & !(bit::CLOSES | bit::COMPLETE), self.bits[1] & !bit::CLOSES];
        let (none, no_windows) = ([0; 2], [0; 2]);
        Self { retransmitted: none, out_of_order: none, zero_windows: no_windows, bits, ..*self }
    }

    /// `is_later` is true if the segments of `self` are later than those of `other`.
    pub(super) fn merge(&mut self, other: &Self, is_later: bool) {
        let (known, counted) = if is_later { (*self, other) } else { (*other, &*self) };
        let mut both = known;
        for side in 0..2 {
            both.retransmitted[side] = both.retransmitted[side].saturating_add(counted.retransmitted[side]);
            both.out_of_order[side] = both.out_of_order[side].saturating_add(counted.out_of_order[side]);
            both.zero_windows[side] = both.zero_windows[side].saturating_add(counted.zero_windows[side]);
        }
        // The connection's handshake is in only one of the two merged TCP states, and so is its
        // close.
        if both.bits[0] & bit::COMPLETE == 0 && counted.bits[0] & bit::COMPLETE != 0 {
            (both.reply, both.bits[0]) = (counted.reply, both.bits[0] | bit::COMPLETE);
        }
        if (both.bits[0] | both.bits[1]) & bit::CLOSES == 0 {
            (0..2).for_each(|side| both.bits[side] |= counted.bits[side] & bit::CLOSES);
        }
        *self = both;
    }

    /// Adds the TCP state of later segments. If the earlier segments show the handshake or initial
    /// sequence numbers, these are kept.
    pub(super) fn join(&mut self, later: &Self) {
        if *later == Self::default() {
            return; // There are no segments.
        }
        let earlier = *self;
        self.merge(later, false);
        if later.reply == 0 {
            self.reply = earlier.reply;
        }
        for side in 0..2 {
            if earlier.knows_initial(side) {
                self.initial[side] = earlier.initial[side];
            }
            if later.next[side] == 0 {
                self.next[side] = earlier.next[side];
                self.acknowledged[side] = earlier.acknowledged[side];
                self.window[side] = earlier.window[side];
                self.highest_at_low[side] = earlier.highest_at_low[side];
                self.highest_at_high[side] = earlier.highest_at_high[side];
            }
        }
        self.bits[1] |= earlier.bits[1] & bit::INITIALS;
        if (earlier.bits[0] | earlier.bits[1]) & bit::CLOSES != 0 {
            (0..2).for_each(|side| {
                self.bits[side] = self.bits[side] & !bit::CLOSES | earlier.bits[side] & bit::CLOSES;
            });
        }
    }

    pub(super) fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        let Self { next, initial, acknowledged, retransmitted, out_of_order, highest_at_low, reply, .. } = self;
        for pair in [next, initial, acknowledged, retransmitted, out_of_order, highest_at_low] {
            coder.numbers(pair)?;
        }
        coder.number(reply)?;
        let Self { zero_windows, window, highest_at_high, bits, .. } = self;
        for pair in [zero_windows, window] {
            coder.numbers(pair)?;
        }
        for pair in [highest_at_high, bits] {
            coder.numbers(pair)?;
        }
        Ok(())
    }

    pub(super) fn sequences(&self, turned: bool) -> ([u32; 2], [u32; 2]) {
        let ordered = |[one, other]: [u32; 2]| if turned { [other, one] } else { [one, other] };
        (ordered(self.next), ordered(self.acknowledged))
    }

    pub(super) fn health(&self, turned: bool, resets: [u8; 2]) -> TcpHealth {
        let (source, destination) = if turned { (1, 0) } else { (0, 1) };
        let direction = |side: usize| TcpDirection {
            retransmitted: self.retransmitted[side],
            out_of_order: self.out_of_order[side],
            zero_windows: self.zero_windows[side],
            resets: resets[side],
        };
        let closes = |side: usize| self.bits[side] & bit::CLOSES != 0;
        TcpHealth {
            handshake_us: self.handshake_micros(),
            forth: direction(source),
            back: direction(destination),
            closed_by: match (closes(source), closes(destination)) {
                (true, _) => Some(ClosedBy::Source),
                (_, true) => Some(ClosedBy::Destination),
                _ => None,
            },
        }
    }
}

fn end_of(segment: &Segment, flags: u16) -> u32 {
    let data_end = segment.sequence.wrapping_add(segment.bytes);
    data_end.wrapping_add(u32::from(flags & (SYN | FIN) != 0))
}

/// The health of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpHealth {
    /// Microseconds from the SYN to the acknowledgement that completes the handshake, if the meter
    /// saw both: the end-to-end round-trip time.
    pub handshake_us: Option<u32>,
    /// Counts of segments from the source to the destination.
    pub forth: TcpDirection,
    /// Counts of segments from the destination to the source.
    pub back: TcpDirection,
    /// The side that sent the first FIN or RST.
    pub closed_by: Option<ClosedBy>,
}

/// Counts of the segments that one side of a TCP connection sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpDirection {
    /// Retransmitted segments.
    pub retransmitted: u32,
    /// Segments that arrived after segments with higher sequence numbers.
    pub out_of_order: u32,
    /// Segments that advertised a window of zero. The count of zero windows stops at 65,535.
    pub zero_windows: u16,
    /// Segments with RST. The count of resets stops at 255.
    pub resets: u8,
}

/// The side that closed a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClosedBy {
    /// The source, which sent the first packet.
    Source,
    /// The destination, which did not send the first packet.
    Destination,
}

impl ClosedBy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Line = (u64, usize, u16, u32, u32, u32);

    const HANDSHAKE: [Line; 3] =
        [(0, 0, SYN, 100, 0, 0), (10_000, 1, SYN | ACK, 500, 101, 0), (20_000, 0, ACK, 101, 501, 0)];

    fn state(lines: &[Line]) -> TcpState {
        let (mut state, mut last) = (TcpState::default(), 0);
        for (micros, side, flags, sequence, acknowledged, bytes) in lines.iter().copied() {
            let segment = Segment { is_there: true, sequence, acknowledged, window: 1000, bytes };
            let time = (1_000_000_000 + micros) * 1000;
            state.note(side, &segment, flags, time, last);
            last = time;
        }
        state
    }

    fn counts(lines: &[Line]) -> (u32, u32) {
        let health = state(lines).health(false, [0; 2]);
        (health.forth.retransmitted, health.forth.out_of_order)
    }

    /// SYN and FIN each use one sequence number.
    #[test]
    fn repeated_syn_and_fin_are_retransmitted() {
        let twice = |line: Line| [line, (line.0 + 10, line.1, line.2, line.3, line.4, line.5)];
        assert_eq!(counts(&twice(HANDSHAKE[0])), (1, 0));
        let answered = [&HANDSHAKE[..1], &twice(HANDSHAKE[1])].concat();
        assert_eq!(state(&answered).health(true, [0; 2]).forth.retransmitted, 1);
        for bytes in [0, 10] {
            let fin = (30_000, 0, FIN | ACK, 101, 501, bytes);
            assert_eq!(counts(&[&HANDSHAKE[..], &twice(fin)].concat()), (1, 0), "{bytes}");
        }
    }

    #[test]
    fn acknowledged_data_is_retransmitted() {
        let early = [(30_000, 0, ACK, 101, 501, 10), (31_000, 0, ACK, 111, 501, 10)];
        let late = (32_000, 0, ACK, 101, 501, 10);
        assert_eq!(counts(&[&HANDSHAKE[..], &early, &[late]].concat()), (0, 1));
        let acknowledgement = (31_500, 1, ACK, 501, 121, 0);
        assert_eq!(counts(&[&HANDSHAKE[..], &early, &[acknowledgement, late]].concat()), (1, 0));
        let lost = [&HANDSHAKE[..], &early[1..], &[acknowledgement, late]].concat();
        assert_eq!(counts(&lost), (1, 0));
    }

    #[test]
    fn a_syn_with_another_number_leaves_the_connection() {
        let state = state(&HANDSHAKE);
        assert!(!state.is_left_by(0, 100) && state.is_left_by(0, 101) && state.is_left_by(1, 499));
        let late = self::state(&[(0, 1, SYN | ACK, 500, 101, 0)]);
        assert!(!late.is_left_by(0, 100) && late.is_left_by(0, 99));
        assert!(!TcpState::default().is_left_by(0, 7));
    }

    /// Sequence numbers of 0 are frequent in captures that were made by hand.
    #[test]
    fn an_initial_number_may_be_zero() {
        let syn = (0, 0, SYN, 0, 0, 0);
        let opened = [syn, (10, 1, SYN | ACK, 0, 1, 0), (20, 0, ACK, 1, 1, 0)];
        for count in 1..=opened.len() {
            let state = state(&opened[..count]).restarted();
            assert!(!state.is_left_by(0, 0) && state.is_left_by(0, 1) && state.is_left_by(0, u32::MAX), "{count}");
            assert_eq!(state.is_left_by(1, 7), count > 1);
        }
        let late = state(&opened[1..2]);
        assert!(!late.is_left_by(0, 0) && late.is_left_by(0, 7));
        assert!(!state(&[syn]).is_left_by(1, 0) && !state(&[syn]).is_left_by(1, 7));
        let wraps = state(&[(0, 0, SYN, u32::MAX, 0, 0), (10, 1, SYN | ACK, 5, 0, 0)]);
        assert!(!wraps.is_left_by(0, u32::MAX) && wraps.is_left_by(0, 0));
    }

    /// After a cut by the active timeout, the next record still needs the round-trip time.
    #[test]
    fn the_next_record_knows_what_the_last_one_knew() {
        let before = state(&HANDSHAKE).restarted();
        let mut next = before;
        next.join(&TcpState::default());
        assert_eq!(next, before);
        next.join(&state(&[(25_000, 0, ACK, 101, 501, 10)]));
        assert_eq!((next.reply, next.next[0]), (before.reply, 111));
        assert_ne!(next.reply, 0);
    }

    #[test]
    fn handshakes() {
        let time = |lines: &[Line]| state(lines).health(false, [0; 2]).handshake_us;
        assert_eq!(time(&HANDSHAKE), Some(20_000));
        let back = [HANDSHAKE[0], (10_000, 1, SYN | ACK, 500, 101, 0)];
        let mut early = HANDSHAKE.map(|line| (line.0 + 8_000_000, line.1, line.2, line.3, line.4, line.5));
        early[2].0 -= 8_000_000;
        assert_eq!(time(&early), None);
        assert_eq!(time(&[back[0], HANDSHAKE[2]]), None);
        assert_eq!(time(&[back[0], (10_000, 1, RST | ACK, 0, 101, 0)]), None);
        // 2^40 nanoseconds (18 minutes) do not fit into the 40 bits of a stored time.
        let late = [back[0], back[1], ((1 << 40) / 1000 + 5, 0, ACK, 101, 501, 0)];
        assert_eq!(time(&late), None);
    }
}
