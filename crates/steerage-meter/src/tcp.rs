//! TCP health: derives the quality of a connection from the headers of its segments.
//!
//! The rules are the same as in Wireshark's analysis of sequence numbers, so that tests can compare
//! the counts with tshark. The state of the analysis has room for only 64 bytes per flow, so the
//! analysis ignores selective acknowledgements. `docs/meter.md` defines the counts.

use serde::Serialize;
use steerage::flow::wire::tcp::{ACK, FIN, RST, SYN};

/// The limit in nanoseconds that distinguishes out-of-order segments from retransmissions if the
/// round-trip time is unknown. A segment that arrives within this time after the highest segment is
/// out of order. A later segment is a retransmission. Wireshark uses the same limit.
const OVERTAKEN_MAX: u64 = 3_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    /// Whether the packet has a TCP header. Fragments and truncated headers count as packets
    /// without a TCP header.
    pub(super) is_there: bool,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) window: u16,
    pub(super) bytes: u32,
}

/// The state of a connection. Each array of two has the value of the first endpoint as a sender,
/// then the value of the second endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct TcpState {
    /// The time of the segment with the highest sequence number.
    highest_at: [u64; 2],
    /// The sequence number after the highest received one.
    next: [u32; 2],
    acknowledged: [u32; 2],
    retransmitted: [u32; 2],
    out_of_order: [u32; 2],
    zero_windows: [u16; 2],
    window: [u16; 2],
    /// The time in microseconds, plus one, from the SYN to the acknowledgement that completes the
    /// handshake. 0 if unknown.
    handshake: u32,
    resets: [u8; 2],
    bits: [u8; 2],
}

const _: () = assert!(size_of::<TcpState>() == 64, "a cache line");

mod bit {
    /// A segment was seen, so `next` is known.
    pub(super) const KNOWN: u8 = 1;
    /// The last segment was a duplicate acknowledgement. `DUPLICATES` means that at least the last
    /// two segments were duplicates.
    pub(super) const DUPLICATE: u8 = 2;
    pub(super) const DUPLICATES: u8 = 4;
    /// The side has sent only SYNs without ACK so far. `ANSWERED` means that the other side has
    /// replied to them.
    pub(super) const OPENS: u8 = 8;
    pub(super) const ANSWERED: u8 = 16;
    /// The side was the first to send FIN or RST.
    pub(super) const CLOSES: u8 = 32;
}

/// Whether `a` precedes `b`, for sequence numbers that wrap around (RFC 9293, section 3.4).
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl TcpState {
    pub(super) fn note(&mut self, side: usize, segment: &Segment, flags: u16, time: u64) {
        let other = 1 - side;
        let Segment { sequence, acknowledged, window, bytes, .. } = *segment;
        let controls = flags & (SYN | FIN | RST);
        let known = self.bits[side] & bit::KNOWN != 0;
        let takes_numbers = bytes > 0 || flags & (SYN | FIN) != 0;
        if flags & (SYN | ACK | RST) == ACK {
            self.note_acknowledgement(side, time);
        }
        if window == 0 && controls == 0 {
            self.zero_windows[side] = self.zero_windows[side].saturating_add(1);
        }
        let next = self.next[side];
        let is_probe = known && bytes == 1 && sequence == next && self.knows(other) && self.window[other] == 0;
        let keeps_alive = known && bytes <= 1 && controls == 0 && sequence == next.wrapping_sub(1);
        if known && takes_numbers && !is_probe && !keeps_alive && is_before(sequence, next) {
            self.note_again(side, segment, time);
        }
        let is_duplicate = bytes == 0
            && controls == 0
            && window != 0
            && known
            && sequence == next
            && window == self.window[side]
            && acknowledged == self.acknowledged[side];
        self.note_duplicate(side, is_duplicate);
        let end = sequence.wrapping_add(bytes).wrapping_add(u32::from(flags & (SYN | FIN) != 0));
        if !is_probe && (!known || is_before(next, end)) {
            self.next[side] = end;
            self.highest_at[side] = time;
        }
        if flags & ACK != 0 {
            self.acknowledged[side] = acknowledged;
        }
        self.window[side] = window;
        self.bits[side] |= bit::KNOWN;
        self.note_opening(side, flags, time);
        if flags & RST != 0 {
            self.resets[side] = self.resets[side].saturating_add(1);
        }
        if flags & (FIN | RST) != 0 && (self.bits[0] | self.bits[1]) & bit::CLOSES == 0 {
            self.bits[side] |= bit::CLOSES;
        }
    }

    fn knows(&self, side: usize) -> bool {
        self.bits[side] & bit::KNOWN != 0
    }

    /// Handles an acknowledgement. The first acknowledgement after an answered SYN completes the
    /// handshake.
    fn note_acknowledgement(&mut self, side: usize, time: u64) {
        if self.bits[side] & bit::ANSWERED != 0 && self.handshake == 0 {
            // The side has sent only its SYN so far, so `highest_at` is the time of the SYN.
            let micros = time.saturating_sub(self.highest_at[side]) / 1000;
            self.handshake = u32::try_from(micros).map_or(u32::MAX, |micros| micros.saturating_add(1));
        }
        self.bits[side] &= !(bit::OPENS | bit::ANSWERED);
    }

    fn note_opening(&mut self, side: usize, flags: u16, time: u64) {
        let other = 1 - side;
        match flags & (SYN | ACK | RST) {
            // If the SYN is repeated, the handshake time starts at the last SYN.
            SYN => {
                self.bits[side] = self.bits[side] & !bit::ANSWERED | bit::OPENS;
                self.highest_at[side] = time;
            }
            bits if bits == SYN | ACK && self.bits[other] & bit::OPENS != 0 => self.bits[other] |= bit::ANSWERED,
            _ => {}
        }
    }

    /// Counts a segment whose sequence number was already passed as out of order or as a
    /// retransmission.
    fn note_again(&mut self, side: usize, segment: &Segment, time: u64) {
        let other = 1 - side;
        // The segment after a window probe repeats the probe's byte and adds more.
        if segment.bytes > 1 && segment.sequence == self.next[side].wrapping_sub(1) {
            return;
        }
        let since = time.saturating_sub(self.highest_at[side]);
        let was_asked_for = self.bits[other] & bit::DUPLICATES != 0 && segment.sequence == self.acknowledged[other];
        let overtaken_max = self.handshake_micros().map_or(OVERTAKEN_MAX, |micros| u64::from(micros) * 1000);
        let ends_below = segment.sequence.wrapping_add(segment.bytes) != self.next[side];
        if !was_asked_for && since < overtaken_max && ends_below {
            self.out_of_order[side] = self.out_of_order[side].saturating_add(1);
        } else {
            self.retransmitted[side] = self.retransmitted[side].saturating_add(1);
        }
    }

    fn note_duplicate(&mut self, side: usize, is_duplicate: bool) {
        let bits = &mut self.bits[side];
        *bits = match (is_duplicate, *bits & bit::DUPLICATE != 0) {
            (false, _) => *bits & !(bit::DUPLICATE | bit::DUPLICATES),
            (true, false) => *bits | bit::DUPLICATE,
            (true, true) => *bits | bit::DUPLICATES,
        };
    }

    fn handshake_micros(&self) -> Option<u32> {
        self.handshake.checked_sub(1)
    }

    /// This state without its counts, for the next record of the same connection.
    pub(super) fn restarted(&self) -> Self {
        let bits = self.bits.map(|bits| bits & !bit::CLOSES);
        let (none, no_windows) = ([0; 2], [0; 2]);
        Self {
            retransmitted: none,
            out_of_order: none,
            zero_windows: no_windows,
            handshake: 0,
            resets: [0; 2],
            bits,
            ..*self
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let later = self.highest_at.iter().max() >= other.highest_at.iter().max();
        let (known, counted) = if later { (*self, other) } else { (*other, &*self) };
        let mut both = known;
        for side in 0..2 {
            both.retransmitted[side] = both.retransmitted[side].saturating_add(counted.retransmitted[side]);
            both.out_of_order[side] = both.out_of_order[side].saturating_add(counted.out_of_order[side]);
            both.zero_windows[side] = both.zero_windows[side].saturating_add(counted.zero_windows[side]);
            both.resets[side] = both.resets[side].saturating_add(counted.resets[side]);
        }
        // The handshake and the close of a connection happen only once, so only one of the two
        // states has each of them.
        both.handshake = both.handshake.max(counted.handshake);
        if (both.bits[0] | both.bits[1]) & bit::CLOSES == 0 {
            (0..2).for_each(|side| both.bits[side] |= counted.bits[side] & bit::CLOSES);
        }
        *self = both;
    }

    /// The health for a record. If `turned` is set, the second endpoint is the source.
    pub(super) fn health(&self, turned: bool) -> TcpHealth {
        let (source, destination) = if turned { (1, 0) } else { (0, 1) };
        let direction = |side: usize| TcpDirection {
            retransmitted: self.retransmitted[side],
            out_of_order: self.out_of_order[side],
            zero_windows: self.zero_windows[side],
            resets: self.resets[side],
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

/// The health of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpHealth {
    /// Microseconds from the SYN to the acknowledgement that completes the handshake. The duration
    /// of the handshake is the end-to-end round-trip time as seen by the meter. `None` if the meter
    /// did not see the handshake.
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
    /// Segments that arrived out of order, after segments with higher sequence numbers.
    pub out_of_order: u32,
    /// Segments that advertised a window of zero. The count stops at 65,535.
    pub zero_windows: u16,
    /// Segments with RST. The count stops at 255.
    pub resets: u8,
}

/// The side that closed a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClosedBy {
    /// The endpoint that sent first.
    Source,
    /// The endpoint that did not send first.
    Destination,
}

#[cfg(feature = "parquet")]
impl ClosedBy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}
