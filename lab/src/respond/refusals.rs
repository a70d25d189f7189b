//! Hashes of recently refused connections, so that each refused connection counts once.

use std::hash::{BuildHasher, RandomState};

use super::packet::Key;

/// The number of stored hashes. The hash of a refused connection is needed only until the reset
/// stops the peer, one round-trip time later.
const KNOWN_MAX: usize = 1024;

const _: () = assert!(KNOWN_MAX.is_power_of_two());

#[derive(Debug)]
pub(super) struct Refusals {
    hasher: RandomState,
    /// The stored hashes. The low bits of a hash are the index of its entry, and an empty entry is
    /// 0.
    known: Box<[u64]>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { hasher: RandomState::new(), known: vec![0; KNOWN_MAX].into() }
    }
}

impl Refusals {
    /// Returns true if the refused connection was not recorded before. `sequence` is the sequence
    /// number of the connection's SYN.
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
