//! Parquet's encodings, as in its document `Encodings.md`.

use std::collections::HashMap;
use std::hash::Hash;

/// The number of values in a group: eight packed values of any width fill whole bytes.
const GROUP: usize = 8;

/// The sizes of blocks and of their parts, which are the smallest that the format allows.
const BLOCK: usize = 128;
const PART: usize = 32;

/// The maximum length of a dictionary: with this length, the index of a value has at most two
/// bytes.
const DICTIONARY_MAX: usize = 1 << 16;

/// If more than half of this number of first values are distinct, no dictionary is used, because it
/// would be longer than the values themselves.
const DICTIONARY_TRIAL: usize = 4096;

pub(super) fn varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

pub(super) fn zigzag(value: i64, to: &mut Vec<u8>) {
    varint((value << 1 ^ value >> 63) as u64, to);
}

fn pack(values: impl Iterator<Item = u64>, width: u32, to: &mut Vec<u8>) {
    let (mut waiting, mut bits) = (0_u128, 0);
    for value in values {
        waiting |= u128::from(value) << bits;
        bits += width;
        while bits >= u8::BITS {
            to.push(waiting as u8);
            waiting >>= u8::BITS;
            bits -= u8::BITS;
        }
    }
    if bits > 0 {
        to.push(waiting as u8);
    }
}

pub(super) fn width_of(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

pub(super) fn runs(values: &[u32], width: u32, to: &mut Vec<u8>) {
    let (mut packed_from, mut at) = (0, 0);
    while at < values.len() {
        let run = values[at..].iter().take_while(|value| **value == values[at]).count();
        if run < GROUP {
            at += GROUP.min(values.len() - at);
            continue;
        }
        packed(&values[packed_from..at], width, to);
        varint((run as u64) << 1, to);
        to.extend_from_slice(&values[at].to_le_bytes()[..width.div_ceil(u8::BITS) as usize]);
        at += run;
        packed_from = at;
    }
    packed(&values[packed_from..], width, to);
}

fn packed(values: &[u32], width: u32, to: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let groups = values.len().div_ceil(GROUP);
    varint((groups as u64) << 1 | 1, to);
    let padding = groups * GROUP - values.len();
    let zeros = std::iter::repeat_n(0, padding);
    pack(values.iter().map(|value| u64::from(*value)).chain(zeros), width, to);
}

pub(super) fn differences(values: &[i64], to: &mut Vec<u8>) {
    varint(BLOCK as u64, to);
    varint((BLOCK / PART) as u64, to);
    varint(values.len() as u64, to);
    zigzag(values.first().copied().unwrap_or(0), to);
    let all: Vec<i64> = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    for block in all.chunks(BLOCK) {
        let least = block.iter().copied().min().unwrap_or(0);
        zigzag(least, to);
        let above = |difference: &i64| difference.wrapping_sub(least) as u64;
        let mut widths = [0; BLOCK / PART];
        for (width, part) in widths.iter_mut().zip(block.chunks(PART)) {
            *width = width_of(part.iter().map(above).max().unwrap_or(0));
        }
        to.extend(widths.map(|width| width as u8));
        for (width, part) in widths.into_iter().zip(block.chunks(PART)) {
            let zeros = std::iter::repeat_n(0, PART - part.len());
            pack(part.iter().map(above).chain(zeros), width, to);
        }
    }
}

/// Returns the dictionary and the index of each value. The dictionary has the values in the order
/// of their first occurrence. Returns `None` if the dictionary would not be shorter than the
/// values.
pub(super) fn dictionary<T: Copy + Eq + Hash>(values: impl Iterator<Item = T>) -> Option<(Vec<T>, Vec<u32>)> {
    let (mut entries, mut indices, mut known) = (Vec::new(), Vec::new(), HashMap::new());
    let mut last: Option<(T, u32)> = None;
    for value in values {
        let index = match last {
            Some((same, index)) if same == value => index,
            _ => *known.entry(value).or_insert_with(|| {
                entries.push(value);
                entries.len() as u32 - 1
            }),
        };
        last = Some((value, index));
        indices.push(index);
        let tried = indices.len() >= DICTIONARY_TRIAL && 2 * entries.len() > indices.len();
        if tried || entries.len() > DICTIONARY_MAX {
            return None;
        }
    }
    (2 * entries.len() <= indices.len()).then_some((entries, indices))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Parquet's documentation.
    #[test]
    fn numbers_are_encoded_as_in_the_format() {
        let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            encode(&mut bytes);
            bytes
        };
        assert_eq!(encoded(&|to| varint(300, to)), [0xac, 0x02]);
        assert_eq!(encoded(&|to| zigzag(-1, to)), [1]);
        assert_eq!(encoded(&|to| zigzag(i64::MIN, to)).len(), 10);
        assert_eq!(encoded(&|to| runs(&[0, 1, 2, 3, 4, 5, 6, 7], 3, to)), [3, 0b1000_1000, 0b1100_0110, 0b1111_1010]);
        assert_eq!(encoded(&|to| runs(&[4; 100], 3, to)), [200, 1, 4]);
        assert_eq!(encoded(&|to| runs(&[], 3, to)), [0; 0]);
        let header = [0x80, 0x01, 4, 5, 2];
        assert_eq!(encoded(&|to| differences(&[1, 2, 3, 4, 5], to)), [&header[..], &[2, 0, 0, 0, 0]].concat());
    }

    #[test]
    fn a_dictionary_must_pay() {
        assert_eq!(dictionary([7, 7, 9, 7].into_iter()), Some((vec![7, 9], vec![0, 0, 1, 0])));
        assert_eq!(dictionary([1, 2, 3].into_iter()), None);
        assert_eq!(dictionary((0..).take_while(|_| true)), None);
        assert_eq!(dictionary(std::iter::empty::<u32>()), Some((vec![], vec![])));
    }
}
