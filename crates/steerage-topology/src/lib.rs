//! The CPUs of a Linux machine: sets of CPUs as in `rps_cpus`, shared caches and NUMA nodes, the
//! CPUs that this process may use, and the measured distance between two CPUs.
//!
//! Each module imports only modules from lower rows:
//!
//! | module | content |
//! |---|---|
//! | `pinned` | threads that are pinned to one CPU each, and a watch over their CPUs |
//! | `watch`, `foreign` | CPUs that go offline and come back; the time that other programs take from a CPU |
//! | `machine` | [`Topology`]: which CPUs share a cache, which may be used, and in which order they should be added |
//! | `interrupts` | the CPUs that handle the interrupts of a card's receive queues |
//! | `nodes` | the NUMA node of each CPU: [`NodeMap`] |
//! | `cgroup`, `memory` | the CPUs, the time and the memory that control groups allow this process |
//! | `probe` | measures how long a cache line takes from one CPU to another |
//! | `files` | the kernel's files, which may be missing |
//! | `cpu` | [`CpuId`], and [`CpuMask`], a set of them |
//!
//! This crate depends on no other crate of steerage.
#![forbid(unsafe_code)]

// This import lets tests use the crate's public name, as users of the crate do.
#[cfg(test)]
extern crate self as steerage_topology;

mod cgroup;
pub mod cpu;
mod files;
mod foreign;
mod interrupts;
mod machine;
mod memory;
mod nodes;
mod pinned;
pub mod probe;
#[cfg(test)]
mod test_machines;
mod watch;

pub use cpu::{CpuId, CpuMask, MaskError, MaskErrorKind, NoSuchCpu};
pub use foreign::ForeignLoad;
pub use interrupts::{card_interrupts, interrupt_cpus, queue_interrupts};
pub use machine::{CPUS_MAX, Nearness, Place, SharedCache, Topology, nearness, online, present};
pub use memory::usable_memory;
pub use nodes::{NodeMap, Nodes};
pub use pinned::{CpuWatch, CpusFound, PinnedThreads};
pub use watch::Watch;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
