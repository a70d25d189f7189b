//! The receive path of steerage: from a device's queue to the handlers on many CPUs, in batches,
//! without locks, with each flow in order. Programs use this crate through the crate `steerage`.
//!
//! Tables of modules, in the order in which a packet passes. Each imports only modules below it.
//!
//! | module | what happens there |
//! |---|---|
//! | [`rx`] | the receiving side of a device: [`RxQueue`](rx::RxQueue) |
//! | [`completions`] | takes the filled buffers of a poll: [`Completions`](completions::Completions) |
//! | [`page_cache`] | the pages into which frames are received |
//! | `queue` | a receive queue on the CPU that owns it: hash, bucket, CPU; and parking while a bucket moves |
//! | `backlog` | a CPU's end of the rings from the queues |
//! | [`packet`] | a batch of packets, whose metadata is built on the CPU that uses it |
//! | [`handler`], `cpu` | the packet function, what runs it, and what it can request from its CPU |
//! | [`tx`], `origin`, [`sender`] | outputs; packets that a function or another thread originates |
//! | [`softnet`] | one CPU: a round in phases |
//!
//! Modules that are not on the direct path of a packet:
//!
//! | module | what it holds |
//! |---|---|
//! | [`build`](mod@build), [`error`] | builds an instance; why that failed |
//! | [`control`] | changes, reads and stops an instance |
//! | `participant` | a CPU's part in moves and new limits |
//! | `sleep`, `sampler` | how a CPU sleeps; samples of load |
//! | `shared` | the state that the CPUs share, and the only function that wakes them |
//! | `steering`, [`placement`] | what control and the CPUs share under one lock; what a policy reads and stores |
//! | `coalesce` | merges segments of a flow before the handler, if that is wanted |
//! | `kept` | packets that outlive their batch |
//! | [`rps_map`] | hash to bucket to CPU |
//! | [`device`], [`platform`], [`limits`], [`ids`] | names and errors of devices; clock and sleep; every limit; identifiers |
//!
//! This crate imports only steerage-moves (the protocol of moves), steerage-ledger (counts),
//! steerage-mem (rings, pages), steerage-flow (types, dissection, hashing) and the value types of
//! steerage-topology. The crate contains no code for particular policies, devices or programs.
#![forbid(unsafe_code)]

// Doc examples and tests call this crate `steerage_core`, as its users do.
#[cfg(test)]
extern crate self as steerage_core;

mod backlog;
pub mod build;
mod coalesce;
pub mod completions;
pub mod control;
mod cpu;
pub mod device;
pub mod error;
pub mod handler;
pub mod ids;
mod kept;
pub mod limits;
mod origin;
pub mod packet;
pub mod page_cache;
mod participant;
pub mod placement;
pub mod platform;
mod queue;
pub mod rps_map;
pub mod rx;
mod sampler;
pub mod sender;
mod shared;
mod sleep;
pub mod softnet;
mod steering;
#[cfg(test)]
mod test_support;
pub mod tx;

pub use queue::hash::QueueHasher;
pub use sleep::Armed;
