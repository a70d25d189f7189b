//! `cargo +nightly fuzz run http`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("http", bytes));
