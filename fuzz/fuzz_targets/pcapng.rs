//! Any bytes behind a section header of pcapng, in both byte orders.
#![no_main]

mod capture;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let order = |number: u32| if choice & 1 == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
    let version = if choice & 1 == 0 { 0x0000_0001 } else { 0x0001_0000 };
    let mut file: Vec<u8> =
        [0x0a0d_0d0a, 28, 0x1a2b_3c4d, version, u32::MAX, u32::MAX, 28].into_iter().flat_map(order).collect();
    file.extend(rest);
    capture::check(&file);
});
