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
/// `Builder::add_output` of the crate `steerage` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u8);

/// An input, by its number in the order in which the inputs were given to the builder.
/// `Builder::add_input` of the crate `steerage` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InputId(pub u16);

/// The decision of a handler about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The handler did nothing with the packet but read or write it. This is the verdict before any other.
    #[default]
    Consumed,
    /// [`Packet::discard`](crate::packet::Packet::discard).
    Discarded,
    /// [`Packet::keep`](crate::packet::Packet::keep).
    Kept,
    /// [`Packet::transmit`](crate::packet::Packet::transmit), to this output.
    Transmitted(TxId),
}
