//! `cargo +nightly fuzz run pcapng`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("pcapng", bytes));
