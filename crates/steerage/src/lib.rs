//! Receive packet steering in user space: one busy receive queue spread over many CPUs, flow by flow, in order, in
//! batches, without locks.
//!
//! What Linux does inside (RPS, hand-off of packet lists, metadata built late, a page cache local to each queue) for
//! programs above the kernel. A packet function is a [`Handler`], built once for each CPU; a device is an [`RxQueue`].
//!
//! This crate is what programs depend on. It puts the parts together, each of which is a crate that imports only crates below it:
//!
//! | module | what it holds | crate |
//! |---|---|---|
//! | here | [`Builder`], [`Instance`], [`Running`], [`Handle`]: putting an instance together, running it, changing it; and the names of all other modules that programs need most | `steerage` |
//! | [`policy`](mod@policy) | which CPUs of a mask have work: [`Balance`], [`Hash`](struct@Hash), [`Policy`] | `steerage-policy` |
//! | [`device`] | what a device is: [`RxQueue`], [`TxQueue`], [`Completions`] | `steerage-core` |
//! | [`stats`] | the ledger: counts, drops by reason, [`Snapshot`] | `steerage-ledger` |
//! | [`flow`] | from a frame's headers to its flow, and to a hash | `steerage-flow` |
//! | [`topology`] | the CPUs of the machine, their caches, NUMA nodes and control groups | `steerage-topology` |
//! | [`testing`] | for authors of devices: polls a queue without the path | `steerage-testing` |
//! | [`prelude`] | what nearly every program imports | |
#![forbid(unsafe_code)]

mod builder;
mod handle;
mod instance;

pub use steerage_core::Armed;
pub use steerage_core::completions::{Completions, Filled, Gather, Lending};
pub use steerage_core::device::{DeviceError, DeviceName};
pub use steerage_core::error::BuildError;
pub use steerage_core::handler::{Cpu, Handler};
pub use steerage_core::ids::{BucketId, DropReason, MoveCause, TxId, TxSource};
pub use steerage_core::limits::*;
pub use steerage_core::packet::{Batch, NoRoom, Packet, Packets, Received};
pub use steerage_core::placement::{Elephant, Findings, GroupSnapshot, Plan};
pub use steerage_core::platform::{Machine, Platform};
pub use steerage_core::rps_map::{bucket_of, even_share};
pub use steerage_core::rx::{Input, Polled, QueueMemory, RxQueue};
pub use steerage_core::softnet::{CpuPart, Phase, Softnet, Stepped};
pub use steerage_core::tx::{OpenTx, Outgoing, OutgoingPacket, Output, Sent, TxQueue};
pub use steerage_flow::limits::*;
pub use steerage_flow::{
    Affinity, FlowHash, FlowHasher, FlowKey, FlowParts, HashKey, LinkType, ParseFlowKeyError, ParseHashKeyError,
    SteeringKey, SteeringKeys, Timestamp, WallTime, protocol,
};
pub use steerage_ledger::{
    BucketSnapshot, CpuSnapshot, Drops, MoveCounts, OutputSnapshot, PoolSnapshot, QueueError, QueueSnapshot, Snapshot,
    TxAccount, Verdicts,
};
pub use steerage_mem::page_cache::*;
pub use steerage_mem::park::Bell;
pub use steerage_mem::{
    Backing, Blocks, Claim, Completion, FRAME_BYTES_MAX, FrameHeader, HugeVec, InFlight, Kept, Page, Posted, Reaper,
    Region, RegionError, SEGMENTS_MAX, Segments, Spot,
};
pub use steerage_policy::limits::*;
pub use steerage_policy::{Balance, CpuLoad, GroupLoad, Hash, POLICIES, Policy, Window, Wish, policy};
pub use steerage_topology::{CpuId, CpuMask, MaskError, MaskErrorKind, NodeMap, Topology, usable_memory};

pub use builder::Builder;
pub use handle::Handle;
pub use instance::{Instance, Outcome, Running};
pub use {
    steerage_ledger as stats, steerage_policy as policy, steerage_testing as testing, steerage_topology as topology,
};

/// What a device is: for authors of devices.
pub mod device {
    pub use steerage_core::{completions::*, device::*, rx::*, tx::*};
}

/// From a frame's headers to its [`FlowKey`], and to a hash.
pub mod flow {
    pub use steerage_flow::dissect::*;
    pub use steerage_flow::*;
}

/// What nearly every program imports.
pub mod prelude {
    pub use crate::{Batch, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Input, Packet, Running, Snapshot};
}
