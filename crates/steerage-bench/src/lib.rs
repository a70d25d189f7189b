//! What the benchmarks share: where the CPUs are, frames to receive, and how a run is measured.
#![forbid(unsafe_code)]

pub mod frames;
pub mod measure;
pub mod nic;
pub mod placement;
pub mod report;
pub mod samples;
