//! Lost packets by reason.

use std::array;

use crate::counter::Counter;
use crate::reasons::DropReason;

/// Lost packets by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// The packets that were lost for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Counts `packets` more.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// All lost packets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|(_, packets)| *packets > 0)
    }
}

/// Counters of lost packets by reason, with one writer.
#[derive(Debug)]
pub struct DropCounters([Counter; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| Counter::default()))
    }
}

impl DropCounters {
    /// Counts `packets` more.
    pub fn add(&self, reason: DropReason, packets: u64) {
        self.0[reason as usize].add(packets);
    }

    /// The counts.
    pub fn read(&self) -> Drops {
        Drops(array::from_fn(|i| self.0[i].get()))
    }
}
