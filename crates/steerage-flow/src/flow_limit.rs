//! Detects a flow that has more than half of the latest packets, like Linux's `skb_flow_limit`, so
//! that smaller flows do not lose packets because of a large flow.

use crate::hash::FlowHash;
use crate::limits::FLOW_LIMIT_HISTORY;

/// Counts how many of the latest packets belong to each flow.
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
    /// For each of the latest packets, its index in `counts`. The oldest packet is at position
    /// `at`.
    history: [u16; FLOW_LIMIT_HISTORY],
    at: usize,
    counts: Box<[u8]>,
}

impl FlowLimit {
    /// Creates a flow limit whose table has `table_len` entries: a power of two, at most 65,536.
    pub fn new(table_len: usize) -> Self {
        Self { history: [0; FLOW_LIMIT_HISTORY], at: 0, counts: vec![0; table_len].into() }
    }

    /// Counts a packet. Returns true if the packet's flow exceeds the limit.
    pub fn is_over(&mut self, hash: FlowHash) -> bool {
        let place = hash.0 as usize & (self.counts.len() - 1);
        let oldest = std::mem::replace(&mut self.history[self.at], place as u16);
        self.at = (self.at + 1) % FLOW_LIMIT_HISTORY;
        // `history` begins with zeros that stand for no packet, so the subtraction must saturate.
        let of_oldest = &mut self.counts[usize::from(oldest)];
        *of_oldest = of_oldest.saturating_sub(1);
        self.counts[place] += 1;
        usize::from(self.counts[place]) > FLOW_LIMIT_HISTORY / 2
    }
}

/// The flow limits of all CPUs that have a flow limit.
///
/// ```
/// use steerage_flow::{FlowHash, FlowLimits};
///
/// let mut limits = FlowLimits::default();
/// limits.set(&[2], 4096);
/// let over = |limits: &mut FlowLimits, cpu| (0..100).filter(|_| limits.is_over(cpu, FlowHash(7))).count();
/// // A flow that sends everything may have 64 of the last 128 packets for CPU 2. CPU 1 has no limit.
/// assert_eq!((over(&mut limits, 2), over(&mut limits, 1)), (36, 0));
/// ```
#[derive(Debug, Default)]
pub struct FlowLimits(Vec<Option<FlowLimit>>);

impl FlowLimits {
    /// Returns true if no CPU has a flow limit.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Switches flow limits on for the CPUs in `limited`, and off for all others. A CPU whose flow
    /// limit was already on keeps its history.
    pub fn set(&mut self, limited: &[u16], table_len: usize) {
        let last = limited.iter().max().map_or(0, |cpu| usize::from(*cpu) + 1);
        self.0.resize_with(last, || None);
        for (cpu, limit) in self.0.iter_mut().enumerate() {
            if !limited.contains(&(cpu as u16)) {
                *limit = None;
            } else if limit.is_none() {
                *limit = Some(FlowLimit::new(table_len));
            }
        }
    }

    /// Returns true if `cpu` has a flow limit.
    pub fn has(&self, cpu: usize) -> bool {
        self.0.get(cpu).is_some_and(Option::is_some)
    }

    /// Counts a packet for `cpu`. Returns true if the packet's flow exceeds the CPU's flow limit.
    pub fn is_over(&mut self, cpu: usize, hash: FlowHash) -> bool {
        self.0.get_mut(cpu).and_then(Option::as_mut).is_some_and(|limit| limit.is_over(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(limit: &mut FlowLimit, flows: &[u32], packets: usize) -> usize {
        flows.iter().cycle().take(packets).filter(|flow| limit.is_over(FlowHash(**flow))).count()
    }

    #[test]
    fn one_that_has_more_than_half_is_over() {
        let mut limit = FlowLimit::new(4096);
        assert_eq!(over(&mut limit, &[7], 1000), 1000 - FLOW_LIMIT_HISTORY / 2);
        over(&mut limit, &[8, 9], FLOW_LIMIT_HISTORY);
        assert_eq!(over(&mut limit, &[8, 9], 1000), 0);
        over(&mut limit, &[1, 1, 2], FLOW_LIMIT_HISTORY);
        assert_eq!(over(&mut limit, &[1, 1, 2], 999), 666);
    }

    #[test]
    fn only_some_cpus_have_limits() {
        let mut limits = FlowLimits::default();
        let over = |limits: &mut FlowLimits, cpu| (0..200).filter(|_| limits.is_over(cpu, FlowHash(7))).count();
        assert!(limits.is_empty() && over(&mut limits, 1) == 0);
        limits.set(&[3, 1], 16);
        assert_eq!([0, 1, 2, 3, 4].map(|cpu| limits.has(cpu)), [false, true, false, true, false]);
        assert_eq!([0, 1, 2, 4].map(|cpu| over(&mut limits, cpu)), [0, 200 - FLOW_LIMIT_HISTORY / 2, 0, 0]);
        limits.set(&[1], 16);
        assert_eq!([1, 3].map(|cpu| over(&mut limits, cpu)), [200, 0], "the limit that stays remembers");
        limits.set(&[], 16);
        assert!(limits.is_empty());
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
