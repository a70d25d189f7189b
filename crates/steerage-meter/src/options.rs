//! The options of a meter.

use std::time::Duration;

use steerage::WallTime;
use steerage::flow::Layers;

/// The default active timeout. If a flow lasts longer than the active timeout, it gets another
/// record. nfpcapd has the same default.
pub const ACTIVE_DEFAULT: Duration = Duration::from_secs(300);

/// The default inactive timeout. The inactive timeout is the longest pause between two packets of a
/// flow. nfpcapd has the same default.
pub const INACTIVE_DEFAULT: Duration = Duration::from_secs(60);

/// The default limit for the number of flows. A full table takes 270 MB.
pub const FLOWS_DEFAULT: usize = 1 << 20;

/// The highest limit that a user can set for the number of flows. With this many flows, the flow
/// tables take 4 GB, and 32-bit hashes still distinguish the flows.
pub const FLOWS_MAX: usize = 1 << 24;

/// The options of a meter.
#[derive(Clone, Copy, Debug)]
pub struct MeterOptions {
    /// The active timeout: the time after which the record of a flow ends and the flow gets another
    /// record.
    pub active: Duration,
    /// If true, records are cut by the clock: at the multiples of the active timeout since 1970
    /// (UTC). If false, a record is cut when the active timeout has passed since the record's first
    /// packet.
    pub active_by_clock: bool,
    /// The inactive timeout: the longest pause between two packets of a flow.
    pub inactive: Duration,
    /// The maximum number of flows at the same time, on all CPUs together.
    pub flows_max: usize,
    /// The number of records in the report. The report contains the records with the most bytes.
    pub top: usize,
    /// Determines whether the outer or the inner headers of a packet in a tunnel define its flow.
    /// Steering must use the same layers as the meter.
    pub layers: Layers,
    /// The wall time at which the clock of the receive path began. The start time of the clock is
    /// needed for packets that have no timestamp from their device.
    pub epoch: WallTime,
    /// True if the packet source can wait. If the packet source cannot wait, flows also time out
    /// while no packets arrive.
    pub can_wait: bool,
    /// The sampling rate: of every `sample` flows, one flow is metered, with all of its packets.
    /// The value 1 means all flows. The selection of flows is random, and the same on all CPUs.
    pub sample: u32,
    /// If true, the meter searches DNS, TLS and HTTP packets for names.
    pub names: bool,
    /// If true, the meter collects the flow statistics of CICFlowMeter
    /// ([`ColumnBatch::cic`](super::ColumnBatch::cic)). These statistics take up to 900 more bytes
    /// for each flow.
    pub cic: bool,
}

impl Default for MeterOptions {
    fn default() -> Self {
        Self {
            active: ACTIVE_DEFAULT,
            active_by_clock: false,
            inactive: INACTIVE_DEFAULT,
            flows_max: FLOWS_DEFAULT,
            top: 10,
            layers: Layers::Inner,
            epoch: WallTime::from_nanos(0),
            can_wait: true,
            sample: 1,
            names: false,
            cic: false,
        }
    }
}
