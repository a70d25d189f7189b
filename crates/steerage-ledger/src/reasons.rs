//! Why packets were lost, and why buckets moved.

use std::fmt;

/// Why a packet was lost. Each lost packet adds one to exactly one of these.
/// [`Drops`](crate::Drops) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// The packet was lost before it was received: by the kernel, in a device's ring that overflowed, or because the device placed
    /// the frame outside of its memory.
    Device,
    /// The packet's page could not be exchanged for another: too many packets are kept or in flight.
    NoPage,
    /// The backlog of the packet's CPU was full: the CPU cannot keep up.
    BacklogFull,
    /// The backlog of the packet's CPU was over half full, and the packet's flow had more than half of the latest arrivals: the
    /// flow limit.
    FlowLimit,
    /// The packet's bucket was moving, and the parking lot was full or the move took too long.
    Moving,
    /// The packet waited for a CPU that made no progress, and a move took its bucket away from that CPU.
    Revoked,
    /// The handler panicked before it was done with the packet.
    HandlerPanicked,
    /// The output had no room for the packet.
    TxFull,
    /// The output cannot send the packet: the packet is too long or of another link type, or the output failed.
    TxRefused,
    /// The output took the packet and did not send it: the output failed, or the run ended first.
    TxLost,
}

impl DropReason {
    /// All reasons, in the order of a packet's way.
    pub const ALL: [Self; 10] = [
        Self::Device,
        Self::NoPage,
        Self::BacklogFull,
        Self::FlowLimit,
        Self::Moving,
        Self::Revoked,
        Self::HandlerPanicked,
        Self::TxFull,
        Self::TxRefused,
        Self::TxLost,
    ];

    /// The name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::NoPage => "no_page",
            Self::BacklogFull => "backlog_full",
            Self::FlowLimit => "flow_limit",
            Self::Moving => "moving",
            Self::Revoked => "revoked",
            Self::HandlerPanicked => "handler_panicked",
            Self::TxFull => "tx_full",
            Self::TxRefused => "tx_refused",
            Self::TxLost => "tx_lost",
        }
    }
}

/// The [name](DropReason::name).
impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
