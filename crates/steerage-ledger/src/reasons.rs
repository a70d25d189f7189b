use std::fmt;

/// Why a packet was lost. Each lost packet counts for exactly one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// The packet was lost before steerage received it: the kernel dropped it, the device's ring
    /// overflowed, or the device reported a frame outside of the device's memory.
    Device,
    /// No free page could replace the packet's page: too many packets were in flight or kept.
    NoPage,
    /// The backlog of the packet's CPU was full, because the CPU could not keep up.
    BacklogFull,
    /// The flow limit dropped the packet: the CPU's backlog was more than half full, and more than
    /// half of the latest packets belonged to the packet's flow.
    FlowLimit,
    /// The packet's bucket was moving, and the parking lot was full or the move took too long.
    Moving,
    /// The packet's CPU made no progress, and the bucket was moved away from that CPU.
    Revoked,
    /// The handler panicked before it had finished the packet.
    HandlerPanicked,
    /// The output had no room for the packet.
    TxFull,
    /// The packet is too long for the output.
    TxTooLong,
    /// The packet's link type differs from the link type of the output.
    TxLinkType,
    /// A capture has truncated the packet.
    TxCut,
    /// The output has failed, its interface is down, or the packet is invalid.
    TxRefused,
    /// The output accepted the packet, but then failed, or did not have enough time to send the
    /// packet.
    TxLost,
}

impl DropReason {
    /// All reasons, in the order of the stages through which a packet passes.
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

    /// The reasons why an output does not send a packet.
    pub const OF_OUTPUTS: [Self; 6] =
        [Self::TxFull, Self::TxTooLong, Self::TxLinkType, Self::TxCut, Self::TxRefused, Self::TxLost];

    /// Returns the name that reports and metrics use for the reason.
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

/// Prints the [name](DropReason::name).
impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
