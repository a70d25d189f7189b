//! SYN cookies (Bernstein, 1996): the answer to a SYN carries in its sequence number all that there is to remember of it, so a
//! flood of SYNs costs no memory. Linux has them for when its backlog is full; here there is no backlog, and every SYN is
//! answered so.
//!
//! ```text
//!  31      29 28                              15 14               0
//! | MSS's number | hash: who, its sequence number | hash: who, when |
//! ```
//!
//! The two hashes are apart so that of a segment that is not the first one of its connection it can be told that a first one
//! was lost or comes later: it is dropped and not reset, and will be sent again. What says when stands at the low end: whoever has
//! had bytes of us acknowledges something else. Both together are 29 bits: of segments made by
//! chance one in 2^28 is taken for a connection's first (two times are valid).

use std::hash::{BuildHasher, RandomState};

use super::packet::Key;

/// How long a cookie is good for: this and the next stretch of so many seconds. Linux has 60 seconds, and as many again.
const STRETCH_SECONDS: u64 = 64;

const WHEN_BITS: u32 = 15;
const FIRST_BITS: u32 = 14;

/// What a peer can take at a time, as far as three bits can tell: the least that all can, common tunnels, Ethernet, jumbo frames.
const MSS: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1460, 8940];

/// Makes and reads them. Its clones, one on each CPU, read each other's.
#[derive(Clone, Debug, Default)]
pub(super) struct Cookies(RandomState);

/// What a segment's acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// It is the first of a connection whose peer takes so much at a time.
    First { mss: u16 },
    /// It is a later one of a connection whose first has not come.
    Later,
    /// It is of no connection of ours.
    Not,
}

impl Cookies {
    /// The sequence number for the answer to a SYN.
    pub(super) fn make(&self, key: &Key, sequence: u32, mss: u16, now_seconds: u64) -> u32 {
        let nth = MSS.iter().rposition(|known| *known <= mss).unwrap_or(0) as u32;
        nth << (WHEN_BITS + FIRST_BITS)
            | self.first(key, sequence) << WHEN_BITS
            | self.when(key, now_seconds / STRETCH_SECONDS)
    }

    /// What a segment says that acknowledges `acknowledged` and would be the first after the SYN with `sequence`.
    pub(super) fn read(&self, key: &Key, sequence: u32, acknowledged: u32, now_seconds: u64) -> Read {
        let when = acknowledged & ((1 << WHEN_BITS) - 1);
        let now = now_seconds / STRETCH_SECONDS;
        if when != self.when(key, now) && now.checked_sub(1).is_none_or(|last| when != self.when(key, last)) {
            return Read::Not;
        }
        if acknowledged >> WHEN_BITS & ((1 << FIRST_BITS) - 1) != self.first(key, sequence) {
            return Read::Later;
        }
        Read::First { mss: MSS[(acknowledged >> (WHEN_BITS + FIRST_BITS)) as usize] }
    }

    fn when(&self, key: &Key, stretch: u64) -> u32 {
        (self.0.hash_one((key, 0_u8, stretch)) >> (u64::BITS - WHEN_BITS)) as u32
    }

    fn first(&self, key: &Key, sequence: u32) -> u32 {
        (self.0.hash_one((key, 1_u8, sequence)) >> (u64::BITS - FIRST_BITS)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> Key {
        Key { remote: [1; 16], remote_port: port, local: 0, local_port: 7 }
    }

    #[test]
    fn what_was_made_is_read() {
        let cookies = Cookies::default();
        for port in 0..2000 {
            let (sequence, now) = (u32::from(port).wrapping_mul(0x1357_9bdf), u64::from(port));
            let made = cookies.make(&key(port), sequence, 1460, now);
            let read = |sequence, made, now| cookies.clone().read(&key(port), sequence, made, now);
            assert_eq!(read(sequence, made, now), Read::First { mss: 1460 });
            assert_eq!(read(sequence, made, now + STRETCH_SECONDS), Read::First { mss: 1460 });
        }
    }

    #[test]
    fn the_rest_is_not_taken_for_one() {
        let cookies = Cookies::default();
        // Of so many, each is wrong by chance at most once in 2^14.
        let wrong = (0..2000).filter(|port| {
            let made = cookies.make(&key(*port), 99, 1460, 1000);
            let first = |read: Read| matches!(read, Read::First { .. });
            first(cookies.read(&key(*port), 100, made, 1000))
                || first(cookies.read(&key(*port), 99, made, 1000 + 2 * STRETCH_SECONDS))
                || first(cookies.read(&key(port + 1), 99, made, 1000))
                || first(Cookies::default().read(&key(*port), 99, made, 1000))
        });
        assert!(wrong.count() <= 10);
    }

    #[test]
    fn a_later_segment_is_known_as_one() {
        let cookies = Cookies::default();
        let later = (0..2000).filter(|port| {
            let made = cookies.make(&key(*port), 99, 1460, 1000);
            cookies.read(&key(*port), 99 + 1460, made, 1000) == Read::Later
        });
        assert!(later.count() >= 1990);
    }

    /// Of a connection that was lost, and of which bytes were sent.
    #[test]
    fn who_has_had_bytes_of_us_is_no_later_one() {
        let cookies = Cookies::default();
        for port in 0..2000 {
            // In the first stretch there is none before it, whose hash might be met by chance.
            let made = cookies.make(&key(port), 99, 1460, 10);
            for sent in [1, 10, 1000, 30_000] {
                assert_eq!(cookies.read(&key(port), 120, made.wrapping_add(sent), 10), Read::Not, "{sent}");
            }
        }
    }

    #[test]
    fn the_mss_is_never_more_than_the_peers() {
        let cookies = Cookies::default();
        for mss in [0, 535, 536, 1219, 1459, 1460, 1461, 9000, u16::MAX] {
            let made = cookies.make(&key(1), 5, mss, 7);
            let Read::First { mss: read } = cookies.read(&key(1), 5, made, 7) else { panic!("{mss}") };
            assert!(read <= mss.max(MSS[0]) && MSS.contains(&read), "{mss}: {read}");
        }
    }
}
