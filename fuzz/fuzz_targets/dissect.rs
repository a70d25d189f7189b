//! `cargo +nightly fuzz run dissect`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("dissect", bytes));
