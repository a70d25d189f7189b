//! Fragments whose datagrams may have begun before the part.
//!
//! Only the first fragment of a datagram has ports. If a part begins between the fragments of a
//! datagram, only the parts before it know the flow of the later fragments. Therefore a fragment
//! *waits* if it is not the first one, if its datagram is new to the part, and if the part has begun
//! so recently that the datagram may have begun earlier. Further fragments of the same datagram wait
//! with it.
//!
//! The edges of a part have the fragments that wait, and the datagrams at the end of the part. Joining
//! gives fragments of the later part to the flows of datagrams of the earlier part, by the rule of
//! [`Datagram::follow`]. A fragment is counted in the piece of the flow that its time belongs to.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use steerage::flow::limits::FRAGMENT_TIME;
use steerage::flow::{Datagram, FlowParts, Fragment};
use steerage::{BucketId, FlowKey};

use super::{Edges, Next, Opening, Piece};
use crate::code::{Coder, MalformedEdges};
use crate::flow::{Flow, FlowEnd, Seen, code_tunnel};
use crate::fragments::{FlowsOfDatagrams, alone};
use crate::key::{Directed, Key};
use crate::record::FlowRecord;
use crate::timeouts::{LATE_MAX, nanos};

/// The largest number of fragments of a part that wait. Any further fragments are counted by what the
/// part alone knows, so that a flood of fragments cannot exhaust the memory.
const WAITING_MAX: usize = 16_384;

/// The bucket of a flow whose only packet is a fragment. Buckets belong to a run, and edges do not.
const NO_BUCKET: BucketId = BucketId { group: 0, bucket: 0 };

/// How long after its beginning a part may have fragments of datagrams that began before it.
fn window() -> u64 {
    nanos(FRAGMENT_TIME) + 2 * nanos(LATE_MAX)
}

/// A fragment that waits. `seen.flow` is the flow of the fragment's own headers.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    datagram: FlowKey,
    is_first: bool,
    seen: Seen,
}

impl Waiting {
    fn fragment(&self) -> Fragment {
        // Only the name and the question whether the fragment is the first one decide about its flow.
        let bytes = if self.is_first { 0..8 } else { 8..16 };
        Fragment::new(0, 0, bytes, true, self.datagram)
    }

    /// The fragment with its flow, by what is known about its datagram. Updates `known`.
    fn settle(mut self, known: &mut HashMap<FlowKey, Datagram<Directed>>) -> Seen {
        let (fragment, own) = (self.fragment(), self.seen.flow);
        let own = if self.is_first { own } else { alone(own, &fragment) };
        self.seen.flow = match known.entry(self.datagram) {
            Entry::Occupied(mut known) => known.get_mut().follow(&fragment, own, self.seen.time),
            Entry::Vacant(none) => none.insert(Datagram::begin(&fragment, own, self.seen.time)).value,
        };
        self.seen
    }
}

/// The fragments that wait while a part is metered.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    waiting: Vec<Waiting>,
    /// The datagrams of the fragments that wait, and whether the first fragment is among them.
    datagrams: HashMap<FlowKey, bool>,
    ends: Ends,
}

/// The addresses and protocols of fragments that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends(HashSet<Key>);

impl Ends {
    fn of(flow: Key) -> Key {
        Directed { key: flow, turned: false }.without_ports().key
    }

    fn add(&mut self, one: &Waiting) {
        self.0.insert(Self::of(one.seen.flow.key));
    }

    /// How much longer a flow may pause because fragments of the flow may be among those that wait.
    pub(super) fn more(&self, flow: &Key) -> u64 {
        if !self.0.is_empty() && self.0.contains(&Self::of(*flow)) { nanos(FRAGMENT_TIME) } else { 0 }
    }
}

impl Keeping {
    /// Keeps the fragment if an earlier part may know its flow, and returns true. `since_begin` is the
    /// time since the beginning of the part.
    pub(super) fn keep(
        &mut self,
        fragment: &Fragment,
        seen: &Seen,
        since_begin: u64,
        known: &FlowsOfDatagrams,
    ) -> bool {
        if since_begin >= window() || self.waiting.len() >= WAITING_MAX {
            return false;
        }
        let is_first = fragment.offset == 0;
        match self.datagrams.entry(fragment.datagram) {
            Entry::Occupied(first_came) if is_first && *first_came.get() => {
                // A second first fragment begins another datagram, whatever came before the part.
                first_came.remove();
                return false;
            }
            Entry::Occupied(mut first_came) => *first_came.get_mut() |= is_first,
            Entry::Vacant(_) if is_first || known.knows(fragment) => return false,
            Entry::Vacant(none) => drop(none.insert(false)),
        }
        let one = Waiting { datagram: fragment.datagram, is_first, seen: *seen };
        self.ends.add(&one);
        self.waiting.push(one);
        true
    }

    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// What the edges need. `datagrams` are those at the end of the part.
    pub(super) fn ended(self, datagrams: Vec<Datagram<Directed>>) -> Fragments {
        let known = datagrams.into_iter().map(|known| (*known.name(), known)).collect();
        Fragments { waiting: self.waiting, known }
    }
}

/// The fragments at the edges of a part.
#[derive(Clone, Debug, Default)]
pub(super) struct Fragments {
    /// Those that wait for an earlier part, in the order of their arrival.
    waiting: Vec<Waiting>,
    /// The datagrams at the end of the part.
    known: HashMap<FlowKey, Datagram<Directed>>,
}

impl Fragments {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.known.is_empty()
    }

    pub(super) fn ends(&self) -> Ends {
        let mut ends = Ends::default();
        self.waiting.iter().for_each(|one| ends.add(one));
        ends
    }

    /// Appends the fragments of the next part, which ends at the time `end`. `begin` is the beginning
    /// of this part. Returns those fragments of the next part whose flows are certain now.
    pub(super) fn join(&mut self, later: Self, begin: u64, end: u64) -> Vec<Seen> {
        let mut settled = Vec::new();
        for one in later.waiting {
            // So long after the beginning, the datagram did not begin before this part. Fragments that
            // still wait are close to the beginning, as the margins of all decisions assume.
            let is_new = one.seen.time.abs_diff(begin) >= window();
            if is_new || self.known.contains_key(&one.datagram) {
                settled.push(one.settle(&mut self.known));
            } else {
                self.waiting.push(one);
            }
        }
        self.known.extend(later.known);
        self.known.retain(|_, known| !known.is_old(end.saturating_sub(nanos(LATE_MAX))));
        settled
    }

    /// The flows of the fragments that wait, if no part comes before.
    pub(super) fn finish(&mut self) -> Vec<Seen> {
        let mut known = HashMap::new();
        self.waiting.drain(..).map(|one| one.settle(&mut known)).collect()
    }

    pub(super) fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        let nobody = Waiting { datagram: FlowKey::from_bytes(&[]), is_first: false, seen: Seen::of(Key::other()) };
        list(coder, &mut self.waiting, nobody, |coder, one| {
            code_name(coder, &mut one.datagram)?;
            coder.flag(&mut one.is_first)?;
            one.seen.code(coder)
        })?;
        let mut known: Vec<_> = self.known.values().copied().collect();
        // The order of a hash table differs between runs.
        known.sort_unstable_by_key(|known| (known.since(), known.value.key, name_bytes(known.name())));
        let nobody = Datagram::new(FlowKey::from_bytes(&[]), Key::other(), 0, false);
        list(coder, &mut known, nobody, |coder, known| {
            let (mut name, mut since, mut first_came) = (*known.name(), known.since(), known.first_came());
            code_name(coder, &mut name)?;
            known.value.code(coder)?;
            coder.number(&mut since)?;
            coder.flag(&mut first_came)?;
            *known = Datagram::new(name, known.value, since, first_came);
            Ok(())
        })?;
        self.known = known.into_iter().map(|known| (*known.name(), known)).collect();
        Ok(())
    }
}

/// Codes the number of values and each value. `empty` is a value to read into.
fn list<C: Coder, T: Copy>(
    coder: &mut C,
    values: &mut Vec<T>,
    empty: T,
    code: impl Fn(&mut C, &mut T) -> Result<(), MalformedEdges>,
) -> Result<(), MalformedEdges> {
    let mut count = values.len() as u64;
    coder.number(&mut count)?;
    for nth in 0..count as usize {
        if nth == values.len() {
            values.push(empty);
        }
        code(coder, &mut values[nth])?;
    }
    Ok(())
}

fn name_bytes(name: &FlowKey) -> ([u8; 40], usize) {
    match name.parts() {
        FlowParts::Bytes { bytes, len } => (bytes, len.min(40)),
        _ => ([0; 40], 0),
    }
}

/// Codes the name of a datagram: its bytes, of which IPv4 has 11 and IPv6 has 36.
fn code_name(coder: &mut impl Coder, name: &mut FlowKey) -> Result<(), MalformedEdges> {
    let (mut bytes, len) = name_bytes(name);
    let mut len = len as u64;
    coder.number(&mut len)?;
    let bytes = bytes.get_mut(..len as usize).ok_or(MalformedEdges)?;
    coder.numbers(bytes)?;
    *name = FlowKey::from_bytes(bytes);
    Ok(())
}

impl Seen {
    /// Writes or reads a fragment, which has no TCP segment. The hash belongs to a run, and is left out.
    fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        self.flow.code(coder)?;
        coder.number(&mut self.time)?;
        coder.number(&mut self.bytes)?;
        coder.number(&mut self.ip_bytes)?;
        coder.number(&mut self.tcp_flags)?;
        coder.number(&mut self.icmp)?;
        coder.numbers(&mut self.vlans)?;
        code_tunnel(coder, &mut self.tunnel)?;
        let mut has_id = self.tunnel_id.is_some();
        coder.flag(&mut has_id)?;
        let mut id = self.tunnel_id.unwrap_or_default();
        coder.number(&mut id)?;
        self.tunnel_id = has_id.then_some(id);
        Ok(())
    }
}

impl Directed {
    fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        self.key.code(coder)?;
        coder.flag(&mut self.turned)
    }
}

impl Edges {
    /// Counts a fragment whose flow has become certain, in the piece of the flow that its time belongs
    /// to.
    pub(super) fn add_fragment(&mut self, seen: &Seen, records: &mut Vec<FlowRecord>) {
        let timeouts = self.timeouts;
        let mut flow = Flow::begin(seen, NO_BUCKET);
        flow.add(seen);
        let ends_before = |flow: &Flow| if seen.time <= flow.last { None } else { flow.ends_before(seen, &timeouts) };
        let of_flow = self.flows.entry(seen.flow.key).or_default();
        if let Some(open) = of_flow.open.as_mut().filter(|open| open.flow.first <= seen.time) {
            match ends_before(&open.flow) {
                None => open.flow.join(&flow),
                Some(why) => {
                    if why == FlowEnd::Active {
                        flow.continue_after(&open.flow);
                    }
                    records.push(FlowRecord::new(open.flow, why));
                    open.flow = flow;
                }
            }
            return;
        }
        flow.set_continues(true);
        let opening = Opening::of(seen, false);
        let chain = &mut of_flow.chain;
        let Some(at) = chain.iter().rposition(|piece| piece.opening.time <= seen.time) else {
            let next = match (chain.first(), &of_flow.open) {
                (Some(_), _) => Next::Piece,
                (None, Some(_)) => Next::End(FlowEnd::Idle),
                (None, None) => Next::Part,
            };
            return chain.insert(0, Piece { flow, opening, next });
        };
        let piece = &mut chain[at];
        if ends_before(&piece.flow).is_none() {
            piece.flow.join(&flow);
        } else {
            let next = std::mem::replace(&mut piece.next, Next::Piece);
            chain.insert(at + 1, Piece { flow, opening, next });
        }
    }
}
