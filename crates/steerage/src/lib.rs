//! Receive packet steering in user space: one busy receive queue spread over many CPUs, flow by flow, in order, in
//! batches, without locks.
//!
//! It brings to programs what Linux does in the kernel: RPS, hand-off of packet lists to other CPUs, metadata that is built late, and
//! a page cache for each receive queue. A packet function is a [`Handler`], and each CPU has one of its own.
//!
//! This program listens to an interface, with a filter. It counts packets that are longer than a limit, reads the limit from a file
//! every second, prints what each CPU has handled, and ends at Ctrl-C:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
//! use std::time::Duration;
//!
//! use signal_hook::{consts::SIGINT, flag};
//! use steerage::{Batch, Builder, Cpu, Handler};
//! use steerage_device::{af_packet::AfPacketOptions, privileges};
//!
//! /// Counts long packets on one CPU, so it needs no lock.
//! struct Long {
//!     limit: Arc<AtomicUsize>,
//!     count: u64,
//! }
//!
//! impl Handler for Long {
//!     type Moved = ();
//!     type Report = u64;
//!
//!     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
//!         let limit = self.limit.load(Ordering::Relaxed);
//!         self.count += batch.iter_mut().filter(|packet| packet.wire_len() > limit).count() as u64;
//!     }
//!
//!     fn finish(self, _cpu: &mut Cpu) -> u64 {
//!         self.count
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let listening = AfPacketOptions::new("eth1").filtered("udp and not port 53")?.open()?;
//!     privileges::drop_all()?;
//!     let stop = Arc::new(AtomicBool::new(false));
//!     flag::register(SIGINT, Arc::clone(&stop))?;
//!
//!     let limit = Arc::new(AtomicUsize::new(1000));
//!     let shared = Arc::clone(&limit);
//!     let make = move |_cpu| Long { limit: Arc::clone(&shared), count: 0 };
//!     let running = Builder::new().input(listening.input).build(make)?.start()?;
//!     let handle = running.handle();
//!     while !stop.load(Ordering::Relaxed) && !handle.wait_finished(Duration::from_secs(1)) {
//!         if let Some(new) = std::fs::read_to_string("limit").ok().and_then(|text| text.trim().parse().ok()) {
//!             limit.store(new, Ordering::Relaxed);
//!         }
//!         for cpu in handle.snapshot().cpus {
//!             println!("CPU {}: {} packets, busy for {:?}", cpu.cpu, cpu.processed, cpu.busy);
//!         }
//!     }
//!     handle.stop();
//!     let outcome = running.join();
//!     let long: u64 = outcome.reports.iter().map(|(_cpu, count)| count).sum();
//!     println!("{long} of {} packets were long; lost: {}", outcome.snapshot.received(), outcome.snapshot.dropped());
//!     Ok(())
//! }
//! ```
//!
//! `docs/functions.md` in the repository is the guide to packet functions: state for each flow, state that moves with its flows, sending,
//! testing, threads and async runtimes of your own. `docs/devices.md` is the guide to devices. `steerage_device::open` opens devices
//! by name: interfaces, capture files, TAPs, synthetic traffic.
//!
//! This crate puts parts together, each of which is a crate that imports only crates below it. Programs depend on this crate alone:
//!
//! | module | what it holds | crate |
//! |---|---|---|
//! | here | putting an instance together, running it and changing it: [`Builder`], [`Instance`], [`Running`], [`Handle`]; packet functions: [`Handler`], [`Batch`], [`Packet`] | `steerage`, `steerage-core` |
//! | [`packet`] | the parts of packets, and packets that outlive their batch | `steerage-core` |
//! | [`device`] | what a device is: [`RxQueue`](device::RxQueue), [`TxQueue`](device::TxQueue), [`Completions`](device::Completions) | `steerage-core`, `steerage-mem` |
//! | [`policy`] | which CPUs of a mask have work: [`Balance`], [`Hash`](struct@Hash), [`Policy`](policy::Policy) | `steerage-policy` |
//! | [`stats`] | the ledger: counts, drops by reason, [`Snapshot`] | `steerage-ledger` |
//! | [`flow`] | from a frame's headers to its flow, and to a hash | `steerage-flow` |
//! | [`topology`] | the CPUs of the machine, their caches, NUMA nodes and control groups | `steerage-topology` |
//! | [`threads`] | running the CPUs on threads of your own | `steerage-core` |
//! | [`limits`] | the range of every setting | `steerage-core` |
//! | [`memory`] | huge pages for tables of your own; the size of page caches | `steerage-mem` |
//! | [`testing`] | tests of packet functions and devices | `steerage-testing` |
//! | [`prelude`] | what nearly every program imports | |
#![forbid(unsafe_code)]

mod builder;
mod handle;
mod instance;

pub use steerage_core::device::DeviceError;
pub use steerage_core::error::{BuildError, SetError};
pub use steerage_core::handler::{Cpu, Handler};
pub use steerage_core::ids::{BucketId, InputId, TxId};
pub use steerage_core::packet::{Batch, NoRoom, Packet};
pub use steerage_core::rx::Input;
pub use steerage_core::tx::Output;
pub use steerage_flow::{Affinity, FlowKey, LinkType, Timestamp, WallTime};
pub use steerage_ledger::Snapshot;
pub use steerage_policy::{Balance, Hash};
pub use steerage_topology::{CpuId, CpuMask};

pub use builder::Builder;
pub use handle::Handle;
pub use instance::{Instance, Outcome, Running};
pub use {steerage_testing as testing, steerage_topology as topology};

/// The ledger: what was received, delivered and dropped, by CPU, queue and output.
pub mod stats {
    pub use steerage_ledger::{
        Backing, BucketSnapshot, CpuSnapshot, DropReason, Drops, Elephant, Findings, GroupSnapshot, MoveCause,
        MoveCounts, OutputSnapshot, PoolSnapshot, QueueError, QueueSnapshot, Snapshot, Verdicts,
    };
}

/// Which CPUs of a mask have work, and policies of a program's own.
pub mod policy {
    pub use steerage_policy::{
        Balance, CpuLoad, GroupLoad, Hash, LOOK_EVERY, LOOK_EVERY_MAX, LOOK_RETRY, POLICIES, Plan, Policy,
        UnknownPolicy, Window, Wish, is_same_distance,
    };
}

/// Packets, their parts, and packets that outlive their batch.
pub mod packet {
    pub use steerage_core::ids::Verdict;
    pub use steerage_core::packet::{Batch, Kept, NoRoom, Packet, Packets, Positions, Received, Segments};
}

/// What a device is: for authors of devices.
pub mod device {
    pub use steerage_core::{completions::*, device::*, rx::*, tx::*};
    pub use steerage_ledger::{TxAccount, TxSource};
    pub use steerage_mem::{
        Backing, Blocks, Claim, Completion, FrameHeader, InFlight, Page, Posted, Reaper, Region, RegionError, Spot,
    };
}

/// From a frame's headers to its [`FlowKey`], and to a hash.
pub mod flow {
    pub use steerage_core::rps_map::{bucket_of, even_share};
    pub use steerage_flow::dissect::*;
    pub use steerage_flow::*;
}

/// For programs that run the CPUs on threads of their own: see [`Instance::split`].
pub mod threads {
    pub use steerage_core::Armed;
    pub use steerage_core::platform::{Machine, Platform};
    pub use steerage_core::softnet::{CpuPart, Phase, Softnet, Stepped};
    pub use steerage_mem::park::Bell;
}

/// The limits that a program meets: defaults and ranges of settings, and the sizes of things.
pub mod limits {
    pub use steerage_core::limits::{
        BACKLOG_DEFAULT, BACKLOG_MAX, BUCKETS, CPUS_MAX, DEAD_AFTER, DRAIN_MAX, FLOW_LIMIT_TABLE_LEN,
        FLOW_LIMIT_TABLE_LEN_MAX, HANDLE_BUDGET, HEADROOM, KEPT_DEFAULT, Limits, MEMORY_MAX_DEFAULT, ORIGINATED_MAX,
        OUTPUT_STUCK_AFTER, OUTPUTS_MAX, PAGE_BYTES_MIN, POLL_BUDGET, QUEUES_MAX, QueueLimits, ROUND_BUDGET,
        ROUND_TIME_MAX,
    };
    pub use steerage_mem::page_cache::{LPC_MEMORY_PART, LPC_SIZE_DEFAULT, LPC_SIZE_MAX, LPC_UNIT_PAGES};
    pub use steerage_mem::{FRAME_BYTES_MAX, SEGMENTS_MAX};
}

/// Memory for a program's own tables, and the memory of page caches.
pub mod memory {
    pub use steerage_mem::HugeVec;
    pub use steerage_mem::page_cache::LpcMemory;
    pub use steerage_topology::usable_memory;
}

/// What nearly every program imports.
pub mod prelude {
    pub use crate::{Batch, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Input, Packet, Running, Snapshot};
}

/// The example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
