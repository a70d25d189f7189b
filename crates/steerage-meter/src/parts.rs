//! Parts of a recording that are metered separately, perhaps on other machines, and joined
//! afterwards.
//!
//! The meter of a part does not know the packets before the part, but these decide where some
//! records end: a closed flow ends after a shorter pause, and a SYN with another sequence number
//! opens another connection. A flow that may have begun before the part is therefore a chain of
//! *pieces*. A packet begins a new piece if it depends on packets before the part whether the
//! packet begins another record. If the part alone shows that a packet begins another record, the
//! chain ends.
//!
//! [`Edges`] has the chains of a part, and the flows that were open at its end. [`Edges::join`]
//! appends the edges of the next part. The records of all other flows of a part are complete.
//!
//! The times of packets may be out of order by up to [`LATE_MAX`], so the last packet before the
//! part may be later than the first packets of the part. A decision from one part alone therefore
//! has a margin of [`LATE_MAX`], or of twice [`LATE_MAX`] if the clock ends the flow, because the
//! next packet may be late too.
//!
//! IP fragments near the beginning of a part may belong to a flow that only an earlier part knows.
//! Fragments of such a flow [wait](waiting) until the earlier part is joined, and are then inserted
//! into the chain of their flow. While fragments wait, chains must contain everything that such a
//! fragment may change: no chain ends [early](EARLY), and flows between hosts with waiting
//! fragments have longer margins.

mod rows;
mod rules;
mod waiting;

use std::collections::HashMap;

use steerage::BucketId;
use steerage::flow::Dissection;

pub use rows::{EdgesError, PartEdges};

use super::flow::{Flow, FlowEnd, Seen};
use super::fragments::FlowsOfDatagrams;
use super::key::Key;
use super::names::{Log, Names, names_of};
use super::record::FlowRecord;
use super::tcp::Segment;
use super::timeouts::{LATE_MAX, Timeouts};
use rules::{Boundary, Rules};
use waiting::{Fragments, Keeping};

const LATE: u64 = LATE_MAX.as_nanos() as u64;

/// A bucket number is valid only within a run, but edges outlive the run.
const NO_BUCKET: BucketId = BucketId { group: 0, bucket: 0 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Opening {
    time: u64,
    tcp_flags: u16,
    sequence: u32,
    is_segment: bool,
    turned: bool,
    /// True if the pause before this packet would end a closed flow, even if the packet was late.
    follows_pause: bool,
    /// The number of the part's waiting fragments that arrived before this packet.
    number: u64,
}

impl Opening {
    fn of(seen: &Seen, number: u64, follows_pause: bool) -> Self {
        let Segment { is_there: is_segment, sequence, .. } = seen.segment;
        let turned = seen.flow.turned;
        Self { time: seen.time, tcp_flags: seen.tcp_flags, sequence, is_segment, turned, follows_pause, number }
    }

    fn seen(&self, flow: &Flow) -> Seen {
        let mut seen = Seen::of(super::key::Directed { key: flow.key, turned: self.turned });
        (seen.time, seen.tcp_flags) = (self.time, self.tcp_flags);
        seen.segment = Segment { is_there: self.is_segment, sequence: self.sequence, ..Segment::default() };
        seen
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Piece,
    End(FlowEnd),
    /// The part ends here, so the next part may continue the flow.
    Part,
}

#[derive(Clone, Debug)]
pub(super) struct Piece {
    flow: Flow,
    opening: Opening,
    next: Next,
    log: Option<Box<Log>>,
    /// The number of boundaries between parts within this piece of a flow.
    joined: u32,
    follows_cut: bool,
}

impl Piece {
    fn new(flow: Flow, opening: Opening, next: Next, log: Option<Box<Log>>) -> Self {
        Self { flow, opening, next, log, joined: 0, follows_cut: false }
    }

    fn record(&self, why: FlowEnd) -> FlowRecord {
        let names = self.log.as_deref().and_then(names_of);
        FlowRecord::new(self.flow, why).with_names(names).with_joined(self.joined)
    }

    fn join(&mut self, later: &Self) {
        self.flow.join(&later.flow);
        self.joined = self.joined.saturating_add(later.joined).saturating_add(later.follows_cut.into());
        self.join_log(later.log.as_deref());
    }

    fn join_log(&mut self, later: Option<&Log>) {
        if let Some(later) = later {
            self.log.get_or_insert_default().join(later);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Collected {
    begin: Option<u64>,
    openings: HashMap<Key, Opening>,
    pieces: Vec<Piece>,
    keeping: Keeping,
    passed: u64,
    fragments: Fragments,
}

impl Collected {
    fn rules<'a>(&'a self, timeouts: &'a Timeouts) -> Rules<'a> {
        Rules { timeouts, begin: self.begin.unwrap_or_default(), waiting: self.keeping.hosts() }
    }

    pub(super) fn see(&mut self, time: u64) {
        self.begin.get_or_insert(time);
    }

    /// If only an earlier part may know a fragment's flow, `keep` stores the fragment and returns
    /// true. The meter calls [`pass`](Self::pass) after it has counted the packets before the
    /// fragment.
    pub(super) fn keep(&mut self, found: &Dissection, seen: &Seen, known: &FlowsOfDatagrams) -> bool {
        let [Some(fragment), None] = &found.fragments else { return false };
        let since_begin = self.begin.map_or(0, |begin| seen.time.abs_diff(begin));
        self.keeping.keep(fragment, seen, since_begin, known)
    }

    pub(super) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Marks a flow that begins soon after the beginning of the part: it may continue a flow of an
    /// earlier part.
    pub(super) fn begin(&mut self, flow: &mut Flow, seen: &Seen, timeouts: &Timeouts) {
        self.see(seen.time);
        let rules = self.rules(timeouts);
        if seen.time.abs_diff(rules.begin) < rules.soon(flow) {
            flow.set_continues(true);
            self.openings.insert(flow.key, Opening::of(seen, self.passed, false));
        }
    }

    /// If the packet might not belong to the last piece of its flow, ends that piece and returns
    /// true. `flow` then becomes the next piece, or another flow.
    pub(super) fn cut(&mut self, flow: &mut Flow, seen: &Seen, timeouts: &Timeouts, names: &mut Names) -> bool {
        if flow.surely_goes_on(seen, timeouts) {
            return false;
        }
        let opening = self.openings.get(&flow.key).copied().unwrap_or_default();
        let rules = self.rules(timeouts);
        let packet = rules.opening_after(flow, &opening, Opening::of(seen, self.passed, false));
        let (next, continues) = match rules.boundary(flow, &opening, &packet) {
            Boundary::Same => return false,
            Boundary::Another(why) => (Next::End(why), false),
            Boundary::Unknown => (Next::Piece, true),
        };
        let log = names.take_log(flow);
        let piece = flow.restart(seen, FlowEnd::Finished);
        flow.set_continues(continues);
        self.pieces.push(Piece::new(piece, opening, next, log));
        if continues {
            self.openings.insert(flow.key, packet);
        } else {
            self.openings.remove(&flow.key);
        }
        true
    }

    /// The timeout of a flow need not be stored: the times of the next packets lead to the same
    /// result.
    pub(super) fn end(&mut self, flow: &Flow, why: FlowEnd, names: &mut Names) {
        self.add(flow, if why == FlowEnd::Resources { Next::End(why) } else { Next::Part }, names);
    }

    fn add(&mut self, flow: &Flow, next: Next, names: &mut Names) {
        let opening = self.openings.remove(&flow.key).unwrap_or_default();
        self.pieces.push(Piece::new(*flow, opening, next, names.take_log(flow)));
    }

    pub(super) fn ended(mut self: Box<Self>, known: FlowsOfDatagrams) -> Box<Self> {
        self.fragments = std::mem::take(&mut self.keeping).ended(known.into_datagrams());
        self
    }
}

#[derive(Clone, Debug, Default)]
struct FlowEdges {
    /// The pieces of a flow that may continue a flow of an earlier part.
    chain: Vec<Piece>,
    /// The flow that began in the part, after the end of the chain, and was open at the part's end.
    open: Option<Piece>,
}

impl FlowEdges {
    fn is_open(&self) -> bool {
        self.open.is_some() || self.chain.last().is_some_and(|piece| piece.next == Next::Part)
    }

    /// Only the first chain of a flow can continue a flow of an earlier part.
    fn push(&mut self, piece: Piece, timeouts: &Timeouts, records: &mut Vec<FlowRecord>) {
        match self.chain.last_mut() {
            Some(Piece { next: Next::End(_), .. }) => self.open = fold(self.open.take(), &[piece], timeouts, records),
            last => {
                last.into_iter().for_each(|last| last.next = Next::Piece);
                self.chain.push(piece);
            }
        }
    }

    /// Inserts a fragment that has waited for an earlier part. A fragment that has waited arrived
    /// early in its part, so it belongs to the chain.
    fn insert(&mut self, mut piece: Piece, rules: &Rules<'_>) {
        let at = self.chain.partition_point(|other| other.opening.number <= piece.opening.number);
        let Some(before) = at.checked_sub(1).and_then(|at| self.chain.get_mut(at)) else {
            piece.next = match (self.chain.is_empty(), &self.open) {
                (false, _) => Next::Piece,
                (true, Some(_)) => Next::End(FlowEnd::Idle),
                (true, None) => Next::Part,
            };
            return self.chain.insert(0, piece);
        };
        // A piece with later packets shows that the flow continues after the fragment.
        let is_inside = piece.opening.time <= before.flow.last;
        if is_inside || matches!(rules.boundary(&before.flow, &before.opening, &piece.opening), Boundary::Same) {
            before.join(&piece);
        } else {
            piece.next = std::mem::replace(&mut before.next, Next::Piece);
            self.chain.insert(at, piece);
        }
    }

    /// Ends an open flow that has timed out, or whose successor has begun. `number` is the number
    /// of fragments that have waited so far.
    fn expire(
        &mut self,
        (end, number): (u64, u64),
        is_another: bool,
        rules: &Rules<'_>,
        records: &mut Vec<FlowRecord>,
    ) {
        let is_over = |piece: &Piece| {
            let more = rules.more(&piece.flow, &piece.opening, number);
            // A waiting fragment may have begun another record after the piece.
            let timeouts = if more > 0 { &rules.timeouts.without_closing() } else { rules.timeouts };
            is_another || piece.flow.is_over(end, piece.flow.late().saturating_add(more), timeouts)
        };
        if let Some(open) = self.open.take_if(|open| is_over(open)) {
            records.push(open.record(open.flow.reason_when_over()));
        }
        let may_end = is_another || !rules.is_early(end);
        if let Some(last) = self.chain.last_mut().filter(|last| may_end && last.next == Next::Part && is_over(last)) {
            last.next = Next::End(last.flow.reason_when_over());
        }
    }
}

/// The flows at the beginning and the end of a part, which earlier or later parts may continue.
///
/// Parts must be joined in order, but in any grouping. [`join`](Self::join) and
/// [`finish`](Self::finish) return the records of flows that no other part can continue.
#[derive(Clone, Debug)]
pub struct Edges {
    begin: Option<u64>,
    end: u64,
    timeouts: Timeouts,
    flows: HashMap<Key, FlowEdges>,
    fragments: Fragments,
    joined: u64,
}

/// The error for parts that were metered with different timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot join parts that were metered with different timeouts: meter all parts with the same timeouts")]
pub struct OtherTimeouts;

impl Edges {
    pub(super) fn of(
        collected: Collected,
        open: impl Iterator<Item = Flow>,
        mut names: Names,
        (end, timeouts): (u64, Timeouts),
    ) -> (Self, Vec<FlowRecord>) {
        let mut collected = collected;
        let (begin, fragments) = (collected.begin, std::mem::take(&mut collected.fragments));
        let mut edges = Self { begin, end, timeouts, flows: HashMap::new(), fragments, joined: 0 };
        let (mut records, mut began) = (Vec::new(), Vec::new());
        for flow in open {
            if flow.continues() {
                collected.add(&flow, Next::Part, &mut names);
            } else {
                let log = names.take_log(&flow);
                began.push(Piece::new(flow, Opening::default(), Next::Part, log));
            }
        }
        // The pieces of a flow are in order, because one CPU metered the whole part.
        for piece in collected.pieces {
            edges.flows.entry(piece.flow.key).or_default().push(piece, &timeouts, &mut records);
        }
        edges.fragments.forget(end);
        let (hosts, number) = (edges.fragments.hosts(), edges.fragments.count());
        let rules = Rules { timeouts: &timeouts, begin: begin.unwrap_or_default(), waiting: &hosts };
        edges.flows.values_mut().for_each(|flow| flow.expire((end, number), false, &rules, &mut records));
        for piece in began {
            let flow = edges.flows.entry(piece.flow.key).or_default();
            flow.expire((end, number), true, &rules, &mut records);
            flow.open = Some(piece);
        }
        (edges, records)
    }

    /// Returns the number of flows at the edges.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Returns how often a flow continued a flow of the previous part.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// Appends the next part. Returns the records of flows that no other part can continue.
    ///
    /// # Errors
    /// Returns an error if the parts were metered with different timeouts.
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
        // For this clock, as for a meter's clock, a time far in the past means that another
        // recording has begun.
        let is_back = later.end < self.end && self.end - later.end <= timeouts.inactive;
        let end = if is_back { self.end } else { later.end };
        let mut later = later;
        let (before, hosts) = (self.fragments.count(), later.fragments.hosts());
        for one in self.fragments.join(std::mem::take(&mut later.fragments), begin, end) {
            later.insert(one, &Rules { timeouts: &timeouts, begin: later_begin, waiting: &hosts });
        }
        let pieces = later.flows.values_mut().flat_map(|flow| &mut flow.chain);
        pieces.for_each(|piece| piece.opening.number = piece.opening.number.saturating_add(before));
        let (hosts, number) = (self.fragments.hosts(), self.fragments.count());
        let rules = Rules { timeouts: &timeouts, begin, waiting: &hosts };
        let mut later_flows = later.flows;
        for (key, mut flow) in std::mem::take(&mut self.flows) {
            let mut next = later_flows.remove(&key).unwrap_or_default();
            if let Some(first) = next.chain.first_mut().filter(|_| flow.is_open()) {
                (first.follows_cut, self.joined) = (true, self.joined + 1);
            }
            let rest = if flow.is_open() && next.chain.is_empty() {
                // The flow of the later part began long after the beginning of that part.
                let is_another = next.open.is_some();
                flow.expire((end, number), is_another, &rules, &mut records);
                Vec::new()
            } else if flow.is_open() && flow.open.is_none() {
                append(&mut flow.chain, next.chain, &rules)
            } else {
                next.chain
            };
            let open = fold(flow.open.take(), &rest, &timeouts, &mut records);
            flow.open = next.open.or(open);
            if flow.is_open() || !flow.chain.is_empty() {
                self.flows.insert(key, flow);
            }
        }
        for (key, mut flow) in later_flows {
            let is_other = |first: &Piece| first.opening.time.abs_diff(begin) >= rules.soon(&first.flow);
            if flow.chain.first().is_some_and(is_other) {
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

    fn insert(&mut self, (number, seen): (u64, Seen), rules: &Rules<'_>) {
        let mut flow = Flow::begin(&seen, NO_BUCKET);
        flow.add(&seen);
        flow.set_continues(true);
        let piece = Piece::new(flow, Opening::of(&seen, number, false), Next::Part, None);
        self.flows.entry(seen.flow.key).or_default().insert(piece, rules);
    }

    /// After the last part was joined, returns the records of all flows at the edges, in the order
    /// in which the flows began.
    pub fn finish(mut self) -> Vec<FlowRecord> {
        let (mut records, timeouts, hosts) = (Vec::new(), self.timeouts, self.fragments.hosts());
        for one in self.fragments.finish() {
            let begin = self.begin.unwrap_or_default();
            self.insert(one, &Rules { timeouts: &timeouts, begin, waiting: &hosts });
        }
        for flow in self.flows.into_values() {
            let open = fold(None, &flow.chain, &timeouts, &mut records);
            for piece in [open, flow.open].into_iter().flatten() {
                records.push(piece.record(piece.flow.reason_at_the_end(self.end, &timeouts)));
            }
        }
        records.sort_unstable_by_key(|record| (record.flow().first, record.flow().key));
        records
    }
}

/// Joins the pieces of a chain to `open`, the flow that precedes them.
fn fold(open: Option<Piece>, chain: &[Piece], timeouts: &Timeouts, records: &mut Vec<FlowRecord>) -> Option<Piece> {
    let mut open = open;
    for piece in chain {
        let mut now = Piece { opening: Opening::default(), next: Next::Part, ..piece.clone() };
        now.flow.set_continues(false);
        if let Some(mut before) = open.take() {
            match before.flow.ends_before(&piece.opening.seen(&before.flow), timeouts) {
                Some(why) => {
                    records.push(before.record(why));
                    if why == FlowEnd::Active {
                        now.flow.continue_after(&before.flow);
                        // The next record gets the names of the cut record.
                        before.join_log(now.log.as_deref());
                        now.log = before.log;
                    }
                }
                None => {
                    before.join(&now);
                    now = before;
                }
            }
        }
        match piece.next {
            Next::End(FlowEnd::Resources) => records.push(now.record(FlowEnd::Resources)),
            Next::End(_) => records.push(now.record(now.flow.reason_when_over())),
            Next::Piece | Next::Part => open = Some(now),
        }
    }
    open
}

/// Appends pieces to a chain, up to the first piece that surely begins another record. Returns that
/// piece and all later pieces.
fn append(chain: &mut Vec<Piece>, next: Vec<Piece>, rules: &Rules<'_>) -> Vec<Piece> {
    let mut next = next.into_iter();
    while let (Some(last), Some(piece)) = (chain.last_mut(), next.next()) {
        match rules.boundary(&last.flow, &last.opening, &piece.opening) {
            Boundary::Same => {
                last.join(&piece);
                last.next = piece.next;
            }
            Boundary::Another(why) => {
                last.next = Next::End(why);
                return [piece].into_iter().chain(next).collect();
            }
            Boundary::Unknown => {
                let opening = rules.opening_after(&last.flow, &last.opening, piece.opening);
                last.next = Next::Piece;
                chain.push(Piece { opening, ..piece });
            }
        }
    }
    Vec::new()
}
