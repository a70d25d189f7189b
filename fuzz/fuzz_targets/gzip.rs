//! `cargo +nightly fuzz run gzip`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("gzip", bytes));
