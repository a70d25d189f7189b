//! The connections that were refused lately: nothing is kept of them but a number, by which each is counted once.

use std::hash::{BuildHasher, RandomState};

use super::packet::Key;

/// How many are known at a time. A peer says more of a connection only until it hears that it is refused: a round trip.
const KNOWN_MAX: usize = 1024;

const _: () = assert!(KNOWN_MAX.is_power_of_two());

/// One CPU's.
#[derive(Debug)]
pub(super) struct Refusals {
    hasher: RandomState,
    /// A connection's hash, at the place that its lower bits say; 0 where there is none.
    known: Box<[u64]>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { hasher: RandomState::new(), known: vec![0; KNOWN_MAX].into() }
    }
}

impl Refusals {
    /// Notes that the connection whose peer began at that sequence number is refused. Returns whether that is new.
    pub(super) fn note(&mut self, key: &Key, sequence: u32) -> bool {
        let hash = self.hasher.hash_one((key, sequence)) | 1 << 63;
        let known = &mut self.known[hash as usize & (KNOWN_MAX - 1)];
        std::mem::replace(known, hash) != hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_new_once() {
        let mut refusals = Refusals::default();
        let key = |remote_port| Key { remote: [1; 16], remote_port, local: 0, local_port: 7 };
        assert!(refusals.note(&key(1), 5));
        assert!(!refusals.note(&key(1), 5), "a segment of the same connection");
        assert!(refusals.note(&key(1), 6), "the peer tries again");
        assert!(refusals.note(&key(2), 5));
    }
}
