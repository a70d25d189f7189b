//! Finds the flow of a frame from its headers, and hashes the flow for packet steering.
//!
//! * [`dissect::flow_key`] finds the flow of a frame. The dissector reads VLAN tags, MPLS labels,
//!   PPP, and the headers inside tunnels (GRE, VXLAN, Geneve, GTP-U). The work per frame is
//!   bounded.
//! * [`FlowHasher`] hashes flows in batches: AES or SipHash with a secret key, or Toeplitz, which
//!   network cards compute for receive side scaling (RSS).
//! * [`FragmentTable`] keeps the fragments of a datagram on the CPU of their flow.
//!
//! Each module imports only modules that are below it in this table:
//!
//! | module | what it holds |
//! |---|---|
//! | `frame_key` | from a frame to the key by which it is steered: [`SteeringKeys`], [`FrameHasher`] |
//! | `fragments`, `flow_limit` | fragmented datagrams: [`FragmentTable`]; flows with too many packets: [`FlowLimit`] |
//! | [`dissect`] | from a frame's headers to its [`FlowKey`] |
//! | [`offload`] | super-frames: [`Offload`](offload::Offload), how they are cut into packets, and how packets are merged |
//! | [`hash`] | the hash functions, and all `unsafe` of this crate |
//! | `affinity` | which packets must stay together: [`Affinity`] |
//! | `flow_key` | the key of a flow, in the form in which it is hashed: [`FlowKey`] |
//! | [`wire`] | protocol numbers, the layout of headers, the Internet checksum, and a builder of frames |
//! | `link_type`, `time`, `limits` | the type of a frame's first header; clocks; every limit with its reason |
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as steerage_flow;

mod affinity;
pub mod dissect;
mod flow_key;
mod flow_limit;
mod fragments;
mod frame_key;
#[allow(unsafe_code, reason = "a function compiled for a CPU feature can only be called unsafely")]
pub mod hash;
pub mod limits;
mod link_type;
pub mod offload;
mod time;
pub mod wire;

pub use affinity::Affinity;
pub use flow_key::{FlowKey, FlowParts, ParseFlowKeyError};
pub use flow_limit::{FlowLimit, FlowLimits};
pub use fragments::{Datagram, Datagrams, FragmentCounts, FragmentTable};
pub use frame_key::{
    BothDirections, CustomKey, FrameAccess, FrameHasher, KeyRule, OneDirection, SteeringKey, SteeringKeys,
};
pub use hash::{FlowHash, FlowHasher, HashKey, HashKind, HashUnavailable, Hashing, ParseHashKeyError, UnknownHash};
pub use link_type::LinkType;
pub use time::{PacketClock, Timestamp, WallTime};
pub use wire::protocol;

/// Tests the examples in the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
