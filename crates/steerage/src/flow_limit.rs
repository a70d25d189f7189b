//! The flow limit: while a backlog is over half full, a flow that has more than half of what came for it last loses packets, so
//! that the small flows beside it do not.
//!
//! As Linux's (`skb_flow_limit`, Willem de Bruijn, 2013): flows are told apart by a table of their hashes, and counted over the
//! last 128 packets. A table for each queue and CPU that asked for it, in the hands of the queue's owner.

use steerage_mem::hash::FlowHash;

use crate::limits::FLOW_LIMIT_HISTORY;

#[derive(Debug)]
pub(crate) struct FlowLimit {
    /// The places in `counts` of the last packets, the oldest at `at`.
    history: [u16; FLOW_LIMIT_HISTORY],
    at: usize,
    /// How many of them each place has.
    counts: Box<[u8]>,
}

impl FlowLimit {
    /// `table_len` is a power of two, 65,536 at most.
    pub(crate) fn new(table_len: usize) -> Self {
        Self { history: [0; FLOW_LIMIT_HISTORY], at: 0, counts: vec![0; table_len].into() }
    }

    /// Counts a packet, and says whether its flow has too many.
    pub(crate) fn is_over(&mut self, hash: FlowHash) -> bool {
        let place = hash.0 as usize & (self.counts.len() - 1);
        let oldest = std::mem::replace(&mut self.history[self.at], place as u16);
        self.at = (self.at + 1) % FLOW_LIMIT_HISTORY;
        // At the beginning the history tells of packets that there were not.
        let of_oldest = &mut self.counts[usize::from(oldest)];
        *of_oldest = of_oldest.saturating_sub(1);
        self.counts[place] += 1;
        usize::from(self.counts[place]) > FLOW_LIMIT_HISTORY / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the packets of these flows, in turn, are over.
    fn over(limit: &mut FlowLimit, flows: &[u32], packets: usize) -> usize {
        flows.iter().cycle().take(packets).filter(|flow| limit.is_over(FlowHash(**flow))).count()
    }

    #[test]
    fn one_that_has_more_than_half_is_over() {
        let mut limit = FlowLimit::new(4096);
        // The first half of a history that is all its own is let through.
        assert_eq!(over(&mut limit, &[7], 1000), 1000 - FLOW_LIMIT_HISTORY / 2);
        // Two that share it evenly are not, once what was before is forgotten.
        over(&mut limit, &[8, 9], FLOW_LIMIT_HISTORY);
        assert_eq!(over(&mut limit, &[8, 9], 1000), 0);
        // Two of three packets are too many; only theirs count.
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
