//! `cargo +nightly fuzz run offload`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("offload", bytes));
