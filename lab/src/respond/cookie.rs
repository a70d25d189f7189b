//! SYN cookies (Bernstein, 1996). A SYN cookie is the sequence number of the reply to a SYN. The
//! SYN cookie contains all necessary state of the connection, so a flood of SYNs takes no memory.
//! Linux uses SYN cookies when the backlog of a listening socket is full. This responder has no
//! backlog, and replies to every SYN with a SYN cookie.
//!
//! ```text
//!  31      29 28                              15 14               0
//! | MSS's number | hash: who, its sequence number | hash: who, when |
//! ```
//!
//! A SYN cookie has two separate hashes. One hash includes the sequence number of the SYN, and the
//! other hash includes the time. Because the hashes are separate, the responder recognises later
//! segments of a connection even if the connection's first segment was lost or is delayed. If a
//! later segment arrives before the first segment, the responder drops the later segment without a
//! reset, and the peer sends it again.
//!
//! The hash with the time is in the low bits of the cookie. If a peer has already received bytes of
//! the connection, the peer's acknowledgement number differs from the cookie in the low bits. The
//! hash that includes the time does not match this acknowledgement number. The two hashes of a SYN
//! cookie together have 29 bits, and cookies of two time periods are valid. Therefore, on average,
//! one of 2^28 segments with random numbers is mistaken for the first segment of a connection.

use std::hash::{BuildHasher, RandomState};

use super::packet::Key;

/// The length of a SYN cookie's time period in seconds. A SYN cookie is valid in the period in
/// which it was created and in the next period. In Linux, the period of a SYN cookie is 60 seconds
/// long.
const STRETCH_SECONDS: u64 = 64;

const WHEN_BITS: u32 = 15;
const FIRST_BITS: u32 = 14;

/// The maximum segment sizes that three bits can encode: the minimum that all peers accept, and
/// sizes for common tunnels, Ethernet and jumbo frames.
const MSS: [u16; 8] = [536, 1220, 1300, 1360, 1400, 1440, 1460, 8940];

/// Creates and reads cookies. Each CPU has a clone of the same `Cookies` value. Each clone accepts
/// the SYN cookies that any other clone has made.
#[derive(Clone, Debug, Default)]
pub(super) struct Cookies(RandomState);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The segment is the first one of a connection. The peer accepts segments of up to `mss`
    /// bytes.
    First { mss: u16 },
    /// The segment is a later segment of a connection whose first segment has not arrived.
    Later,
    /// The segment does not belong to a connection of this responder.
    Not,
}

impl Cookies {
    pub(super) fn make(&self, key: &Key, sequence: u32, mss: u16, now_seconds: u64) -> u32 {
        let nth = MSS.iter().rposition(|known| *known <= mss).unwrap_or(0) as u32;
        nth << (WHEN_BITS + FIRST_BITS)
            | self.first(key, sequence) << WHEN_BITS
            | self.when(key, now_seconds / STRETCH_SECONDS)
    }

    /// Checks whether `acknowledged`, a segment's acknowledgement number minus one, is a valid SYN
    /// cookie. `sequence` is the sequence number of the segment minus one. For the first segment
    /// after a SYN, this is the sequence number of the SYN.
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
        // Each of these invalid segments is accepted with a probability of at most 1 in 2^14.
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
            // The time is in the first period (of 64 s), so there is no earlier period whose hash
            // could match by chance.
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
