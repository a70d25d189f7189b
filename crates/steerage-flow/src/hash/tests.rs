//! Checks the hash functions against independent references: the RSS verification suite, the
//! standard library's SipHash, AES in software, and Toeplitz bit by bit.

use super::siphash::siphash;
use super::*;
use crate::flow_key::FlowParts;
use crate::wire::protocol;
use proptest::prelude::*;
use std::hash::Hasher as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Microsoft's "Verifying the RSS hash calculation", as in DPDK's app/test/test_thash.c: the
/// source, the destination, the hash of the addresses, and the hash of the addresses and ports.
const RSS_V4: [(&str, u16, &str, u16, u32, u32); 5] = [
    ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e8fc2, 0x51ccc178),
    ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718262a, 0xc626b0ea),
    ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0a5de, 0x5c2b394a),
    ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x82989176, 0xafc7327f),
    ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d1809c5, 0x10e828a2),
];
const RSS_V6: [(&str, u16, &str, u16, u32, u32); 3] = [
    ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc18cd5, 0x40207d3d),
    ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c461c, 0xdde51bbf),
    ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61e985, 0x02d1feef),
];

const NO_PORTS: u8 = protocol::GRE;

fn v4(row: &(&str, u16, &str, u16, u32, u32), protocol: u8) -> FlowKey {
    let address = |text: &str| text.parse::<Ipv4Addr>().unwrap().to_bits();
    FlowKey::v4_bits((address(row.0), row.1), (address(row.2), row.3), protocol)
}

fn v6(row: &(&str, u16, &str, u16, u32, u32), protocol: u8) -> FlowKey {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
    FlowKey::v6_bits((address(row.0), row.1), (address(row.2), row.3), protocol)
}

fn toeplitz(key: &HashKey) -> Vec<FlowHasher> {
    [Some(FlowHasher::toeplitz_table(key)), FlowHasher::toeplitz_gfni(key)].into_iter().flatten().collect()
}

fn keyed(key: &HashKey) -> Vec<FlowHasher> {
    [Some(FlowHasher::sip(key)), FlowHasher::aes(key)].into_iter().flatten().collect()
}

#[test]
fn rss_verification_suite() {
    for hasher in toeplitz(&HashKey::MICROSOFT) {
        for row in &RSS_V4 {
            assert_eq!(hasher.hash(&v4(row, NO_PORTS)), FlowHash(row.4), "{} {row:?}", hasher.name());
            for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
                assert_eq!(hasher.hash(&v4(row, protocol)), FlowHash(row.5), "{} {row:?}", hasher.name());
            }
        }
        for row in &RSS_V6 {
            assert_eq!(hasher.hash(&v6(row, NO_PORTS)), FlowHash(row.4), "{} {row:?}", hasher.name());
            for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
                assert_eq!(hasher.hash(&v6(row, protocol)), FlowHash(row.5), "{} {row:?}", hasher.name());
            }
        }
    }
}

/// Repeating 6d5a is the usual way to make RSS symmetric.
#[test]
fn symmetric_rss_key() {
    let key = "6d5a".repeat(20).parse().unwrap();
    let expected = [0x9fcc9fcc, 0x60d760d7, 0x3a3e3a3e, 0xd26ed26e, 0xf23ef23e];
    for hasher in toeplitz(&key) {
        for (row, expected) in RSS_V4.iter().zip(expected) {
            let turned = (row.2, row.3, row.0, row.1, 0, 0);
            assert_eq!(hasher.hash(&v4(row, protocol::TCP)), FlowHash(expected));
            assert_eq!(hasher.hash(&v4(&turned, protocol::TCP)), FlowHash(expected));
        }
        for row in &RSS_V6 {
            let turned = (row.2, row.3, row.0, row.1, 0, 0);
            assert_eq!(hasher.hash(&v6(row, protocol::UDP)), hasher.hash(&v6(&turned, protocol::UDP)));
        }
    }
}

fn toeplitz_by_bits(key: &HashKey, input: &[u8]) -> u32 {
    let key_bit = |i: usize| u32::from(key.as_bytes()[i / 8] >> (7 - i % 8) & 1);
    let set = (0..8 * input.len()).filter(|i| input[i / 8] >> (7 - i % 8) & 1 == 1);
    set.map(|i| (0..32).fold(0, |window, j| window << 1 | key_bit(i + j))).fold(0, |sum, window| sum ^ window)
}

fn rss_input(key: &FlowKey) -> Vec<u8> {
    let ports = |source: u16, destination: u16, protocol| {
        let ports = [source.to_be_bytes(), destination.to_be_bytes()].concat();
        if protocol::has_ports(protocol) { ports } else { vec![] }
    };
    match key.parts() {
        FlowParts::V4 { source: s, destination: d, protocol } => {
            [s.ip().octets().to_vec(), d.ip().octets().to_vec(), ports(s.port(), d.port(), protocol)].concat()
        }
        FlowParts::V6 { source: s, destination: d, protocol } => {
            [s.ip().octets().to_vec(), d.ip().octets().to_vec(), ports(s.port(), d.port(), protocol)].concat()
        }
        FlowParts::Link { source, destination, ethertype } => {
            [&source[..], &destination, &ethertype.to_be_bytes()].concat()
        }
        FlowParts::Bytes { bytes, len } => bytes[..len.min(36)].to_vec(),
    }
}

/// The standard library's SipHash-1-3 has a key of zeros, and its (deprecated) SipHash-2-4 takes
/// any key. Comparing SipHash-1-3 tests the rounds, and comparing SipHash-2-4 tests how the key is
/// used.
#[test]
fn siphash_is_the_standard_librarys() {
    let words: Vec<u64> = (1..8_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    for n in 0..words.len() {
        let bytes: Vec<u8> = words[..n].iter().flat_map(|word| word.to_le_bytes()).collect();
        let message = [&words[..n], &[(8 * n as u64) << 56]].concat();

        let mut one_three = std::hash::DefaultHasher::new();
        one_three.write(&bytes);
        assert_eq!(siphash::<1, 3>([0, 0], &message), one_three.finish());

        #[expect(deprecated, reason = "nothing else in the standard library takes a key")]
        let mut two_four = std::hash::SipHasher::new_with_keys(1, 2);
        two_four.write(&bytes);
        assert_eq!(siphash::<2, 4>([1, 2], &message), two_four.finish());
    }
}

#[test]
fn siphash_of_the_paper() {
    let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    assert_eq!(siphash::<2, 4>(words, &[words[0], words[1] & !(0xff << 56) | 15 << 56]), 0xa129_ca61_49be_45e5);
}

#[test]
fn sip_hashes_whole_messages() {
    let hasher = FlowHasher::sip(&HashKey::MICROSOFT);
    let derived = [1 << 32, (1 << 32) + 1].map(|label| HashKey::MICROSOFT.derive(label));
    let [a, b] = [v4(&RSS_V4[0], 6).words()[0], v4(&RSS_V4[0], 6).words()[1]];
    let short = siphash::<1, 3>(derived, &[a, b, 16 << 56]);
    assert_eq!(hasher.hash(&v4(&RSS_V4[0], 6)).0, short as u32);
    let long = FlowKey::from_bytes(&[0xab; 40]);
    let words = [0xabab_abab_abab_abab; 5];
    let message = [&words[..], &[47 << 56 | long.tag()]].concat();
    assert_eq!(hasher.hash(&long).0, siphash::<1, 3>(derived, &message) as u32);
}

#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod aes_in_software {
    use super::super::aes::schedule;
    use super::*;

    fn double(x: u8) -> u8 {
        x << 1 ^ if x & 0x80 != 0 { 0x1b } else { 0 }
    }

    fn times(mut x: u8, mut y: u8) -> u8 {
        let mut product = 0;
        while y != 0 {
            product ^= if y & 1 != 0 { x } else { 0 };
            (x, y) = (double(x), y >> 1);
        }
        product
    }

    /// The AES step SubBytes for one byte (FIPS 197, 5.1.1): the inverse in the finite field
    /// (x^254), then an affine map.
    fn substitute(x: u8) -> u8 {
        let inverse = (0..254).fold(1, |power, _| times(power, x));
        (0..5).fold(0x63, |sum, turn| sum ^ inverse.rotate_left(turn))
    }

    /// A round of AES (FIPS 197, 5.1): SubBytes, ShiftRows, MixColumns, AddRoundKey, with the state
    /// in column order.
    fn round(state: [u8; 16], key: [u8; 16]) -> [u8; 16] {
        let shifted: [u8; 16] = std::array::from_fn(|i| substitute(state[(i + 4 * (i % 4)) % 16]));
        std::array::from_fn(|i| {
            let at = |row: usize| shifted[i / 4 * 4 + row % 4];
            let row = i % 4;
            double(at(row)) ^ double(at(row + 1)) ^ at(row + 1) ^ at(row + 2) ^ at(row + 3) ^ key[i]
        })
    }

    fn bytes([low, high]: [u64; 2]) -> [u8; 16] {
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }

    fn hash(hash_key: &HashKey, key: &FlowKey) -> FlowHash {
        let [short, long] = schedule(hash_key);
        let &[a, b, c, d, e] = key.words();
        let (keys, blocks) =
            if key.is_short() { (short, vec![[a, b]]) } else { (long, vec![[a, b], [c, d], [e, key.tag()]]) };
        let state = blocks.into_iter().fold([0; 16], |state, block| {
            let (block, whiten) = (bytes(block), bytes(keys[0]));
            let state = std::array::from_fn(|i| state[i] ^ block[i] ^ whiten[i]);
            keys[1..].iter().fold(state, |state, key| round(state, bytes(*key)))
        });
        FlowHash(u32::from_le_bytes([state[0], state[1], state[2], state[3]]))
    }

    /// The example of FIPS 197, appendix B: the state after the initial AddRoundKey, the first
    /// round key, and the state after the first round.
    #[test]
    fn round_of_fips_197() {
        let hex = |text: &str| u128::from_str_radix(text, 16).unwrap().to_be_bytes();
        let start = hex("193de3bea0f4e22b9ac68d2ae9f84808");
        let key = hex("a0fafe1788542cb123a339392a6c7605");
        assert_eq!(round(start, key), hex("a49c7ff2689f352b6b5bea43026a5049"));
    }

    proptest! {
        #[test]
        fn agrees(key in any_key(), hash_key in any::<[u8; 40]>()) {
            let hash_key = HashKey::new(hash_key);
            if let Some(hasher) = FlowHasher::aes(&hash_key) {
                prop_assert_eq!(hasher.hash(&key), hash(&hash_key, &key));
            }
        }
    }
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    let protocol = prop::sample::select(vec![protocol::TCP, protocol::UDP, protocol::SCTP, protocol::ICMP, 255]);
    prop_oneof![
        (any::<(u32, u16)>(), any::<(u32, u16)>(), protocol.clone()).prop_map(|(s, d, p)| FlowKey::v4_bits(s, d, p)),
        (any::<(u128, u16)>(), any::<(u128, u16)>(), protocol).prop_map(|(s, d, p)| FlowKey::v6_bits(s, d, p)),
        any::<([u8; 6], [u8; 6], u16)>().prop_map(|(s, d, e)| FlowKey::link(s, d, e)),
        prop::collection::vec(any::<u8>(), 0..50).prop_map(|bytes| FlowKey::from_bytes(&bytes)),
    ]
}

proptest! {
    #[test]
    fn toeplitz_is_its_definition(key in any_key(), hash_key in any::<[u8; 40]>()) {
        let hash_key = HashKey::new(hash_key);
        let expected = FlowHash(toeplitz_by_bits(&hash_key, &rss_input(&key)));
        for hasher in toeplitz(&hash_key) {
            prop_assert_eq!(hasher.hash(&key), expected, "{}", hasher.name());
        }
    }

    #[test]
    fn a_batch_is_its_items(keys in prop::collection::vec(any_key(), 0..70), hash_key in any::<[u8; 40]>()) {
        let hash_key = HashKey::new(hash_key);
        for hasher in keyed(&hash_key).into_iter().chain(toeplitz(&hash_key)) {
            let mut batch: Vec<_> = keys.iter().map(|key| (*key, None)).collect();
            hasher.hash_batch(&mut batch, |item| item.0, |item, hash| item.1 = Some(hash));
            for (key, hash) in batch {
                prop_assert_eq!(hash, Some(hasher.hash(&key)), "{}", hasher.name());
            }
        }
    }
}

/// Chi-square test of the hash's top 12 and bottom 12 bits over 4096 buckets. The expected
/// chi-square value is 4095, with a standard deviation of 90. The test allows six standard
/// deviations.
#[test]
fn sequential_addresses_spread_evenly() {
    const FLOWS: u32 = 1 << 16;
    const BUCKETS: usize = 4096;
    let forms: [fn(u32) -> FlowKey; 4] = [
        |i| FlowKey::v4_bits((0x0a00_0000 + i, 40000), (0xc0a8_0001, 80), protocol::TCP),
        |i| FlowKey::v4_bits((0x0a00_0001, i as u16), (0xc0a8_0001, 80), protocol::TCP),
        |i| FlowKey::v6_bits((0xfd << 120 | u128::from(i), 40000), (0xfd << 120, 80), protocol::TCP),
        |i| FlowKey::from_bytes(format!("connection {i:010}").as_bytes()),
    ];
    for hasher in keyed(&HashKey::MICROSOFT) {
        for form in forms {
            let (mut top, mut bottom) = ([0_u32; BUCKETS], [0_u32; BUCKETS]);
            for i in 0..FLOWS {
                let FlowHash(hash) = hasher.hash(&form(i));
                top[hash as usize >> 20] += 1;
                bottom[hash as usize % BUCKETS] += 1;
            }
            for buckets in [top, bottom] {
                let expected = f64::from(FLOWS) / BUCKETS as f64;
                let chi_square: f64 = buckets.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
                let far = (chi_square - 4095.0).abs() / 90.0;
                assert!(far < 6.0, "{}, {}, ..: {chi_square}", hasher.name(), form(0));
            }
        }
    }
}

#[test]
fn avalanche() {
    const SAMPLES: u64 = 2000;
    for hasher in keyed(&HashKey::MICROSOFT) {
        for len in [15, 40] {
            for bit in 0..8 * len {
                let mut flips = [0_u32; 32];
                for sample in 0..SAMPLES {
                    let mut bytes: Vec<u8> = (0..5)
                        .flat_map(|i| HashKey::MICROSOFT.derive(sample * 5 + i).to_le_bytes())
                        .take(len)
                        .collect();
                    let before = hasher.hash(&FlowKey::from_bytes(&bytes));
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    let changed = before.0 ^ hasher.hash(&FlowKey::from_bytes(&bytes)).0;
                    flips.iter_mut().enumerate().for_each(|(i, n)| *n += changed >> i & 1);
                }
                // The standard deviation of a count is 22.4. The limit is six standard deviations,
                // because 14,080 counts are compared for each hash kernel.
                assert!(flips.iter().all(|n| n.abs_diff(1000) < 135), "{} {len} {bit} {flips:?}", hasher.name());
            }
        }
    }
}

#[test]
fn every_bit_of_the_hash_key_counts() {
    let keys = [v6(&RSS_V6[0], protocol::TCP), FlowKey::from_bytes(&[0xff; 40])];
    for bit in 0..8 * HashKey::LEN {
        let mut bytes = *HashKey::MICROSOFT.as_bytes();
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let changed = HashKey::new(bytes);
        let both = keyed(&HashKey::MICROSOFT).into_iter().zip(keyed(&changed));
        for (before, after) in both {
            assert!(keys.iter().all(|key| before.hash(key) != after.hash(key)), "{} {bit}", after.name());
        }
        for (before, after) in toeplitz(&HashKey::MICROSOFT).into_iter().zip(toeplitz(&changed)) {
            let differs = before.hash(&keys[1]) != after.hash(&keys[1]);
            assert_eq!(differs, bit != 8 * HashKey::LEN - 1, "{} {bit}", after.name());
        }
    }
}

#[test]
fn names() {
    assert_eq!(FlowHasher::sip(&HashKey::MICROSOFT).name(), "siphash-1-3");
    assert_eq!(FlowHasher::toeplitz_table(&HashKey::MICROSOFT).name(), "toeplitz-table");
    let has_aes = FlowHasher::aes(&HashKey::MICROSOFT).is_some();
    assert_eq!(FlowHasher::keyed(&HashKey::MICROSOFT).name(), if has_aes { "aes" } else { "siphash-1-3" });
    let has_gfni = FlowHasher::toeplitz_gfni(&HashKey::MICROSOFT).is_some();
    let toeplitz = if has_gfni { "toeplitz-gfni" } else { "toeplitz-table" };
    assert_eq!(format!("{:?}", FlowHasher::toeplitz(&HashKey::MICROSOFT)), format!("FlowHasher({toeplitz})"));
}
