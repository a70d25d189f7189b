//! When flows may time out, although buckets move.
//!
//! A capture is read faster than it was recorded, so a CPU's clock follows the packets that the CPU
//! handles. While a bucket moves, its packets wait, and the CPU handles later packets of other
//! buckets. These packets must not time out the flows of packets that wait. When the move is over,
//! the packets that waited are in the rings of their CPU, behind other packets.

/// After a move, a CPU handles this many packets before flows time out again. Its ring has no more:
/// by default, the ring of a queue holds 1,000 frames (`netdev_max_backlog`).
const PACKETS: usize = 4096;

/// Decides whether flows may time out.
#[derive(Debug)]
pub(super) struct Settling {
    /// The last value of `Cpu::last_move`.
    last_move: Option<u64>,
    /// The packets that this CPU still has to handle before flows may time out.
    left: usize,
}

impl Settling {
    /// Before the first move. `last_move` is the value of `Cpu::last_move` at the start.
    pub(super) fn new(last_move: Option<u64>) -> Self {
        Self { last_move, left: 0 }
    }

    /// Returns true if flows may time out. Called with the value of `Cpu::last_move` after each
    /// batch, and with the number of packets in the batch.
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
        // Of the packets in this batch, the first came before the move was over.
        assert!(!settling.is_over(Some(1), PACKETS));
        assert!(!settling.is_over(Some(1), PACKETS - 1));
        assert!(settling.is_over(Some(1), 1));
        assert!(!settling.is_over(Some(2), PACKETS), "a move that was over before this CPU looked");
    }
}
