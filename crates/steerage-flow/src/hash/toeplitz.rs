//! The Toeplitz hash of receive side scaling, with a table.
//!
//! The Toeplitz hash is a sum modulo 2 of parts of the hash key. For each bit that is set in the
//! input, 32 bits of the hash key are added, beginning at the position of the input bit (Microsoft,
//! "RSS hashing types"; H. Krawczyk, "LFSR-based hashing and authentication", CRYPTO '94). The
//! terms of the Toeplitz sum can be grouped by input bytes, eight bits each. Therefore a table
//! contains, for each position of an input byte, what each of the 256 values of the byte
//! contributes to the hash. The table is computed once for each hash key.

use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;
use crate::wire::protocol;
use std::sync::Arc;

/// The number of input bytes that a 40-byte key can hash. The last input bit still needs the 32
/// bits of the key that begin at its position.
pub(super) const INPUT_LEN: usize = HashKey::LEN - 4;

/// The length in bytes of the hash input of an IPv4 flow: two addresses and two ports.
const INPUT_LEN_V4: usize = 12;

/// A mask for the bits of a 64-bit word of an IPv4 key that belong to no port.
const NO_PORT_V4: u64 = !0xffff;
/// A mask for the bits of the last 64-bit word of an IPv6 key that belong to no port.
const NO_PORT_V6: u64 = 0xffff_ffff;

/// The table of what each input byte contributes to the hash. The table is indexed by the position
/// of an input byte and the byte's value. All copies of a hasher share its table, because the
/// table's 36 KiB are more than half of an L1 cache.
#[derive(Clone)]
pub(super) struct Table(Arc<[[u32; 256]; INPUT_LEN]>);

impl Table {
    pub(super) fn new(key: &HashKey) -> Table {
        let mut table = Arc::new([[0; 256]; INPUT_LEN]);
        for (place, row) in Arc::make_mut(&mut table).iter_mut().enumerate() {
            for (value, sum) in row.iter_mut().enumerate() {
                for bit in (0..8).filter(|bit| value << bit & 0x80 != 0) {
                    *sum ^= key_bits(key, 8 * place + bit);
                }
            }
        }
        Table(table)
    }

    /// Returns the hash of `N` bytes. The number of bytes is known at compile time, so the loop is
    /// unrolled and no index is checked.
    #[inline(always)]
    fn sum<const N: usize>(&self, input: [u8; N]) -> u32 {
        const { assert!(N <= INPUT_LEN) };
        let mut sum = 0;
        for (row, value) in self.0.iter().zip(input) {
            sum ^= row[usize::from(value)];
        }
        sum
    }
}

/// Returns 32 bits of the hash key, beginning with bit `bit`. Bit 0 is the top bit of the key's
/// first byte.
fn key_bits(key: &HashKey, bit: usize) -> u32 {
    let mut window = [0; 8];
    window[..5].copy_from_slice(&key.as_bytes()[bit / 8..][..5]);
    (u64::from_be_bytes(window) >> (32 - bit % 8)) as u32
}

impl Kernel for Table {
    const NAME: &'static str = "toeplitz-table";

    #[inline(always)]
    fn hash(&self, key: &FlowKey) -> u32 {
        match Input::of(key) {
            Input::V4(source, destination) => {
                let addresses = (source >> 16) << 32 | (destination >> 16) & 0xffff_ffff;
                let ports = (source as u16 as u32) << 16 | destination as u16 as u32;
                let mut input = [0; INPUT_LEN_V4];
                input[..8].copy_from_slice(&addresses.to_be_bytes());
                input[8..].copy_from_slice(&ports.to_be_bytes());
                self.sum(input)
            }
            Input::Bytes(words) => {
                let mut input = [0; INPUT_LEN];
                for (bytes, word) in input.chunks_mut(8).zip(words) {
                    bytes.copy_from_slice(&word.to_be_bytes()[..bytes.len()]);
                }
                self.sum(input)
            }
        }
    }
}

/// The part of a flow key that Toeplitz hashes.
pub(super) enum Input {
    /// Two 64-bit words: the source and the destination. Each of these two words has the address in
    /// the bits above the port. (The protocol is above the destination address and is not hashed.)
    V4(u64, u64),
    /// 36 bytes, big-endian. The low half of the last 64-bit word is not hashed.
    Bytes([u64; 5]),
}

impl Input {
    /// Returns the bytes of a flow key that RSS hashes. Ports that RSS does not hash are set to 0.
    /// A zero byte adds nothing to the hash. Therefore the input has the same length with and
    /// without ports.
    #[inline(always)]
    pub(super) fn of(key: &FlowKey) -> Input {
        let &[a, b, c, d, e] = key.words();
        if key.is_v4() {
            let mask = if protocol::has_ports((b >> 48) as u8) { u64::MAX } else { NO_PORT_V4 };
            return Input::V4(a & mask, b & mask);
        }
        if key.is_v6() {
            let mask = if protocol::has_ports(e as u8) { u64::MAX } else { NO_PORT_V6 };
            return Input::Bytes([a, b, c, d, e & mask]);
        }
        Input::Bytes(key.big_endian_words())
    }
}
