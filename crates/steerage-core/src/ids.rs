//! The identifiers that all modules of the receive path use.

pub use steerage_ledger::{DropReason, MoveCause, TxSource};
pub use steerage_moves::CpuIndex;

/// A bucket: flows whose hashes begin with the same 12 bits, and which move together.
///
/// ```
/// # mod steerage { pub use {steerage_core::{handler::*, ids::*, packet::*}, steerage_flow::FlowKey}; }
/// use std::collections::HashMap;
///
/// use steerage::{Batch, BucketId, Cpu, FlowKey, Handler};
///
/// /// Counts packets by flow. The flows are stored by bucket, because a bucket's flows move together.
/// #[derive(Default)]
/// struct Flows(HashMap<BucketId, HashMap<FlowKey, u64>>);
///
/// impl Handler for Flows {
///     type Moved = HashMap<FlowKey, u64>;
///     type Report = usize;
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         for packet in batch.iter_mut() {
///             let Some(flow) = packet.flow_key() else { continue };
///             *self.0.entry(packet.bucket()).or_default().entry(flow.both_directions()).or_default() += 1;
///         }
///     }
///
///     fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
///         self.0.remove(&bucket)
///     }
///
///     fn bucket_arrives(&mut self, bucket: BucketId, flows: Self::Moved) {
///         let mine = self.0.entry(bucket).or_default();
///         flows.into_iter().for_each(|(flow, packets)| *mine.entry(flow).or_default() += packets);
///     }
///
///     fn finish(self, _cpu: &mut Cpu) -> usize {
///         self.0.values().map(HashMap::len).sum()
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketId {
    /// The number of the group, which consists of queues with the same mask.
    pub group: u16,
    /// The bucket, 0 to 4095.
    pub bucket: u16,
}

/// The number of an output, in the order in which `Builder::add_output` adds outputs. For an
/// example, see [`Packet`](crate::packet::Packet).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u8);

/// The number of an input, in the order in which `Builder::add_input` adds inputs.
///
/// ```
/// # mod steerage { pub use steerage_core::{ids::*, packet::*}; }
/// use steerage::{Batch, InputId, TxId};
///
/// /// Forwards from the inside to the outside, and nothing in the other direction.
/// fn one_way(batch: &mut Batch<'_>, inside: InputId, outside: TxId) {
///     let is_inside = batch.input() == inside;
///     for packet in batch.iter_mut() {
///         if is_inside { packet.transmit(outside) } else { packet.discard() }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InputId(pub u16);

/// A handler's decision about a packet: see the example of [`Packet`](crate::packet::Packet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The handler has only read or changed the packet. This is the default verdict.
    #[default]
    Consumed,
    /// The handler has called [`Packet::discard`](crate::packet::Packet::discard).
    Discarded,
    /// The handler has called [`Packet::keep`](crate::packet::Packet::keep).
    Kept,
    /// The handler has called [`Packet::transmit`](crate::packet::Packet::transmit).
    Transmitted(TxId),
}

/// A set of positions of packets in a batch: see
/// [`Batch::read_common`](crate::packet::Batch::read_common).
///
/// ```
/// # mod steerage { pub use steerage_core::packet::*; }
/// use steerage::Batch;
///
/// /// The bytes of a batch on the wire. Most packets are read together, and the others one by one.
/// fn wire_bytes(batch: &mut Batch<'_>) -> usize {
///     let mut bytes = 0;
///     let others = batch.read_common(|_position, packet| {
///         bytes += packet.wire_len;
///         true
///     });
///     for (position, packet) in batch.iter_mut().enumerate() {
///         if others.contains(position) {
///             bytes += packet.wire_len();
///         }
///     }
///     bytes
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions(pub(crate) u64);

impl Positions {
    /// Returns true if the set is empty.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the packet at `position` is in the set.
    #[inline(always)]
    pub fn contains(self, position: usize) -> bool {
        position < u64::BITS as usize && self.0 & 1 << position != 0
    }
}
