//! Fragments whose datagrams may have begun before the part.
//!
//! Only the first fragment of a datagram has ports. If a part begins between the fragments of a
//! datagram, only the parts before it know the flow of the later fragments. Therefore a fragment
//! *waits* if it is not the first one, if its datagram is new to the part, and if the part has begun
//! so recently that the datagram may have begun earlier. Further fragments of the same datagram wait
//! with it. A first fragment waits too if it arrives so soon after the beginning of the part that other
//! fragments of its datagram may have overtaken it.
//!
//! The edges of a part have the fragments that wait, and the datagrams at the end of the part. Joining
//! gives fragments of the later part to the flows of datagrams of the earlier part, by the rule of
//! [`Datagram::follow`].

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use steerage::FlowKey;
use steerage::flow::limits::FRAGMENT_TIME;
use steerage::flow::{Datagram, FlowParts, Fragment, protocol};

use super::LATE;
use crate::code::{Coder, MalformedEdges};
use crate::flow::{Flow, Seen, code_tunnel};
use crate::fragments::{FlowsOfDatagrams, alone};
use crate::key::{Directed, Key};

/// The largest number of fragments of a part that wait. Any further fragments are counted by what the
/// part alone knows, so that a flood of fragments cannot exhaust the memory.
const WAITING_MAX: usize = 16_384;

/// First fragments wait only if fewer fragments than this wait already. The datagrams that a cut
/// separates are among the first ones of a part.
const FIRST_MAX: usize = 1024;

/// How long after the beginning of a part first fragments wait: in time for fragments that are late on
/// both sides of the cut.
const FIRST_WINDOW: u64 = 2 * LATE;

/// How long after the beginning of a part fragments wait. A datagram that began earlier, or whose first
/// fragment waits, is over by then.
const WINDOW: u64 = FRAGMENT_TIME.as_nanos() as u64 + FIRST_WINDOW;

/// How long after the beginning of a part a flow may begin to which fragments belong that wait.
pub(super) const EARLY: u64 = WINDOW + 2 * LATE;

/// A fragment that waits. `seen.flow` is the flow of the fragment's own headers.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The number of fragments of the part that waited before this one.
    number: u64,
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

    /// The number of the fragment, and the fragment with its flow, by what is known about its datagram.
    /// Updates `known`.
    fn settle(mut self, known: &mut HashMap<FlowKey, Datagram<Directed>>) -> (u64, Seen) {
        let (fragment, own) = (self.fragment(), self.seen.flow);
        let own = if self.is_first { own } else { alone(own, &fragment) };
        self.seen.flow = match known.entry(self.datagram) {
            Entry::Occupied(mut known) => known.get_mut().follow(&fragment, own, self.seen.time),
            Entry::Vacant(none) => none.insert(Datagram::begin(&fragment, own, self.seen.time)).value,
        };
        (self.number, self.seen)
    }
}

/// The hosts whose fragments wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    hosts: HashSet<Key>,
    /// Whether a fragment carries an encapsulated packet, whose flow may be between any hosts.
    has_carriers: bool,
}

impl Hosts {
    fn add(&mut self, one: &Waiting) {
        let key = &one.seen.flow.key;
        self.hosts.insert(key.hosts());
        self.has_carriers |=
            !matches!(key.protocol(), protocol::TCP | protocol::UDP | protocol::ICMP | protocol::ICMP6);
    }

    /// Whether fragments that wait may belong to the flow. The flow of fragments that carry a tunnel is
    /// between the hosts in the tunnel.
    pub(super) fn may_have(&self, flow: &Flow) -> bool {
        let is_inside = self.has_carriers || flow.tunnel().is_some();
        !self.hosts.is_empty() && (is_inside || self.hosts.contains(&flow.key.hosts()))
    }
}

/// The fragments that wait while a part is metered.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    waiting: Vec<Waiting>,
    datagrams: Unknown,
    hosts: Hosts,
}

/// The datagrams of the fragments that wait, and whether the first fragment is among them.
#[derive(Debug, Default)]
struct Unknown(HashMap<FlowKey, bool>);

impl Unknown {
    /// Whether the next fragment of a datagram waits, and notes it if so. `since_begin` is the time since
    /// the beginning of the part, and `is_known` means that the part knows the datagram.
    fn waits(&mut self, datagram: &FlowKey, is_first: bool, since_begin: u64, is_known: impl FnOnce() -> bool) -> bool {
        if since_begin >= WINDOW {
            return false;
        }
        match self.0.entry(*datagram) {
            Entry::Occupied(first_came) if is_first && *first_came.get() => {
                // A second first fragment begins another datagram, whatever came before the part.
                first_came.remove();
                false
            }
            Entry::Occupied(mut first_came) => {
                *first_came.get_mut() |= is_first;
                true
            }
            Entry::Vacant(none) => {
                let waits = !is_known() && (!is_first || since_begin < FIRST_WINDOW);
                if waits {
                    none.insert(is_first);
                }
                waits
            }
        }
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
        let count = self.waiting.len();
        let is_first = fragment.offset == 0;
        // A SYN may begin another record, and therefore does not wait.
        let may_wait = count < WAITING_MAX && !seen.opens();
        let is_known = || known.knows(fragment) || is_first && count >= FIRST_MAX;
        if !may_wait || !self.datagrams.waits(&fragment.datagram, is_first, since_begin, is_known) {
            return false;
        }
        let one = Waiting { number: count as u64, datagram: fragment.datagram, is_first, seen: *seen };
        self.hosts.add(&one);
        self.waiting.push(one);
        true
    }

    pub(super) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// What the edges need. `datagrams` are those at the end of the part.
    pub(super) fn ended(self, datagrams: Vec<Datagram<Directed>>) -> Fragments {
        let known = datagrams.into_iter().map(|known| (*known.name(), known)).collect();
        Fragments { count: self.waiting.len() as u64, waiting: self.waiting, known }
    }
}

/// The fragments at the edges of a part.
#[derive(Clone, Debug, Default)]
pub(super) struct Fragments {
    /// Those that wait for an earlier part, in the order of their arrival.
    waiting: Vec<Waiting>,
    /// The number of fragments that have waited, with those whose flow has become known.
    count: u64,
    /// The datagrams at the end of the part.
    known: HashMap<FlowKey, Datagram<Directed>>,
}

impl Fragments {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.known.is_empty()
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn hosts(&self) -> Hosts {
        let mut hosts = Hosts::default();
        self.waiting.iter().for_each(|one| hosts.add(one));
        hosts
    }

    /// Removes the datagrams to which no fragment after the time `end` belongs.
    pub(super) fn forget(&mut self, end: u64) {
        self.known.retain(|_, known| !known.is_old(end.saturating_sub(LATE)));
    }

    /// Appends the fragments of the next part, which ends at the time `end`. `begin` is the beginning
    /// of this part. Returns those fragments of the next part whose flows are certain now, with the
    /// numbers that they have in the next part.
    pub(super) fn join(&mut self, later: Self, begin: u64, end: u64) -> Vec<(u64, Seen)> {
        let (before, mut settled, mut unknown) = (self.count, Vec::new(), Unknown::default());
        self.waiting.iter().for_each(|one| *unknown.0.entry(one.datagram).or_default() |= one.is_first);
        for one in later.waiting {
            // By the rule of one part: whatever waits is close to the beginning, as the margins of all
            // decisions assume.
            let since_begin = one.seen.time.abs_diff(begin);
            let is_known = self.known.contains_key(&one.datagram);
            if !is_known && unknown.waits(&one.datagram, one.is_first, since_begin, || false) {
                self.waiting.push(Waiting { number: one.number.saturating_add(before), ..one });
            } else {
                settled.push(one.settle(&mut self.known));
            }
        }
        self.count = before.saturating_add(later.count);
        self.known.extend(later.known);
        self.forget(end);
        settled
    }

    /// The flows of the fragments that wait, if no part comes before.
    pub(super) fn finish(&mut self) -> Vec<(u64, Seen)> {
        let mut known = HashMap::new();
        self.waiting.drain(..).map(|one| one.settle(&mut known)).collect()
    }

    pub(super) fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        coder.number(&mut self.count)?;
        let seen = Seen::of(Key::other());
        let nobody = Waiting { number: 0, datagram: FlowKey::from_bytes(&[]), is_first: false, seen };
        list(coder, &mut self.waiting, nobody, |coder, one| {
            coder.number(&mut one.number)?;
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
