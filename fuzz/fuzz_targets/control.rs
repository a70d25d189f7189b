//! `cargo +nightly fuzz run control`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("control", bytes));
