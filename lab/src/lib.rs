//! The experiments of `steerage bench`: what they run, the report that their measurements make, and how that report is shown.
//!
//! Modules import only modules further up in this table:
//!
//! | module | what it holds |
//! |---|---|
//! | `error`, `measurement` | why a run failed; what a run measured |
//! | `placement` | pins threads, and measures how far CPUs are apart |
//! | `published` | what was published, in words and figures |
//! | `report` | the report: machine, experiments, charts, samples; its JSON form |
//! | `histogram` | a histogram of times |
//! | `frames`, `traffic`, `capture`, `nic`, `router`, `load` | the devices and packet functions that are measured |
//! | `runs` | one run on one or two CPUs |
//! | `benchmark` | a benchmark: its description, its settings, its cases |
//! | `runner` | runs the cases of a benchmark in turn |
//! | `experiments` | each experiment, and all of them by name |
//! | `stats`, `compare` | medians of runs; whether two series differ |
//! | `summary` | the receive path in short, beside its aims |
//! | `format` | numbers and text for people |
//! | `merge` | makes one report of several |
//! | `table`, `charts`, `html` | the report as text and as a page |
#![forbid(unsafe_code)]

pub mod benchmark;
pub mod capture;
mod charts;
pub mod compare;
pub mod error;
pub mod experiments;
mod format;
pub mod frames;
pub mod histogram;
pub mod html;
pub mod load;
pub mod measurement;
pub mod merge;
pub mod nic;
pub mod placement;
pub mod published;
pub mod report;
pub mod router;
pub mod runner;
pub mod runs;
pub mod stats;
pub mod summary;
pub mod table;
#[cfg(test)]
mod test_report;
pub mod traffic;
