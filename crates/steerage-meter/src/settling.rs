//! Decides when flows may time out while buckets move between CPUs.
//!
//! A capture file is read faster than it was recorded, so a CPU's packet clock, which follows its
//! packets, runs fast. While a bucket moves, its packets wait, and their flows must not time out
//! because of later packets of other buckets.

/// A number of packets that is larger than the queue of a CPU usually is (by default, 1,000
/// packets, `netdev_max_backlog`).
const PACKETS: usize = 4096;

#[derive(Debug)]
pub(super) struct Settling {
    last_move: Option<u64>,
    /// How many packets the CPU must handle before flows may time out.
    left: usize,
}

impl Settling {
    pub(super) fn new(last_move: Option<u64>) -> Self {
        Self { last_move, left: 0 }
    }

    /// The meter calls this function after each batch of `handled` packets.
    #[inline]
    pub(super) fn is_over(&mut self, last_move: Option<u64>, handled: usize) -> bool {
        if last_move.is_none() || last_move != self.last_move {
            (self.last_move, self.left) = (last_move, PACKETS);
            return false;
        }
        self.left = self.left.saturating_sub(handled);
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_time_out_only_some_packets_after_a_move() {
        let mut settling = Settling::new(Some(0));
        assert!(settling.is_over(Some(0), 64), "no move");
        assert!(!settling.is_over(None, PACKETS), "a move");
        assert!(!settling.is_over(Some(1), PACKETS));
        assert!(!settling.is_over(Some(1), PACKETS - 1));
        assert!(settling.is_over(Some(1), 1));
        assert!(!settling.is_over(Some(2), PACKETS), "a move that was over before this CPU looked");
    }
}
