//! A bounded ring of packets from one packet CPU to the thread of one client. The CPU and the
//! thread never wait for each other: a packet that does not fit into the ring is counted as missed.
//!
//! The packet CPU writes some 64-bit words and then increases `written`. The client's thread reads
//! some words and then increases `read`. Therefore no word of the ring is read and written at the
//! same time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A record's header: the packet's time, lengths, and origin, in 64-bit words.
const HEAD_WORDS: usize = 3;

/// Instead of a packet's lengths, a record with counts has one of these values. `LAST_COUNTS` ends
/// the stream.
const COUNTS: u64 = u64::MAX;
const LAST_COUNTS: u64 = u64::MAX - 1;

/// The metadata of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead {
    /// The packet's time in nanoseconds since 1970.
    pub nanos: u64,
    /// The number of the packet's bytes that were copied.
    pub captured: u32,
    /// The packet's length on the wire in bytes.
    pub wire: u32,
    /// The packet's link type, as a number.
    pub link: u16,
    /// The CPU that handled the packet.
    pub cpu: u16,
    /// The receive queue, numbered across all inputs.
    pub queue: u32,
}

/// One record of the stream that a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A packet: its metadata and its bytes.
    Packet(PacketHead, &'a [u8]),
    /// The numbers of requested and missed packets so far.
    Counts {
        /// The number of packets that the client requested.
        wanted: u64,
        /// The number of requested packets that were missed because the client was too slow.
        missed: u64,
        /// True if the stream ends after this record.
        is_last: bool,
    },
}

impl PacketHead {
    fn words(self) -> [u64; HEAD_WORDS] {
        let halves = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let origin = u32::from(self.cpu) << 16 | u32::from(self.link);
        [self.nanos, halves(self.captured, self.wire), halves(origin, self.queue)]
    }

    fn of_words([nanos, lengths, origin]: [u64; HEAD_WORDS]) -> Self {
        Self {
            nanos,
            captured: lengths as u32,
            wire: (lengths >> 32) as u32,
            link: origin as u16,
            cpu: (origin >> 16) as u16,
            queue: (origin >> 32) as u32,
        }
    }
}

pub(super) fn append_counts(to: &mut Vec<u8>, (wanted, missed): (u64, u64), is_last: bool) {
    [wanted, if is_last { LAST_COUNTS } else { COUNTS }, missed]
        .iter()
        .for_each(|word| to.extend_from_slice(&word.to_ne_bytes()));
}

/// Returns the first record of a stream and its length, or `None` if the record is not complete.
pub fn first_record(stream: &[u8]) -> Option<(Record<'_>, usize)> {
    let (head, rest) = stream.split_at_checked(8 * HEAD_WORDS)?;
    let mut words = [0; HEAD_WORDS];
    for (word, bytes) in words.iter_mut().zip(head.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    let [wanted, lengths, missed] = words;
    if [COUNTS, LAST_COUNTS].contains(&lengths) {
        return Some((Record::Counts { wanted, missed, is_last: lengths == LAST_COUNTS }, head.len()));
    }
    let dumped = PacketHead::of_words(words);
    let captured = dumped.captured as usize;
    let padded = captured.next_multiple_of(8);
    (rest.len() >= padded).then(|| (Record::Packet(dumped, &rest[..captured]), head.len() + padded))
}

#[derive(Debug)]
pub(super) struct Ring {
    words: Box<[AtomicU64]>,
    /// The numbers of 64-bit words that were written to the ring, and read from the ring, since the
    /// start.
    written: AtomicUsize,
    read: AtomicUsize,
    /// The number of packets that the client requested, and the number of those that did not fit
    /// into the ring. `Relaxed` is sufficient: only the CPU of the ring changes these counts, and
    /// no other memory depends on them.
    wanted: AtomicU64,
    missed: AtomicU64,
    /// The number of packets that were not sampled since the last sampled packet. Only the packet
    /// CPU of the ring uses this number.
    skipped: AtomicU64,
}

impl Ring {
    /// Makes a ring of `words` 64-bit words, which must be a power of two.
    pub(super) fn new(words: usize) -> Self {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (written, read, wanted, missed, skipped) = Default::default();
        Self { words, written, read, wanted, missed, skipped }
    }

    /// Returns true for one of every `sample` packets.
    pub(super) fn is_sampled(&self, sample: u64) -> bool {
        let skipped = self.skipped.load(Ordering::Relaxed) + 1;
        let is_sampled = skipped >= sample;
        self.skipped.store(if is_sampled { 0 } else { skipped }, Ordering::Relaxed);
        is_sampled
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at & (self.words.len() - 1)]
    }

    /// Writes a packet, or counts it as missed. Only the packet CPU of this ring may call `push`.
    pub(super) fn push<'p>(&self, head: PacketHead, parts: impl Iterator<Item = &'p [u8]>) {
        count(&self.wanted);
        let start = self.written.load(Ordering::Relaxed);
        // `Acquire` pairs with the store in `pop`: the words before `read` are free.
        let free = self.words.len() - (start - self.read.load(Ordering::Acquire));
        let mut left = head.captured as usize;
        if HEAD_WORDS + left.div_ceil(8) > free {
            return count(&self.missed);
        }
        let mut at = start;
        let mut put = |word: u64| {
            self.word(at).store(word, Ordering::Relaxed);
            at += 1;
        };
        head.words().into_iter().for_each(&mut put);
        let (mut word, mut filled) = ([0; 8], 0);
        for part in parts {
            let mut part = &part[..part.len().min(left)];
            left -= part.len();
            while !part.is_empty() {
                let length = (8 - filled).min(part.len());
                word[filled..filled + length].copy_from_slice(&part[..length]);
                (part, filled) = (&part[length..], filled + length);
                if filled == 8 {
                    put(u64::from_ne_bytes(word));
                    filled = 0;
                }
            }
        }
        // If `parts` has fewer bytes than `head.captured`, the remaining bytes are zero.
        word[filled..].fill(0);
        for _ in 0..(left + filled).div_ceil(8) {
            put(u64::from_ne_bytes(word));
            word.fill(0);
        }
        // `Release` pairs with the load in `oldest`: the words before `written` are complete.
        self.written.store(at, Ordering::Release);
    }

    /// Returns the time of the oldest packet. Only the client's thread may call `oldest`.
    pub(super) fn oldest(&self) -> Option<u64> {
        let read = self.read.load(Ordering::Relaxed);
        // `Acquire` pairs with the store in `push`.
        (self.written.load(Ordering::Acquire) != read).then(|| self.word(read).load(Ordering::Relaxed))
    }

    /// Moves the oldest packet to `to`. Only the client's thread may call `pop`, after `oldest`.
    pub(super) fn pop(&self, to: &mut Vec<u8>) {
        let read = self.read.load(Ordering::Relaxed);
        let captured = self.word(read + 1).load(Ordering::Relaxed) as u32 as usize;
        let end = read + HEAD_WORDS + captured.div_ceil(8);
        (read..end).for_each(|at| to.extend_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes()));
        // `Release` pairs with the load in `push`.
        self.read.store(end, Ordering::Release);
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.wanted.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed))
    }
}

/// Adds one to a counter that only this thread changes.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(nth: u64, captured: usize) -> PacketHead {
        PacketHead { nanos: nth, captured: captured as u32, wire: 9000, link: 1, cpu: 3, queue: 70_000 }
    }

    fn bytes(nth: u64, length: usize) -> Vec<u8> {
        (0..length).map(|at| (nth as usize * 7 + at) as u8).collect()
    }

    #[test]
    fn each_packet_arrives_or_is_counted() {
        const PACKETS: u64 = 20_000;
        let ring = Ring::new(64);
        let ended = std::sync::atomic::AtomicBool::new(false);
        let mut stream = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 0..PACKETS {
                    let length = nth as usize % 97;
                    let packet = bytes(nth, length + 5);
                    ring.push(head(nth, length), packet.chunks(1 + nth as usize % 11));
                }
                ended.store(true, Ordering::Release);
            });
            loop {
                let is_last = ended.load(Ordering::Acquire);
                while ring.oldest().is_some() {
                    ring.pop(&mut stream);
                }
                if is_last {
                    break;
                }
            }
        });
        let (mut rest, mut arrived, mut next) = (&stream[..], 0, 0);
        while let Some((record, length)) = first_record(rest) {
            let Record::Packet(found, data) = record else { panic!("no counts were written") };
            assert!(found.nanos >= next, "in order");
            next = found.nanos + 1;
            let expected = found.nanos as usize % 97;
            assert_eq!((found, data), (head(found.nanos, expected), &bytes(found.nanos, expected)[..]));
            (rest, arrived) = (&rest[length..], arrived + 1);
        }
        let (wanted, missed) = ring.counts();
        assert_eq!((rest, wanted, arrived + missed), (&[][..], PACKETS, PACKETS));
        assert!(arrived > 0);
    }

    #[test]
    fn a_full_ring_takes_packets_again_when_it_was_read() {
        let ring = Ring::new(16);
        for nth in 0..5 {
            ring.push(head(nth, 8), [&[1; 8][..]].into_iter());
        }
        assert_eq!(ring.counts(), (5, 1));
        ring.pop(&mut Vec::new());
        ring.push(head(5, 200), [&[1; 200][..]].into_iter());
        ring.push(head(6, 8), [&[1; 8][..]].into_iter());
        assert_eq!(ring.counts(), (7, 2), "the long packet never fits, and the last one does");
    }

    #[test]
    fn a_record_that_is_cut_is_not_complete() {
        let ring = Ring::new(16);
        ring.push(head(1, 9), [&[1; 9][..]].into_iter());
        let mut stream = Vec::new();
        ring.pop(&mut stream);
        append_counts(&mut stream, (5, 2), true);
        assert!((0..40).all(|cut| first_record(&stream[..cut]).is_none()));
        let (Record::Packet(..), 40) = first_record(&stream).unwrap() else { panic!("a packet comes first") };
        assert_eq!(first_record(&stream[40..]), Some((Record::Counts { wanted: 5, missed: 2, is_last: true }, 24)));
    }
}
