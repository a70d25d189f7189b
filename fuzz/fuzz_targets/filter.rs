//! `cargo +nightly fuzz run filter`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("filter", bytes));
