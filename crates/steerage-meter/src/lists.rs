//! Doubly linked lists of slots of the flow table. A slot is in at most one of the lists.

use steerage::memory::HugeVec;

use super::index::NONE;

#[derive(Clone, Copy, Debug)]
struct Node {
    before: u32,
    after: u32,
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

/// The nodes of the lists are stored separately from the flows, so changing a list does not access
/// the neighbouring flows.
#[derive(Debug)]
pub(super) struct Lists {
    nodes: HugeVec<Node>,
    ends: Vec<Ends>,
}

impl Lists {
    pub(super) fn new(lists: usize, places: usize) -> Self {
        let mut all = Self { nodes: HugeVec::with_capacity(places), ends: Vec::new() };
        all.extend_to(lists);
        all
    }

    pub(super) fn extend_to(&mut self, lists: usize) {
        if self.ends.len() < lists {
            self.ends.resize(lists, Ends { first: NONE, last: NONE });
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the first slot, which has been in the list for the longest time.
    #[inline]
    pub(super) fn first(&self, list: usize) -> Option<u32> {
        self.ends.get(list).map(|ends| ends.first).filter(|first| *first != NONE)
    }

    /// Appends a slot, which must not be in any list.
    pub(super) fn push(&mut self, list: usize, place: u32) {
        let at = place as usize;
        while self.nodes.len() <= at {
            self.nodes.push(Node { before: NONE, after: NONE, list: NONE });
        }
        let last = std::mem::replace(&mut self.ends[list].last, place);
        self.nodes[at] = Node { before: last, after: NONE, list: list as u32 };
        match last {
            NONE => self.ends[list].first = place,
            last => self.nodes[last as usize].after = place,
        }
    }

    pub(super) fn remove(&mut self, place: u32) {
        let Node { before, after, list } = self.nodes[place as usize];
        let ends = &mut self.ends[list as usize];
        match before {
            NONE => ends.first = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            after => self.nodes[after as usize].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::VecDeque;

    use super::*;

    proptest! {
        #[test]
        fn they_are_queues(steps in prop::collection::vec((0u32..16, 0usize..4), 0..200)) {
            let mut lists = Lists::new(4, 16);
            let mut model: [VecDeque<u32>; 4] = Default::default();
            for (place, list) in steps {
                if let Some(old) = model.iter_mut().find(|places| places.contains(&place)) {
                    old.retain(|other| *other != place);
                    lists.remove(place);
                } else {
                    model[list].push_back(place);
                    lists.push(list, place);
                }
                for (list, places) in model.iter().enumerate() {
                    prop_assert_eq!(lists.first(list), places.front().copied());
                }
            }
            for (list, places) in model.iter_mut().enumerate() {
                while let Some(place) = places.pop_front() {
                    prop_assert_eq!(lists.first(list), Some(place));
                    lists.remove(place);
                }
                prop_assert_eq!(lists.first(list), None);
            }
        }
    }
}
