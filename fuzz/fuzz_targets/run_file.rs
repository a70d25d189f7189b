//! `cargo +nightly fuzz run run_file`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("run_file", bytes));
