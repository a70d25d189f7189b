//! Any bytes behind one of the four magic numbers of pcap.
#![no_main]

mod capture;

use libfuzzer_sys::fuzz_target;

const MAGICS: [u32; 4] = [0xa1b2_c3d4, 0xa1b2_3c4d, 0xd4c3_b2a1, 0x4d3c_b2a1];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let mut file = MAGICS[usize::from(choice & 3)].to_le_bytes().to_vec();
    if choice & 4 == 0 {
        // Most versions are none: the one there is, and let the fuzzer have the rest.
        file.extend(if choice & 2 == 0 { [2, 0, 4, 0] } else { [0, 2, 0, 4] });
    }
    file.extend(rest);
    capture::check(&file);
});
