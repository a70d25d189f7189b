//! `cargo +nightly fuzz run zstd`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("zstd", bytes));
