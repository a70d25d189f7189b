//! For each bit that is set in the input, Toeplitz adds (by XOR) 32 bits of the hash key, beginning
//! at the position of the input bit (Microsoft, "RSS hashing types"; Krawczyk, "LFSR-based hashing
//! and authentication", CRYPTO '94). For each value of each input byte, the table has the sum of
//! the key bits that this value adds.

use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;
use crate::wire::protocol;
use std::sync::Arc;

/// The last bit of the input needs the 32 bits of the hash key from the bit's position on.
pub(super) const INPUT_LEN: usize = HashKey::LEN - 4;

const INPUT_LEN_V4: usize = 12;

const NO_PORT_V4: u64 = !0xffff;
const NO_PORT_V6: u64 = 0xffff_ffff;

/// A table that is indexed by the position and the value of an input byte. All copies of a hasher
/// share the table, because its 36 KiB are more than half of an L1 cache.
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

    /// `N` is known at compile time, so the loop is unrolled and no index is checked.
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

/// Returns 32 bits of the key from bit `bit` on. Bit 0 is the top bit of the first byte.
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

pub(super) enum Input {
    /// Source and destination of an IPv4 key, each with the address in the bits above the port. The
    /// bits above the destination's address have the protocol, which is not hashed.
    V4(u64, u64),
    Bytes([u64; 5]),
}

impl Input {
    /// Ports that RSS does not hash are set to 0. A zero byte adds nothing to the hash, so all
    /// inputs of one kind can have the same length.
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
