//! `cargo +nightly fuzz run pcap`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| steerage_fuzzed::run("pcap", bytes));
