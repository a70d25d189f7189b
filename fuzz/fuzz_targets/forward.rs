//! `cargo +nightly fuzz run forward`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("forward", bytes));
