//! `cargo +nightly fuzz run names`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("names", bytes));
