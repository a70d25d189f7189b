//! Recently refused connections. Only a hash of each refused connection is stored, which suffices
//! to count each refused connection once.

use std::hash::{BuildHasher, RandomState};

use super::packet::Key;

/// The maximum number of hashes. The hash of a refused connection is needed only for a round-trip
/// time, because a refused peer stops sending segments when it receives the reset.
const KNOWN_MAX: usize = 1024;

const _: () = assert!(KNOWN_MAX.is_power_of_two());

#[derive(Debug)]
pub(super) struct Refusals {
    hasher: RandomState,
    /// Hashes of refused connections. The index of a hash in this slice is given by the lower bits
    /// of the hash. An empty entry is 0.
    known: Box<[u64]>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { hasher: RandomState::new(), known: vec![0; KNOWN_MAX].into() }
    }
}

impl Refusals {
    /// Records that a connection is refused. `sequence` is the sequence number of the connection's
    /// SYN. Returns true if the refused connection was not recorded before.
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
