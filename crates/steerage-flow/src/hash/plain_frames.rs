//! Hashes plain frames, by copying the flow key directly from the frame into the AES state.
//!
//! A *plain* frame is an Ethernet frame with at most one VLAN tag, followed by IP without options,
//! extension headers or fragmentation, and by TCP or UDP outside of tunnels. The *shape* of a plain
//! frame is IPv4 or IPv6, with or without a VLAN tag. In mixed traffic, the next frame's shape is
//! random, so the CPU would mispredict a branch on the shape, and a misprediction takes longer than
//! the hash. To avoid this branch, a batch is hashed in three steps:
//!
//! 1. One loop hashes the frames from the first one on, as long as they have the shape of the first
//!    frame.
//! 2. Code without branches divides the remaining frames by shape: a frame's EtherTypes allow only
//!    one shape.
//! 3. One loop for each shape hashes the frames that may have this shape, and detects frames that
//!    are not plain.
//!
//! The caller hashes the frames that are not plain. All hashes of plain frames equal those of
//! [`FlowHasher::hash`](super::FlowHasher::hash).

use super::aes::{Aes, absorb_block};
use super::{PortLanes, TOGETHER};
use crate::affinity::Affinity;
use crate::dissect::FROM_LANES;
use crate::wire::{ethernet, ethertype, ipv4, ipv6, protocol, vlan};
use core::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_cmpeq_epi8, _mm_cmpgt_epi64, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_max_epu8,
    _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi32, _mm_setr_epi8, _mm_setzero_si128, _mm_shuffle_epi8,
    _mm_shuffle_epi32, _mm_xor_si128, _mm256_cmpeq_epi16, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_set1_epi32,
    _mm256_shuffle_epi8,
};

const V4_LEN: usize = ipv4::BYTES + 4;
const V6_LEN: usize = ipv6::BYTES + 4;
const PROTOCOL_WORD_AT: usize = 6;

const SHORTEST: usize = ethernet::BYTES + V4_LEN;

/// The bytes that a plain frame of one shape must have, as little-endian numbers.
struct Shape {
    /// Selects the EtherType, the IP version and the IPv4 header length in the eight bytes from the
    /// EtherType on.
    mask: u64,
    value: u64,
    /// Selects the bits that are set only in fragments, in the 32-bit word that has the protocol.
    fragment: u32,
    protocol_shift: u32,
    begin: usize,
    ports: usize,
    end: usize,
}

const TAGGED: usize = 1;
const SIX: usize = 2;

const fn shape(index: usize) -> Shape {
    let six = index & SIX != 0;
    let begin = ethernet::BYTES + vlan::BYTES * (index & TAGGED);
    let (mask, ethertype, first) =
        if six { (0x00f0_ffff, ethertype::IPV6, ipv6::PLAIN) } else { (0x00ff_ffff, ethertype::IPV4, ipv4::PLAIN) };
    let (value, tag) = ((first as u64) << 16 | ethertype.swap_bytes() as u64, ethertype::VLAN.swap_bytes() as u64);
    let (mask, value) = if index & TAGGED == 0 { (mask, value) } else { (mask << 32 | 0xffff, value << 32 | tag) };
    let (ports_at, len) = if six { (ipv6::BYTES, V6_LEN) } else { (ipv4::BYTES, V4_LEN) };
    Shape {
        mask,
        value,
        fragment: if six { 0 } else { ipv4::FRAGMENT.swap_bytes() as u32 },
        protocol_shift: if six { 0 } else { 24 },
        begin,
        ports: begin + ports_at,
        end: begin + len,
    }
}

/// Returns the index of the only [`Shape`] that the frame can have if it is plain. `head` is the
/// eight bytes from the EtherType on. In the EtherType's first byte, the lowest bit distinguishes a
/// VLAN tag (0x81) from IPv4 (0x08) and IPv6 (0x86), and the next bit distinguishes IPv4 from IPv6.
#[inline(always)]
fn shape_of(head: u64) -> usize {
    let tagged = head & 1;
    let ethertype = head >> (tagged << 5);
    tagged as usize | ethertype as usize & SIX
}

#[inline(always)]
fn bytes<const N: usize>(frame: &[u8], at: usize) -> &[u8; N] {
    frame[at..].first_chunk().expect("the caller has checked the length")
}

/// Returns zero if the frame is plain and has this shape. The frame must have `shape.end` bytes.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn differs(frame: &[u8], shape: &Shape, tunnels: &PortLanes) -> u64 {
    let head = u64::from_le_bytes(*bytes(frame, ethernet::TYPE_AT));
    let word = u32::from_le_bytes(*bytes(frame, shape.begin + PROTOCOL_WORD_AT));
    let protocol = (word >> shape.protocol_shift) as u8;
    let other_protocol = (protocol != protocol::TCP) & (protocol != protocol::UDP);
    // SAFETY: the caller promises AVX2.
    let tunnel = unsafe { of_tunnel(*bytes(frame, shape.ports), tunnels) };
    (head ^ shape.value) & shape.mask | u64::from(word & shape.fragment | tunnel) | u64::from(other_protocol)
}

/// The shuffle that copies the bytes of a packet's ports to the positions of the tunnel ports with
/// which they are compared. Source ports come first.
const LANES: __m256i = {
    let (mut places, mut at) = ([0; 32], 0);
    while at < places.len() {
        places[at] = (at % 2 + if at / 2 < FROM_LANES { 0 } else { 2 }) as u8;
        at += 1;
    }
    // SAFETY: both types have 32 bytes, and all bytes are valid.
    unsafe { std::mem::transmute::<[u8; 32], __m256i>(places) }
};

/// Returns zero if neither port of a packet is in `tunnels`. Whole ports are compared, because the
/// upper byte alone would also match NFS (2049, near GTP-U) and X11 (6000, near Geneve).
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn of_tunnel(ports: [u8; 4], tunnels: &PortLanes) -> u32 {
    // SAFETY: the array has 32 bytes, and the caller promises AVX2.
    unsafe {
        let tunnels: __m256i = _mm256_loadu_si256((&raw const *tunnels).cast());
        let ports = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_ne_bytes(ports)), LANES);
        let found = _mm256_cmpeq_epi16(ports, tunnels);
        _mm256_movemask_epi8(found) as u32
    }
}

/// Returns the two words of an IPv4 [`FlowKey`](crate::FlowKey) as one block, the first word in the
/// low half.
///
/// # Safety
///
/// The CPU has SSE4.2.
#[inline(always)]
unsafe fn v4_key<const BOTH: bool>(packet: &[u8; V4_LEN]) -> __m128i {
    // SAFETY: 16 bytes of the packet from byte 8 on are read, and the caller promises SSE4.2.
    unsafe {
        let tail = _mm_loadu_si128(packet.as_ptr().add(8).cast());
        let low_word = _mm_set_epi64x(-1, 0xffff_ffff_ffff);
        // Each half of the block `ends` has an endpoint, and the protocol in the bits above the
        // endpoint. Both halves have the same protocol, so comparing the halves compares the
        // endpoints.
        let ends = _mm_shuffle_epi8(tail, _mm_setr_epi8(13, 12, 7, 6, 5, 4, 1, -1, 15, 14, 11, 10, 9, 8, 1, -1));
        if !BOTH {
            return _mm_and_si128(ends, low_word);
        }
        let turned = _mm_shuffle_epi32::<0b01_00_11_10>(ends);
        let exchange = _mm_xor_si128(_mm_cmpgt_epi64(ends, turned), _mm_set_epi64x(-1, 0));
        let sorted = _mm_xor_si128(ends, _mm_and_si128(_mm_xor_si128(ends, turned), exchange));
        _mm_and_si128(sorted, low_word)
    }
}

/// Returns the five words and the tag (the kind of key) of an IPv6 [`FlowKey`](crate::FlowKey) as
/// three blocks.
///
/// # Safety
///
/// The CPU has SSE4.2.
#[inline(always)]
unsafe fn v6_key<const BOTH: bool>(packet: &[u8; V6_LEN]) -> [__m128i; 3] {
    let mut ports = u32::from_be_bytes(*bytes(packet, ipv6::BYTES));
    // SAFETY: the addresses are at bytes 8 and 24 of the packet, with 16 bytes each, and the caller
    // promises SSE4.2.
    unsafe {
        let mut source = _mm_loadu_si128(packet.as_ptr().add(8).cast());
        let mut destination = _mm_loadu_si128(packet.as_ptr().add(24).cast());
        if BOTH {
            // The first address byte that differs decides which endpoint is greater. In the bit
            // masks, bit `n` is for byte `n` of the addresses, and bit 16 of `greater` is for the
            // ports.
            let not_less = _mm_cmpeq_epi8(_mm_max_epu8(source, destination), source);
            let equal = _mm_movemask_epi8(_mm_cmpeq_epi8(source, destination)) as u32;
            let turned = ports.rotate_left(16);
            let greater = _mm_movemask_epi8(not_less) as u32 | u32::from(ports > turned) << 16;
            let first = !equal & equal.wrapping_add(1);
            let exchange = u32::from(greater & first != 0).wrapping_neg();
            let change = _mm_and_si128(_mm_xor_si128(source, destination), _mm_set1_epi32(exchange as i32));
            source = _mm_xor_si128(source, change);
            destination = _mm_xor_si128(destination, change);
            ports ^= (ports ^ turned) & exchange;
        }
        let words = _mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
        let last = u64::from(ports) << 32 | u64::from(packet[PROTOCOL_WORD_AT]);
        [
            _mm_shuffle_epi8(source, words),
            _mm_shuffle_epi8(destination, words),
            _mm_set_epi64x(crate::flow_key::LONG_V6 as i64, last as i64),
        ]
    }
}

/// A value of this type proves that this CPU has the instructions that
/// [`hash_here`](Self::hash_here) needs.
#[derive(Clone, Copy)]
pub(crate) struct PlainFrames<'a> {
    aes: &'a Aes,
    tunnels: &'static PortLanes,
}

impl<'a> PlainFrames<'a> {
    #[inline]
    pub(super) fn new(aes: &'a Aes, tunnels: &'static PortLanes) -> Option<Self> {
        aes.reads_frames.then_some(Self { aes, tunnels })
    }

    /// Hashes the plain frames among up to [`TOGETHER`] frames. Returns a bit for each frame that
    /// is not plain.
    #[inline]
    pub(crate) fn hash(self, frames: &[&[u8]], affinity: Affinity, hashes: &mut [u32; TOGETHER]) -> u64 {
        // SAFETY: `self` exists, so the CPU has these instructions.
        unsafe {
            match affinity {
                Affinity::BothDirections => self.hash_here::<true>(frames, hashes),
                Affinity::OneDirection => self.hash_here::<false>(frames, hashes),
            }
        }
    }

    /// # Safety
    ///
    /// The CPU has these features.
    #[target_feature(enable = "aes,sse4.2,avx2,bmi1,bmi2")]
    unsafe fn hash_here<const BOTH: bool>(self, frames: &[&[u8]], hashes: &mut [u32; TOGETHER]) -> u64 {
        let frames = &frames[..frames.len().min(TOGETHER)];
        if frames.is_empty() {
            return 0;
        }
        let Some(first) = frames.first().filter(|frame| frame.len() >= SHORTEST) else {
            // SAFETY: the caller's promise.
            return unsafe { self.hash_mixed::<BOTH>(frames, 0, hashes) };
        };
        // SAFETY: the caller's promise.
        let done = unsafe {
            match shape_of(u64::from_le_bytes(*bytes(first, ethernet::TYPE_AT))) {
                0 => self.hash_run::<BOTH, 0>(frames, hashes),
                TAGGED => self.hash_run::<BOTH, TAGGED>(frames, hashes),
                SIX => self.hash_run::<BOTH, SIX>(frames, hashes),
                _ => self.hash_run::<BOTH, { TAGGED | SIX }>(frames, hashes),
            }
        };
        if done == frames.len() {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe { self.hash_mixed::<BOTH>(frames, done, hashes) }
    }

    /// Hashes frames up to the first frame that is not plain or has another shape. Returns how many
    /// frames were hashed.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions that [`hash_here`](Self::hash_here) needs.
    #[inline(always)]
    unsafe fn hash_run<const BOTH: bool, const SHAPE: usize>(
        self,
        frames: &[&[u8]],
        hashes: &mut [u32; TOGETHER],
    ) -> usize {
        for (nth, (frame, hash)) in frames.iter().zip(hashes).enumerate() {
            // SAFETY: the caller's promise.
            match unsafe { self.hash_one::<BOTH, SHAPE>(frame) } {
                Some(found) => *hash = found,
                None => return nth,
            }
        }
        frames.len()
    }

    /// Hashes frames of any shape from index `begin` on. Returns a bit for each frame that is not
    /// plain.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions that [`hash_here`](Self::hash_here) needs.
    #[inline(always)]
    unsafe fn hash_mixed<const BOTH: bool>(self, frames: &[&[u8]], begin: usize, hashes: &mut [u32; TOGETHER]) -> u64 {
        let (mut short, mut tagged, mut six) = (0_u64, 0_u64, 0_u64);
        for (nth, frame) in frames.iter().enumerate().skip(begin) {
            if frame.len() < SHORTEST {
                short |= 1 << nth;
                continue;
            }
            let shape = shape_of(u64::from_le_bytes(*bytes(frame, ethernet::TYPE_AT)));
            tagged |= ((shape & TAGGED) as u64) << nth;
            six |= (shape as u64 >> 1) << nth;
        }
        let rest = u64::MAX >> (TOGETHER - frames.len()) & u64::MAX << begin & !short;
        // SAFETY: the caller's promise.
        unsafe {
            short
                | self.hash_set::<BOTH, 0>(frames, rest & !tagged & !six, hashes)
                | self.hash_set::<BOTH, TAGGED>(frames, rest & tagged & !six, hashes)
                | self.hash_set::<BOTH, SIX>(frames, rest & !tagged & six, hashes)
                | self.hash_set::<BOTH, { TAGGED | SIX }>(frames, rest & tagged & six, hashes)
        }
    }

    /// Hashes the frames in `set`. Returns a bit for each frame that is not plain.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions that [`hash_here`](Self::hash_here) needs.
    #[inline(always)]
    unsafe fn hash_set<const BOTH: bool, const SHAPE: usize>(
        self,
        frames: &[&[u8]],
        set: u64,
        hashes: &mut [u32; TOGETHER],
    ) -> u64 {
        let mut others = 0;
        for nth in bits(set) {
            // SAFETY: the caller's promise.
            match unsafe { self.hash_one::<BOTH, SHAPE>(frames[nth]) } {
                Some(found) => hashes[nth] = found,
                None => others |= 1 << nth,
            }
        }
        others
    }

    /// # Safety
    ///
    /// The CPU must have the instructions that [`hash_here`](Self::hash_here) needs.
    #[inline(always)]
    unsafe fn hash_one<const BOTH: bool, const SHAPE: usize>(self, frame: &[u8]) -> Option<u32> {
        let shape = const { shape(SHAPE) };
        // SAFETY: the caller's promise.
        unsafe {
            if frame.len() < shape.end || differs(frame, &shape, self.tunnels) != 0 {
                return None;
            }
            Some(if SHAPE & SIX == 0 {
                self.hash_v4::<BOTH>(bytes(frame, shape.begin))
            } else {
                self.hash_v6::<BOTH>(bytes(frame, shape.begin))
            })
        }
    }

    /// # Safety
    ///
    /// The CPU has AES and SSE4.2.
    #[inline(always)]
    unsafe fn hash_v4<const BOTH: bool>(self, packet: &[u8; V4_LEN]) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            let state = absorb_block(_mm_setzero_si128(), v4_key::<BOTH>(packet), &self.aes.short);
            _mm_cvtsi128_si32(state) as u32
        }
    }

    /// # Safety
    ///
    /// The CPU has AES and SSE4.2.
    #[inline(always)]
    unsafe fn hash_v6<const BOTH: bool>(self, packet: &[u8; V6_LEN]) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            let [source, destination, last] = v6_key::<BOTH>(packet);
            let state = absorb_block(_mm_setzero_si128(), source, &self.aes.long);
            let state = absorb_block(state, destination, &self.aes.long);
            let state = absorb_block(state, last, &self.aes.long);
            _mm_cvtsi128_si32(state) as u32
        }
    }
}

#[inline(always)]
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (bit < TOGETHER).then_some(bit)
    })
}
