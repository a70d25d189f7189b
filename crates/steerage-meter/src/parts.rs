//! Parts of a recording that are metered apart, on other machines perhaps, and joined afterwards.
//!
//! A flow may continue over the end of a part. When a part is metered, the packets before it are
//! unknown, and these packets decide where some records end: a flow that was closed ends after a
//! shorter pause, and a SYN opens another connection if its number differs from that of the
//! connection. Therefore a flow that may have begun before the part is kept as a chain of *pieces*.
//! A new piece begins with each packet that may begin another record, if the packets before the part
//! decide whether it does. When the packets of the part alone decide, the chain ends.
//!
//! [`Edges`] has the chains of a part, and its flows that were open at the end. [`Edges::join`] appends the
//! edges of the next part. All other flows of a part are finished, and have their records already.
//!
//! Times may be [`LATE_MAX`] out of order, as for the timeouts of a table. Therefore a decision of a
//! part alone has a margin of that time: the last packet before the part may be later than the first
//! packets of the part. A flow that ends because of the clock has twice that margin, because the next
//! packet may be late too. The margins are longer for a flow to which fragments may belong that
//! [wait](waiting) for an earlier part.

mod rows;
mod waiting;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use steerage::flow::Fragment;

pub use rows::{EdgesError, PartEdges};

use super::flow::{Flow, FlowEnd, Seen};
use super::fragments::FlowsOfDatagrams;
use super::key::Key;
use super::record::FlowRecord;
use super::tcp::Segment;
use super::timeouts::{LATE_MAX, Timeouts, nanos};
use waiting::{Ends, Fragments, Keeping};

/// The first packet of a piece, with what decides whether the packet begins another record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Opening {
    time: u64,
    tcp_flags: u16,
    sequence: u32,
    is_segment: bool,
    turned: bool,
    /// The pause before this packet ends a closed flow, however late the packet was.
    follows_pause: bool,
}

impl Opening {
    fn of(seen: &Seen, follows_pause: bool) -> Self {
        let Segment { is_there, sequence, .. } = seen.segment;
        let turned = seen.flow.turned;
        Self { time: seen.time, tcp_flags: seen.tcp_flags, sequence, is_segment: is_there, turned, follows_pause }
    }

    /// The packet as far as [`Flow::ends_before`] needs it.
    fn seen(&self, flow: &Flow) -> Seen {
        let mut seen = Seen::of(super::key::Directed { key: flow.key, turned: self.turned });
        (seen.time, seen.tcp_flags) = (self.time, self.tcp_flags);
        seen.segment = Segment { is_there: self.is_segment, sequence: self.sequence, ..Segment::default() };
        seen
    }
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another piece of the chain.
    Piece,
    /// Nothing: the flow has ended.
    End(FlowEnd),
    /// The end of the part, so the next part may continue the flow.
    Part,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    flow: Flow,
    opening: Opening,
    next: Next,
}

/// What a packet means for the last piece of a chain.
enum Boundary {
    Same,
    /// The packet begins another record, whatever came before the part.
    Another(FlowEnd),
    /// What came before the part decides.
    Unknown,
}

/// `late` is the margin of decisions.
fn boundary(piece: &Flow, opening: &Opening, seen: &Seen, timeouts: &Timeouts, late: u64) -> Boundary {
    let pause = seen.time.abs_diff(piece.last);
    if pause >= timeouts.inactive.saturating_add(late) {
        return Boundary::Another(piece.reason_when_over());
    }
    if seen.opens() {
        // After a piece that begins with a SYN, the initial number of the SYN's sender is that of
        // the SYN, whether the SYN began another record or not.
        let is_known = opening.is_segment && opening.seen(piece).opens() && opening.turned == seen.flow.turned;
        if !is_known || !seen.segment.is_there {
            return Boundary::Unknown;
        }
        if opening.sequence != seen.segment.sequence {
            return Boundary::Another(FlowEnd::Finished);
        }
    }
    // The records after a cut by the clock have the source of the record before, which may have begun
    // before the part.
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
    // A flow that was closed before such a piece has ended there.
    if opening.follows_pause && !piece.has_closing_flags() { Boundary::Same } else { Boundary::Unknown }
}

/// What the meter of a part collects for its edges.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The time of the part's first packet.
    begin: Option<u64>,
    openings: HashMap<Key, Opening>,
    pieces: Vec<Piece>,
    keeping: Keeping,
    /// The fragments at the edges, after the end of the part.
    fragments: Fragments,
}

impl Collected {
    /// Notes a flow that begins. A flow that begins soon after the beginning of the part may
    /// continue a flow of an earlier part.
    pub(super) fn begin(&mut self, flow: &mut Flow, seen: &Seen, timeouts: &Timeouts) {
        let begin = *self.begin.get_or_insert(seen.time);
        if seen.time.abs_diff(begin) < soon(timeouts, self.keeping.ends(), &flow.key) {
            flow.set_continues(true);
            self.openings.insert(flow.key, Opening::of(seen, false));
        }
    }

    /// Keeps a fragment if only an earlier part may know its flow, and returns true. `begin` is the time
    /// of the first packet of the part, if the fragment is in the first batch.
    pub(super) fn keep(&mut self, fragment: &Fragment, seen: &Seen, begin: u64, known: &FlowsOfDatagrams) -> bool {
        let begin = *self.begin.get_or_insert(begin);
        self.keeping.keep(fragment, seen, seen.time.abs_diff(begin), known)
    }

    /// Ends the part.
    pub(super) fn ended(mut self: Box<Self>, known: FlowsOfDatagrams) -> Box<Self> {
        self.fragments = std::mem::take(&mut self.keeping).ended(known.into_datagrams());
        self
    }

    /// If the packet may not belong to the last piece of its flow, ends the piece, and returns true.
    /// `flow` is then the next piece, or another flow.
    pub(super) fn cut(&mut self, flow: &mut Flow, seen: &Seen, timeouts: &Timeouts) -> bool {
        if flow.surely_goes_on(seen, timeouts) {
            return false;
        }
        let opening = self.openings.get(&flow.key).copied().unwrap_or_default();
        let late = late(self.keeping.ends(), &flow.key);
        let (next, continues) = match boundary(flow, &opening, seen, timeouts, late) {
            Boundary::Same => return false,
            Boundary::Another(why) => (Next::End(why), false),
            Boundary::Unknown => (Next::Piece, true),
        };
        let follows_pause = seen.time.abs_diff(flow.last) >= timeouts.closed.saturating_add(late);
        let piece = flow.restart(seen, FlowEnd::Finished);
        flow.set_continues(continues);
        self.pieces.push(Piece { flow: piece, opening, next });
        if continues {
            self.openings.insert(flow.key, Opening::of(seen, follows_pause));
        } else {
            self.openings.remove(&flow.key);
        }
        true
    }

    /// Takes the last piece of a chain whose flow has left the table.
    pub(super) fn end(&mut self, flow: &Flow, why: FlowEnd) {
        // Fragments that wait may have kept the flow from ending.
        let may_go_on = why != FlowEnd::Resources && self.keeping.ends().more(&flow.key) > 0;
        self.add(flow, if may_go_on { Next::Part } else { Next::End(why) });
    }

    fn add(&mut self, flow: &Flow, next: Next) {
        let opening = self.openings.remove(&flow.key).unwrap_or_default();
        self.pieces.push(Piece { flow: *flow, opening, next });
    }
}

/// The margin of a decision about a flow.
fn late(waiting: &Ends, flow: &Key) -> u64 {
    nanos(LATE_MAX) + waiting.more(flow)
}

/// How long after the beginning of a part a flow may begin that continues an earlier flow.
fn soon(timeouts: &Timeouts, waiting: &Ends, flow: &Key) -> u64 {
    timeouts.inactive.saturating_add(nanos(LATE_MAX) + late(waiting, flow))
}

/// The edges of a flow.
#[derive(Clone, Debug, Default)]
struct FlowEdges {
    /// The chain of pieces that may continue a flow of an earlier part.
    chain: Vec<Piece>,
    /// The flow that was open at the end, if it began in the part.
    open: Option<Piece>,
}

impl FlowEdges {
    fn is_open(&self) -> bool {
        self.open.is_some() || self.chain.last().is_some_and(|piece| piece.next == Next::Part)
    }
}

/// The flows at the beginning and at the end of a part, which earlier and later parts may continue.
///
/// Parts are joined in order, in any grouping. [`join`](Self::join) and [`finish`](Self::finish)
/// return the records of flows that no other part can continue.
#[derive(Clone, Debug)]
pub struct Edges {
    begin: Option<u64>,
    end: u64,
    timeouts: Timeouts,
    flows: HashMap<Key, FlowEdges>,
    fragments: Fragments,
    /// The number of pieces that were joined to an earlier part's flow.
    joined: u64,
}

/// Parts that were metered with other timeouts cannot be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot join parts that were metered with different timeouts: meter all parts with the same timeouts")]
pub struct OtherTimeouts;

impl Edges {
    /// The edges of a part, and the records that its pieces decide alone.
    pub(super) fn of(
        collected: Collected,
        open: impl Iterator<Item = Flow>,
        end: u64,
        timeouts: Timeouts,
    ) -> (Self, Vec<FlowRecord>) {
        let mut collected = collected;
        let (begin, fragments) = (collected.begin, std::mem::take(&mut collected.fragments));
        let mut edges = Self { begin, end, timeouts, flows: HashMap::new(), fragments, joined: 0 };
        let mut records = Vec::new();
        let mut began = Vec::new();
        for flow in open {
            if flow.continues() {
                collected.add(&flow, Next::Part);
            } else {
                began.push(Piece { flow, opening: Opening::default(), next: Next::Part });
            }
        }
        // The pieces of a flow are in order, because they were on one CPU.
        let mut chains: HashMap<Key, Vec<Piece>> = HashMap::new();
        for piece in collected.pieces {
            let chain = chains.entry(piece.flow.key).or_default();
            if let Some(last) = chain.last_mut() {
                last.next = Next::Piece;
            }
            chain.push(piece);
            if let Next::End(_) = piece.next {
                edges.add(std::mem::take(chain), &mut records);
            }
        }
        for chain in chains.into_values().filter(|chain| !chain.is_empty()) {
            edges.add(chain, &mut records);
        }
        for piece in began {
            let flow = edges.flows.entry(piece.flow.key).or_default();
            if let Some(last) = flow.chain.last_mut().filter(|last| last.next == Next::Part) {
                last.next = Next::End(last.flow.reason_when_over());
            }
            flow.open = Some(piece);
        }
        (edges, records)
    }

    /// Adds a chain of the part. Only the first chain of a flow can continue a flow of an earlier part.
    fn add(&mut self, chain: Vec<Piece>, records: &mut Vec<FlowRecord>) {
        let Some(key) = chain.first().map(|piece| piece.flow.key) else { return };
        match self.flows.entry(key) {
            Entry::Occupied(mut flow) => flow.get_mut().open = fold(None, &chain, &self.timeouts, records),
            Entry::Vacant(none) => drop(none.insert(FlowEdges { chain, open: None })),
        }
    }

    /// The number of flows at the edges.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// How often a flow of a part continued a flow of the part before it.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// Appends the edges of the part that follows this one. Returns the records of the flows that no
    /// other part can continue.
    ///
    /// # Errors
    /// If the parts were metered with different timeouts.
    pub fn join(&mut self, later: Self) -> Result<Vec<FlowRecord>, OtherTimeouts> {
        if self.timeouts != later.timeouts {
            return Err(OtherTimeouts);
        }
        let timeouts = self.timeouts;
        let mut records = Vec::new();
        let Some(later_begin) = later.begin else { return Ok(records) };
        let Some(begin) = self.begin else {
            let joined = self.joined;
            *self = later;
            self.joined += joined;
            return Ok(records);
        };
        self.joined += later.joined;
        let mut later = later;
        // As for the clock of a meter, a time far back means that another recording has begun.
        let is_back = later.end < self.end && self.end - later.end <= timeouts.inactive;
        let end = if is_back { self.end } else { later.end };
        let settled = self.fragments.join(std::mem::take(&mut later.fragments), begin, end);
        settled.iter().for_each(|seen| later.add_fragment(seen, &mut records));
        let waiting = self.fragments.ends();
        let mut later_flows = later.flows;
        for (key, mut flow) in std::mem::take(&mut self.flows) {
            let next = later_flows.remove(&key).unwrap_or_default();
            if !flow.is_open() {
                let open = fold(None, &next.chain, &timeouts, &mut records);
                flow.open = next.open.or(open);
            } else if next.chain.is_empty() {
                // A flow that began in the later part, long after its beginning, is another flow.
                let is_another = next.open.is_some();
                flow.expire((end, waiting.more(&key)), is_another, &timeouts, &mut records);
                flow.open = next.open.or(flow.open);
            } else if let Some(open) = flow.open.take() {
                self.joined += 1;
                let open = fold(Some(open), &next.chain, &timeouts, &mut records);
                flow.open = next.open.or(open);
            } else {
                self.joined += 1;
                let rest = append(&mut flow.chain, next.chain, &timeouts, late(&waiting, &key));
                let open = fold(None, &rest, &timeouts, &mut records);
                flow.open = next.open.or(open);
            }
            if flow.is_open() || !flow.chain.is_empty() {
                self.flows.insert(key, flow);
            }
        }
        for (key, mut flow) in later_flows {
            let first = flow.chain.first().map_or(later_begin, |piece| piece.opening.time);
            if first.abs_diff(begin) >= soon(&timeouts, &waiting, &key) {
                let open = fold(None, &std::mem::take(&mut flow.chain), &timeouts, &mut records);
                flow.open = flow.open.or(open);
            }
            if flow.is_open() || !flow.chain.is_empty() {
                self.flows.insert(key, flow);
            }
        }
        self.end = end;
        Ok(records)
    }

    /// The records of all flows at the edges, after the last part was joined. The records are in the
    /// order in which their flows began.
    pub fn finish(mut self) -> Vec<FlowRecord> {
        let (mut records, timeouts) = (Vec::new(), self.timeouts);
        for seen in self.fragments.finish() {
            self.add_fragment(&seen, &mut records);
        }
        for flow in self.flows.into_values() {
            let open = fold(None, &flow.chain, &timeouts, &mut records);
            for piece in [open, flow.open].into_iter().flatten() {
                records.push(FlowRecord::new(piece.flow, piece.flow.reason_at_the_end(self.end, &timeouts)));
            }
        }
        records.sort_unstable_by_key(|record| (record.flow().first, record.flow().key));
        records
    }
}

impl FlowEdges {
    /// Ends an open flow that no packet of the later part continues, if it has timed out or another
    /// flow has begun. `at` is the end of the later part, and how much longer the flow may pause.
    fn expire(&mut self, at: (u64, u64), is_another: bool, timeouts: &Timeouts, records: &mut Vec<FlowRecord>) {
        let (end, more) = at;
        let is_over = |flow: &Flow| is_another || flow.is_over(end, flow.late().saturating_add(more), timeouts);
        if let Some(open) = self.open.take_if(|open| is_over(&open.flow)) {
            records.push(FlowRecord::new(open.flow, open.flow.reason_when_over()));
        }
        if let Some(last) = self.chain.last_mut().filter(|last| last.next == Next::Part && is_over(&last.flow)) {
            last.next = Next::End(last.flow.reason_when_over());
        }
    }
}

/// Joins the pieces of a chain to `open`, the flow before them. Adds the records that end to
/// `records`, and returns the flow that is open at the end of the chain.
fn fold(open: Option<Piece>, chain: &[Piece], timeouts: &Timeouts, records: &mut Vec<FlowRecord>) -> Option<Piece> {
    let mut open = open;
    for piece in chain {
        let mut flow = piece.flow;
        flow.set_continues(false);
        if let Some(Piece { flow: mut before, .. }) = open.take() {
            match before.ends_before(&piece.opening.seen(&before), timeouts) {
                Some(why) => {
                    if why == FlowEnd::Active {
                        flow.continue_after(&before);
                    }
                    records.push(FlowRecord::new(before, why));
                }
                None => {
                    before.join(&flow);
                    flow = before;
                }
            }
        }
        match piece.next {
            Next::End(FlowEnd::Resources) => records.push(FlowRecord::new(flow, FlowEnd::Resources)),
            Next::End(_) => records.push(FlowRecord::new(flow, flow.reason_when_over())),
            Next::Piece | Next::Part => open = Some(Piece { flow, opening: Opening::default(), next: Next::Part }),
        }
    }
    open
}

/// Appends the chain of the next part to a chain whose last piece is open. Returns the pieces after
/// a packet that begins another record, whatever came before. `late` is the margin of decisions.
fn append(chain: &mut Vec<Piece>, next: Vec<Piece>, timeouts: &Timeouts, late: u64) -> Vec<Piece> {
    let mut next = next.into_iter();
    while let (Some(last), Some(piece)) = (chain.last_mut(), next.next()) {
        let seen = piece.opening.seen(&last.flow);
        match boundary(&last.flow, &last.opening, &seen, timeouts, late) {
            Boundary::Same => {
                last.flow.join(&piece.flow);
                last.next = piece.next;
            }
            Boundary::Another(why) => {
                last.next = Next::End(why);
                return [piece].into_iter().chain(next).collect();
            }
            Boundary::Unknown => {
                let follows_pause = seen.time.abs_diff(last.flow.last) >= timeouts.closed.saturating_add(late);
                last.next = Next::Piece;
                chain.push(Piece { opening: Opening { follows_pause, ..piece.opening }, ..piece });
            }
        }
    }
    Vec::new()
}
