//! The experiments of `steerage bench`: what is run, how often and in which order, the form in which the figures travel, and
//! how they are shown.
#![forbid(unsafe_code)]

pub mod capture;
mod charts;
pub mod error;
pub mod experiments;
mod figures;
pub mod fold;
pub mod frames;
pub mod histogram;
pub mod html;
pub mod load;
#[cfg(test)]
mod made;
pub mod measure;
pub mod nic;
pub mod placement;
pub mod report;
pub mod router;
pub mod samples;
pub mod stats;
pub mod table;
