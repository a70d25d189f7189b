//! `cargo +nightly fuzz run respond`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("respond", bytes));
