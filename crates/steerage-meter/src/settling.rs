//! Decides when flows may time out while buckets move between CPUs.
//!
//! A capture file is read faster than it was recorded, so a CPU's clock follows the times of the
//! packets that the CPU handles. While a bucket moves, its packets wait, and the CPU handles later
//! packets of other buckets. These later packets must not cause timeouts of flows whose packets
//! wait. When the move of a bucket is over, the packets that waited are in the ring of the new CPU,
//! after other packets.

/// After the move of a bucket, a CPU first handles this number of packets. Only then may flows time
/// out again. A CPU's ring usually has fewer packets than this number: by default, the ring of a
/// queue holds 1,000 frames (`netdev_max_backlog`).
const PACKETS: usize = 4096;

/// Decides whether flows may time out.
#[derive(Debug)]
pub(super) struct Settling {
    /// The value of `Cpu::last_move` at the previous call.
    last_move: Option<u64>,
    /// The number of packets that this CPU still has to handle before flows may time out.
    left: usize,
}

impl Settling {
    /// Before the first move. `last_move` is the value of `Cpu::last_move` at the start of the run.
    pub(super) fn new(last_move: Option<u64>) -> Self {
        Self { last_move, left: 0 }
    }

    /// Returns true if flows may time out. The meter calls this function after each batch, with the
    /// value of `Cpu::last_move` and the number of packets in the batch.
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
        // In this test, the first packets of the batch arrived before the move of a bucket was
        // over.
        assert!(!settling.is_over(Some(1), PACKETS));
        assert!(!settling.is_over(Some(1), PACKETS - 1));
        assert!(settling.is_over(Some(1), 1));
        assert!(!settling.is_over(Some(2), PACKETS), "a move that was over before this CPU looked");
    }
}
