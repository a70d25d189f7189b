//! The identifiers that every part of the path uses. This module imports nothing of this crate.

pub use steerage_ledger::{DropReason, MoveCause, TxSource};
pub use steerage_moves::CpuIndex;

/// A group of flows that move together: all flows of a steering group whose hash starts with the same 12 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId {
    /// The steering group: queues with the same mask.
    pub group: u16,
    /// The bucket, 0 to 4095.
    pub bucket: u16,
}

/// An output, by its number in the order in which the outputs were given to the builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u8);

/// The decision of a handler about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet: consumed, once the handler returns.
    #[default]
    Open,
    Discarded,
    Kept,
    Transmitted(TxId),
}
