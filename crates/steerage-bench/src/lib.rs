//! What the benchmarks share: where the CPUs are, frames to receive, how a run is measured, and how figures are shown.
#![forbid(unsafe_code)]

mod charts;
mod figures;
pub mod fold;
pub mod frames;
pub mod html;
#[cfg(test)]
mod made;
pub mod measure;
pub mod nic;
pub mod placement;
pub mod report;
pub mod samples;
pub mod stats;
pub mod table;
