//! Why packets were lost.

use std::fmt;

/// Why a packet was lost. Each lost packet adds one to exactly one of these.
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
    /// The packet is longer than the output can send.
    TxTooLong,
    /// The packet's link type is not that of the output.
    TxLinkType,
    /// A capture has cut the packet, so the output cannot send all of it.
    TxCut,
    /// The output takes no packets like this one for another reason: it has failed, its interface is down, or the packet has a fault.
    TxRefused,
    /// The output took the packet and did not send it: the output failed, or the run ended first.
    TxLost,
}

impl DropReason {
    /// All reasons, in the order of a packet's way.
    pub const ALL: [Self; 13] = [
        Self::Device,
        Self::NoPage,
        Self::BacklogFull,
        Self::FlowLimit,
        Self::Moving,
        Self::Revoked,
        Self::HandlerPanicked,
        Self::TxFull,
        Self::TxTooLong,
        Self::TxLinkType,
        Self::TxCut,
        Self::TxRefused,
        Self::TxLost,
    ];

    /// The reasons for which an output does not send a packet.
    pub const OF_OUTPUTS: [Self; 6] =
        [Self::TxFull, Self::TxTooLong, Self::TxLinkType, Self::TxCut, Self::TxRefused, Self::TxLost];

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
            Self::TxTooLong => "tx_too_long",
            Self::TxLinkType => "tx_link_type",
            Self::TxCut => "tx_cut",
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
