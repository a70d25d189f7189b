//! The fuzz targets: functions that pass any bytes to a parser of untrusted bytes, and panic if
//! they find an error.
//!
//! The package `fuzz/` gives fuzzer input to the targets, and the test `corpus` each file in
//! `fuzz/corpus`.
#![forbid(unsafe_code)]

mod captures;
mod control;
mod filters;
mod frames;
mod hosts;
mod names;
mod run_files;

/// The name of a fuzz target and of its corpus in `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("dissect", frames::dissect),
    ("offload", frames::offload),
    ("pcap", captures::pcap),
    ("pcapng", captures::pcapng),
    ("gzip", captures::gzip),
    ("zstd", captures::zstd),
    ("forward", hosts::forward),
    ("respond", hosts::respond),
    ("control", control::request),
    ("http", control::http),
    ("filter", filters::numbers),
    ("names", names::flow),
    ("run_file", run_files::text),
];

/// Calls the fuzz target with this name.
///
/// # Panics
/// Panics if there is no such target, or if the target finds an error.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, check) = target.unwrap_or_else(|| panic!("there is no target {name}"));
    check(bytes);
}
