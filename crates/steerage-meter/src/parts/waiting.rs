//! Fragments whose datagrams may have begun before the part of the recording.
//!
//! Only a datagram's first fragment has ports. A fragment *waits* for an earlier part if it is not
//! the first fragment, its datagram is new to the part, and the datagram may have begun before the
//! part. All further fragments of a datagram with a waiting fragment wait too. A first fragment
//! waits if further fragments of its datagram may have arrived earlier, before the part.
//!
//! When two parts are joined, [`Datagram::follow`] gives waiting fragments of the later part the
//! flows of datagrams that are known at the end of the earlier part.

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

/// Fragments beyond this number do not wait, so that a flood of fragments cannot exhaust the
/// memory.
const WAITING_MAX: usize = 16_384;

/// If this number of fragments wait, first fragments no longer wait: a datagram that is cut between
/// two parts is among the first datagrams of the later part.
const FIRST_MAX: usize = 1024;

/// A datagram's first fragment waits for an earlier part only within this time after the beginning
/// of its part: fragments before and after the cut may be late.
const FIRST_WINDOW: u64 = 2 * LATE;

/// A fragment waits for an earlier part only within this time after the beginning of its part.
/// After this time, datagrams that began before the part, or whose first fragment waits for an
/// earlier part, are complete or have timed out.
const WINDOW: u64 = FRAGMENT_TIME.as_nanos() as u64 + FIRST_WINDOW;

/// A flow with waiting fragments begins at most this time after the beginning of the part.
pub(super) const EARLY: u64 = WINDOW + 2 * LATE;

#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    datagram: FlowKey,
    is_first: bool,
    seen: Seen,
}

impl Waiting {
    fn fragment(&self) -> Fragment {
        // Any other positions would do: a fragment's flow depends only on its datagram, and on
        // whether the fragment is the first one.
        let bytes = if self.is_first { 0..8 } else { 8..16 };
        Fragment::new(0, 0, bytes, true, self.datagram)
    }

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

#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    hosts: HashSet<Key>,
    /// True if a waiting fragment carries an encapsulated packet, whose flow may be between any
    /// hosts.
    has_carriers: bool,
}

impl Hosts {
    fn add(&mut self, one: &Waiting) {
        let key = &one.seen.flow.key;
        self.hosts.insert(key.hosts());
        self.has_carriers |=
            !matches!(key.protocol(), protocol::TCP | protocol::UDP | protocol::ICMP | protocol::ICMP6);
    }

    pub(super) fn may_have(&self, flow: &Flow) -> bool {
        let is_inside = self.has_carriers || flow.tunnel().is_some();
        !self.hosts.is_empty() && (is_inside || self.hosts.contains(&flow.key.hosts()))
    }
}

#[derive(Debug, Default)]
pub(super) struct Keeping {
    waiting: Vec<Waiting>,
    datagrams: Unknown,
    hosts: Hosts,
}

#[derive(Debug, Default)]
struct Unknown(HashMap<FlowKey, bool>);

impl Unknown {
    /// Returns true if a datagram's next fragment must wait for an earlier part. `since_begin` is
    /// the time since the beginning of the part. `is_known` returns true if the datagram's flow is
    /// known in the part.
    fn waits(&mut self, datagram: &FlowKey, is_first: bool, since_begin: u64, is_known: impl FnOnce() -> bool) -> bool {
        if since_begin >= WINDOW {
            return false;
        }
        match self.0.entry(*datagram) {
            Entry::Occupied(first_came) if is_first && *first_came.get() => {
                // A second first fragment begins another datagram, whatever packets came before the
                // part.
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
    pub(super) fn keep(
        &mut self,
        fragment: &Fragment,
        seen: &Seen,
        since_begin: u64,
        known: &FlowsOfDatagrams,
    ) -> bool {
        let count = self.waiting.len();
        let is_first = fragment.offset == 0;
        // A fragment with a SYN may begin another record, so it does not wait for an earlier part.
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

    pub(super) fn ended(self, datagrams: Vec<Datagram<Directed>>) -> Fragments {
        let known = datagrams.into_iter().map(|known| (*known.name(), known)).collect();
        Fragments { count: self.waiting.len() as u64, waiting: self.waiting, known }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fragments {
    waiting: Vec<Waiting>,
    /// The number of fragments that have waited, including those whose flow is now known.
    count: u64,
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

    /// Removes datagrams to which no fragment after the time `end` can belong.
    pub(super) fn forget(&mut self, end: u64) {
        self.known.retain(|_, known| !known.is_old(end.saturating_sub(LATE)));
    }

    /// Returns the fragments of the next part whose flows have become known, each with the
    /// fragment's number. `begin` is the beginning of this part, and `end` is the end of the next
    /// part.
    pub(super) fn join(&mut self, later: Self, begin: u64, end: u64) -> Vec<(u64, Seen)> {
        let (before, mut settled, mut unknown) = (self.count, Vec::new(), Unknown::default());
        self.waiting.iter().for_each(|one| *unknown.0.entry(one.datagram).or_default() |= one.is_first);
        for one in later.waiting {
            // Fragments wait only if they are close to the beginning of the joined parts, as the
            // margins in `rules` assume.
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
        // The datagrams are sorted, because the order of a hash table differs between runs.
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
    /// Writes or reads a waiting fragment, without a TCP segment (it has none) and without the hash
    /// (valid only within a run).
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
