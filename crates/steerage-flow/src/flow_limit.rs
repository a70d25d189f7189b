//! The flow limit: finds a flow that has more than half of the latest packets, so that small flows do not lose
//! packets because of it.
//!
//! It works like Linux's (`skb_flow_limit`, Willem de Bruijn, 2013): flows are distinguished by a table indexed by
//! their hashes, and counted over the last 128 packets.

use crate::hash::FlowHash;
use crate::limits::FLOW_LIMIT_HISTORY;

/// Counts the latest packets by flow.
///
/// ```
/// use steerage_flow::{FlowHash, FlowLimit};
///
/// let mut limit = FlowLimit::new(4096);
/// assert!(!limit.is_over(FlowHash(1)));
/// // One flow alone soon has more than half of the latest packets.
/// assert!((0..1000).any(|_| limit.is_over(FlowHash(2))));
/// assert!(!limit.is_over(FlowHash(1)));
/// ```
#[derive(Debug)]
pub struct FlowLimit {
    /// The table indices of the last packets, the oldest at `at`.
    history: [u16; FLOW_LIMIT_HISTORY],
    at: usize,
    /// How many of these packets each table entry has.
    counts: Box<[u8]>,
}

impl FlowLimit {
    /// Distinguishes flows by a table of `table_len` entries: a power of two, at most 65,536.
    pub fn new(table_len: usize) -> Self {
        Self { history: [0; FLOW_LIMIT_HISTORY], at: 0, counts: vec![0; table_len].into() }
    }

    /// Counts a packet, and returns whether its flow has too many.
    pub fn is_over(&mut self, hash: FlowHash) -> bool {
        let place = hash.0 as usize & (self.counts.len() - 1);
        let oldest = std::mem::replace(&mut self.history[self.at], place as u16);
        self.at = (self.at + 1) % FLOW_LIMIT_HISTORY;
        // At the beginning the history contains packets that never existed.
        let of_oldest = &mut self.counts[usize::from(oldest)];
        *of_oldest = of_oldest.saturating_sub(1);
        self.counts[place] += 1;
        usize::from(self.counts[place]) > FLOW_LIMIT_HISTORY / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many packets are over the limit, if `packets` packets belong to these flows in turn.
    fn over(limit: &mut FlowLimit, flows: &[u32], packets: usize) -> usize {
        flows.iter().cycle().take(packets).filter(|flow| limit.is_over(FlowHash(**flow))).count()
    }

    #[test]
    fn one_that_has_more_than_half_is_over() {
        let mut limit = FlowLimit::new(4096);
        // A flow that sends all packets may fill half of the history.
        assert_eq!(over(&mut limit, &[7], 1000), 1000 - FLOW_LIMIT_HISTORY / 2);
        // Two flows with equal shares are not over the limit, once the packets before are forgotten.
        over(&mut limit, &[8, 9], FLOW_LIMIT_HISTORY);
        assert_eq!(over(&mut limit, &[8, 9], 1000), 0);
        // Two thirds of the packets are too many, and only the packets of that flow are over the limit.
        over(&mut limit, &[1, 1, 2], FLOW_LIMIT_HISTORY);
        assert_eq!(over(&mut limit, &[1, 1, 2], 999), 666);
    }

    #[test]
    fn flows_that_share_a_place_count_as_one() {
        let mut limit = FlowLimit::new(16);
        over(&mut limit, &[1, 17], FLOW_LIMIT_HISTORY);
        assert_eq!(over(&mut limit, &[1, 17], 100), 100);
        let mut limit = FlowLimit::new(1 << 16);
        assert_eq!(over(&mut limit, &[0xffff, 0xffff_fffe], 1000), 0);
    }
}
