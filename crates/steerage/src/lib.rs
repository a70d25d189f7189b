//! Receive packet steering in user space: one busy receive queue spread over many CPUs, flow by flow, in order, in
//! batches, without locks.
//!
//! What Linux does inside (RPS, hand-off of packet lists, metadata built late, a page cache local to each queue) for
//! programs above the kernel. A packet function is a [`Handler`], built once for each CPU; a device is an [`RxQueue`].
//!
//! The modules, in the order in which a packet meets them:
//!
//! | module | what happens there |
//! |---|---|
//! | `rx` | a device fills buffers and hands over completions: [`RxQueue`], [`Completions`] |
//! | `pool`, `lpc`, `numa` | where the pages come from and go home to, how many are kept local, on which node they lie |
//! | `flow`, `hashing` | from the headers to a flow key to its hash |
//! | `rps_map` | hash to bucket to CPU |
//! | `queue` | poll, steer, publish, reclaim: all that the receiving CPU does |
//! | `softnet`, `sleep` | the round of one CPU, in phases, and how it sleeps: [`Softnet`] |
//! | `packet`, `handler` | metadata built late; the packet function: [`Packet`], [`Handler`] |
//! | `tx` | where packets go that a function transmits: [`TxQueue`], [`Output`] |
//! | `gate` | what a handler did counts, or its CPU was declared dead |
//! | `policy`, `load` | which CPUs have buckets, and which, by their load: [`Balance`], [`Hash`](struct@Hash), [`Policy`] |
//! | `origin` | packets of a function's own making |
//! | `moves`, `duties` | buckets change their CPU, and nothing is reordered |
//! | `ledger`, `shared` | received = delivered + dropped by reason + in flight |
//! | `builder`, `plan`, `instance`, `handle` | putting it together, running it: [`Builder`], [`Running`], [`Handle`] |
//! | `topology` | which CPUs are near, which are ours, which went: [`Topology`] |
//! | `limits`, `platform`, `cpu`, `counter`, `device_name` | every limit; clock, sleep and chance; CPUs and masks; counts; names |
#![forbid(unsafe_code)]

// What tests of the whole path share names the crate as its users do.
#[cfg(test)]
extern crate self as steerage;

mod builder;
mod counter;
mod cpu;
mod device_name;
mod distance;
mod duties;
pub mod flow;
mod flow_limit;
mod gate;
mod handle;
mod handler;
mod hashing;
mod instance;
mod ledger;
mod limits;
mod load;
mod lpc;
mod moves;
mod numa;
mod origin;
mod packet;
mod plan;
mod platform;
mod policy;
mod pool;
mod queue;
mod rps_map;
mod rx;
mod shared;
mod sleep;
mod softnet;
pub mod testing;
pub mod topology;
mod tx;
mod watching;

pub use builder::{BuildError, Builder};
pub use cpu::{CpuId, CpuMask, MaskError, MaskErrorKind};
pub use device_name::DeviceName;
pub use handle::Handle;
pub use handler::{Affinity, BucketId, Cpu, Handler};
pub use hashing::{SteeringKey, SteeringKeys};
pub use instance::{CpuPart, Instance, Outcome, Running};
pub use ledger::{
    BucketSnapshot, CpuSnapshot, DropReason, Drops, MoveCause, MoveCounts, OutputSnapshot, PoolSnapshot, QueueError,
    QueueSnapshot, Snapshot, Verdicts,
};
pub use limits::*;
pub use lpc::{LpcMemory, usable_memory};
pub use numa::NodeMap;
pub use packet::{Batch, NoRoom, Packet, Packets, Received};
pub use platform::{Machine, Platform, Timestamp, WallTime};
pub use policy::{
    Balance, CpuLoad, Elephant, Findings, GroupLoad, GroupSnapshot, Hash, POLICIES, Policy, Window, Wish, policy,
};
pub use rps_map::{bucket_of, even_share};
pub use rx::{Completions, DeviceError, Filled, Gather, Input, Lending, LinkType, Polled, QueueMemory, RxQueue};
pub use sleep::Armed;
pub use softnet::{Phase, Softnet, Stepped};
pub use steerage_mem::hash::{
    FlowHash, FlowHasher, FlowKey, FlowParts, HashKey, ParseFlowKeyError, ParseHashKeyError, protocol,
};
pub use steerage_mem::park::Bell;
pub use steerage_mem::{
    Backing, Blocks, Claim, Completion, FRAME_BYTES_MAX, FrameHeader, HugeVec, InFlight, Kept, Page, Posted, Reaper,
    Region, RegionError, SEGMENTS_MAX, Segments, Spot,
};
pub use topology::Topology;
pub use tx::{OpenTx, Outgoing, OutgoingPacket, Output, Sent, TxAccount, TxId, TxQueue, TxSource};
