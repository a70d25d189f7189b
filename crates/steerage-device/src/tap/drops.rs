//! Counts the packets that the kernel dropped because a queue was full. The count is the
//! interface's `tx_dropped`, by rtnetlink(7).

use std::fs::File;
use std::io::{self, Read, Write};

use super::sys;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
/// `IFLA_STATS64`: a `struct rtnl_link_stats64`.
const IFLA_STATS64: u16 = 23;
/// The offset of `tx_dropped` in that structure, in bytes. It is the eighth number.
const TX_DROPPED_AT: usize = 7 * 8;
/// A `struct nlmsghdr` and a `struct ifinfomsg`, 16 bytes each.
const HEADERS_BYTES: usize = 32;
/// The size of the buffer for an answer. The kernel makes no longer description of an interface
/// unless the request asks for more.
const ANSWER_BYTES: usize = 8192;

#[derive(Debug)]
pub(super) struct Drops {
    socket: File,
    request: [u8; HEADERS_BYTES],
    answer: Box<[u8]>,
    /// The count at the last read.
    seen: u64,
}

impl Drops {
    /// Counts the drops from now on.
    pub(super) fn of(interface: u32) -> io::Result<Self> {
        let mut request = [0; HEADERS_BYTES];
        request[..4].copy_from_slice(&(HEADERS_BYTES as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
        request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        request[20..24].copy_from_slice(&interface.to_ne_bytes());
        let mut drops = Self { socket: sys::netlink()?, request, answer: vec![0; ANSWER_BYTES].into(), seen: 0 };
        drops.seen = drops.ask()?;
        Ok(drops)
    }

    /// The number of packets that were dropped after the last read. 0 if the interface is gone.
    pub(super) fn look(&mut self) -> u64 {
        let Ok(all) = self.ask() else { return 0 };
        all.saturating_sub(std::mem::replace(&mut self.seen, all))
    }

    fn ask(&mut self) -> io::Result<u64> {
        self.socket.write_all(&self.request)?;
        let len = self.socket.read(&mut self.answer)?;
        tx_dropped(&self.answer[..len]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn tx_dropped(answer: &[u8]) -> Option<u64> {
    let short = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if short(answer, 4)? != RTM_NEWLINK {
        return None;
    }
    let mut rest = answer.get(HEADERS_BYTES..)?;
    loop {
        let (len, kind) = (usize::from(short(rest, 0)?), short(rest, 2)?);
        // The length includes these four bytes, so the loop ends.
        let body = rest.get(4..len)?;
        if kind == IFLA_STATS64 {
            return Some(u64::from_ne_bytes(*body.get(TX_DROPPED_AT..)?.first_chunk()?));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = [&(4 + body.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), body].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn the_number_is_found_or_there_is_none() {
        let stats: Vec<u8> = (1..=25_u64).flat_map(u64::to_ne_bytes).collect();
        let mut head = [0; HEADERS_BYTES];
        head[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        let answer = [&head[..], &attribute(3, b"tap0\0"), &attribute(IFLA_STATS64, &stats)].concat();
        assert_eq!(tx_dropped(&answer), Some(8));
        for cut in 0..HEADERS_BYTES + 12 + 4 + TX_DROPPED_AT + 8 {
            assert_eq!(tx_dropped(&answer[..cut]), None);
        }
        // An attribute with length zero.
        let endless = [&head[..], &[0; 8]].concat();
        assert_eq!(tx_dropped(&endless), None);
        head[4] = 2;
        assert_eq!(tx_dropped(&[&head[..], &attribute(IFLA_STATS64, &stats)].concat()), None);
    }
}
