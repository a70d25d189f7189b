//! SYN cookies (Bernstein, 1996). The sequence number of the reply to a SYN contains all necessary
//! state of the connection, so a flood of SYNs takes no memory. By default, Linux uses SYN cookies
//! only if the backlog of a listening socket is full. This responder always uses SYN cookies.
//!
//! ```text
//!  31      29 28                              15 14               0
//! | MSS's number | hash: who, its sequence number | hash: who, when |
//! ```
//!
//! One hash of a cookie includes the SYN's sequence number, and the other hash (the time hash)
//! includes the time. If the first segment of a connection was lost or delayed, the responder
//! recognises later segments by the cookie's time hash, and drops them without a reset. The peer
//! resends the dropped segments.
//!
//! The time hash is in the low bits of a cookie. A peer that has received bytes of the connection
//! acknowledges a higher number than the cookie, so the time hash in its low bits does not match.
//! The two hashes together have 29 bits, and cookies of two time periods are valid. On average, one
//! of 2^28 segments with random numbers is mistaken for the first segment of a connection.

use std::hash::{BuildHasher, RandomState};

use super::packet::Key;

/// A cookie is valid in the period in which it was made, and in the next period. In Linux, a period
/// has 60 seconds.
const STRETCH_SECONDS: u64 = 64;

const WHEN_BITS: u32 = 15;
const FIRST_BITS: u32 = 14;

/// The values of MSS that a cookie stores in three bits: the minimum of all peers, and the values
/// of common tunnels, Ethernet and jumbo frames.
const MSS: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1460, 8940];

/// Makes and reads SYN cookies. Each CPU has a clone, and all clones accept each other's cookies.
#[derive(Clone, Debug, Default)]
pub(super) struct Cookies(RandomState);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The first segment of a connection. The peer accepts segments of up to `mss` bytes.
    First { mss: u16 },
    /// A later segment of a connection whose first segment has not arrived.
    Later,
    /// A segment that belongs to no connection of this responder.
    Not,
}

impl Cookies {
    pub(super) fn make(&self, key: &Key, sequence: u32, mss: u16, now_seconds: u64) -> u32 {
        let nth = MSS.iter().rposition(|known| *known <= mss).unwrap_or(0) as u32;
        nth << (WHEN_BITS + FIRST_BITS)
            | self.first(key, sequence) << WHEN_BITS
            | self.when(key, now_seconds / STRETCH_SECONDS)
    }

    /// `sequence` and `acknowledged` are a segment's sequence and acknowledgement numbers, minus
    /// one. For the first segment after a SYN, `sequence` is the SYN's sequence number.
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
        // Each invalid segment is accepted with a probability of at most 1 in 2^14.
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

    #[test]
    fn who_has_had_bytes_of_us_is_no_later_one() {
        let cookies = Cookies::default();
        for port in 0..2000 {
            // At 10 s, the first period of 64 s has not ended, so there is no earlier period whose
            // hash could match by chance.
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
